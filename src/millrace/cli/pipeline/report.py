"""`millrace pipeline report`."""

from pathlib import Path

import msgspec
import typer

from millrace.cli.output import ProgressBar
from millrace.cli.pipeline.days import Days
from millrace.extras import is_installed, missing_package
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import open_lake
from millrace.pipeline.outfile import STANDARD, output_file

PAGE = "millrace-report.html"


def report(folder: Path, days: Days, queue: str | None, out: str | None, *, json: bool) -> int:
    """Return the exit code: 0 if the report was written."""
    for package in ("pyarrow",) if json else ("pyarrow", "plotly"):
        if not is_installed(package):
            raise PipelineError(missing_package(package))
    from millrace.pipeline.report import build  # noqa: PLC0415 - loads Arrow
    from millrace.pipeline.snapshot import Snapshot  # noqa: PLC0415

    snapshot = Snapshot(open_lake(folder).root)
    first, last = build.chosen_days(snapshot, days.latest, days.first, days.last)
    with ProgressBar("reading") as bar:
        made = build.build(
            snapshot, first, last, queue, progress=lambda _, done, total: bar(done, total)
        )
    if json:
        text = msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"
    else:
        from millrace.pipeline.report import page  # noqa: PLC0415 - as above

        text = page.render(made)
    out = out or (STANDARD if json else PAGE)
    with output_file(out) as file:
        file.write(text.encode())
    if out != STANDARD:
        size = len(text.encode()) / (1 << 20)
        empty = ", no events in these days" if made.empty else ""
        typer.echo(f"{out}  {first} to {last}, {size:.1f} MiB{empty}")
    return 0
