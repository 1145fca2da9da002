"""`millrace pipeline state`."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from re import compile as regex
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from millrace.cli.control import shown
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import tables_session
from millrace.config import Config
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import open_lake
from millrace.pipeline.ledger import Ledger

if TYPE_CHECKING:
    from millrace.pipeline.state import Depth, Job

STATES: Final = ("ready", "scheduled", "blocked", "leased", "done", "dead")
_AGO: Final = regex(r"-(\d+(?:\.\d+)?)([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Selection(NamedTuple):
    """The rows to print, and the form."""

    jobs: bool = False
    queue: str = ""
    state: str = ""
    limit: int = 20
    json: bool = False
    to: Path | None = None


def parse_time(text: str, now: datetime) -> datetime:
    """Parse `now`, an age (`-2h`), or ISO 8601 with UTC as the default zone."""
    if text == "now":
        return now
    if ago := _AGO.fullmatch(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"Invalid time {text!r}. Use 2026-11-16T12:30:00, -2h (s, m, h, d, w) or now."
        ) from None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def show_state(config: Config, at: str, wanted: Selection) -> int:
    if wanted.state and wanted.state not in STATES:
        raise PipelineError(f"Unknown state {wanted.state!r}. States: {', '.join(STATES)}.")
    when, lake = parse_time(at, datetime.now(UTC)), open_lake(config.lake_path)
    events = sum(batch.rows for batch in Ledger(lake).batches())
    if not events:
        raise PipelineError(
            f"No events in {lake.root} yet. Ingest them with `millrace pipeline run`."
        )
    from millrace.pipeline.state import State, Which  # noqa: PLC0415 - loads Spark

    with StepProgress(quiet=wanted.json) as steps:
        steps("start Spark", 0, 0)
        with tables_session(config, events=events) as spark:
            steps("replay the events", 0, 0)
            found = State(spark, lake, when, Which(wanted.queue, wanted.state))
            depths = found.depths()
            jobs = found.jobs(wanted.limit) if wanted.jobs else []
            if wanted.to is not None:
                found.write(wanted.to)
    if wanted.json:
        document = {"at": when, "queues": depths} | ({"jobs": jobs} if wanted.jobs else {})
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        return 0
    console = Console(markup=False, highlight=False)
    console.print(f"{when:%Y-%m-%d %H:%M:%S} UTC")
    console.print(_depths(depths))
    if wanted.jobs:
        console.print()
        console.print(_jobs(jobs))
        total = sum(getattr(depth, name) for depth in depths for name in STATES)
        if total > len(jobs):
            console.print(
                f"{total - len(jobs):,} more jobs. Use --limit, or write all to a file with --to."
            )
    return 0


def _depths(depths: "list[Depth]") -> Table:
    servers = len({depth.server for depth in depths}) > 1
    table = Table(*(["server"] if servers else []), "queue", box=None, pad_edge=False)
    for name in STATES:
        table.add_column(name, justify="right")
    for depth in depths:
        counts = (f"{getattr(depth, name):,}" for name in STATES)
        table.add_row(*([depth.server] if servers else []), shown(depth.queue), *counts)
    return table


def _jobs(jobs: "list[Job]") -> Table:
    table = Table(
        "job", "id", "queue", "kind", "state", "since", "worker", box=None, pad_edge=False
    )
    for job in jobs:
        cells = (str(job.seq), job.jid, job.queue, job.kind, job.state)
        table.add_row(*map(shown, cells), f"{job.since:%Y-%m-%d %H:%M:%S}", shown(job.worker or ""))
    return table
