"""Qless's statistics for every queue and day: exactly those that the server keeps live.

Mean and variance are made of whole numbers, so that neither the order of the events nor how they
are divided can change a digit. Spans are grouped into cells, which are never larger than a slot of
the histogram: seconds below a minute, minutes below an hour, hours beyond. Of each cell is known
how many spans it has, and the sums of their distances from its middle and of the squares of these,
the latter in two halves, because of 4 billion of them the sum would not fit into 64 bits. What
follows is done with as many rows as there are cells.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.buckets import percentile_of
from millrace.pipeline.tables import QUEUE_DAY

from .conform import conform
from .meanings import is_completion, is_type
from .times import DAY, HOUR, MINUTE, SECOND

SLOTS: Final = 148
PERCENTS: Final = (50, 90, 95, 99)
_QUEUE: Final = ("server", "day", "queue")
_HALF: Final = 31  # bits


class _Metric(NamedTuple):
    name: str
    #: What its spans are called among what happened.
    what: str


_METRICS: Final = (_Metric("wait", "leased"), _Metric("run", "completed"))


def queue_day(events: DataFrame, latency_hist: DataFrame) -> DataFrame:
    """`latency_hist` is that of the same days."""
    cells = _cells(events)
    slots = cells.groupBy(*_QUEUE, "what", _slot(F.col("cell")).alias("slot")).agg(
        F.sum("n").alias("n"),
        F.collect_list(F.struct("cell", "n", "distance", "high", "low")).alias("cells"),
    )
    counted = slots.groupBy(*_QUEUE).agg(
        _sum("pushed").alias("pushed"),
        _sum("leased").alias("leased"),
        _sum("completed").alias("completed"),
        _sum("failed", "failed_dead", "expired", "expired_dead").alias("failures"),
        _sum("failed_dead", "expired_dead", "doomed_dead").alias("failed"),
        _sum("expired", "expired_dead", "expired_grace").alias("retries"),
        *(
            F.flatten(F.collect_list(F.when(F.col("what") == metric.what, F.col("cells")))).alias(
                f"{metric.name}_cells"
            )
            for metric in _METRICS
        ),
        *(
            F.collect_list(
                F.when(
                    (F.col("what") == metric.what) & F.col("slot").isNotNull(),
                    F.struct("slot", "n"),
                )
            ).alias(f"{metric.name}_slots")
            for metric in _METRICS
        ),
    )
    for metric in _METRICS:
        counted = _with_spread(counted, metric)
    joined = counted.join(_percentiles(latency_hist), list(_QUEUE), "left")
    return conform(joined, QUEUE_DAY)


def _cells(events: DataFrame) -> DataFrame:
    """The one pass over the events: what happened, by queue, and for spans by cell."""
    what, us = F.col("what"), F.col("us")
    named = events.select(
        *_QUEUE,
        F.when(is_type("leased"), "leased")
        .when(is_completion(), "completed")
        .when(is_type("pushed"), "pushed")
        .when(is_type("failed", "expired", "doomed"), _failing())
        .alias("what"),
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


def _failing() -> Column:
    state = F.col("state")
    ending = F.when(state == "dead", "_dead").when(
        (state == "leased") & is_type("expired"), "_grace"
    )
    return F.concat(F.col("type"), F.coalesce(ending, F.lit("")))


def _cell(us: Column) -> Column:
    """Where a span's cell begins."""
    return (
        F.when(us < MINUTE, us - us % SECOND)
        .when(us < HOUR, us - us % MINUTE)
        .otherwise(us - us % HOUR)
    )


def _half(cell: Column) -> Column:
    """Half of the length of a cell."""
    return (
        F.when(cell < MINUTE, F.lit(SECOND // 2))
        .when(cell < HOUR, F.lit(MINUTE // 2))
        .otherwise(F.lit(HOUR // 2))
    )


def _slot(cell: Column) -> Column:
    """The slot that a cell is in: of 60 seconds, 59 minutes, 23 hours, 6 days; null beyond."""
    return (
        F.when(cell < MINUTE, F.greatest(F.lit(0), cell / SECOND))
        .when(cell < HOUR, 59 + F.floor(cell / MINUTE))
        .when(cell < DAY, 118 + F.floor(cell / HOUR))
        .when(cell < 7 * DAY, 141 + F.floor(cell / DAY))
        .cast("INT")
    )


def _sum(*whats: str) -> Column:
    of_these = F.when(F.col("what").isin(*whats), F.col("n")).otherwise(0)
    return F.sum(of_these)


def _with_spread(counted: DataFrame, metric: _Metric) -> DataFrame:
    """Count, mean and variance in seconds, and the histogram, of the cells of a metric."""
    name = metric.name
    n = F.col(metric.what)
    zero = F.lit(0.0)
    # In order, or sums of floating numbers would differ in their last digits.
    cells = F.array_sort(F.col(f"{name}_cells"))
    mean = F.aggregate(cells, zero, lambda sum_, cell: sum_ + _mean(cell) * (cell.n / n))
    frame = counted.withColumn(f"{name}_n", n).withColumn(
        f"{name}_mean_us", F.when(n > 0, mean).otherwise(zero)
    )
    of_all = F.col(f"{name}_mean_us")
    squares = F.aggregate(
        cells,
        zero,
        lambda sum_, cell: sum_ + _squares(cell) + cell.n * F.pow(_mean(cell) - of_all, F.lit(2.0)),
    )
    by_slot = F.map_from_entries(F.col(f"{name}_slots"))
    return (
        frame.withColumn(f"{name}_mean", of_all / SECOND)
        .withColumn(
            f"{name}_var",
            F.when(n > 1, squares / (n - 1) / (float(SECOND) * SECOND)).otherwise(zero),
        )
        .withColumn(
            f"{name}_hist",
            F.transform(
                F.sequence(F.lit(0), F.lit(SLOTS - 1)),
                lambda slot: F.coalesce(F.try_element_at(by_slot, slot), F.lit(0)),
            ),
        )
    )


def _mean(cell: Column) -> Column:
    """Of the spans in a cell."""
    return (cell.cell + _half(cell.cell)).cast("DOUBLE") + cell.distance / cell.n


def _squares(cell: Column) -> Column:
    """The sum of the squares of their distances from that mean: n times it is a whole number."""
    n, distance = cell.n.cast("DECIMAL(10,0)"), cell.distance.cast("DECIMAL(19,0)")
    high, low = cell.high.cast("DECIMAL(19,0)"), cell.low.cast("DECIMAL(19,0)")
    squares = (high * F.lit(1 << _HALF).cast("DECIMAL(10,0)") + low).cast("DECIMAL(28,0)")
    return (squares * n - distance * distance).cast("DOUBLE") / cell.n


def _percentiles(latency_hist: DataFrame) -> DataFrame:
    merged = latency_hist.groupBy(*_QUEUE, "metric", "bucket").agg(
        F.sum("n").alias("n"), F.min("min_us").alias("min_us"), F.max("max_us").alias("max_us")
    )
    row = F.struct("bucket", "n", "min_us", "max_us")
    by_queue = merged.groupBy(*_QUEUE).agg(
        *(
            F.array_sort(F.collect_list(F.when(F.col("metric") == metric.name, row))).alias(
                metric.name
            )
            for metric in _METRICS
        )
    )
    return by_queue.select(
        *_QUEUE,
        *(
            percentile_of(F.col(metric.name), percent).alias(f"{metric.name}_p{percent}_us")
            for metric in _METRICS
            for percent in PERCENTS
        ),
    )
