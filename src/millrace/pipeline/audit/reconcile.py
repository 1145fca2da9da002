"""Compare the jobs and counters of a server with its events.

A server reports its counters in several parts, and each part is valid as of a different event. Each
row therefore has the number of that `event`, and only events up to that number are added up for it.
Each difference becomes a row with both values.
"""

from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED
from millrace.pipeline.job_states import KEPT
from millrace.pipeline.tables import AUDIT_JOBS

#: Columns of a difference: the counter, its queue and day, and both values.
DIFFERENCE: Final = ("what", "queue", "day", "live", "lake")
_COUNTS: Final = ("wait_n", "run_n", "failures", "failed", "retries")
#: Relative tolerance: the server adds spans one by one and the pipeline adds them in one operation.
_NEARLY: Final = 1e-9
_EPOCH: Final = "1970-01-01"
#: Last day that is compared. The last calendar day also contains all events after it.
LAST_DAY: Final = (date.max - date(1970, 1, 1)).days - 1


# Jobs


def jobs(server: str, told: DataFrame, live: DataFrame, *, complete: bool) -> DataFrame:
    """Return AUDIT_JOBS rows for jobs that differ between the server and their last events
    (`told`). If the history in the lake is not `complete`, the server may have jobs without events.
    """
    ours, theirs = told.alias("ours"), live.alias("theirs")
    lake, seq = F.col("ours.seq"), F.col("theirs.seq")
    joined = ours.join(theirs, lake == seq, "full_outer")
    left = F.format_string("its events left it %s in %s", "ours.state", "ours.queue")
    has = F.format_string("the server has it %s in %s", "theirs.state", "theirs.queue")
    same = (F.col("ours.state") == F.col("theirs.state")) & (
        F.col("ours.queue") == F.col("theirs.queue")
    )
    lost = _found("lost", F.concat(left, F.lit(", and the server does not have it")))
    unknown = _found("unknown", F.concat(has, F.lit(", and no event tells of it")))
    differs = _found("differs", F.concat_ws(", but ", left, has))
    problem = (
        F.when(seq.isNull(), lost)
        .when(lake.isNull(), unknown if complete else None)
        .when(~same, differs)
    )
    return (
        joined.withColumn("found", problem)
        .where(F.col("found").isNotNull())
        .select(
            F.lit(server).alias("server"),
            F.coalesce(lake, seq).alias("seq"),
            F.coalesce("ours.jid", "theirs.jid").alias("jid"),
            F.col("found.problem").alias("problem"),
            F.coalesce("ours.event_id", F.lit(0)).alias("event_id"),
            F.col("found.detail").alias("detail"),
        )
        .select(*AUDIT_JOBS.columns)
    )


def _found(problem: str, detail: Column) -> Column:
    return F.struct(F.lit(problem).alias("problem"), detail.alias("detail"))


# Depths


def depths(events: DataFrame, live: DataFrame, event: int) -> DataFrame:
    """Return the queues and states in which the server's number of jobs differs from the sum of its
    events since it was last empty. For queues that the server did not report, the bound is `event`.
    """
    came = F.struct("queue", "state", F.lit(1).alias("by"))
    source = F.when(F.col("type") == "moved", F.col("source")).otherwise(F.col("queue"))
    went = F.struct(source.alias("queue"), F.col("before").alias("state"), F.lit(-1).alias("by"))
    moves = (
        events.where(F.col("type") != FLUSHED)
        .select("event_id", F.explode(F.array(came, went)).alias("move"))
        .select("event_id", "move.*")
    )
    bounds = F.broadcast(live.select("queue", "event"))
    counted = (
        moves.join(bounds, "queue", "left")
        .where(F.col("event_id") <= F.coalesce("event", F.lit(event)))
        .groupBy("queue")
        .agg(
            *(
                F.sum(F.when(F.col("state") == state, F.col("by")).otherwise(0)).alias(state)
                for state in KEPT
            )
        )
    )
    joined = counted.alias("ours").join(live.alias("theirs"), "queue", "full_outer")
    differences = [
        _different(
            F.coalesce(f"theirs.{state}", F.lit(0)), F.coalesce(f"ours.{state}", F.lit(0)), state
        )
        for state in KEPT
    ]
    return _told(joined.withColumn("day", F.lit(None).cast("bigint")), differences)


# Statistics


def counted_by(events: DataFrame, live: DataFrame, event: int) -> DataFrame:
    """Return the events that the server's statistics include: for each queue and day, events up to
    the number that the server reported.
    """
    bounds = live.select("queue", F.col("day").alias("numbered"), F.col("event").alias("bound"))
    return (
        events.withColumn("numbered", _number(F.col("day")))
        .join(F.broadcast(bounds), ["queue", "numbered"], "left")
        .where(F.col("event_id") <= F.coalesce("bound", F.lit(event)))
        .drop("numbered", "bound")
    )


def statistics(queue_day: DataFrame, live: DataFrame, since: int) -> DataFrame:
    """Return the differences between the table and the server for days from `since` on. Counts and
    histograms must be equal; mean and variance are floating-point numbers and have a tolerance.
    """
    within = F.col("day").between(since, LAST_DAY)
    some = sum((F.col(column) for column in _COUNTS), start=F.lit(0)) > 0
    renamed = queue_day.withColumnRenamed("expired", "retries")
    ours = renamed.withColumn("day", _number(F.col("day"))).where(within & some)
    joined = ours.alias("ours").join(
        live.where(within).alias("theirs"), ["queue", "day"], "full_outer"
    )
    differences = [
        *(
            _different(_or_0(f"theirs.{column}"), _or_0(f"ours.{column}"), column)
            for column in _COUNTS
        ),
        *(_histograms(f"{name}_hist") for name in ("wait", "run")),
        *(_spreads(name, which) for name in ("wait", "run") for which in ("mean", "var")),
    ]
    return _told(joined, differences)


def _number(day: Column) -> Column:
    """Return the number of days since 1970. A server may have days outside the calendar."""
    return F.datediff(day, F.lit(_EPOCH).cast("date")).cast("bigint")


def _or_0(column: str) -> Column:
    return F.coalesce(column, F.lit(0))


def _histograms(column: str) -> Column:
    live, lake = F.col(f"theirs.{column}"), F.col(f"ours.{column}")
    slots = F.sequence(F.lit(0), F.lit(147))
    none = F.array_repeat(F.lit(0).cast("bigint"), 148)
    live, lake = F.coalesce(live, none), F.coalesce(lake, none)
    where = F.filter(slots, lambda slot: F.get(live, slot) != F.get(lake, slot))

    def told(values: Column) -> Column:
        return F.array_join(
            F.transform(where, lambda slot: F.format_string("%d: %d", slot, F.get(values, slot))),
            ", ",
        )

    return F.when(F.size(where) > 0, _difference(column, told(live), told(lake)))


def _spreads(name: str, which: str) -> Column:
    """Compare with a tolerance. The variance of long, similar spans has few significant digits."""
    live, lake = _or_0(f"theirs.{name}_{which}"), _or_0(f"ours.{name}_{which}")
    bound = _NEARLY * F.greatest(F.abs(live), F.abs(lake))
    if which == "var":
        mean = F.abs(_or_0(f"ours.{name}_mean"))
        bound += 1e-12 * mean * F.sqrt(F.greatest(live, lake))
    differs = F.abs(live - lake) > bound
    return F.when(differs, _difference(f"{name}_{which}", live, lake))


def _different(live: Column, lake: Column, what: str) -> Column:
    return F.when(live != lake, _difference(what, live, lake))


def _difference(what: str, live: Column, lake: Column) -> Column:
    return F.struct(
        F.lit(what).alias("what"),
        live.cast("string").alias("live"),
        lake.cast("string").alias("lake"),
    )


def _told(joined: DataFrame, differences: list[Column]) -> DataFrame:
    return (
        joined.withColumn("found", F.explode(F.array_compact(F.array(*differences))))
        .select("found.what", "queue", "day", "found.live", "found.lake")
        .select(*DIFFERENCE)
    )
