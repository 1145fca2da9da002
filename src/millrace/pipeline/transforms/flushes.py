"""FLUSH empties a server: it removes all jobs, and every depth restarts at 0.

An epoch is the interval between two flushes. Event numbers determine the epoch, because timestamps
may be wrong.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from .meanings import is_flush

#: Schema of a DataFrame of flushes.
DDL: Final = "server STRING, event_id BIGINT, time TIMESTAMP"
_END: Final = (1 << 63) - 1


def flushes(events: DataFrame) -> DataFrame:
    """Return the flushes of each server, which are few."""
    return events.filter(is_flush()).select("server", "event_id", "time")


def with_epoch(events: DataFrame, flushes: DataFrame) -> DataFrame:
    """Add to each row the `epoch`, which is the number of flushes before its `event_id`, and the
    flush that ended the epoch: `flush_event` and `flushed_at`, null in the current epoch.
    """
    ends = _epochs(flushes)
    within = (
        (F.col("server") == F.col("flushed_server"))
        & (F.col("event_id") > F.col("flushed_after"))
        & (F.col("event_id") <= F.col("flushed_until"))
    )
    joined = events.join(F.broadcast(ends), within, "left")
    return joined.select(
        *(events[name] for name in events.columns),
        F.coalesce("flushed_epoch", F.lit(0)).cast("BIGINT").alias("epoch"),
        "flush_event",
        "flushed_at",
    )


def _epochs(flushes: DataFrame) -> DataFrame:
    """Return the range of events of each epoch. A server without flushes has no row."""
    by_server = Window.partitionBy("server").orderBy("event_id")
    ended = flushes.select(
        F.col("server").alias("flushed_server"),
        (F.row_number().over(by_server) - 1).alias("flushed_epoch"),
        F.lag("event_id", 1, -1).over(by_server).alias("flushed_after"),
        F.col("event_id").alias("flushed_until"),
        F.col("event_id").alias("flush_event"),
        F.col("time").alias("flushed_at"),
    )
    current = flushes.groupBy(F.col("server").alias("flushed_server")).agg(
        F.count(F.lit(1)).cast("INT").alias("flushed_epoch"),
        F.max("event_id").alias("flushed_after"),
        F.lit(_END).alias("flushed_until"),
        F.lit(None).cast("BIGINT").alias("flush_event"),
        F.lit(None).cast("TIMESTAMP").alias("flushed_at"),
    )
    return ended.unionByName(current)
