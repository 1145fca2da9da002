"""Distribution of durations, computed from rows of buckets that can be added."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from millrace.pipeline.buckets import Bucket, percentiles
from millrace.pipeline.tables import LATENCY_DAY, PERCENTS, Derived

from .model import DurationPercentiles
from .rows import ReportRows


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
    p50, p90, p95, p99 = (us / 1e6 for us in percentiles(spans.buckets, PERCENTS))
    return DurationPercentiles(
        n=spans.n,
        mean=spans.sum_us / spans.n / 1e6,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=max(each.max_us for each in spans.buckets) / 1e6,
    )


def added(
    selection: ReportRows, *by: str, table: Derived = LATENCY_DAY, source: str = "selected"
) -> dict[tuple[Any, ...], Spans]:
    """Merge the rows of histograms that have equal values in the columns `by`. `source` is a
    relation with the histogram columns of latency_day; the default is that table.
    """
    keys = ", ".join((*by, "bucket"))
    rows = selection.rows(
        table,
        f"SELECT {keys}, sum(n) AS n, min(min_us) AS low, max(max_us) AS high, "
        f"sum(sum_us) AS total FROM {source} GROUP BY {keys} ORDER BY {keys}",
    )
    found = {}
    for key, rows_of_key in groupby(rows, key=lambda row: tuple(row[name] for name in by)):
        group = list(rows_of_key)
        buckets = [Bucket(row["bucket"], row["n"], row["low"], row["high"]) for row in group]
        found[key] = Spans(buckets, sum(row["total"] for row in group))
    return found
