"""`millrace pipeline run`."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from millrace.cli.pipeline.progress import Steps
from millrace.cli.pipeline.starting import started
from millrace.cli.ship import NotShipped, shipped
from millrace.config import Config
from millrace.journal.status import has_store
from millrace.pipeline.lake import Lake
from millrace.pipeline.quality import Check
from millrace.pipeline.run import Outstanding, Ran
from millrace.pipeline.run import run as run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTED = "Interrupted. Nothing is lost or doubled: the next run goes on from here."


def run(config: Config, *, ship: bool = True, fail: bool = True) -> int:
    """The exit code: 1 if a check failed that must hold."""
    lake = Lake(config.lake_path)
    if ship and has_store(config.server.data):
        _ship(config)
    try:
        with ExitStack() as stack:
            steps = stack.enter_context(Steps())

            def session(todo: Outstanding) -> "SparkSession":
                steps("start Spark", 0, 0)
                return stack.enter_context(started(config, events=todo.events))

            ran = run_pipeline(lake, session, steps)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    typer.echo(_summary(ran, lake))
    complain(ran.checks)
    return 1 if ran.failed and fail else 0


def _ship(config: Config) -> None:
    """Bring to the lake what is not there yet; what is there is worth a run also without it."""
    try:
        journal = shipped(config)
    except NotShipped as error:
        typer.echo(f"warn: {error}", err=True)
        return
    if Path(journal.lake).resolve() != config.lake_path.resolve():
        typer.echo(
            f"warn: the server on {config.server.data} ships to {journal.lake}, and not to "
            f"{config.lake_path}.",
            err=True,
        )


def complain(checks: list[Check]) -> None:
    """Tell what was found, and how bad it is."""
    for check in checks:
        for sentence in check.found:
            typer.echo(f"{check.severity}: {sentence}", err=True)


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _summary(ran: Ran, lake: Lake) -> str:
    if ran.taken is None:
        return f"Nothing new in {lake.landing}."
    taken = ran.taken
    aside = f", {counted(taken.quarantined, 'row')} in quarantine" if taken.quarantined else ""
    return (
        f"Took in {counted(taken.events, 'event')} of {counted(len(taken.days), 'day')}{aside}, "
        f"and refreshed the tables in {ran.seconds:.1f} s.\n"
        "Next: `millrace pipeline report` draws them, `millrace pipeline audit` checks the history."
    )
