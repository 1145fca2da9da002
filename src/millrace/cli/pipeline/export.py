"""`millrace pipeline export`."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from millrace.cli.output import ProgressBar
from millrace.cli.pipeline.days import Days
from millrace.cli.tables import print_json
from millrace.extras import is_installed, missing_package
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import open_lake
from millrace.pipeline.outfile import STANDARD

if TYPE_CHECKING:
    from millrace.pipeline.export import Listed


def export(
    folder: Path, table: str | None, form: str, out: str, days: Days, *, only_list: bool, json: bool
) -> int:
    """Return the exit code: 0 if the file or the list was written."""
    if not is_installed("pyarrow"):
        raise PipelineError(missing_package("pyarrow"))
    from millrace.pipeline import export as exporter  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.snapshot import Snapshot, named  # noqa: PLC0415

    snapshot = Snapshot(open_lake(folder).root)
    if only_list:
        return _list(exporter.listed(snapshot), json=json)
    if table is None:
        raise PipelineError("Name a table. `--list` lists the tables.")
    if json and out == STANDARD:
        raise PipelineError("Use `--json` with --list or --out FILE; else `--format json`.")
    chosen = named(table)
    first, last = days.first, days.last
    if days.latest is not None:
        latest = snapshot.days(chosen)[-days.latest :]
        first = latest[0] if latest else None
    with ProgressBar("writing") as bar:
        done = exporter.export(
            snapshot, chosen, form, out, first, last, progress=lambda _, n, total: bar(n, total)
        )
    if json:
        print_json({"file": out, "table": done.table, "rows": done.rows})
    elif out != STANDARD:
        rows = "row" if done.rows == 1 else "rows"
        typer.echo(f"{out}  {done.rows:,} {rows} of {done.table}")
    return 0


def _list(tables: "list[Listed]", *, json: bool) -> int:
    if json:
        print_json(
            [
                {
                    "table": table.name,
                    "rows": extent.rows,
                    "bytes": extent.bytes,
                    "first": str(extent.first) if extent.first else None,
                    "last": str(extent.last) if extent.last else None,
                }
                for table, extent in tables
            ]
        )
        return 0
    typer.echo(f"{'table':18} {'rows':>14} {'MiB':>9} {'days':>5}  from and to")
    for table, extent in tables:
        days = f"{extent.days:,}" if table.partition == "day" else ""
        of = f"{extent.first} {extent.last}" if extent.first else ""
        size = extent.bytes / (1 << 20)
        line = f"{table.name:18} {extent.rows:14,} {size:9,.1f} {days:>5}  {of}"
        typer.echo(line.rstrip())
    return 0
