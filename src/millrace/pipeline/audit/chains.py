"""Check that each event is present exactly once and that the events of each job are consistent.

Event numbers have no gaps, so `audit_seq` counts events instead of comparing them.

The events of a job form a chain. Each event records the state before it and the state after it, and
the state before must equal the state after the previous event. Sorting all events of all jobs is
slow, so `judge` first computes a sum that does not depend on the order, in one pass: except for the
first state before and the last state after, a chain enters each state as often as it leaves it.
`problems` then checks the chains of the following jobs only: jobs with a wrong sum, jobs with an
event that the state machine does not allow, jobs with events on both sides of a flush, and, if the
lake has the first event of the server, jobs without a push. This method misses two faults:
exchanged numbers of events of one job that leave the sum correct, and a missing event that did not
change the state (`renewed`). `audit_seq` detects the second fault. `thorough` checks every chain
and detects the first.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from millrace.journal.schema import FLUSHED, LEGAL, STATES
from millrace.pipeline.events import load
from millrace.pipeline.job_states import MAX_BROADCAST, event_of, number, packed, state_of
from millrace.pipeline.tables import AUDIT_JOBS

#: Maximum number of gaps listed per server.
MAX_GAPS: Final = 100
#: Bits per state in `balance`. An imbalance beyond this width would overflow into the next state.
_WIDTH: Final = 5
_ENDED: Final = "('done', 'dead', 'gone')"
#: The most frequent types are compared first, because each name costs a comparison.
_FREQUENT: Final = ("leased", "completed", "pushed")

#: The event numbers of the flushes of each server.
Flushes = Mapping[str, list[int]]


# Numbers

#: Counts for each range of 65,536 numbers. A range is complete if it has each number from its first
#: to its last exactly once: the count, the sum and the sum of squares are then known.
_RANGES: Final = """
    SELECT server, part, n, first, last, n = high - low + 1 AND total * 2 = (low + high) * n
        AND squares * 6 = high * (high + 1) * (high * 2 + 1) - (low - 1) * low * (low * 2 - 1)
        AS complete
    FROM (
        SELECT *, first & 65535L AS low, last & 65535L AS high FROM (
            SELECT server, shiftright(event_id, 16) AS part, count(*) AS n, min(event_id) AS first,
                max(event_id) AS last, sum(event_id & 65535L) AS total,
                sum((event_id & 65535L) * (event_id & 65535L)) AS squares
            FROM {events} GROUP BY server, part
        )
    )
"""
#: Only ranges that are not complete are examined in detail. Consecutive numbers have the same
#: difference to their rank.
_NUMBERS: Final = f"""
    WITH counted AS (
        SELECT server, event_id, count(*) AS n FROM {{events}} LEFT SEMI JOIN (
            SELECT server AS of, part FROM {{ranges}} WHERE NOT complete
        ) ON server = of AND shiftright(event_id, 16) = part
        GROUP BY server, event_id
    ), present AS (
        SELECT server, min(event_id) AS first, max(event_id) AS last, sum(n) AS n FROM (
            SELECT *, event_id - row_number() OVER (PARTITION BY server ORDER BY event_id) AS group
            FROM counted
        ) GROUP BY server, group
        UNION ALL SELECT server, first, last, n FROM {{ranges}} WHERE complete
    ), followed AS (
        SELECT *, coalesce(lag(last) OVER (PARTITION BY server ORDER BY first), first - 1)
            AS previous
        FROM present
    ), gaps AS (
        SELECT *, count_if(first > previous + 1) OVER (PARTITION BY server ORDER BY first) AS gap
        FROM followed
    )
    SELECT server, min(first) AS first_event, max(last) AS last_event, sum(n) AS events,
        max(last) - min(first) + 1 - sum(last - first + 1) AS missing,
        sum(n) - sum(last - first + 1) AS duplicates,
        sort_array(collect_list(if(first > previous + 1 AND gap <= {MAX_GAPS},
            struct(previous + 1 AS first, first - 1 AS last), null))) AS gaps
    FROM gaps GROUP BY server
"""


def audit_seq(events: DataFrame) -> DataFrame:
    """Return one row per server: its first and last event, the number of events, and the gaps."""
    spark = events.sparkSession
    ranges = spark.sql(_RANGES, events=events).cache()
    return spark.sql(_NUMBERS, events=events, ranges=ranges)


# Chains


def audit_jobs(events: DataFrame, *, thorough: bool = False) -> DataFrame:
    """Return AUDIT_JOBS without the problems that require a comparison with the server's jobs."""
    ended = flush_ids(events)
    judged = judge(events, ended).cache()
    return problems(events, judged, ended, tally(judged, ended), thorough=thorough)


def flush_ids(events: DataFrame) -> Flushes:
    """Collect the event numbers of the flushes by server. Flushes are rare."""
    found: dict[str, list[int]] = {}
    flushes = events.where(f"type = '{FLUSHED}'").select("server", "event_id")
    for server, event_id in sorted(map(tuple, flushes.collect())):
        found.setdefault(server, []).append(event_id)
    return found


class Tally(NamedTuple):
    """Counts of the judged jobs of one server."""

    server: str
    #: Whether the lake has the first event of the server. If not, older jobs may exist.
    has_first_event: bool
    suspect: int
    headless: int
    expected: int

    @property
    def doubtful(self) -> int:
        """Upper bound of the number of chains to check."""
        return self.suspect + (self.headless if self.has_first_event else 0)


def judge(
    events: DataFrame, flushes: Flushes, last_known: str = "null", expected: str = ""
) -> DataFrame:
    """Return the jobs that need attention: `suspect` jobs, `headless` jobs (their push is missing),
    and the job of event 1 of each server. `last_known` is an additional aggregate for each job; the
    condition `expected` may use it to select jobs that the server must have.

    The events of a job are aggregated to `balance` (for each state, entries minus exits), the
    `first` state before and the `last` state after, each packed with its event number, and whether
    an event is `illegal`. Events of version 1 may lack the states: -1 marks the job for a check.
    """
    flushed = _flushed_between(flushes, event_of("first"), event_of("last"))
    return events.sparkSession.sql(
        f"""
        SELECT *, illegal OR {flushed}
            OR balance <> {_weight(state_of("last"))} - {_weight(state_of("first"))} AS suspect,
            {state_of("first")} <> {STATES.index("new")} AS headless,
            {event_of("first")} = 1 AS begins, coalesce({expected or "false"}, false) AS expected
        FROM (
            SELECT server, seq, sum({_weight("now")} - {_weight("was")}) AS balance,
                min({packed("event_id", "greatest(was, 0)")}) AS first,
                max({packed("event_id", "greatest(now, 0)")}) AS last,
                max(was < 0 OR now < 0 OR NOT {_is_allowed("was", "now")}) AS illegal,
                {last_known} AS last_known
            FROM (
                SELECT server, seq, event_id, type, state, coalesce({number("before")}, -1) AS was,
                    coalesce({number("state")}, -1) AS now
                FROM {{events}} WHERE type <> '{FLUSHED}'
            ) GROUP BY server, seq
        )
        """,
        events=events,
    ).where("suspect OR headless OR begins OR expected")


def tally(judged: DataFrame, flushes: Flushes) -> dict[str, Tally]:
    """Count the judged jobs of each server."""
    rows = judged.sparkSession.sql(
        "SELECT server, bool_or(begins), count_if(suspect), count_if(headless), count_if(expected) "
        "FROM {judged} GROUP BY server",
        judged=judged,
    )
    return {
        server: Tally(server, begins or flushes.get(server, [])[:1] == [1], *counts)
        for server, begins, *counts in rows.collect()
    }


def _weight(state: str) -> str:
    return f"shiftleft(1L, CAST({state} AS INT) * {_WIDTH})"


def _flushed_between(flushes: Flushes, first: str, last: str) -> str:
    """Whether a flush occurred between these two events."""
    found = [
        f"server = '{server}' AND exists(array({', '.join(f'{n}L' for n in numbers)}), "
        f"n -> n > {first} AND n < {last})"
        for server, numbers in flushes.items()
    ]
    return f"({' OR '.join(found) or 'false'})"


def _is_allowed(was: str, now: str) -> str:
    """Whether a type of event may lead from one state to the other: a mask with a bit per move."""
    masks: dict[str, int] = {}
    for cause, before, state in LEGAL:
        masks[cause] = masks.get(cause, 0) | 1 << STATES.index(before) * 8 + STATES.index(state)
    order = sorted(masks, key=lambda cause: (cause not in _FREQUENT, cause))
    mask = " ".join(f"WHEN '{cause}' THEN {_signed(masks[cause])}" for cause in order)
    return f"(shiftright(CASE type {mask} ELSE 0L END, CAST({was} * 8 + {now} AS INT)) & 1L = 1)"


def _signed(mask: int) -> str:
    """A mask as a signed 64-bit integer."""
    return f"CAST({mask - (1 << 64) if mask >> 63 else mask} AS BIGINT)"


def problems(
    events: DataFrame,
    judged: DataFrame,
    flushes: Flushes,
    tallies: Mapping[str, Tally],
    *,
    thorough: bool = False,
) -> DataFrame:
    """Return the problems in the chains of the doubtful jobs or, with `thorough`, of all jobs."""
    spark, doubtful = events.sparkSession, sum(each.doubtful for each in tallies.values())
    has_first = _among(each.server for each in tallies.values() if each.has_first_event)
    taken = events.where(f"type <> '{FLUSHED}'")
    if not thorough:
        if not doubtful:
            return load(spark, Path(), AUDIT_JOBS, [])
        named = judged.where(f"suspect OR (headless AND {has_first})").select("server", "seq")
        named = named.hint("broadcast") if doubtful <= MAX_BROADCAST else named
        taken = taken.join(named, ["server", "seq"], "left_semi")
    # audit_seq reports duplicate events.
    taken = taken.dropDuplicates(["server", "event_id"])
    flushed = _flushed_between(flushes, "previous.event_id", "event_id")
    return spark.sql(
        f"""
        SELECT server, seq, jid, found.problem, event_id, found.detail FROM (
            SELECT *, explode(array_compact(array({_ILLEGAL}, {_BROKEN}, {_headless(has_first)})))
                AS found
            FROM (
                SELECT *, if({flushed}, 'gone', previous.state) AS left FROM (
                    SELECT server, seq, jid, event_id, type, before, state,
                        lag(struct(event_id, type, state))
                            OVER (PARTITION BY server, seq ORDER BY event_id) AS previous
                    FROM {{taken}}
                )
            )
        )
        """,
        taken=taken,
    )


def _among(servers: Iterable[str]) -> str:
    listed = ", ".join(f"'{server}'" for server in servers)
    return f"server IN ({listed or 'null'})"


def _problem(problem: str, detail: str) -> str:
    return f"struct('{problem}' AS problem, {detail} AS detail)"


#: An event that the state machine does not allow. If the event lacks the state before, it is
#: illegal only if no state before would be legal.
_ILLEGAL: Final = f"""if(
    coalesce({_is_allowed(number("before"), number("state"))},
        concat_ws(' ', type, state) IN {tuple(sorted({f"{c} {state}" for c, _, state in LEGAL}))}),
    null, {_problem("illegal", "format_string('%s cannot lead from %s to %s', type, "
                    "coalesce(before, 'any state'), state)")})"""  # fmt: skip
_FOUND: Final = """format_string('%s starts from %s, but event %d, %s, ends in %s', type, before,
    previous.event_id, previous.type, left)"""
#: The state before an event differs from the state after the previous event.
_BROKEN: Final = f"""CASE WHEN left IS NULL OR before = left OR before IS NULL THEN null
    WHEN before NOT IN {_ENDED} AND state IN {_ENDED} AND left IN {_ENDED}
        THEN {_problem("ended_twice", _FOUND)}
    WHEN left = 'gone' THEN {_problem("after_gone", _FOUND)}
    WHEN left = 'leased' AND type = 'leased' THEN {_problem("leased_twice", _FOUND)}
    ELSE {_problem("broken", _FOUND)} END"""


def _headless(has_first: str) -> str:
    """The first event of a job must be its push if the journal is present from its first event."""
    detail = "format_string('%s starts from %s, but no event precedes it', type, before)"
    broken = _problem("broken", detail)
    return f"if(previous IS NULL AND {has_first} AND before <> 'new', {broken}, null)"
