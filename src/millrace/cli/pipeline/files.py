"""`millrace pipeline files`."""

from pathlib import Path

import typer

from millrace.cli.tables import print_json
from millrace.extras import is_installed, missing_package
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import open_lake
from millrace.pipeline.remote import shown


def print_files(folder: Path, table: str, *, json: bool = False) -> int:
    if not is_installed("pyarrow"):
        raise PipelineError(missing_package("pyarrow"))
    from millrace.pipeline.snapshot import Snapshot, named  # noqa: PLC0415 - loads Arrow

    root = open_lake(folder).root
    files = Snapshot(root).files(named(table))
    names = [f"{shown(root)}/{file.path.relative_to(root)}" for file in files]
    if json:
        print_json(names)
        return 0
    for name in names:
        typer.echo(name)
    return 0
