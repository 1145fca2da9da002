"""How long jobs waited and ran: in all, by queue, day and kind, and over time.

The first come from latency_hist, whose rows are of a day. What is over time comes from `attempts`
where there are not too many of them, so that a report of one day tells about its hours; otherwise
it is by day as well.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline import reading
from millrace.pipeline.lake import Lake
from millrace.pipeline.tables import ATTEMPTS, LATENCY_HIST

from .model import Heat, Kind, Kinds, Latency, Moments
from .spread import GAMMA, Bucket, in_buckets, merged, spread
from .steps import DAY, NOTHING, Axis, axis

WAIT: Final = "wait"
RUN: Final = "run"
#: Attempts that are looked at one by one.
FINE: Final = 3_000_000
KINDS: Final = 25
#: The heat-map's rows: from 100 microseconds to a month, four to each power of ten, and the ends.
_EDGES: Final = (0.0, *(10 ** (power / 4) for power in range(-16, 27)))
_COMPLETED: Final = ("completed", "advanced")
_HIST: Final = ["queue", "kind", "metric", "bucket", "n", "sum_us", "min_us", "max_us", "day"]
#: Rows of buckets that are held at once.
_MOST: Final = 20_000_000


def histogram(lake: Lake, first: date, last: date, queue: str | None) -> pa.Table:
    where = None if queue is None else pc.field("queue") == queue
    return reading.read(
        lake, LATENCY_HIST, first, last, columns=_HIST, where=where, most=_MOST
    )


def kinds(hist: pa.Table) -> Kinds:
    """The slowest first; a kind that never completed has no runs, and comes last."""
    found = merged(hist, ["kind", "metric"])
    rows = []
    for kind in {key[0] for key in found}:
        runs = found.get((kind, RUN), [])
        rows.append(
            Kind(
                kind=kind,
                wait=spread(found.get((kind, WAIT), [])),
                run=spread(runs),
                run_total=sum(each.sum_us for each in runs) / 1e6,
            )
        )
    rows.sort(key=lambda row: (-(row.run.p95 or -1.0), row.kind))
    return Kinds(rows=rows[:KINDS], more=max(0, len(rows) - KINDS))


def over_time(
    lake: Lake, first: date, last: date, queue: str | None, hist: pa.Table, fine: int = FINE
) -> Latency:
    by: Literal["lease", "event"] = "lease"
    if reading.extent(lake, ATTEMPTS, first, last).rows <= fine:
        steps, rows = _of_attempts(lake, first, last, queue)
    else:
        by, (steps, rows) = "event", _of_days(hist)
    found = merged(rows, ["metric", "step"])
    return Latency(
        step=steps.width,
        at=steps.at,
        by=by,
        wait=_moments([found.get((WAIT, step), []) for step in range(steps.count)]),
        run=_moments([found.get((RUN, step), []) for step in range(steps.count)]),
    )


def _of_attempts(
    lake: Lake, first: date, last: date, queue: str | None
) -> tuple[Axis, pa.Table]:
    """Buckets by when the lease began; runs of those that were completed."""
    leases = reading.read(
        lake,
        ATTEMPTS,
        first,
        last,
        columns=["queue", "leased_at", "wait_us", "run_us", "outcome"],
        where=None if queue is None else pc.field("queue") == queue,
    )
    steps = axis(leases["leased_at"])
    step = steps.index(leases["leased_at"])
    completed = pc.is_in(leases["outcome"], pa.array(_COMPLETED))
    found = [
        _spans(WAIT, step, leases["wait_us"]),
        _spans(RUN, pc.filter(step, completed), pc.filter(leases["run_us"], completed)),
    ]
    return steps, pa.concat_tables(found)


def _spans(metric: str, step: Any, us: Any) -> pa.Table:
    """As rows of latency_hist with one span each."""
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
    return steps, hist.append_column("step", steps.index(times))


def _moments(by_step: Sequence[Sequence[Bucket]]) -> Moments:
    told = [spread(buckets) for buckets in by_step]
    return Moments(
        n=[each.n for each in told],
        p50=[each.p50 for each in told],
        p90=[each.p90 for each in told],
        p95=[each.p95 for each in told],
        p99=[each.p99 for each in told],
        heat=_heat(by_step),
    )


def _heat(by_step: Sequence[Sequence[Bucket]]) -> Heat:
    """Only the rows between the shortest and the longest that there is."""
    counts = [[0] * len(by_step) for _ in _EDGES]
    for step, buckets in enumerate(by_step):
        for each in buckets:
            counts[_row(each)][step] += each.n
    used = [index for index, row in enumerate(counts) if any(row)]
    if not used:
        return Heat(edges=[], counts=[])
    low, high = used[0], used[-1]
    edges = [*_EDGES, _EDGES[-1] * 10**0.25]
    return Heat(edges=edges[low : high + 2], counts=counts[low : high + 1])


def _row(bucket: Bucket) -> int:
    """Where a bucket's middle is; those that end beyond the last edge are in its row."""
    seconds = GAMMA ** (bucket.bucket + 0.5) / 1e6
    return max(index for index, edge in enumerate(_EDGES) if edge <= seconds)


