"""Visits: the input of a replay.

A visit is one stay of a job in the state `ready`, with the lease that ended it. A job that was
retried twice has three visits.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

#: A time after every recorded time, in microseconds.
NEVER: Final = 1 << 62
#: Outcomes after which the same job is ready again, in the same queue.
RETURNS: Final = frozenset({"failed", "expired", "released"})


#: The number of the job, and the times at which it was ready and leased.
VisitKey = tuple[int, int, int]


class Visit(NamedTuple):
    """Times are microseconds since 1970; a time that is unknown or not reached is NEVER."""

    seq: int
    queue: str
    kind: str
    origin: str
    #: The protocol and the name of the worker; empty if the job was not leased.
    holder: str
    worker: str
    priority: float
    #: The time of the push.
    created: int
    ready: int
    leased: int
    #: The end of the lease; without a lease, the time when the job left the queue.
    ended: int
    #: The type of the event that ended the lease, and the state after it.
    outcome: str
    state: str
    #: The part of the recorded wait that was before `ready`: workers of Qless count from the put.
    early: int = 0

    @property
    def key(self) -> VisitKey:
        return self.seq, self.ready, self.leased

    @property
    def is_leased(self) -> bool:
        return self.leased < NEVER

    @property
    def wait(self) -> int:
        return max(0, self.leased - self.ready)


class Period(NamedTuple):
    """From `start` up to `end`, in microseconds since 1970."""

    start: int
    end: int

    def __contains__(self, time: object) -> bool:
        return isinstance(time, int) and self.start <= time < self.end


def visits_sql(period: Period) -> str:
    """The visits that overlap a period, from the tables and views of the lake."""
    start, end = f"timestamp_micros({period.start}L)", f"timestamp_micros({period.end}L)"
    day = f"to_date({start})"
    job, rest = "server, seq, queue, kind, origin", "priority, created"
    left = "coalesce(if(source IS NULL, ready_at, null), created)"
    return f"""
        WITH early AS (
            SELECT server, seq, wait_us, max(ready_at) AS was_ready_at
            FROM events
            WHERE day >= {day} - INTERVAL 1 DAY AND type = 'leased' AND actor = 'qless'
                AND wait_us > unix_micros(leased_at) - unix_micros(ready_at)
            GROUP BY server, seq, wait_us
        ), exact AS (
            SELECT attempts.* EXCEPT (ready_at), coalesce(was_ready_at, ready_at) AS ready_at,
                coalesce(unix_micros(was_ready_at) - unix_micros(ready_at), 0) AS early
            FROM attempts LEFT JOIN early USING (server, seq, wait_us)
        ), visits AS (
            SELECT {job}, holder, worker, {rest}, coalesce(ready_at, leased_at) AS ready,
                leased_at AS leased, ended_at AS ended, outcome, state, early
            FROM exact
            WHERE day >= {day} AND ended_at >= {start} AND coalesce(ready_at, leased_at) < {end}
            UNION ALL
            SELECT {job}, actor, worker, {rest}, coalesce(ready_at, leased_at), leased_at, null,
                'running', state, 0
            FROM jobs_current WHERE state = 'leased' AND leased_at < {end}
            UNION ALL
            SELECT {job}, null, null, {rest}, ready_at, null, null, 'waiting', state, 0
            FROM jobs_current WHERE state = 'ready' AND ready_at < {end}
            UNION ALL
            SELECT server, seq, coalesce(source, queue), kind, origin, null, null, {rest}, {left},
                null, time, type, state, 0
            FROM events
            WHERE day >= {day} AND before = 'ready' AND type <> 'leased' AND time >= {start}
                AND (state <> 'ready' OR source IS NOT NULL) AND {left} < {end}
        )
        SELECT server, seq, queue, kind, coalesce(origin, '') AS origin,
            coalesce(holder, '') AS holder, coalesce(worker, '') AS worker, priority,
            unix_micros(created) AS created, unix_micros(ready) AS ready,
            unix_micros(leased) AS leased, unix_micros(ended) AS ended, outcome, state, early
        FROM visits
    """


def from_rows(rows: Iterable[dict[str, Any]], period: Period) -> Iterator[Visit]:
    """Visits from rows of the query. Times of a client with a wrong clock are put in order."""
    for row in rows:
        ready = row["ready"]
        leased = NEVER if row["leased"] is None else max(ready, row["leased"])
        began = ready if leased == NEVER else leased
        ended = NEVER if row["ended"] is None else max(began, row["ended"])
        if ended < period.start or ready >= period.end:
            continue
        created = min(row["created"] if row["created"] is not None else ready, ready)
        early = max(0, row["early"])
        times = {"created": created, "ready": ready, "leased": leased, "ended": ended}
        yield Visit(**{**row, **times, "early": early})
