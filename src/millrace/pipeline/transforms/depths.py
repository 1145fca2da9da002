"""The number of jobs in each state: changes per day, and the level at the end of each minute.

An event moves a job from one state to another within one queue, or between two queues (`moved`).
The states new, done and gone are not counted. Only the current epoch counts, because FLUSH removes
all jobs.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.pipeline.tables import DEPTH_DAY, THROUGHPUT_MINUTE

from .conform import conform
from .flushes import with_epoch
from .meanings import count_of, is_completion, is_death, is_failure, is_flush, is_type
from .times import MINUTE, begin, day_of, micros

STATES: Final = ("ready", "scheduled", "blocked", "leased", "dead")
_COUNTS: Final = ("pushed", "started", "completed", "failures", "died")


def depth_day(events: DataFrame, flushes: DataFrame) -> DataFrame:
    changed = _changes(with_epoch(events.filter(~is_flush()), flushes), ("day", "epoch"), {})
    by_day = changed.groupBy("server", "day", "queue", "epoch").agg(*_sums(STATES))
    return conform(by_day, DEPTH_DAY)


def opening(depth_day: DataFrame) -> DataFrame:
    """Return the depths at the end of these days, which are the initial depths of the next day."""
    return depth_day.groupBy("server", "queue", "epoch").agg(*_sums(STATES))


def throughput_minute(events: DataFrame, opening: DataFrame, flushes: DataFrame) -> DataFrame:
    """`events` are all events from some day on; `opening` has the depths before that day."""
    timed = with_epoch(events.filter(~is_flush()), flushes).withColumn(
        "at", begin(micros(F.col("time")), MINUTE)
    )
    changed = _changes(timed, ("epoch", "at"), _happened())
    changes = changed.groupBy("server", "queue", "epoch", "at").agg(*_sums((*STATES, *_COUNTS)))
    none = F.lit(0).cast("BIGINT")
    # Counts belong to the epoch that is current at the end of the minute, even for events before
    # the flush. Changes of depths belong to the epoch of the event.
    happened = F.struct(
        F.col("current").alias("epoch"),
        *(none.alias(state) for state in STATES),
        *_COUNTS,
        F.lit(True).alias("shown"),
    )
    deltas = F.struct(
        "epoch",
        *STATES,
        *(none.alias(count) for count in _COUNTS),
        F.lit(False).alias("shown"),
    )
    parted = _current(changes, flushes).select(
        "server", "queue", "at", F.inline(F.array(happened, deltas))
    )
    before = opening.select(
        "server",
        "queue",
        F.lit(None).cast("BIGINT").alias("at"),
        "epoch",
        *STATES,
        *(none.alias(count) for count in _COUNTS),
        F.lit(False).alias("shown"),
    )
    minutes = (
        parted.unionByName(before)
        .groupBy("server", "queue", "epoch", "at")
        .agg(*_sums((*STATES, *_COUNTS)), F.bool_or("shown").alias("shown"))
    )
    so_far = (
        Window.partitionBy("server", "queue", "epoch")
        .orderBy(F.col("at").asc_nulls_first())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    stood = minutes.select(
        "server",
        "queue",
        "at",
        "shown",
        *_COUNTS,
        *(F.sum(state).over(so_far).alias(state) for state in STATES),
    ).filter("shown")
    return conform(
        stood.select(
            "*",
            (F.col("ready") + F.col("scheduled") + F.col("blocked")).alias("backlog"),
            F.timestamp_micros("at").alias("minute"),
            day_of(F.col("at")).alias("day"),
        ),
        THROUGHPUT_MINUTE,
    )


def _changes(events: DataFrame, by: tuple[str, ...], counts: dict[str, Column]) -> DataFrame:
    """Return the change in the number of jobs in each state, and the given counts. Each group has
    one row for the queue of the events and one for the source queue, which is usually the same.
    """
    counted = events.groupBy("server", "queue", "source", *by).agg(
        *(count_of(F.col("state") == state).alias(f"to_{state}") for state in STATES),
        *(count_of(F.col("before") == state).alias(f"from_{state}") for state in STATES),
        *(count_of(condition).alias(name) for name, condition in counts.items()),
    )
    none = F.lit(0).cast("BIGINT")
    there = F.struct(
        F.col("queue").alias("place"),
        *(F.col(f"to_{state}").alias(state) for state in STATES),
        *counts,
    )
    here = F.struct(
        F.coalesce("source", "queue").alias("place"),
        *((-F.col(f"from_{state}")).alias(state) for state in STATES),
        *(none.alias(count) for count in counts),
    )
    return counted.select("server", *by, F.inline(F.array(there, here))).withColumnRenamed(
        "place", "queue"
    )


def _happened() -> dict[str, Column]:
    return {
        "pushed": is_type("pushed"),
        "started": is_type("leased"),
        "completed": is_completion(),
        "failures": is_failure(),
        "died": is_death(),
    }


def _sums(names: tuple[str, ...]) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


def _current(changes: DataFrame, flushes: DataFrame) -> DataFrame:
    """Add the epoch that is current at the end of each minute: the epoch after the last flush up to
    that time.
    """
    by_number = Window.partitionBy("server").orderBy("event_id")
    by_minute = Window.partitionBy("flushed_server").orderBy("flushed_minute")
    ends = (
        flushes.select(
            F.col("server").alias("flushed_server"),
            begin(micros(F.col("time")), MINUTE).alias("flushed_minute"),
            F.row_number().over(by_number).alias("flushed_epoch"),
        )
        .groupBy("flushed_server", "flushed_minute")
        .agg(F.max("flushed_epoch").alias("flushed_epoch"))
        .select(
            "flushed_server",
            "flushed_minute",
            F.max("flushed_epoch").over(by_minute).alias("flushed_epoch"),
            F.lead("flushed_minute").over(by_minute).alias("flushed_until"),
        )
    )
    at = F.col("at")
    reached = (
        (F.col("server") == F.col("flushed_server"))
        & (at >= F.col("flushed_minute"))
        & (F.col("flushed_until").isNull() | (at < F.col("flushed_until")))
    )
    return changes.join(F.broadcast(ends), reached, "left").withColumn(
        "current", F.coalesce("flushed_epoch", F.lit(0)).cast("BIGINT")
    )
