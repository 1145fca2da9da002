"""Percentiles of waits and runs, from rows of buckets that can be added."""

from collections.abc import Sequence
from itertools import groupby
from math import log
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from .model import QUANTILES, Spread

GAMMA: Final = 1.02
NONE: Final = Spread(n=0, mean=None, p50=None, p90=None, p95=None, p99=None, max=None)
_SUMS: Final = [("n", "sum"), ("sum_us", "sum"), ("min_us", "min"), ("max_us", "max")]


class Bucket(NamedTuple):
    bucket: int
    n: int
    sum_us: float
    min_us: int
    max_us: int


def percentile(buckets: Sequence[Bucket], q: float) -> float:
    """By nearest rank, in microseconds: the middle of the bucket that has it."""
    rank = q * sum(each.n for each in buckets)
    count = 0
    for each in buckets:
        count += each.n
        if count >= rank:
            break
    return min(max(GAMMA ** (each.bucket + 0.5), each.min_us), each.max_us)


def spread(buckets: Sequence[Bucket]) -> Spread:
    """Of buckets in their order."""
    count = sum(each.n for each in buckets)
    if not count:
        return NONE
    p50, p90, p95, p99 = (percentile(buckets, q) / 1e6 for q in QUANTILES)
    return Spread(
        n=count,
        mean=sum(each.sum_us for each in buckets) / count / 1e6,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=max(each.max_us for each in buckets) / 1e6,
    )


def merged(hist: pa.Table, by: Sequence[str]) -> dict[tuple[Any, ...], list[Bucket]]:
    """The buckets of each combination of the columns `by`, in their order."""
    added = (
        hist.group_by([*by, "bucket"])
        .aggregate(_SUMS)
        .select([*by, "bucket", "n_sum", "sum_us_sum", "min_us_min", "max_us_max"])
        .sort_by([(name, "ascending") for name in (*by, "bucket")])
    )
    width = len(by)
    rows = zip(*(column.to_pylist() for column in added.columns), strict=True)
    return {
        key: [Bucket(*row[width:]) for row in group]
        for key, group in groupby(rows, key=lambda row: row[:width])
    }


def spreads(hist: pa.Table, by: Sequence[str]) -> dict[tuple[Any, ...], Spread]:
    return {key: spread(buckets) for key, buckets in merged(hist, by).items()}


def in_buckets(us: Any) -> Any:
    """The bucket of each span of an Arrow column, as pipeline/buckets.py has it in Spark."""
    positive = pc.max_element_wise(pc.cast(us, pa.float64()), 1.0)
    return pc.cast(pc.floor(pc.divide(pc.ln(positive), log(GAMMA))), pa.int32())


