"""Every derived table a second time, in SQL for DuckDB, from its definition and not from the way
Spark computes it. The bench measures both, and the tests compare the results.

Each query reads the view `events` and returns the columns of its table. `jobs` and `attempts` are
computed from all events of a job, although the pipeline takes them from its last event.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TIMES: Final = (
    "time", "created", "ready_at", "leased_at", "due", "first_leased_at", "ended_at"
)  # fmt: skip
STATES: Final = ("ready", "scheduled", "blocked", "leased", "dead")
_PERCENTILES: Final = (50, 90, 95, 99)

_VIEWS: Final = (
    # Plain timestamps in UTC: timestamps with a zone are slower.
    "CREATE OR REPLACE TEMP VIEW events AS SELECT * REPLACE ("
    + ", ".join(f"make_timestamp(epoch_us({name})) AS {name}" for name in _TIMES)
    + """), CAST(make_timestamp(epoch_us(time)) AS DATE) AS event_day,
        type IN ('failed', 'expired') AND state <> 'leased' AS is_failure,
        type IN ('failed', 'expired', 'doomed') AND state IN ('dead', 'gone') AS is_death,
        type IN ('completed', 'advanced') AS is_completion
    FROM read_parquet({files}, hive_partitioning = true,
        hive_types = {'server': VARCHAR, 'day': DATE}) WHERE {where}""",
    # The numbers and times of the flushes of each server.
    """CREATE OR REPLACE TEMP TABLE flushes AS
    SELECT server, list(event_id ORDER BY event_id) AS ids, list(time ORDER BY event_id) AS times
    FROM events WHERE type = 'flushed' GROUP BY server""",
    # The last event of each job, and the flush that removed it if it still existed.
    """CREATE OR REPLACE TEMP TABLE lives AS
    WITH folded AS (
        SELECT server, seq,
            max_by({'jid': jid, 'kind': kind, 'origin': origin, 'queue': queue,
                'priority': priority, 'bytes': payload_bytes, 'tags': tags, 'state': state,
                'actor': actor, 'worker': worker, 'attempt': attempt, 'ready_at': ready_at,
                'leased_at': leased_at, 'time': time, 'type': type, 'day': event_day},
                event_id) AS l,
            min_by(queue, event_id) AS first_queue, min(created) AS created,
            min(leased_at) AS first_leased_at,
            max_by({'time': time, 'type': type}, event_id) FILTER (
                WHERE coalesce(before, '') NOT IN ('done', 'dead')
                AND state IN ('done', 'dead', 'gone')) AS ended,
            max_by({'group': error_group, 'message': error_message, 'fingerprint': fingerprint},
                event_id) FILTER (WHERE fingerprint IS NOT NULL) AS error,
            count(*) FILTER (WHERE type = 'leased') AS leases,
            count(*) FILTER (WHERE is_failure) AS failures,
            coalesce(sum(wait_us) FILTER (WHERE type = 'leased'), 0) AS wait_us,
            coalesce(sum(run_us), 0) AS run_us, max(event_id) AS last_event
        FROM events WHERE type <> 'flushed' GROUP BY ALL
    )
    SELECT folded.*, l.state IN ('done', 'dead', 'gone') AS is_ended,
        CASE WHEN l.state <> 'gone' THEN
            ids[1 + len(list_filter(ids, lambda id: id < last_event))] END AS flush_event,
        CASE WHEN l.state <> 'gone' THEN
            times[1 + len(list_filter(ids, lambda id: id < last_event))] END AS flush_time
    FROM folded LEFT JOIN flushes USING (server)""",
)


def listed(files: Iterable[Path]) -> str:
    """Files as a list of DuckDB."""
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in files) + "]"


def views(files: Iterable[Path], where: str = "true") -> list[str]:
    """The statements that create the relations of the queries from these files of `events`."""
    chosen = listed(files)
    return [view.replace("{files}", chosen).replace("{where}", where) for view in _VIEWS]


_SPANS: Final = """spans AS (
    SELECT event_day AS day, time, server, queue, kind, 'wait' AS metric, wait_us AS us
    FROM events WHERE type = 'leased'
    UNION ALL
    SELECT event_day, time, server, queue, kind, 'run', run_us FROM events WHERE is_completion
)"""
_SLOT: Final = """CASE
    WHEN s < 60 THEN greatest(s, 0)
    WHEN s < 3600 THEN 59 + s // 60
    WHEN s < 86400 THEN 118 + s // 3600
    WHEN s < 604800 THEN 141 + s // 86400
END"""
_COUNTS: Final = """count(*) FILTER (WHERE type = 'pushed') AS pushed,
    count(*) FILTER (WHERE type = 'leased') AS started,
    count(*) FILTER (WHERE is_completion) AS completed,
    count(*) FILTER (WHERE is_failure) AS failures"""
_DIED: Final = "count(*) FILTER (WHERE is_death) AS died"
_SUMS: Final = """coalesce(sum(run_us) FILTER (WHERE is_completion), 0)::DOUBLE AS run_us,
    coalesce(sum(run_us) FILTER (WHERE is_failure), 0)::DOUBLE AS lost_us"""

#: Latency by day in the buckets only: the pipeline also divides them into cells.
LATENCY_DAY: Final = f"""WITH {_SPANS}
SELECT server, queue, kind, metric,
    CAST(floor(ln(greatest(us, 1)) / ln(1.02)) AS INTEGER) AS bucket,
    CASE WHEN us < 60e6 THEN us - us % 1000000 WHEN us < 3600e6 THEN us - us % 60000000
        ELSE us - us % 3600000000 END AS cell,
    count(*) AS n, sum(CAST(us AS DOUBLE)) AS sum_us, min(us) AS min_us, max(us) AS max_us, day
FROM spans GROUP BY ALL"""
LATENCY_HOUR: Final = f"""WITH {_SPANS}
SELECT server, queue, metric, date_trunc('hour', time) AS hour,
    CAST(floor(ln(greatest(us, 1)) / ln(1.1)) AS INTEGER) AS bucket,
    count(*) AS n, sum(CAST(us AS DOUBLE)) AS sum_us, min(us) AS min_us, max(us) AS max_us, day
FROM spans GROUP BY ALL"""


def _spread(metric: str, place: int) -> str:
    of, histogram, middle = (f"{name}{place}" for name in ("spread", "histogram", "middle"))
    percentiles = ", ".join(f"{middle}.p{q} AS {metric}_p{q}_us" for q in _PERCENTILES)
    return f"""coalesce({of}.n, 0) AS {metric}_n, coalesce({of}.mean, 0) AS {metric}_mean,
    coalesce({of}.var, 0) AS {metric}_var,
    list_transform(range(148), lambda i: coalesce({histogram}.slots[i], 0)) AS {metric}_hist,
    {percentiles}"""


def _joined(metric: str, place: int) -> str:
    return "\n".join(
        f"LEFT JOIN {name} AS {name}{place} ON counts.day = {name}{place}.day "
        f"AND counts.server = {name}{place}.server AND counts.queue = {name}{place}.queue "
        f"AND {name}{place}.metric = '{metric}'"
        for name in ("spread", "histogram", "middle")
    )


#: Percentiles by nearest rank: the geometric middle of the bucket that has the value of that rank,
#: limited by the values in it.
_RANKED: Final = ", ".join(
    f"min_by(value, bucket) FILTER (WHERE 100 * seen >= {q} * total) AS p{q}" for q in _PERCENTILES
)
QUEUE_MINUTE: Final = f"""WITH changes AS (
    SELECT server, queue, time, state, 1 AS change FROM events WHERE type <> 'flushed'
    UNION ALL
    SELECT server, CASE WHEN type = 'moved' THEN source ELSE queue END, time, before, -1
    FROM events WHERE type <> 'flushed'
    UNION ALL
    SELECT server, l.queue, flush_time, l.state, -1 FROM lives WHERE flush_time IS NOT NULL
), depths AS (
    SELECT server, queue, date_trunc('minute', time) AS minute, {
    ", ".join(f"coalesce(sum(change) FILTER (WHERE state = '{s}'), 0) AS {s}" for s in STATES)
}
    FROM changes GROUP BY ALL
), counts AS (
    SELECT server, queue, date_trunc('minute', time) AS minute, {_COUNTS},
        count(*) FILTER (WHERE is_death AND state = 'dead') AS failed, {_DIED},
        count(*) FILTER (WHERE type = 'expired') AS expired,
        coalesce(sum(wait_us) FILTER (WHERE type = 'leased'), 0)::DOUBLE AS wait_us,
        coalesce(sum(run_us) FILTER (WHERE is_completion), 0)::DOUBLE AS run_us
    FROM events WHERE type <> 'flushed' GROUP BY ALL
)
SELECT server, queue, minute, {
    ", ".join(
        f"coalesce({name}, 0) AS {name}"
        for name in (
            "pushed", "started", "completed", "failures", "failed", "died", "expired", "wait_us",
            "run_us",
        )
    )
}, {", ".join(STATES)}, CAST(minute AS DATE) AS day
FROM depths LEFT JOIN counts USING (server, queue, minute)"""  # fmt: skip

QUEUE_DAY: Final = f"""WITH {_SPANS}, spread AS (
    SELECT day, server, queue, metric, count(*) AS n, avg(us / 1e6) AS mean,
        coalesce(var_samp(us / 1e6), 0) AS var
    FROM spans GROUP BY ALL
), slotted AS (
    SELECT day, server, queue, metric, {_SLOT} AS slot, count(*) AS n
    FROM (SELECT *, us // 1000000 AS s FROM spans) GROUP BY ALL
), histogram AS (
    SELECT day, server, queue, metric, map(list(slot), list(n)) AS slots
    FROM slotted WHERE slot IS NOT NULL GROUP BY ALL
), buckets AS (
    SELECT day, server, queue, metric, bucket,
        sum(n) AS n, min(min_us) AS low, max(max_us) AS high
    FROM ({LATENCY_DAY}) GROUP BY ALL
), ranked AS (
    SELECT *, sum(n) OVER (PARTITION BY day, server, queue, metric ORDER BY bucket) AS seen,
        sum(n) OVER (PARTITION BY day, server, queue, metric) AS total,
        greatest(low, least(high, pow(1.02, bucket + 0.5))) AS value
    FROM buckets
), middle AS (
    SELECT day, server, queue, metric, {_RANKED} FROM ranked GROUP BY ALL
), counts AS (
    SELECT event_day AS day, server, queue, {_COUNTS},
        count(*) FILTER (WHERE is_death AND state = 'dead') AS failed,
        count(*) FILTER (WHERE type = 'expired') AS expired, {_DIED}
    FROM events GROUP BY ALL
), changes AS (
    SELECT day, server, queue, {", ".join(f"sum({state}) AS {state}" for state in STATES)}
    FROM ({QUEUE_MINUTE}) GROUP BY ALL
)
SELECT counts.server, counts.queue, pushed, started, completed, failures, failed, expired, died,
    {_spread("wait", 0)},
    {_spread("run", 1)},
    {", ".join(STATES)}, counts.day
FROM (
    SELECT * REPLACE ({
    ", ".join(
        f"coalesce({name}, 0) AS {name}"
        for name in (
            "pushed",
            "started",
            "completed",
            "failures",
            "failed",
            "expired",
            "died",
            *STATES,
        )
    )
})
    FROM counts FULL JOIN changes USING (day, server, queue)
) AS counts
{_joined("wait", 0)}
{_joined("run", 1)}
WHERE {
    " OR ".join(
        f"{name} <> 0"
        for name in (
            "pushed",
            "started",
            "completed",
            "failures",
            "failed",
            "expired",
            "died",
            *STATES,
        )
    )
}"""

#: The true percentiles, of all values.
EXACT_PERCENTILES: Final = f"""WITH {_SPANS}, ranked AS (
    SELECT *, row_number() OVER (PARTITION BY day, server, queue, metric ORDER BY us) AS rank,
        count(*) OVER (PARTITION BY day, server, queue, metric) AS n
    FROM spans
)
SELECT day, server, queue, metric, {
    ", ".join(f"min(us) FILTER (WHERE 100 * rank >= {q} * n) AS p{q}" for q in _PERCENTILES)
}
FROM ranked GROUP BY ALL"""

KIND_HOUR: Final = f"""SELECT server, queue, kind, origin, actor, date_trunc('hour', time) AS hour,
    count(*) AS events, {_COUNTS}, {_DIED},
    coalesce(sum(wait_us) FILTER (WHERE type = 'leased'), 0)::DOUBLE AS wait_us,
    {_SUMS}, event_day AS day
FROM events WHERE type <> 'flushed' GROUP BY ALL"""
TAG_DAY: Final = f"""SELECT server, queue, kind, tag, {_COUNTS}, {_DIED}, {_SUMS}, day
FROM (SELECT * EXCLUDE (day), event_day AS day, unnest(list_distinct(tags)) AS tag FROM events)
WHERE type <> 'flushed' GROUP BY ALL"""

FAILURE_GROUPS: Final = """SELECT server, fingerprint, queue, kind, count(*) AS n,
    count(*) FILTER (WHERE NOT coalesce(repeat, type = 'doomed')) AS jobs,
    count(*) FILTER (WHERE is_death) AS died,
    min(time) AS first_seen, max(time) AS last_seen, min(event_id) AS sample_event,
    first(error_group ORDER BY event_id) AS error_group,
    first(seq ORDER BY event_id) AS sample_seq, first(jid ORDER BY event_id) AS sample_jid,
    first(error_message ORDER BY event_id) AS sample_message, event_day AS day
FROM events
WHERE (is_failure OR type = 'doomed') AND fingerprint IS NOT NULL
GROUP BY server, fingerprint, queue, kind, event_day"""

#: Leases that have ended, by an event or by a flush.
ATTEMPTS: Final = """WITH held AS (
    SELECT *, count(*) FILTER (WHERE type = 'leased')
        OVER (PARTITION BY server, seq ORDER BY event_id) AS lease
    FROM events WHERE type = 'leased' OR before = 'leased'
), leases AS (SELECT * FROM held WHERE type = 'leased'),
ends AS (
    SELECT server, seq, lease, count(*) FILTER (WHERE type = 'renewed') AS renewals,
        min_by({'time': time, 'type': type, 'state': state, 'event_id': event_id, 'actor': actor,
            'run_us': run_us, 'leased_at': leased_at, 'group': error_group,
            'message': error_message, 'priority': priority, 'fingerprint': fingerprint},
            event_id) FILTER (WHERE state <> 'leased') AS e
    FROM held WHERE type <> 'leased' GROUP BY ALL
), known AS (
    -- Qless leases begin by the clock of the client. The end has the time of the server.
    SELECT l.* EXCLUDE (renewals, leased_at), ends.renewals, e,
        CASE WHEN l.actor = 'qless' THEN coalesce(e.leased_at, l.leased_at) ELSE l.leased_at END
            AS leased_at,
        times[1 + len(list_filter(ids, lambda id: id < l.event_id))] AS flush_time,
        ids[1 + len(list_filter(ids, lambda id: id < l.event_id))] AS flush_event
    FROM leases AS l LEFT JOIN flushes ON flushes.server = l.server
    LEFT JOIN ends ON ends.server = l.server AND ends.seq = l.seq AND ends.lease = l.lease
)
SELECT server, seq, CASE WHEN e IS NULL THEN flush_event ELSE e.event_id END AS end_event, jid,
    queue, kind, origin, actor AS holder, e.actor AS ended_by, worker, attempt,
    coalesce(e.priority, priority) AS priority, created,
    make_timestamp(epoch_us(leased_at) - wait_us) AS ready_at, leased_at,
    CASE WHEN e IS NULL THEN flush_time ELSE e.time END AS ended_at, wait_us,
    CASE WHEN e IS NOT NULL
        THEN coalesce(e.run_us, greatest(0, epoch_us(e.time) - epoch_us(leased_at))) END AS run_us,
    CASE WHEN e IS NOT NULL THEN e.type ELSE 'flushed' END AS outcome,
    CASE WHEN e IS NOT NULL THEN e.state ELSE 'gone' END AS state,
    CASE WHEN e IS NOT NULL THEN coalesce(renewals, 0) END AS renewals,
    CASE WHEN e.type IN ('failed', 'expired') THEN e.group END AS error_group,
    CASE WHEN e.type IN ('failed', 'expired') THEN e.message END AS error_message,
    CASE WHEN e.type IN ('failed', 'expired') THEN e.fingerprint END AS fingerprint,
    CAST(CASE WHEN e IS NULL THEN flush_time ELSE e.time END AS DATE) AS day
FROM known WHERE e IS NOT NULL OR flush_time IS NOT NULL"""

_JOB: Final = """server, seq, l.jid, l.kind, l.origin, {first_queue} AS first_queue, l.queue,
    l.priority, l.bytes AS payload_bytes, l.tags, created"""
JOBS: Final = f"""SELECT {_JOB.format(first_queue="first_queue")},
    CASE WHEN is_ended THEN first_leased_at END AS first_leased_at,
    CASE WHEN is_ended THEN ended.time ELSE flush_time END AS ended_at, 'gone' AS state,
    CASE WHEN is_ended THEN ended.type ELSE 'flushed' END AS outcome,
    l.actor AS actor, l.worker, CASE WHEN is_ended THEN leases END AS leases,
    CASE WHEN is_ended THEN failures END AS failures,
    CASE WHEN is_ended THEN wait_us END AS wait_us, CASE WHEN is_ended THEN run_us END AS run_us,
    error.group AS error_group, error.message AS error_message, error.fingerprint AS fingerprint,
    last_event, CASE WHEN l.state = 'gone' THEN l.day ELSE CAST(flush_time AS DATE) END AS day
FROM lives WHERE l.state = 'gone' OR flush_time IS NOT NULL"""
#: The jobs that exist, as (server, seq, state, queue, last_event).
OPEN_JOBS: Final = """SELECT server, seq, l.state AS state, l.queue AS queue, last_event
FROM lives WHERE l.state <> 'gone' AND flush_time IS NULL"""

_LONGEST: Final = "INTERVAL 31 DAY"
WORKER_HOUR: Final = f"""WITH ended AS (
    SELECT server, coalesce(worker, '') AS worker, holder, outcome, ended_at,
        CASE WHEN leased_at > ended_at OR leased_at < ended_at - {_LONGEST} THEN ended_at
            ELSE leased_at END AS leased_at
    FROM ({ATTEMPTS})
), hours AS (
    SELECT *, unnest(generate_series(date_trunc('hour', leased_at), date_trunc('hour', ended_at),
        INTERVAL 1 HOUR)) AS hour
    FROM ended
)
SELECT server, worker, holder, hour,
    CAST(sum(epoch_us(least(ended_at, hour + INTERVAL 1 HOUR))
        - epoch_us(greatest(leased_at, hour))) AS BIGINT) AS busy_us,
    count(*) FILTER (WHERE ends) AS attempts,
    count(*) FILTER (WHERE ends AND outcome IN ('completed', 'advanced')) AS completed,
    count(*) FILTER (WHERE ends AND outcome IN ('failed', 'expired')) AS failures,
    CAST(hour AS DATE) AS day
FROM (SELECT *, date_trunc('hour', ended_at) = hour AS ends FROM hours) GROUP BY ALL"""

AUDIT_SEQ: Final = """WITH counted AS (
    SELECT server, min(event_id) AS first_event, max(event_id) AS last_event, count(*) AS events,
        count(DISTINCT event_id) AS different
    FROM events GROUP BY server
)
SELECT server, first_event, last_event, events,
    last_event - first_event + 1 - different AS missing, events - different AS duplicates
FROM counted"""
#: Events of a job that do not follow from the event before.
AUDIT_JOBS: Final = """WITH chained AS (
    SELECT server, seq, jid, event_id, type, before, state,
        lag(state) OVER (PARTITION BY server, seq ORDER BY event_id) AS left_in
    FROM events WHERE type <> 'flushed'
)
SELECT server, seq, jid, event_id, type, before, state, left_in FROM chained
WHERE before <> coalesce(left_in, before) OR (type = 'pushed') <> (left_in IS NULL)"""

QUERIES: Final = {
    "attempts": ATTEMPTS,
    "jobs": JOBS,
    "queue_minute": QUEUE_MINUTE,
    "kind_hour": KIND_HOUR,
    "latency_day": LATENCY_DAY,
    "latency_hour": LATENCY_HOUR,
    "tag_day": TAG_DAY,
    "failure_groups": FAILURE_GROUPS,
    "worker_hour": WORKER_HOUR,
    "queue_day": QUEUE_DAY,
}
