"""How busy each worker was, hour by hour: what it held is cut at the hours.

An attempt lasts at most 31 days here, and ends at most a day before it began: beyond that it is the
clock of its client that is odd, and not a worker that was busy for 50 years. So a lease concerns
no other days than these, see `days_of`.
"""

from collections.abc import Collection
from datetime import date, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for them

from millrace.pipeline.tables import WORKER_HOUR

from .conform import conform
from .meanings import count_of
from .times import DAY, HOUR, begin, day_of, micros

#: How many days before and after that of the lease it may end.
EARLIEST: Final = -1
LATEST: Final = 31


def worker_hour(attempts: DataFrame) -> DataFrame:
    start, end, at = F.col("start"), F.col("end"), F.col("at")
    spans = attempts.select(
        "server",
        F.coalesce("worker", F.lit("")).alias("worker"),
        "protocol",
        "outcome",
        micros("leased_at").alias("start"),
        micros("ended_at").alias("end"),
    ).filter((end - start).between(EARLIEST * DAY, LATEST * DAY))
    first, last = begin(F.least(start, end), HOUR), begin(end, HOUR)
    hours = spans.select("*", F.explode(F.sequence(first, last, F.lit(HOUR))).alias("at"))
    ends = at == last
    busy = F.greatest(F.lit(0), F.least(end, at + HOUR) - F.greatest(start, at))
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


def days_of(leases: Collection[date]) -> set[date]:
    """The days of which a lease of one of those may be part."""
    return {
        lease + timedelta(days=after)
        for lease in leases
        for after in range(EARLIEST, LATEST + 1)
        if date.min.toordinal() <= lease.toordinal() + after <= date.max.toordinal()
    }


def leases_of(days: Collection[date]) -> set[date]:
    """The days of leases that may be part of one of those."""
    return {
        day - timedelta(days=after)
        for day in days
        for after in range(EARLIEST, LATEST + 1)
        if date.min.toordinal() <= day.toordinal() - after <= date.max.toordinal()
    }
