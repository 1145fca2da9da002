"""Compare the jobs and counters of a server with its events.

A server reports its counters in several parts, and each part is valid as of a different event. Each
row therefore has the number of that `event`, and only events up to that number are added up for it.
Each difference becomes a row with both values.
"""

from datetime import date
from typing import Final

from pyspark.sql import DataFrame

from millrace.journal.schema import FLUSHED
from millrace.pipeline.job_states import KEPT
from millrace.pipeline.tables import SLOTS

_COUNTS: Final = ("wait_n", "run_n", "failures", "failed", "retries")
#: Relative tolerance: the server adds durations one by one, the pipeline in one operation.
_TOLERANCE: Final = 1e-9
#: Last day that is compared. The last calendar day also contains all events after it.
LAST_DAY: Final = (date.max - date(1970, 1, 1)).days - 1
#: The number of days since 1970. A server may have days outside the calendar.
_NUMBER: Final = "CAST(datediff(day, DATE'1970-01-01') AS BIGINT)"


def jobs(server: str, expected: DataFrame, live: DataFrame, *, complete: bool) -> DataFrame:
    """Return AUDIT_JOBS rows for jobs that differ between the server and their last events, which
    `expected` has. If the history in the lake is not `complete`, the server may have other jobs.
    """
    return expected.sparkSession.sql(
        f"""
        SELECT '{server}' AS server, coalesce(o.seq, t.seq) AS seq, coalesce(o.jid, t.jid) AS jid,
            CASE WHEN t.seq IS NULL THEN 'lost' WHEN o.seq IS NULL THEN 'unknown' ELSE 'differs'
                END AS problem,
            coalesce(o.event_id, 0) AS event_id,
            CASE WHEN t.seq IS NULL THEN concat(left, ', and the server does not have it')
                WHEN o.seq IS NULL THEN concat(has, ', and no event mentions it')
                ELSE concat(left, ', but ', has) END AS detail
        FROM (SELECT *, format_string('its last event left it %s in %s', state, queue) AS left
                FROM {{expected}}) AS o
            FULL JOIN (SELECT *, format_string('the server has it %s in %s', state, queue) AS has
                FROM {{live}}) AS t ON o.seq = t.seq
        WHERE t.seq IS NULL OR o.seq IS NULL AND {complete} OR o.state <> t.state
            OR o.queue <> t.queue
        """,
        expected=expected,
        live=live,
    )


def depths(events: DataFrame, live: DataFrame, event: int) -> DataFrame:
    """Return the queues and states in which the server's number of jobs differs from the sum of its
    events since it was last empty. For queues that the server did not report, the bound is `event`.
    """
    sums = ", ".join(f"sum(if(state = '{state}', by, 0)) AS {state}" for state in KEPT)
    differences = ", ".join(_difference(state, *_both(state, "0")) for state in KEPT)
    return events.sparkSession.sql(
        f"""
        SELECT what, queue, CAST(null AS BIGINT) AS day, live, lake FROM (
            SELECT queue, inline(array_compact(array({differences}))) FROM (
                SELECT queue, {sums} FROM (
                    SELECT event_id, stack(2, queue, state, 1,
                        if(type = 'moved', source, queue), before, -1) AS (queue, state, by)
                    FROM {{events}} WHERE type <> '{FLUSHED}'
                ) LEFT JOIN (SELECT /*+ BROADCAST */ queue, event FROM {{live}}) USING (queue)
                WHERE event_id <= coalesce(event, {event}) GROUP BY queue
            ) AS o FULL JOIN {{live}} AS t USING (queue)
        )
        """,
        events=events,
        live=live,
    )


def counted_by(events: DataFrame, live: DataFrame, event: int) -> DataFrame:
    """Return the events that the server's statistics include: for each queue and day, events up to
    the number that the server reported.
    """
    return events.sparkSession.sql(
        f"""
        SELECT e.* FROM {{events}} AS e LEFT JOIN (
            SELECT /*+ BROADCAST */ queue, day AS numbered, event FROM {{live}}
        ) AS t ON e.queue = t.queue AND {_NUMBER} = numbered
        WHERE event_id <= coalesce(event, {event})
        """,
        events=events,
        live=live,
    )


def statistics(queue_day: DataFrame, live: DataFrame, since: int) -> DataFrame:
    """Return the differences between the table and the server for days from `since` on. Counts and
    histograms must be equal; mean and variance are floating-point numbers and have a tolerance.
    """
    differences = ", ".join(
        [
            *(_difference(name, *_both(name, "0")) for name in _COUNTS),
            *(_histograms(f"{name}_hist") for name in ("wait", "run")),
            *(_spreads(name, which) for name in ("wait", "run") for which in ("mean", "var")),
        ]
    )
    return queue_day.sparkSession.sql(
        f"""
        SELECT what, queue, day, live, lake FROM (
            SELECT queue, day, inline(array_compact(array({differences}))) FROM (
                SELECT * EXCEPT (day), {_NUMBER} AS day
                FROM {{queue_day}}
                WHERE {_NUMBER} BETWEEN {since} AND {LAST_DAY}
                    AND wait_n + run_n + failures + failed + retries > 0
            ) AS o FULL JOIN (
                SELECT * FROM {{live}} WHERE day BETWEEN {since} AND {LAST_DAY}
            ) AS t USING (queue, day)
        )
        """,
        queue_day=queue_day.withColumnRenamed("expired", "retries"),
        live=live,
    )


def _both(column: str, default: str) -> tuple[str, str]:
    """The values of the server and of the lake."""
    return f"coalesce(t.{column}, {default})", f"coalesce(o.{column}, {default})"


def _histograms(column: str) -> str:
    """The slots that differ, with their counts."""
    live, lake = _both(column, f"array_repeat(0L, {SLOTS})")
    slots = f"filter(sequence(0, {SLOTS - 1}), n -> get({live}, n) <> get({lake}, n))"
    texts = (
        f"transform({slots}, n -> format_string('%d: %d', n, get({each}, n)))"
        for each in (live, lake)
    )
    return _difference(column, *(f"array_join({text}, ', ')" for text in texts))


def _spreads(name: str, which: str) -> str:
    """Compare with a tolerance. The variance of long, similar spans has few significant digits."""
    live, lake = _both(f"{name}_{which}", "0D")
    bound = f"{_TOLERANCE!r}D * greatest(abs({live}), abs({lake}))"
    if which == "var":
        mean = f"abs(coalesce(o.{name}_mean, 0D))"
        bound += f" + 1e-12D * {mean} * sqrt(greatest({live}, {lake}))"
    return _difference(f"{name}_{which}", live, lake, f"abs({live} - {lake}) > {bound}")


def _difference(what: str, live: str, lake: str, differs: str = "") -> str:
    """The difference of two values as a struct; null if they are equal."""
    found = f"'{what}' AS what, CAST({live} AS STRING) AS live, CAST({lake} AS STRING) AS lake"
    return f"if({differs or f'{live} <> {lake}'}, struct({found}), null)"
