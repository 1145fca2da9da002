"""Qless statistics for each queue and day, identical to the live statistics of the server.

Mean and variance are computed from integers, so that the order and the partitioning of the events
do not change any digit. Spans are grouped into cells, which are never larger than a slot of the
histogram: seconds below a minute, minutes below an hour, hours beyond. Each cell has the number of
its spans, the sum of their distances from its middle, and the sum of the squares of these
distances. The sum of squares has two halves, because the sum of 4 billion squares would not fit
into 64 bits. All further steps process one row per cell.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.pipeline.buckets import value
from millrace.pipeline.tables import QUEUE_DAY

from .conform import conform
from .meanings import is_completion, is_type
from .times import DAY, HOUR, MINUTE, SECOND

SLOTS: Final = 148
PERCENTS: Final = (50, 90, 95, 99)
_QUEUE: Final = ("server", "day", "queue")
_HALF: Final = 31  # bits


class _What(IntEnum):
    """The kind of event: a number, because grouping by numbers is faster than grouping by text."""

    PUSHED = 0
    LEASED = 1
    COMPLETED = 2
    FAILED = 3
    FAILED_AND_DIED = 4
    EXPIRED = 5
    EXPIRED_AND_DIED = 6
    EXPIRED_WITH_GRACE = 7
    DOOMED = 8
    FAILED_AND_GONE = 9
    EXPIRED_AND_GONE = 10


class _Metric(NamedTuple):
    name: str
    #: The kind of event that has the spans.
    what: _What


_METRICS: Final = (_Metric("wait", _What.LEASED), _Metric("run", _What.COMPLETED))


#: Failures that leave the job dead. Qless counts these in its statistics.
_DEAD: Final = (_What.FAILED_AND_DIED, _What.EXPIRED_AND_DIED, _What.DOOMED)
_COUNTS: Final = {
    "pushed": (_What.PUSHED,),
    "leased": (_What.LEASED,),
    "completed": (_What.COMPLETED,),
    "failures": (
        _What.FAILED,
        _What.FAILED_AND_DIED,
        _What.FAILED_AND_GONE,
        _What.EXPIRED,
        _What.EXPIRED_AND_DIED,
        _What.EXPIRED_AND_GONE,
    ),
    "failed": _DEAD,
    "retries": (
        _What.EXPIRED,
        _What.EXPIRED_AND_DIED,
        _What.EXPIRED_AND_GONE,
        _What.EXPIRED_WITH_GRACE,
    ),
    "died": (*_DEAD, _What.FAILED_AND_GONE, _What.EXPIRED_AND_GONE),
}


def queue_day(events: DataFrame, latency_hist: DataFrame) -> DataFrame:
    """`latency_hist` must contain the same days."""
    # After this step, all rows of a queue and day are in one partition.
    cells = _cells(events).repartition(*_QUEUE)
    slots = (
        _with_spread(cells)
        .groupBy(*_QUEUE, "what", _slot(F.col("cell")).alias("slot"))
        .agg(F.sum("n").alias("n"), F.first("mean").alias("mean"), F.first("var").alias("var"))
    )
    counted = slots.groupBy(*_QUEUE).agg(
        *(_sum(*whats).alias(name) for name, whats in _COUNTS.items()),
        *(column for metric in _METRICS for column in _spread(metric)),
    )
    joined = counted.join(_percentiles(latency_hist), list(_QUEUE), "left")
    return conform(joined.select("*", *(_histogram(metric) for metric in _METRICS)), QUEUE_DAY)


def _cells(events: DataFrame) -> DataFrame:
    """The only pass over the events: count them by queue and kind, and group spans into cells."""
    what, us = F.col("what"), F.col("us")
    named = events.select(
        *_QUEUE,
        _what().alias("what"),
        F.when(is_type("leased"), F.coalesce("wait_us", F.lit(0)))
        .when(is_completion(), F.coalesce("run_us", F.lit(0)))
        .alias("us"),
    )
    placed = named.filter(what.isNotNull()).select(*_QUEUE, "what", "us", _cell(us).alias("cell"))
    square = F.col("distance") * F.col("distance")
    return (
        placed.select(
            *_QUEUE, "what", "cell", (us - F.col("cell") - _half(F.col("cell"))).alias("distance")
        )
        .groupBy(*_QUEUE, "what", "cell")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum("distance").alias("distance"),
            F.sum(F.shiftright(square, _HALF)).alias("high"),
            F.sum(square.bitwiseAND(F.lit((1 << _HALF) - 1))).alias("low"),
        )
    )


def _what() -> Column:
    died, gone = F.col("state") == "dead", F.col("state") == "gone"
    failed = (
        F.when(died, int(_What.FAILED_AND_DIED))
        .when(gone, int(_What.FAILED_AND_GONE))
        .otherwise(int(_What.FAILED))
    )
    expired = (
        F.when(died, int(_What.EXPIRED_AND_DIED))
        .when(gone, int(_What.EXPIRED_AND_GONE))
        .when(F.col("state") == "leased", int(_What.EXPIRED_WITH_GRACE))
        .otherwise(int(_What.EXPIRED))
    )
    return (
        F.when(is_type("leased"), int(_What.LEASED))
        .when(is_completion(), int(_What.COMPLETED))
        .when(is_type("pushed"), int(_What.PUSHED))
        .when(is_type("failed"), failed)
        .when(is_type("expired"), expired)
        .when(is_type("doomed"), int(_What.DOOMED))
    )


def _cell(us: Column) -> Column:
    """Return the start of the cell of a span."""
    return (
        F.when(us < MINUTE, us - us % SECOND)
        .when(us < HOUR, us - us % MINUTE)
        .otherwise(us - us % HOUR)
    )


def _half(cell: Column) -> Column:
    """Return half the length of a cell."""
    return (
        F.when(cell < MINUTE, F.lit(SECOND // 2))
        .when(cell < HOUR, F.lit(MINUTE // 2))
        .otherwise(F.lit(HOUR // 2))
    )


def _slot(cell: Column) -> Column:
    """Return the slot of a cell: 60 seconds, 59 minutes, 23 hours, 6 days; null beyond."""
    return (
        F.when(cell < MINUTE, F.greatest(F.lit(0), cell / SECOND))
        .when(cell < HOUR, 59 + F.floor(cell / MINUTE))
        .when(cell < DAY, 118 + F.floor(cell / HOUR))
        .when(cell < 7 * DAY, 141 + F.floor(cell / DAY))
        .cast("INT")
    )


def _sum(*whats: _What) -> Column:
    of_these = F.when(F.col("what").isin([int(what) for what in whats]), F.col("n")).otherwise(0)
    return F.sum(of_these)


def _with_spread(cells: DataFrame) -> DataFrame:
    """Add to each cell the mean and the variance, in seconds, of all spans of the same kind."""
    # Ordered, because the last digits of floating-point sums depend on the order.
    alike = (
        Window.partitionBy(*_QUEUE, "what")
        .orderBy("cell")
        .rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    )
    n, distance, mean = F.col("n"), F.col("distance"), F.col("mean")
    # DECIMAL, because the end of the cell of the longest possible span exceeds 64 bits.
    middle = F.col("cell").cast("DECIMAL(19,0)") + _half(F.col("cell")).cast("DECIMAL(19,0)")
    whole = middle * n.cast("DECIMAL(10,0)") + distance.cast("DECIMAL(19,0)")
    told = cells.select(
        "*",
        F.sum("n").over(alike).alias("in_all"),
        F.sum(whole.cast("DECIMAL(30,0)")).over(alike).alias("us"),
        (whole.cast("DOUBLE") / n).alias("own_mean"),
        _squares(),
    ).withColumn("mean", F.col("us").cast("DOUBLE") / F.col("in_all"))
    squares = F.col("squares") + n * F.pow(F.col("own_mean") - mean, F.lit(2.0))
    return told.select(
        *_QUEUE,
        "what",
        "cell",
        "n",
        (mean / SECOND).alias("mean"),
        F.when(
            F.col("in_all") > 1,
            F.sum(squares).over(alike) / (F.col("in_all") - 1) / (float(SECOND) * SECOND),
        ).alias("var"),
    )


def _squares() -> Column:
    """Return the sum of the squares of the distances of the spans from the mean of their cell. This
    sum times the number of spans is an integer, which is computed exactly.
    """
    n, distance = F.col("n").cast("DECIMAL(10,0)"), F.col("distance").cast("DECIMAL(19,0)")
    high, low = F.col("high").cast("DECIMAL(19,0)"), F.col("low").cast("DECIMAL(19,0)")
    squares = (high * F.lit(1 << _HALF).cast("DECIMAL(10,0)") + low).cast("DECIMAL(28,0)")
    return ((squares * n - distance * distance).cast("DOUBLE") / F.col("n")).alias("squares")


def _spread(metric: _Metric) -> list[Column]:
    """Return count, mean and variance of a metric, and the non-empty slots of its histogram."""
    of_it = F.col("what") == int(metric.what)
    slot = F.when(of_it & F.col("slot").isNotNull(), F.struct("slot", "n"))
    return [
        _sum(metric.what).alias(f"{metric.name}_n"),
        F.coalesce(F.max(F.when(of_it, F.col("mean"))), F.lit(0.0)).alias(f"{metric.name}_mean"),
        F.coalesce(F.max(F.when(of_it, F.col("var"))), F.lit(0.0)).alias(f"{metric.name}_var"),
        F.map_from_entries(F.collect_list(slot)).alias(f"{metric.name}_slots"),
    ]


def _histogram(metric: _Metric) -> Column:
    slots = F.col(f"{metric.name}_slots")
    return F.transform(
        F.sequence(F.lit(0), F.lit(SLOTS - 1)),
        lambda slot: F.coalesce(F.try_element_at(slots, slot), F.lit(0)),
    ).alias(f"{metric.name}_hist")


def _percentiles(latency_hist: DataFrame) -> DataFrame:
    """Compute percentiles by nearest rank (see buckets.py)."""
    merged = (
        latency_hist.repartition(*_QUEUE)
        .groupBy(*_QUEUE, "metric", "bucket")
        .agg(
            F.sum("n").alias("n"), F.min("min_us").alias("min_us"), F.max("max_us").alias("max_us")
        )
    )
    by_metric = Window.partitionBy(*_QUEUE, "metric").orderBy("bucket")
    in_all = by_metric.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    so_far = by_metric.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = merged.select(
        *_QUEUE,
        "metric",
        "bucket",
        value(F.col("bucket"), F.col("min_us"), F.col("max_us")).alias("value"),
        (F.sum("n").over(so_far) * 100).alias("reached"),
        F.sum("n").over(in_all).alias("n"),
    )

    def percentile(metric: str, percent: int) -> Column:
        enough = (F.col("metric") == metric) & (F.col("reached") >= F.col("n") * percent)
        found = F.min_by("value", F.when(enough, F.col("bucket")))
        return found.alias(f"{metric}_p{percent}_us")

    return ranked.groupBy(*_QUEUE).agg(
        *(percentile(metric.name, percent) for metric in _METRICS for percent in PERCENTS)
    )
