"""`millrace pipeline run`."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import tables_session
from millrace.cli.ship import NotShipped, shipped
from millrace.config import Config
from millrace.journal.status import has_store
from millrace.pipeline.lake import Lake, open_lake
from millrace.pipeline.quality import Check
from millrace.pipeline.run import Outstanding, Ran
from millrace.pipeline.run import run as run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTED = "Interrupted. Nothing was lost or duplicated; the next run resumes here."


def run(config: Config, *, ship: bool = True, fail: bool = True) -> int:
    """Return the exit code: 1 if a quality check failed."""
    if ship and has_store(config.server.data):
        _ship(config)
        lake = Lake(config.lake_path)  # a new server may have shipped nothing yet
    else:
        lake = open_lake(config.lake_path)
    try:
        with ExitStack() as stack:
            steps = stack.enter_context(StepProgress())

            def session(todo: Outstanding) -> "SparkSession":
                steps("start Spark", 0, 0)
                return stack.enter_context(tables_session(config, events=todo.events))

            ran = run_pipeline(lake, session, steps)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    typer.echo(_summary(ran, lake))
    print_checks(ran.checks)
    return 1 if ran.failed and fail else 0


def _ship(config: Config) -> None:
    """Ship pending events. If this fails, the run continues with the events in the lake."""
    try:
        journal = shipped(config)
    except NotShipped as error:
        typer.echo(f"Warning: {error}", err=True)
        return
    if Path(journal.lake).resolve() != config.lake_path.resolve():
        typer.echo(
            f"Warning: the server on {config.server.data} ships to {journal.lake}, not to "
            f"{config.lake_path}.",
            err=True,
        )


def print_checks(checks: list[Check]) -> None:
    """Print the findings with their severity."""
    for check in checks:
        for sentence in check.found:
            typer.echo(f"{check.severity}: {sentence}", err=True)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _summary(ran: Ran, lake: Lake) -> str:
    if ran.taken is None:
        return f"No new events in {lake.landing}."
    taken = ran.taken
    aside = f", {plural(taken.quarantined, 'row')} in quarantine" if taken.quarantined else ""
    return (
        f"Ingested {plural(taken.events, 'event')} of {plural(len(taken.days), 'day')}{aside} "
        f"and refreshed the tables in {ran.seconds:.1f} s.\n"
        "Next: `millrace pipeline report` shows them, `millrace pipeline audit` verifies them."
    )
