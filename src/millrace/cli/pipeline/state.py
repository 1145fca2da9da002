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
from millrace.cli.pipeline.progress import Steps
from millrace.cli.pipeline.starting import started
from millrace.config import Config
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger

if TYPE_CHECKING:
    from millrace.pipeline.state import Depth, Job

STATES: Final = ("ready", "scheduled", "blocked", "leased", "done", "dead")
_AGO: Final = regex(r"-(\d+(?:\.\d+)?)([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Wanted(NamedTuple):
    """What is to be told, and how."""

    jobs: bool = False
    queue: str = ""
    state: str = ""
    limit: int = 20
    json: bool = False
    to: Path | None = None


def moment(text: str, now: datetime) -> datetime:
    """`now`, so long ago (`-2h`), or ISO 8601, where UTC is meant if nothing else is said."""
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
            f"{text!r} is no moment: give it as 2026-11-16T12:30:00, -2h (s, m, h, d, w) or now"
        ) from None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def tell_state(config: Config, at: str, wanted: Wanted) -> int:
    if wanted.state and wanted.state not in STATES:
        raise PipelineError(f"{wanted.state!r} is no state: {', '.join(STATES)}")
    when, lake = moment(at, datetime.now(UTC)), Lake(config.lake_path)
    events = sum(batch.rows for batch in Ledger(lake).batches())
    if not events:
        raise PipelineError(
            f"there are no events in {lake.root} yet: `millrace pipeline run` takes them in"
        )
    from millrace.pipeline.state import State, Which  # noqa: PLC0415 - it loads Spark

    with Steps(quiet=wanted.json) as steps:
        steps("start Spark", 0, 0)
        with started(config, events=events) as spark:
            steps("fold the events", 0, 0)
            found = State(spark, lake, when, Which(wanted.queue, wanted.state))
            depths = found.depths()
            jobs = found.jobs(wanted.limit) if wanted.jobs else []
            if wanted.to is not None:
                found.write(wanted.to)
    if wanted.json:
        told = {"at": when, "queues": depths} | ({"jobs": jobs} if wanted.jobs else {})
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return 0
    console = Console(markup=False, highlight=False)
    console.print(f"{when:%Y-%m-%d %H:%M:%S} UTC")
    console.print(_depths(depths))
    if wanted.jobs:
        console.print()
        console.print(_jobs(jobs))
        total = sum(getattr(depth, name) for depth in depths for name in STATES)
        if total > len(jobs):
            console.print(f"{total - len(jobs):,} more: --limit, or --to a file, tells of them")
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
