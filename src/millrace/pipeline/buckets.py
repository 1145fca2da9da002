"""Spans in buckets that grow by 2 %: rows can be added, and still give percentiles within 1 %.

A bucket holds the spans from 1.02^b to 1.02^(b+1) microseconds. Whatever is known only to be in it
is told as the middle of the two, which is wrong by 1 % at most, and never beyond the smallest and
the largest that were seen. A percentile is the span of nearest rank: the smallest that at least so
many of a hundred do not exceed.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column

GAMMA: Final = 1.02
_LN: Final = math.log(GAMMA)


class Bucket(NamedTuple):
    """What is known of the spans in one bucket, of one row of latency_hist or of several added."""

    bucket: int
    n: int
    min_us: int
    max_us: int


def bucket_of(us: int) -> int:
    return math.floor(math.log(max(us, 1)) / _LN)


def middle(bucket: int) -> float:
    return float(GAMMA ** (bucket + 0.5))


def merged(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Rows of any days, queues and kinds as one of each bucket, in order."""
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


def percentile(buckets: Iterable[Bucket], percent: int) -> float | None:
    """The span in microseconds that `percent` of a hundred do not exceed; None if there is none."""
    rows = merged(buckets)
    total = sum(each.n for each in rows)
    reached = 0
    for each in rows:
        reached += each.n
        if reached * 100 >= percent * total:
            return min(max(middle(each.bucket), each.min_us), each.max_us)
    return None


# The same for Spark's columns.


def bucket(us: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: PLC0415 - the rest needs no Spark

    return F.floor(F.log(F.greatest(us, F.lit(1)).cast("DOUBLE")) / _LN).cast("INT")


def value(bucket: "Column", min_us: "Column", max_us: "Column") -> "Column":
    """What a span in a bucket is told as."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - the rest needs no Spark

    middle = F.pow(F.lit(GAMMA), bucket + F.lit(0.5))
    return F.least(F.greatest(middle, min_us.cast("DOUBLE")), max_us.cast("DOUBLE"))
