"""The state of every job at a given time, determined by its last event up to that time.

The last event is the event with the highest number and not the event with the latest timestamp,
because Qless clients supply their own timestamps. The events of a job end with `gone`, or with a
`flushed` event of its server, which ends all jobs before it.

The first pass reads all jobs, few of which still exist. It therefore aggregates only numbers (a
hash aggregate that can spill), and a second pass fetches the other columns of the remaining jobs.
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.durable_files import make, sync
from millrace.journal.schema import FLUSHED, STATES

from . import events
from .lake import Lake

#: Up to this number of jobs, Spark sends them to every task. With more jobs, it sorts the events.
MAX_BROADCAST: Final = 1_000_000

#: State numbers fit into 3 bits, so that a state and an event number share a 64-bit integer.
GONE: Final = STATES.index("gone")
#: The most frequent states are compared first, because each name costs a comparison.
_COMMON: Final = ("leased", "ready", "gone", "done", "new", "scheduled", "dead", "blocked")


class Depth(msgspec.Struct):
    """The number of jobs of a queue in each state."""

    server: str
    queue: str
    ready: int
    scheduled: int
    blocked: int
    leased: int
    done: int
    dead: int


class JobState(msgspec.Struct):
    """A job according to its last event; `since` is the time of that event."""

    server: str
    seq: int
    jid: str
    queue: str
    kind: str
    origin: str
    state: str
    priority: float
    attempt: int
    worker: str | None
    created: datetime | None
    since: datetime
    due: datetime | None
    event_id: int


#: States of jobs that exist on the server.
KEPT: Final = Depth.__struct_fields__[2:]


# Expressions in SQL.


def number(state: str) -> str:
    """The number of a state; null if the text is not a state."""
    numbers = " ".join(f"WHEN '{name}' THEN {STATES.index(name)}" for name in _COMMON)
    return f"CASE {state} {numbers} END"


def name(number: str) -> str:
    """The state with this number."""
    return f"get(array{STATES}, CAST({number} AS INT))"


def packed(event_id: str, number: str) -> str:
    """An event number and a state number as one integer, ordered by event."""
    return f"(shiftleft({event_id}, 3) | CAST({number} AS BIGINT))"


def event_of(pack: str) -> str:
    return f"shiftright({pack}, 3)"


def state_of(pack: str) -> str:
    return f"({pack} & 7L)"


_ALIVE: Final = f"""
    SELECT server, seq, {event_of("last")} AS event_id FROM (
        SELECT server, seq, max({packed("event_id", number("state"))}) AS last
        FROM {{events}} WHERE type <> '{FLUSHED}' GROUP BY server, seq
    ) LEFT JOIN (
        SELECT /*+ BROADCAST */ server, max(event_id) AS flushed
        FROM {{events}} WHERE type = '{FLUSHED}' GROUP BY server
    ) USING (server)
    WHERE {state_of("last")} <> {GONE} AND {event_of("last")} > coalesce(flushed, 0)
"""


def alive(events: DataFrame) -> DataFrame:
    """Return `server`, `seq` and the last `event_id` of the jobs that exist after these events."""
    return events.sparkSession.sql(_ALIVE, events=events)


def until(events: DataFrame, moment: datetime) -> DataFrame:
    """Return the events up to this time."""
    return events.where(F.col("time") <= F.lit(moment))


def jobs(events: DataFrame, alive: DataFrame) -> DataFrame:
    """Return all columns of these jobs, from the last event of each job."""
    last = events.join(alive.select("server", "event_id"), ["server", "event_id"], "left_semi")
    return last.withColumnRenamed("time", "since").select(*JobState.__struct_fields__)


def depths(jobs: DataFrame) -> DataFrame:
    """Count the jobs of each queue in each state."""
    counts = [F.expr(f"count_if(state = '{state}') AS {state}") for state in KEPT]
    return jobs.groupBy("server", "queue").agg(*counts)


# The state at a given time


class Which(NamedTuple):
    """Filters jobs; an empty value matches any job."""

    queue: str = ""
    state: str = ""


class State:
    """All jobs that existed at a point in time."""

    def __init__(
        self, spark: SparkSession, lake: Lake, moment: datetime, which: Which | None = None
    ) -> None:
        read = events.read(spark, lake.root, last=moment.astimezone(UTC).date())
        past = until(read, moment)
        known = alive(past).cache()
        self.count = known.count()
        found = jobs(past, F.broadcast(known) if self.count <= MAX_BROADCAST else known)
        for column, value in (which or Which())._asdict().items():
            found = found.where(F.col(column) == value) if value else found
        self._jobs = found

    def depths(self) -> list[Depth]:
        rows = depths(self._jobs).orderBy("server", "queue").toArrow()
        return [Depth(**row) for row in rows.to_pylist()]

    def jobs(self, limit: int) -> list[JobState]:
        """Return the oldest jobs."""
        rows = self._jobs.orderBy("server", "seq").limit(limit).toArrow()
        return [JobState(**row) for row in rows.to_pylist()]

    def write(self, place: Path) -> None:
        """Write all jobs to one Parquet file."""
        aside = place.absolute().with_name(f".{place.name}.writing")
        rows = self._jobs.repartition(1).sortWithinPartitions("server", "seq")
        try:
            rows.write.mode("overwrite").parquet(events.located(aside))
            (part,) = aside.glob("part-*.parquet")
            make(place.absolute().parent)
            sync(part)
            part.replace(place)
            sync(place.absolute().parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
