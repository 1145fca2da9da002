"""Distribution of durations, computed from rows of buckets that can be added."""

from collections.abc import Sequence
from itertools import groupby
from math import log
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline.buckets import GAMMA, Bucket, middle

from .model import DurationPercentiles

PERCENTS: Final = (50, 90, 95, 99)
_ADDED: Final = [("n", "sum"), ("min_us", "min"), ("max_us", "max"), ("sum_us", "sum")]


class Spans(NamedTuple):
    """Waits or runs: the buckets in ascending order, and the sum of all spans."""

    buckets: Sequence[Bucket] = ()
    sum_us: float = 0.0

    @property
    def n(self) -> int:
        return sum(each.n for each in self.buckets)


NONE: Final = Spans()


def spread(spans: Spans) -> DurationPercentiles:
    if not spans.buckets:
        return DurationPercentiles(n=0, mean=None, p50=None, p90=None, p95=None, p99=None, max=None)
    p50, p90, p95, p99 = percentiles(spans.buckets)
    return DurationPercentiles(
        n=spans.n,
        mean=spans.sum_us / spans.n / 1e6,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=max(each.max_us for each in spans.buckets) / 1e6,
    )


def percentiles(buckets: Sequence[Bucket]) -> list[float]:
    """Return the same values as buckets.percentile, in seconds. One pass computes all percentiles,
    because the buckets are sorted and distinct.
    """
    total = sum(each.n for each in buckets)
    found: list[float] = []
    reached = 0
    for each in buckets:
        reached += each.n
        while len(found) < len(PERCENTS) and reached * 100 >= PERCENTS[len(found)] * total:
            found.append(min(max(middle(each.bucket), each.min_us), each.max_us) / 1e6)
    return found


def added(hist: pa.Table, *by: str) -> dict[tuple[Any, ...], Spans]:
    """Merge the rows of latency_day that have equal values in the columns `by`."""
    rows = hist.group_by([*by, "bucket"]).aggregate(_ADDED)
    rows = rows.select([*by, "bucket", "n_sum", "min_us_min", "max_us_max", "sum_us_sum"])
    rows = rows.sort_by([(name, "ascending") for name in (*by, "bucket")])
    width = len(by)
    found = {}
    listed = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    for key, group in groupby(listed, key=lambda row: row[:width]):
        of = list(group)
        buckets = [Bucket(*row[width:-1]) for row in of]
        found[key] = Spans(buckets, sum(row[-1] for row in of))
    return found


def in_buckets(us: Any) -> Any:
    """Return the bucket of each span of an Arrow column, like bucket_sql in Spark."""
    positive = pc.max_element_wise(pc.cast(us, pa.float64()), 1.0)
    return pc.cast(pc.floor(pc.divide(pc.ln(positive), log(GAMMA))), pa.int32())
