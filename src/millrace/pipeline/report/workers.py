"""Workers: the number of jobs that they held over time, and the outcomes."""

from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import KIND_HOUR, WORKER_HOUR

from .model import Mix, Workers, WorkerSummary
from .time_axis import HOUR, Axis, axis

#: Maximum number of workers listed individually.
ROWS: Final = 30
_KEY: Final = ("server", "worker", "holder")
_COUNTS: Final = ("busy_us", "attempts", "completed", "failures")
_MIX: Final = ("events", "pushed", "started", "completed", "failures", "died")
_MAX_ROWS: Final = 10_000_000


def workers(snapshot: Snapshot, first: date, last: date) -> Workers:
    """Return the workers by the total time that they held jobs, longest first."""
    columns = [*_KEY, "hour", *_COUNTS]
    rows = snapshot.read(WORKER_HOUR, first, last, columns=columns, limit=_MAX_ROWS)
    steps = axis(rows["hour"], narrowest=HOUR)
    rows = rows.append_column("step", steps.step_of(rows["hour"]))
    sums = [(name, "sum") for name in _COUNTS]
    totals = rows.group_by(list(_KEY)).aggregate([*sums, ("hour", "count_distinct")])
    order = [("busy_us_sum", "descending"), *((name, "ascending") for name in _KEY)]
    shown = totals.sort_by(order).slice(0, ROWS).to_pylist()
    return Workers(
        step=steps.width,
        at=steps.at,
        held=_held(rows, steps),
        rows=[_worker(total, rows, steps) for total in shown],
        more=max(0, totals.num_rows - ROWS),
    )


def count(snapshot: Snapshot, first: date, last: date) -> int:
    """Count the workers that have a name in their protocol."""
    rows = snapshot.read(WORKER_HOUR, first, last, columns=list(_KEY), limit=_MAX_ROWS)
    named = rows.filter(pc.field("worker") != "")
    return int(named.group_by(list(_KEY)).aggregate([]).num_rows)


def protocols(snapshot: Snapshot, first: date, last: date) -> list[Mix]:
    """Return counts by the protocol that pushed the jobs and the protocol that acted on them."""
    columns = ["origin", "actor", *_MIX]
    rows = snapshot.read(KIND_HOUR, first, last, columns=columns, limit=_MAX_ROWS)
    added = rows.group_by(["origin", "actor"]).aggregate([(name, "sum") for name in _MIX])
    found = sorted(added.to_pylist(), key=lambda row: (row["origin"], row["actor"] or ""))
    return [
        Mix(
            origin=row["origin"],
            actor=row["actor"],
            events=row["events_sum"],
            pushed=row["pushed_sum"],
            started=row["started_sum"],
            completed=row["completed_sum"],
            failures=row["failures_sum"],
            died=row["died_sum"],
        )
        for row in found
    ]


def _worker(total: dict[str, Any], rows: pa.Table, steps: Axis) -> WorkerSummary:
    own = rows
    for name in _KEY:
        own = own.filter(_is(name, total[name]))
    busy = total["busy_us_sum"] / 1e6
    return WorkerSummary(
        server=total["server"],
        worker=total["worker"],
        protocol=total["holder"] or "",
        attempts=total["attempts_sum"],
        completed=total["completed_sum"],
        failures=total["failures_sum"],
        busy=busy,
        utilisation=busy / (HOUR * total["hour_count_distinct"]),
        held=_held(own, steps),
    )


def _is(name: str, value: str | None) -> Any:
    return pc.field(name).is_null() if value is None else pc.field(name) == value


def _held(rows: pa.Table, steps: Axis) -> list[float]:
    added = rows.group_by("step").aggregate([("busy_us", "sum")])
    line = [0.0] * steps.count
    for row in added.to_pylist():
        line[row["step"]] = row["busy_us_sum"] / 1e6 / steps.width
    return line
