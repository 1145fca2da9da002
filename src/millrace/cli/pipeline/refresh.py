"""The work of `millrace pipeline run` if there is any: shipping, and a refresh with Spark."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.run import no_events
from millrace.cli.pipeline.session import QUICK_LIMIT, resident_request, tables_session
from millrace.cli.ship import NotShipped, shipped
from millrace.cli.tables import print_json
from millrace.config import Config
from millrace.pipeline.lake import Lake
from millrace.pipeline.remote import local_root
from millrace.pipeline.resident import NotResident, ensure, request, socket_path
from millrace.store.folders import has_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.pipeline.backlog import Outstanding
    from millrace.pipeline.checks import Check
    from millrace.pipeline.run import RunResult

INTERRUPTED = "Interrupted. Nothing was lost or duplicated; the next run resumes here."


def refresh(
    config: Config, lake: Lake, events: int, *, parent: int = 0, fail: bool, json: bool = False
) -> int:
    """Refresh and check the tables. Return the exit code: 1 if a quality check failed. `parent` is
    the server that the resident Spark process belongs to.
    """
    try:
        with StepProgress() as steps:
            try:
                result = _resident(config, lake, events, parent, steps)
            except NotResident:
                result = _alone(config, lake, steps)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    if json:
        print_json(_record(result))
    else:
        typer.echo(_summary(result, lake))
        print_checks(result.checks)
    return 1 if result.failed and fail else 0


def _resident(
    config: Config, lake: Lake, events: int, parent: int, steps: StepProgress
) -> "RunResult":
    """Refresh in the resident Spark process. Its Java compiles for small runs only."""
    if events >= QUICK_LIMIT:
        raise NotResident
    path = socket_path(config.server.data)
    asked = resident_request(config, "run", lake.root)
    if parent:
        ensure(path, asked.memory, asked.master, parent)
    found = request(path, asked, steps)
    from millrace.pipeline.run import RunResult  # noqa: PLC0415 - loads Arrow

    return msgspec.convert(found, RunResult)


def _alone(config: Config, lake: Lake, steps: StepProgress) -> "RunResult":
    """Refresh in a session of this process."""
    from millrace.pipeline.run import run as run_pipeline  # noqa: PLC0415 - loads Arrow

    with ExitStack() as stack:

        def session(todo: "Outstanding") -> "SparkSession":
            steps("start Spark", 0, 0)
            return stack.enter_context(tables_session(config, events=todo.events))

        return run_pipeline(lake, session, steps)


def ship_pending(config: Config) -> bool:
    """Ship the events of a data folder. If this fails, the run continues with the events in the
    lake. Return whether there is a data folder with events.
    """
    if not has_store(config.server.data):
        return False
    _ship(config)
    return True


def _ship(config: Config) -> None:
    try:
        journal = shipped(config)
    except NotShipped as error:
        typer.echo(f"Warning: {error}", err=True)
        return
    if local_root(journal.lake).resolve() != local_root(config.lake_uri).resolve():
        typer.echo(
            f"Warning: the server on {config.server.data} ships to {journal.lake}, not to "
            f"{config.lake_uri}.",
            err=True,
        )


def print_checks(checks: "list[Check]") -> None:
    """Print the findings with their severity."""
    for check in checks:
        for sentence in check.found:
            typer.echo(f"{check.severity}: {sentence}", err=True)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _record(result: "RunResult") -> dict[str, Any]:
    return {
        "run": None if result.run is None else result.run.run,
        "events": 0 if result.run is None else result.run.events,
        "seconds": result.seconds,
        "failed": bool(result.failed),
        "findings": [
            {"severity": check.severity, "text": sentence}
            for check in result.checks
            for sentence in check.found
        ],
    }


def _summary(result: "RunResult", lake: Lake) -> str:
    if result.run is None:
        return no_events(lake)
    return (
        f"Run {result.run.run:,}: refreshed the tables with {plural(result.run.events, 'event')} "
        f"in {result.seconds:.1f} s.\n"
        "Next: `millrace pipeline report` shows them, `millrace pipeline audit` verifies them."
    )
