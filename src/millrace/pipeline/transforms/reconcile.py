"""What a server itself knows, beside what its events say: its jobs, and what it counted.

A server tells its counters in pieces, each of which is of an event of its own; so every row brings
the number of the `event` after which it is true, and events up to that one are added up for it.
Whatever differs becomes a row with both values.
"""

from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED
from millrace.pipeline.tables import AUDIT_JOBS

from .state import KEPT

#: What differs, where, and what each of the two says.
DIFFERENCE: Final = ("what", "queue", "day", "live", "lake")
_COUNTS: Final = ("wait_n", "run_n", "failures", "failed", "retries")
#: The server adds one span after the other, the pipeline all at once.
_NEARLY: Final = 1e-9
_EPOCH: Final = "1970-01-01"
#: The last day that can be compared: the calendar's last has all events that are beyond it, too.
LAST_DAY: Final = (date.max - date(1970, 1, 1)).days - 1


# Jobs


def jobs(server: str, told: DataFrame, live: DataFrame, *, complete: bool) -> DataFrame:
    """AUDIT_JOBS rows of jobs that are not in the server as their last events `told`. Where the
    lake does not have the `complete` history, the server may have jobs of which it knows nothing.
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
    """Where the number of a queue's jobs in a state is not what the events of this server, since it
    was last empty, add up to. Queues that the server did not name are taken as of `event`.
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
    """The events that are in the server's statistics: for each queue and day those up to the one
    that it told of.
    """
    bounds = live.select("queue", F.col("day").alias("numbered"), F.col("event").alias("bound"))
    return (
        events.withColumn("numbered", _number(F.col("day")))
        .join(F.broadcast(bounds), ["queue", "numbered"], "left")
        .where(F.col("event_id") <= F.coalesce("bound", F.lit(event)))
        .drop("numbered", "bound")
    )


def statistics(queue_day: DataFrame, live: DataFrame, since: int) -> DataFrame:
    """Where the table and the server do not agree on a day from `since` on. Counts and histograms
    are the same; mean and variance are floating numbers.
    """
    within = F.col("day").between(since, LAST_DAY)
    some = sum((F.col(column) for column in _COUNTS), start=F.lit(0)) > 0
    ours = queue_day.withColumn("day", _number(F.col("day"))).where(within & some)
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
    """Days since 1970: a server may have days that no calendar has."""
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
    """A variance of spans that are long and alike has few digits that mean something."""
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
