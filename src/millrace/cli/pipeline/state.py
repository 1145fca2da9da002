"""`millrace pipeline state`."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from re import compile as regex
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from rich.table import Table

from millrace.cli.options import lake_root
from millrace.cli.pipeline.answers import console, table
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.pipeline.session import tables_session
from millrace.config import Config
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import open_lake

if TYPE_CHECKING:
    from millrace.pipeline.job_states import Depth, JobState

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
    when, lake = parse_time(at, datetime.now(UTC)), open_lake(lake_root(config))
    from millrace.pipeline.backlog import outstanding  # noqa: PLC0415 - loads Arrow

    events = sum(outstanding(lake.root).position.values())
    from millrace.pipeline.job_states import State, Which  # noqa: PLC0415 - loads Spark

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
    out = console()
    out.print(f"{when:%Y-%m-%d %H:%M:%S} UTC")
    out.print(_depths(depths))
    if wanted.jobs:
        out.print()
        out.print(_jobs(jobs))
        total = sum(getattr(depth, name) for depth in depths for name in STATES)
        if total > len(jobs):
            out.print(
                f"{total - len(jobs):,} more jobs. Use --limit, or write all to a file with --to."
            )
    return 0


def _depths(depths: "list[Depth]") -> Table:
    servers = len({depth.server for depth in depths}) > 1
    rows = []
    for depth in depths:
        counts = (f"{getattr(depth, name):,}" for name in STATES)
        rows.append([*([depth.server] if servers else []), depth.queue, *counts])
    return table(", ".join([*["server"] * servers, "queue", *STATES]), rows, 1 + servers)


def _jobs(jobs: "list[JobState]") -> Table:
    rows = [
        (str(job.seq), job.jid, job.queue, job.kind, job.state, _since(job), job.worker or "")
        for job in jobs
    ]
    return table("job, id, queue, kind, state, since, worker", rows, 7)


def _since(job: "JobState") -> str:
    return f"{job.since:%Y-%m-%d %H:%M:%S}"
