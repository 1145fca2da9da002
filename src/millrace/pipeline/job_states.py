"""The state of every job at a given time, determined by its last event up to that time.

The last event is the event with the highest number and not the event with the latest timestamp,
because Qless clients supply their own timestamps. The events of a job end with `gone`, or with a
`flushed` event of its server, which ends all jobs before it.

The first pass reads all jobs, few of which still exist. It therefore aggregates only numbers (a
hash aggregate that can spill), and a second pass fetches the other columns of the remaining jobs.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED, STATES

#: State numbers fit into 3 bits, so that a state and an event number share a 64-bit integer.
GONE: Final = STATES.index("gone")
_BITS: Final = 3
_MASK: Final = (1 << _BITS) - 1
#: The most frequent states are compared first, because each name costs a comparison.
_COMMON: Final = ("leased", "ready", "gone", "done", "new", "scheduled", "dead", "blocked")
#: States of jobs that exist on the server.
KEPT: Final = ("ready", "scheduled", "blocked", "leased", "done", "dead")

#: Columns of each job.
JOB: Final = (
    "server", "seq", "jid", "queue", "kind", "origin", "state", "priority", "attempt", "worker",
    "created", "since", "due", "event_id",
)  # fmt: skip


def number(state: Column) -> Column:
    """Return the number of a state; null if the text is not a state."""
    first, *others = _COMMON
    found = F.when(state == first, F.lit(STATES.index(first)))
    for name in others:
        found = found.when(state == name, F.lit(STATES.index(name)))
    return found


def name(number: Column) -> Column:
    """Return the state with this number."""
    return F.get(F.array(*map(F.lit, STATES)), number.cast("int"))


def packed(event_id: Column, number: Column) -> Column:
    """Pack an event number and a state number into one integer, ordered by event."""
    return F.shiftleft(event_id, _BITS).bitwiseOR(number.cast("long"))


def event_of(pack: Column) -> Column:
    return F.shiftright(pack, _BITS)


def state_of(pack: Column) -> Column:
    return pack.bitwiseAND(F.lit(_MASK).cast("long"))


def alive(events: DataFrame) -> DataFrame:
    """Return the jobs that exist after these events: `server`, `seq`, and the `event_id` of the
    last event of each job.
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
    """Return the events up to this time."""
    return events.where(F.col("time") <= F.lit(moment))


def jobs(events: DataFrame, alive: DataFrame) -> DataFrame:
    """Return all columns of these jobs, from the last event of each job."""
    return (
        events.join(alive.select("server", "event_id"), ["server", "event_id"], "left_semi")
        .withColumnRenamed("time", "since")
        .select(*JOB)
    )


def depths(jobs: DataFrame) -> DataFrame:
    """Count the jobs of each queue in each state."""
    counts = [F.count_if(F.col("state") == state).alias(state) for state in KEPT]
    return jobs.groupBy("server", "queue").agg(*counts).select("server", "queue", *KEPT)
