"""Where every job is at a moment: its last event until then tells.

The last is the one with the highest number, never the one with the latest time: Qless's callers
bring their own clocks. A job's events end with `gone`, or with a `flushed` of its server, which is
the end of everything before it.

All jobs are looked at, and few are still there; so the first pass takes only numbers along (a hash
aggregate, which spills where it must), and the rest is fetched for those that are left.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED, STATES

#: States by their numbers, which are small enough to share a long with the event's number.
GONE: Final = STATES.index("gone")
_BITS: Final = 3
_MASK: Final = (1 << _BITS) - 1
#: What most events lead to comes first: each name costs a comparison.
_COMMON: Final = ("leased", "ready", "gone", "done", "new", "scheduled", "dead", "blocked")
#: Those in which there can be a job.
KEPT: Final = ("ready", "scheduled", "blocked", "leased", "done", "dead")

#: What is told of each job.
JOB: Final = (
    "server", "seq", "jid", "queue", "kind", "origin", "state", "priority", "attempt", "worker",
    "created", "since", "due", "event_id",
)  # fmt: skip


def number(state: Column) -> Column:
    """A state's number; null for what is no state."""
    first, *others = _COMMON
    found = F.when(state == first, F.lit(STATES.index(first)))
    for name in others:
        found = found.when(state == name, F.lit(STATES.index(name)))
    return found


def name(number: Column) -> Column:
    """The state that has this number."""
    return F.get(F.array(*map(F.lit, STATES)), number.cast("int"))


def packed(event_id: Column, number: Column) -> Column:
    """An event's number and a state's in one long, in the order of events."""
    return F.shiftleft(event_id, _BITS).bitwiseOR(number.cast("long"))


def event_of(pack: Column) -> Column:
    return F.shiftright(pack, _BITS)


def state_of(pack: Column) -> Column:
    return pack.bitwiseAND(F.lit(_MASK).cast("long"))


def alive(events: DataFrame) -> DataFrame:
    """The jobs that are there after these events: `server`, `seq`, and the `event_id` of the last
    event of each.
    """
    flushed = (
        events.where(F.col("type") == FLUSHED)
        .groupBy("server")
        .agg(F.max("event_id").alias("flushed"))
    )
    last = F.col("last")
    return (
        events.where(F.col("type") != FLUSHED)
        .groupBy("server", "seq")
        .agg(F.max(packed(F.col("event_id"), number(F.col("state")))).alias("last"))
        .where(state_of(last) != GONE)
        .join(F.broadcast(flushed), "server", "left")
        .where(F.col("flushed").isNull() | (event_of(last) > F.col("flushed")))
        .select("server", "seq", event_of(last).alias("event_id"))
    )


def until(events: DataFrame, moment: datetime) -> DataFrame:
    """What had happened by then."""
    return events.where(F.col("time") <= F.lit(moment))


def jobs(events: DataFrame, alive: DataFrame) -> DataFrame:
    """All that is told of these jobs, from the last event of each."""
    return (
        events.join(alive.select("server", "event_id"), ["server", "event_id"], "left_semi")
        .withColumnRenamed("time", "since")
        .select(*JOB)
    )


def depths(jobs: DataFrame) -> DataFrame:
    """How many jobs each queue has in each state."""
    counts = [F.count_if(F.col("state") == state).alias(state) for state in KEPT]
    return jobs.groupBy("server", "queue").agg(*counts).select("server", "queue", *KEPT)
