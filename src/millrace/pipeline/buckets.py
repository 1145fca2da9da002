"""Histogram buckets for durations. Bucket limits grow by 2 %; rows can be added, and percentiles
remain accurate within 1 %.

A bucket holds the durations from 1.02^b to 1.02^(b+1) microseconds. The geometric mean of the
two limits represents all durations in the bucket, with an error of at most 1 %. The value is
clamped to the smallest and largest duration in the bucket. Percentiles use the nearest-rank
method: the percentile is the smallest duration that at least the given percentage of durations
do not exceed.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

GAMMA: Final = 1.02
#: The growth of the buckets by hour.
COARSE: Final = 1.1
_LN: Final = math.log(GAMMA)


class Bucket(NamedTuple):
    """Counts and limits of one bucket, for one row of latency_hist or a sum of rows."""

    bucket: int
    n: int
    min_us: int
    max_us: int


def bucket_of(us: int) -> int:
    return math.floor(math.log(max(us, 1)) / _LN)


def middle(bucket: int) -> float:
    return float(GAMMA ** (bucket + 0.5))


def merged(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Combine rows of any days, queues and kinds into one row for each bucket, in order."""
    found: dict[int, Bucket] = {}
    for each in buckets:
        other = found.get(each.bucket, each._replace(n=0))
        found[each.bucket] = Bucket(
            each.bucket,
            each.n + other.n,
            min(each.min_us, other.min_us),
            max(each.max_us, other.max_us),
        )
    return [found[bucket] for bucket in sorted(found)]


def percentiles(buckets: Sequence[Bucket], percents: Sequence[int]) -> list[float]:
    """Return the durations in microseconds at ascending percentiles; empty without buckets.
    The buckets are sorted and distinct.
    """
    total = sum(each.n for each in buckets)
    found: list[float] = []
    reached = 0
    for each in buckets:
        reached += each.n
        while len(found) < len(percents) and reached * 100 >= percents[len(found)] * total:
            found.append(min(max(middle(each.bucket), each.min_us), each.max_us))
    return found


# The same functions in SQL.


def bucket_sql(us: str, gamma: float = GAMMA) -> str:
    growth = f"CAST({math.log(gamma)!r} AS DOUBLE)"  # Spark and DataFusion accept this form
    return f"CAST(floor(ln(CAST(greatest({us}, 1) AS DOUBLE)) / {growth}) AS INT)"


def value_sql(bucket: str, low: str, high: str) -> str:
    """The duration that represents a bucket."""
    middle = f"pow({GAMMA!r}D, {bucket} + 0.5D)"
    return f"least(greatest({middle}, CAST({low} AS DOUBLE)), CAST({high} AS DOUBLE))"
