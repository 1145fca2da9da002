"""`millrace pipeline convert`."""

import typer

from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.refresh import plural
from millrace.cli.tables import print_json
from millrace.config import Config
from millrace.extras import is_installed, missing_package
from millrace.journal.location import is_remote, parse_location
from millrace.journal.old_lake import unconverted
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake, open_lake


def convert(config: Config, *, json: bool = False) -> int:
    for package in ("deltalake", "pyarrow"):
        if not is_installed(package):
            raise PipelineError(missing_package(package))
    from millrace.pipeline.convert import OLD  # noqa: PLC0415 - loads deltalake and pyarrow
    from millrace.pipeline.convert import convert as act  # noqa: PLC0415

    if is_remote(parse_location(config.lake_uri)):
        raise PipelineError("Only a lake in a folder can be of an earlier version.")
    lake = Lake(config.lake_path)
    if not unconverted(lake.root):
        open_lake(lake.root)
    try:
        with StepProgress() as steps:
            found = act(lake.root, steps)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Run the command again to continue.", err=True)
        return 130
    if json:
        old = lake.root / OLD
        print_json(
            {
                "events": found.events,
                "refused": found.refused,
                "unreadable": list(found.unreadable),
                "old_files": str(old) if old.is_dir() else None,
            }
        )
        return 0
    if not found.events and not (lake.root / OLD).is_dir():
        typer.echo(f"The lake {lake.root} needs no conversion.")
        return 0
    typer.echo(
        f"Converted {plural(found.events, 'event')}. The old files are in {lake.root / OLD}."
    )
    if found.refused:
        typer.echo(f"{plural(found.refused, 'row')} are not valid events and stay there.")
    for name in found.unreadable:
        typer.echo(f"{name} cannot be read and stays there.", err=True)
    typer.echo("The next `millrace pipeline run` computes all tables.")
    return 0
