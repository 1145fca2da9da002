"""Utilisation of each worker per hour. Attempts are split at hour boundaries.

An attempt that ended before its start, or that took longer than a month, has a length of 0 here:
the clock of the client is wrong, and the worker was not busy for 50 years. The attempt counts in
the hour of its end.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.affected import LONGEST
from millrace.pipeline.tables import WORKER_HOUR

from .conform import conform
from .meanings import count_of
from .times import DAY, HOUR, begin, day_of, micros


def worker_hour(attempts: DataFrame) -> DataFrame:
    start, end, at = F.col("start"), F.col("end"), F.col("at")
    believable = (end - start).between(0, LONGEST * DAY)
    spans = (
        attempts.filter(F.col("ended_at").isNotNull())
        .select(
            "server",
            F.coalesce("worker", F.lit("")).alias("worker"),
            "protocol",
            "outcome",
            micros(F.col("leased_at")).alias("start"),
            micros(F.col("ended_at")).alias("end"),
        )
        .withColumn("start", F.when(believable, start).otherwise(end))
    )
    last = begin(end, HOUR)
    hours = spans.select(
        "*", F.explode(F.sequence(begin(start, HOUR), last, F.lit(HOUR))).alias("at")
    )
    ends = at == last
    busy = F.least(end, at + HOUR) - F.greatest(start, at)
    by_hour = hours.groupBy("server", "worker", "protocol", "at").agg(
        F.sum(busy).alias("busy_us"),
        count_of(ends).alias("attempts"),
        count_of(ends & F.col("outcome").isin("completed", "advanced")).alias("completed"),
        count_of(ends & F.col("outcome").isin("failed", "expired")).alias("failures"),
    )
    return conform(
        by_hour.select(
            "*",
            F.timestamp_micros(at).alias("hour"),
            (F.col("busy_us") / HOUR).alias("utilisation"),
            day_of(at).alias("day"),
        ),
        WORKER_HOUR,
    )
