"""Jobs: one row with the complete history of each job."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.pipeline.tables import JOBS

from .conform import conform
from .flushes import with_epoch
from .meanings import count_of, is_ended, is_failure, is_flush, is_type

_FIRST: Final = ("jid", "kind", "origin", "queue", "payload_bytes", "created")
_LAST: Final = ("state", "queue", "priority", "actor", "worker", "tags")
_ERROR: Final = ("error_group", "error_message", "fingerprint")
_MOST: Final = (1 << 63) - 1


def jobs(events: DataFrame, flushes: DataFrame) -> DataFrame:
    """`day` is the day of the push; `events` must include all events of the jobs of these days."""
    number, before = F.col("event_id"), F.col("before")
    was_ended = F.coalesce(is_ended(before), F.lit(False))
    ends = is_ended(F.col("state")) & ~was_ended
    # `seq` is the first key, because it distinguishes most rows when Spark sorts them.
    lives = (
        events.filter(F.col("created").isNotNull() & ~is_flush())
        .withColumn("day", F.to_date("created"))
        .groupBy("seq", "server", "day")
        .agg(
            F.min_by(F.struct(*_FIRST), number).alias("first"),
            F.max_by(F.struct(*_LAST), number).alias("last"),
            F.max_by(F.struct("type", "time"), F.when(ends, number)).alias("end"),
            F.max_by(F.struct(*_ERROR), F.when(F.col("fingerprint").isNotNull(), number)).alias(
                "error"
            ),
            F.min("ready_at").alias("first_ready_at"),
            F.min("leased_at").alias("first_leased_at"),
            count_of(is_type("leased")).alias("leases"),
            count_of(is_failure()).alias("failures"),
            count_of(is_type("expired")).alias("expirations"),
            count_of(is_type("moved")).alias("moves"),
            _sum(F.when(is_type("leased"), F.col("wait_us"))).alias("wait_us"),
            _sum(F.col("run_us")).alias("run_us"),
            F.count(F.lit(1)).alias("events"),
            F.min(number).alias("first_event"),
            F.max(number).alias("last_event"),
            F.bool_or(is_type("pushed")).alias("whole"),
            # with_epoch uses this column: the epoch of a job is the epoch of its last event.
            F.max(number).alias("event_id"),
        )
    )
    return conform(_told(with_epoch(lives, flushes)), JOBS)


def _told(lives: DataFrame) -> DataFrame:
    last, end = F.col("last"), F.col("end")
    flushed = (last.state != "gone") & F.col("flush_event").isNotNull()
    ended = is_ended(last.state)
    return lives.select(
        *(name for name in lives.columns if name in JOBS.columns),
        *(F.col("first")[name].alias(name) for name in _FIRST if name != "queue"),
        F.col("first").queue.alias("first_queue"),
        *(last[name].alias(name) for name in ("queue", "priority", "worker", "tags")),
        last.actor.alias("protocol"),
        F.when(flushed, "gone").otherwise(last.state).alias("state"),
        F.when(ended, end.type).when(flushed, "flushed").alias("outcome"),
        F.when(ended, end.time).when(flushed, F.col("flushed_at")).alias("ended_at"),
        *(F.col("error")[name].alias(name) for name in _ERROR),
        "day",
    )


def _sum(spans: Column) -> Column:
    """Sum the spans, limited to 64 bits: wrong client clocks can produce a sum that overflows."""
    return F.coalesce(F.try_sum(F.coalesce(spans, F.lit(0))), F.lit(_MOST))
