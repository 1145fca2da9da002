"""Wait and run times: in total, by queue, day and kind, and over time.

All but the values over time are computed from latency_day. The values over time are computed from
`attempts` if the number of attempts is small enough, so that a report of one day shows its minutes.
Otherwise, they are per day.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import date
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline.buckets import middle
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import ATTEMPTS, LATENCY_DAY

from .model import Heat, Kind, Kinds, Latency, Moments
from .percentiles import NONE, Spans, added, in_buckets, spread
from .time_axis import DAY, NOTHING, Axis, axis

WAIT: Final = "wait"
RUN: Final = "run"
#: Maximum number of attempts that are read individually.
FINE: Final = 3_000_000
KINDS: Final = 25
#: Lower bounds of the rows of the heat map, in seconds. The last row has no upper bound.
_EDGES: Final = (
    0.0, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 7200.0, 18_000.0,
    43_200.0, 86_400.0, 172_800.0, 604_800.0, 2_592_000.0,
)  # fmt: skip
_COMPLETED: Final = ("completed", "advanced")
_HIST: Final = ["queue", "kind", "metric", "bucket", "n", "sum_us", "min_us", "max_us", "day"]
#: Maximum number of histogram rows in memory.
_MAX_ROWS: Final = 20_000_000


def histogram(snapshot: Snapshot, first: date, last: date, queue: str | None) -> pa.Table:
    where = None if queue is None else pc.field("queue") == queue
    return snapshot.read(LATENCY_DAY, first, last, columns=_HIST, where=where, limit=_MAX_ROWS)


def kinds(hist: pa.Table) -> Kinds:
    """Return the slowest kinds first. Kinds without a completed run are last."""
    found = added(hist, "kind", "metric")
    rows = []
    for kind in {key[0] for key in found}:
        runs = found.get((kind, RUN), NONE)
        rows.append(
            Kind(
                kind=kind,
                wait=spread(found.get((kind, WAIT), NONE)),
                run=spread(runs),
                run_total=runs.sum_us / 1e6,
            )
        )
    rows.sort(key=lambda row: (-(row.run.p95 or -1.0), row.kind))
    return Kinds(rows=rows[:KINDS], more=max(0, len(rows) - KINDS))


def over_time(
    snapshot: Snapshot,
    first: date,
    last: date,
    queue: str | None,
    hist: pa.Table,
    fine: int = FINE,
) -> Latency:
    by: Literal["lease", "event"] = "lease"
    if snapshot.extent(ATTEMPTS, first, last).rows <= fine:
        steps, rows = _of_attempts(snapshot, first, last, queue)
    else:
        by, (steps, rows) = "event", _of_days(hist)
    found = added(rows, "metric", "step")
    return Latency(
        step=steps.width,
        at=steps.at,
        by=by,
        wait=_moments([found.get((WAIT, step), NONE) for step in range(steps.count)]),
        run=_moments([found.get((RUN, step), NONE) for step in range(steps.count)]),
    )


def _of_attempts(
    snapshot: Snapshot, first: date, last: date, queue: str | None
) -> tuple[Axis, pa.Table]:
    """Group spans of leases that have ended by their start. Runs are of completed attempts."""
    leases = snapshot.read(
        ATTEMPTS,
        first,
        last,
        columns=["queue", "leased_at", "wait_us", "run_us", "outcome"],
        where=None if queue is None else pc.field("queue") == queue,
    )
    steps = axis(leases["leased_at"])
    step = steps.step_of(leases["leased_at"])
    completed = pc.is_in(leases["outcome"], pa.array(_COMPLETED))
    found = [
        _spans(WAIT, step, leases["wait_us"]),
        _spans(RUN, pc.filter(step, completed), pc.filter(leases["run_us"], completed)),
    ]
    return steps, pa.concat_tables(found)


def _spans(metric: str, step: Any, us: Any) -> pa.Table:
    """Return rows in the format of latency_day, with one span each."""
    known = pc.is_valid(us)
    step, us = pc.filter(step, known), pc.filter(us, known)
    return pa.table({
        "metric": pa.repeat(metric, len(us)),
        "step": step,
        "bucket": in_buckets(us),
        "n": pa.repeat(pa.scalar(1, pa.int64()), len(us)),
        "sum_us": pc.cast(us, pa.float64()),
        "min_us": us,
        "max_us": us,
    })  # fmt: skip


def _of_days(hist: pa.Table) -> tuple[Axis, pa.Table]:
    if not hist.num_rows:
        return NOTHING, hist.append_column("step", pa.array([], pa.int32()))
    times = pc.cast(hist["day"], pa.timestamp("us", tz="UTC"))
    steps = axis(times, narrowest=DAY)
    return steps, hist.append_column("step", steps.step_of(times))


def _moments(by_step: Sequence[Spans]) -> Moments:
    told = [spread(spans) for spans in by_step]
    return Moments(
        n=[each.n for each in told],
        p50=[each.p50 for each in told],
        p90=[each.p90 for each in told],
        p95=[each.p95 for each in told],
        p99=[each.p99 for each in told],
        heat=_heat(by_step),
    )


def _heat(by_step: Sequence[Spans]) -> Heat:
    """Return only the rows between the shortest and the longest span."""
    counts = [[0] * len(by_step) for _ in _EDGES]
    for step, spans in enumerate(by_step):
        for each in spans.buckets:
            counts[_row(each.bucket)][step] += each.n
    used = [index for index, row in enumerate(counts) if any(row)]
    if not used:
        return Heat(edges=[], counts=[])
    low, high = used[0], used[-1]
    return Heat(edges=[*_EDGES[low : high + 2]], counts=counts[low : high + 1])


def _row(bucket: int) -> int:
    """Return the row that contains the middle of a bucket."""
    return bisect_right(_EDGES, middle(bucket) / 1e6) - 1
