"""Attempts: one row per lease of a job, with its outcome.

A lease ends with the first later event that takes the job from its holder. Events are ordered by
number, because timestamps may be wrong.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from millrace.pipeline.tables import ATTEMPTS

from .conform import conform
from .flushes import with_epoch
from .meanings import ends_lease, is_type
from .times import span

_AS_LEASED: Final = (
    "jid", "queue", "kind", "origin", "worker", "attempt", "priority", "created", "ready_at",
    "leased_at", "wait_us",
)  # fmt: skip
_AS_ENDED: Final = ("type", "time", "actor", "state", "run_us")
_ERROR: Final = ("error_group", "error_message", "fingerprint")


def attempts(events: DataFrame, flushes: DataFrame) -> DataFrame:
    """`day` is the day of the lease; `events` must include all events of these leases."""
    is_lease = is_type("leased")
    # `seq` is the first key, because it distinguishes most rows when Spark sorts them.
    of_job = Window.partitionBy("seq", "server", "day").orderBy("event_id")
    so_far = of_job.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    in_all = of_job.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    is_renewal = is_type("renewed").cast("BIGINT")
    kept = ("seq", "server", "event_id", *_AS_LEASED, *_AS_ENDED, *_ERROR)
    rows = (
        events.filter(F.col("leased_at").isNotNull() & (is_lease | (F.col("before") == "leased")))
        .select(*dict.fromkeys(kept), "before", F.to_date("leased_at").alias("day"))
        .withColumn("renewed", F.sum(is_renewal).over(so_far))
        .withColumn("renewed_in_all", F.sum(is_renewal).over(in_all))
    )
    after = F.struct("event_id", "renewed", *_AS_ENDED, *_ERROR)
    leases = (
        rows.filter(is_lease | ends_lease())
        .withColumn("after", F.lead(after).over(of_job))
        .filter(is_lease)
    )
    return conform(_told(with_epoch(leases, flushes)), ATTEMPTS)


def _told(leases: DataFrame) -> DataFrame:
    after = F.col("after")
    # If a lease follows a lease, the lake lacks the event that ended the first one.
    ended = F.coalesce(after.type != "leased", F.lit(False))
    fails = after.type.isin("failed", "expired")
    flushed = ~ended & F.col("flush_event").isNotNull()
    return leases.select(
        "server",
        "seq",
        F.col("event_id").alias("lease_event"),
        *_AS_LEASED,
        F.col("actor").alias("protocol"),
        F.when(ended, after.actor).alias("ended_by"),
        F.when(ended, after.time).when(flushed, F.col("flushed_at")).alias("ended_at"),
        F.when(ended, F.coalesce(after.run_us, span(F.col("leased_at"), after.time))).alias(
            "run_us"
        ),
        F.when(ended, after.type).when(flushed, "flushed").otherwise("running").alias("outcome"),
        F.when(ended, after.state).when(flushed, "gone").otherwise("leased").alias("state"),
        F.when(ended, after.event_id).alias("end_event"),
        (
            F.when(after.isNull(), F.col("renewed_in_all")).otherwise(after.renewed)
            - F.col("renewed")
        ).alias("renewals"),
        # The event that ends a job repeats its last error, which may be from an earlier attempt.
        *(F.when(ended & fails, after[name]).alias(name) for name in _ERROR),
        "day",
    )
