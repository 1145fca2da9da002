"""`millrace pipeline refresh`."""

from datetime import date

import typer

from millrace.cli.pipeline.days import Days
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.run import INTERRUPTED, plural
from millrace.cli.pipeline.session import tables_session
from millrace.config import Config
from millrace.pipeline.lake import open_lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.refreshed import mark


def refresh(config: Config, days: Days | None = None) -> int:
    lake = open_lake(config.lake_path)
    ledger = Ledger(lake)
    batches = ledger.batches(after=mark(lake).batch if days is None else 0)
    if not batches or not ledger.days():
        typer.echo("All tables are up to date." if ledger.last else "No events yet.")
        return 0
    try:
        with StepProgress() as steps:
            steps("start Spark", 0, 0)
            with tables_session(config, events=sum(batch.rows for batch in batches)) as spark:
                from millrace.pipeline.refresh import refresh as act  # noqa: PLC0415 - needs Spark

                chosen = None if days is None else _bounds(days, ledger.days())
                done = act(spark, lake, steps, chosen)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    typer.echo(
        f"Refreshed {plural(len(done.days), 'table')}, "
        f"{plural(sum(done.days.values()), 'day')} in all, in {done.seconds:.1f} s."
        if done.days
        else "No events in these days."
    )
    return 0


def _bounds(days: Days, known: list[date]) -> tuple[date, date]:
    """The first and the last day of the selection."""
    if days.latest is not None:
        return known[-days.latest :][0], date.max
    return days.first or date.min, days.last or date.max
