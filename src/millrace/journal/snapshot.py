"""The state of a server after one event: its jobs and its statistics. The audit compares this state
with the content of the lake.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.engine.job import Job
from millrace.engine.states import STATE_NAMES
from millrace.engine.statistics import HISTOGRAM_BUCKETS, QueueDay
from millrace.records import QueueStatistics
from millrace.store.folders import read_snapshot
from millrace.store.store import Progress

if TYPE_CHECKING:
    import pyarrow as pa

#: A queue with its jobs by state, as the engine counts them.
Queue = tuple[str, list[int]]
_SPREADS: Final = ("wait", "run")


class StateSnapshot(NamedTuple):
    #: The last event in the snapshot; 0 if there is none yet.
    event: int
    #: `seq`, `jid`, `queue` and `state` of every job.
    jobs: "pa.Table"
    #: The statistics in the form of `days_table`.
    days: "pa.Table"
    #: The first day with complete statistics, in days since 1970.
    since: int


def snapshot(folder: Path, progress: Progress | None = None) -> StateSnapshot:
    """Read the state between two commits, with or without a running server."""
    found = read_snapshot(folder, progress)
    event = found.next_event - 1
    statistics = found.statistics
    days = days_table(statistics.days.values(), event)
    return StateSnapshot(
        event, _jobs_table(found.jobs.values()), days, statistics.first_retained_day(0)
    )


def _jobs_table(jobs: Iterable[Job]) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - see journal.schema

    listed = list(jobs)
    return pa.table(
        {
            "seq": pa.array([job.seq for job in listed], pa.int64()),
            "jid": pa.array([job.jid for job in listed], pa.string()),
            "queue": pa.array([job.queue for job in listed], pa.string()),
            "state": pa.array([STATE_NAMES[job.state] for job in listed], pa.string()),
        }
    )


def queues_table(queues: Iterable[Queue], event: int) -> "pa.Table":
    """Return the number of jobs per queue and state, after an event."""
    import pyarrow as pa  # noqa: PLC0415

    listed = list(queues)
    columns = {
        "queue": pa.array([name for name, _ in listed], pa.string()),
        "event": pa.array([event] * len(listed), pa.int64()),
    }
    for number, state in enumerate(STATE_NAMES[:6]):
        columns[state] = pa.array([counts[number] for _, counts in listed], pa.int64())
    return pa.table(columns)


def days_table(days: Iterable[QueueDay | QueueStatistics], event: int) -> "pa.Table":
    """Return the statistics after an event, with the columns of queue_day; days are numbers."""
    import pyarrow as pa  # noqa: PLC0415

    listed = list(days)
    columns = {
        "queue": pa.array([each.queue for each in listed], pa.string()),
        "day": pa.array([each.day for each in listed], pa.int64()),
        "event": pa.array([event] * len(listed), pa.int64()),
        "failures": pa.array([each.failures for each in listed], pa.int64()),
        "failed": pa.array([each.failed for each in listed], pa.int64()),
        "retries": pa.array([each.retries for each in listed], pa.int64()),
    }
    for name in _SPREADS:
        spreads = [getattr(each, name) for each in listed]
        columns[f"{name}_n"] = pa.array([spread.count for spread in spreads], pa.int64())
        columns[f"{name}_mean"] = pa.array([spread.mean for spread in spreads], pa.float64())
        columns[f"{name}_var"] = pa.array([spread.variance for spread in spreads], pa.float64())
        slots = [
            [spread.histogram.get(slot, 0) for slot in range(HISTOGRAM_BUCKETS)]
            for spread in spreads
        ]
        columns[f"{name}_hist"] = pa.array(slots, pa.list_(pa.int64()))
    return pa.table(columns)
