"""Wait and run times: in total, by queue, day and kind, and over time.

All but the values over time are computed from latency_day. The values over time are computed from
`attempts` if the number of attempts is small enough, so that a report of one day shows its minutes.
Otherwise, they are per day.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, Literal

from millrace.pipeline.buckets import bucket_sql, middle
from millrace.pipeline.tables import ATTEMPTS, LATENCY_DAY

from .model import Heat, Kind, Kinds, Latency, Moments
from .percentiles import NONE, Spans, added, spread
from .rows import ReportRows
from .time_axis import DAY, Axis, axis_of

WAIT: Final = "wait"
RUN: Final = "run"
#: Maximum number of attempts that are read individually.
MAX_ATTEMPTS: Final = 3_000_000
KINDS: Final = 25
#: Lower bounds of the rows of the heat map, in seconds. The last row has no upper bound.
_EDGES: Final = (
    0.0, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 7200.0, 18_000.0,
    43_200.0, 86_400.0, 172_800.0, 604_800.0, 2_592_000.0,
)  # fmt: skip


def kinds(selection: ReportRows) -> Kinds:
    """Return the slowest kinds first. Kinds without a completed run are last."""
    found = added(selection, "kind", "metric")
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


def over_time(selection: ReportRows, max_attempts: int = MAX_ATTEMPTS) -> Latency:
    extent = selection.snapshot.extent(ATTEMPTS, selection.first, selection.last)
    by: Literal["lease", "event"] = "lease" if extent.rows <= max_attempts else "event"
    if by == "lease":
        steps, found = _of_attempts(selection)
    else:
        steps = axis_of(selection, LATENCY_DAY, "day", narrowest=DAY)
        source = f"(SELECT *, {steps.step_of('day')} AS step FROM selected)"
        found = added(selection, "metric", "step", source=source)
    return Latency(
        step=steps.width,
        at=steps.at,
        by=by,
        wait=_moments([found.get((WAIT, step), NONE) for step in range(steps.count)]),
        run=_moments([found.get((RUN, step), NONE) for step in range(steps.count)]),
    )


def _of_attempts(selection: ReportRows) -> tuple[Axis, dict[tuple[Any, ...], Spans]]:
    """Group spans of leases that have ended by their start. Runs are of completed attempts."""
    steps = axis_of(selection, ATTEMPTS, "leased_at")
    spans = " UNION ALL ".join(
        f"SELECT '{metric}' AS metric, {steps.step_of('leased_at')} AS step, {column} AS us "
        f"FROM selected WHERE {column} IS NOT NULL AND {condition}"
        for metric, column, condition in (
            (WAIT, "wait_us", "true"),
            (RUN, "run_us", "outcome IN ('completed', 'advanced')"),
        )
    )
    source = f"""(SELECT metric, step, {bucket_sql("us")} AS bucket, 1 AS n, us AS min_us,
        us AS max_us, CAST(us AS DOUBLE) AS sum_us FROM ({spans}) AS spans)"""
    return steps, added(selection, "metric", "step", table=ATTEMPTS, source=source)


def _moments(by_step: Sequence[Spans]) -> Moments:
    values = [spread(spans) for spans in by_step]
    return Moments(
        n=[each.n for each in values],
        p50=[each.p50 for each in values],
        p90=[each.p90 for each in values],
        p95=[each.p95 for each in values],
        p99=[each.p99 for each in values],
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
