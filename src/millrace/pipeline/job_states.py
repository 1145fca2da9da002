"""The state of every job at a given time, determined by its last event up to that time.

The last event is the event with the highest number and not the event with the latest timestamp,
because Qless clients supply their own timestamps. The events of a job end with `gone`, or with a
`flushed` event of its server, which ends all jobs before it.

The first pass reads all jobs, few of which still exist. It therefore aggregates only numbers (a
hash aggregate that can spill), and a second pass fetches the other columns of the remaining jobs.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.journal.schema import FLUSHED, STATES

#: State numbers fit into 3 bits, so that a state and an event number share a 64-bit integer.
GONE: Final = STATES.index("gone")
#: The most frequent states are compared first, because each name costs a comparison.
_COMMON: Final = ("leased", "ready", "gone", "done", "new", "scheduled", "dead", "blocked")
#: States of jobs that exist on the server.
KEPT: Final = ("ready", "scheduled", "blocked", "leased", "done", "dead")

#: Columns of each job.
JOB: Final = (
    "server", "seq", "jid", "queue", "kind", "origin", "state", "priority", "attempt", "worker",
    "created", "since", "due", "event_id",
)  # fmt: skip

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
    """Return the jobs that exist after these events: `server`, `seq`, and the `event_id` of the
    last event of each job.
    """
    return events.sparkSession.sql(_ALIVE, events=events)


def until(events: DataFrame, moment: datetime) -> DataFrame:
    """Return the events up to this time."""
    return events.where(F.col("time") <= F.lit(moment))


def jobs(events: DataFrame, alive: DataFrame) -> DataFrame:
    """Return all columns of these jobs, from the last event of each job."""
    last = events.join(alive.select("server", "event_id"), ["server", "event_id"], "left_semi")
    return last.withColumnRenamed("time", "since").select(*JOB)


def depths(jobs: DataFrame) -> DataFrame:
    """Count the jobs of each queue in each state."""
    counts = [F.expr(f"count_if(state = '{state}') AS {state}") for state in KEPT]
    return jobs.groupBy("server", "queue").agg(*counts)
