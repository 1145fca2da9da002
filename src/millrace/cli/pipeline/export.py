"""`millrace pipeline export`."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from millrace.cli.output import ProgressBar
from millrace.cli.pipeline.days import Days
from millrace.extras import is_installed, missing_package
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import open_lake
from millrace.pipeline.outfile import STANDARD

if TYPE_CHECKING:
    from millrace.pipeline.export import Listed


def export(
    folder: Path, table: str | None, form: str, out: str, days: Days, *, only_list: bool
) -> int:
    """Return the exit code: 0 if the file or the list was written."""
    if not is_installed("pyarrow"):
        raise PipelineError(missing_package("pyarrow"))
    from millrace.pipeline import export as exporting  # noqa: PLC0415 - loads Arrow

    lake = open_lake(folder)
    if only_list:
        return _list(exporting.listed(lake))
    if table is None:
        raise PipelineError("say which table; `--list` names them")
    from millrace.pipeline import reading  # noqa: PLC0415 - as above

    chosen = exporting.named(table)
    first, last = days.first, days.last
    if days.latest is not None:
        there = reading.days(lake, chosen)[-days.latest :]
        first = there[0] if there else None
    with ProgressBar("writing") as bar:
        done = exporting.export(
            lake, chosen, form, out, first, last, progress=lambda _, n, total: bar(n, total)
        )
    if out != STANDARD:
        rows = "row" if done.rows == 1 else "rows"
        typer.echo(f"{out}  {done.rows:,} {rows} of {done.table}")
    return 0


def _list(tables: "list[Listed]") -> int:
    typer.echo(f"{'table':18} {'rows':>14} {'MiB':>9} {'days':>5}  from and to")
    for table, extent in tables:
        days = f"{extent.days:,}" if table.day else ""
        of = f"{extent.first} {extent.last}" if extent.first else ""
        size = extent.bytes / (1 << 20)
        line = f"{table.name:18} {extent.rows:14,} {size:9,.1f} {days:>5}  {of}"
        typer.echo(line.rstrip())
    return 0
