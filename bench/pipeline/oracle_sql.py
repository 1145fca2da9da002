"""Every derived table once more, in SQL for DuckDB, from what the tables mean and not from how
Spark makes them: the bench measures both, and the tests compare what they give.

Each query reads the view `events`, which `views` makes of Parquet files, and gives the columns of
its table in their order, and `day` last where the table has days. QUEUE_DAY reads `latency_hist` as
well, which whoever runs it has made before.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TIMES: Final = (
    "time", "created", "ready_at", "leased_at", "due", "first_leased_at", "ended_at"
)  # fmt: skip

_VIEWS: Final = (
    # Plain timestamps in UTC: those with a zone would ask the calendar for each.
    "CREATE OR REPLACE TEMP VIEW events AS SELECT * REPLACE ("
    + ", ".join(f"make_timestamp(epoch_us({name})) AS {name}" for name in _TIMES)
    + """), CAST(make_timestamp(epoch_us(time)) AS DATE) AS day,
        type IN ('failed', 'expired') AND state <> 'leased' AS is_failure,
        type IN ('failed', 'expired', 'doomed') AND state IN ('dead', 'gone') AS is_death,
        type IN ('completed', 'advanced') AS is_completion
    FROM read_parquet({files}, hive_partitioning = false) WHERE {where}""",
    # Of each server the numbers and the times of its flushes: few, so that lists of them do.
    """CREATE OR REPLACE TEMP TABLE flushes AS
    SELECT server, list(event_id ORDER BY event_id) AS ids, list(time ORDER BY event_id) AS times
    FROM events WHERE type = 'flushed' GROUP BY server""",
    # What each event changes: a state more in its queue, one less in the queue it came from.
    """CREATE OR REPLACE TEMP VIEW deltas AS
    WITH changes AS (
        SELECT day, time, server, event_id, queue, state, 1 AS change
        FROM events WHERE type <> 'flushed'
        UNION ALL
        SELECT day, time, server, event_id,
            CASE WHEN type = 'moved' THEN source ELSE queue END, before, -1
        FROM events WHERE type <> 'flushed'
    )
    SELECT day, time, changes.server, queue, state, change,
        coalesce(len(list_filter(ids, lambda id: id < event_id)), 0) AS epoch
    FROM changes LEFT JOIN flushes USING (server)""",
)


def listed(files: Iterable[Path]) -> str:
    """Files as a list of DuckDB."""
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in files) + "]"


def views(files: Iterable[Path], where: str = "true") -> list[str]:
    """The statements that create `events` from these files, and the other relations that the
    queries read, in their order.
    """
    chosen = listed(files)
    return [view.replace("{files}", chosen).replace("{where}", where) for view in _VIEWS]


def divided(files: str, folder: str) -> str:
    """What `ingest` does, without its checks: the events of a list of files, divided by day."""
    days = "CAST(make_timestamp(epoch_us(time)) AS DATE) AS day"
    return (
        f"COPY (SELECT *, {days} FROM read_parquet({files}, hive_partitioning = false)) "
        f"TO '{folder}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day))"
    )


_DEPTHS: Final = ("ready", "scheduled", "blocked", "leased", "dead")
_PERCENTILES: Final = (50, 90, 95, 99)

_SPANS: Final = """spans AS (
    SELECT day, server, queue, kind, 'wait' AS metric, wait_us AS us
    FROM events WHERE type = 'leased'
    UNION ALL
    SELECT day, server, queue, kind, 'run', run_us FROM events WHERE is_completion
)"""

LATENCY_HIST: Final = f"""WITH {_SPANS}
SELECT server, queue, kind, metric,
    CAST(floor(ln(greatest(us, 1)) / ln(1.02)) AS INTEGER) AS bucket,
    count(*) AS n, sum(CAST(us AS DOUBLE)) AS sum_us,
    sum(CAST(us AS DOUBLE) * us) AS sumsq, min(us) AS min_us, max(us) AS max_us, day
FROM spans GROUP BY ALL"""

#: The slot of a span in seconds; null beyond a week.
_SLOT: Final = """CASE
    WHEN s < 60 THEN greatest(s, 0)
    WHEN s < 3600 THEN 59 + s // 60
    WHEN s < 86400 THEN 118 + s // 3600
    WHEN s < 604800 THEN 141 + s // 86400
END"""


def _spread(metric: str, place: int) -> str:
    """The columns of one metric in queue_day: of a join of `spread`, `histogram`, `middle`."""
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


#: Percentiles by nearest rank: the first bucket that has the value of that rank, its geometric
#: middle, but not beyond what was seen in it.
_RANKED: Final = ", ".join(
    f"min_by(value, bucket) FILTER (WHERE 100 * seen >= {q} * total) AS p{q}" for q in _PERCENTILES
)
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
    FROM latency_hist GROUP BY ALL
), ranked AS (
    SELECT *, sum(n) OVER (PARTITION BY day, server, queue, metric ORDER BY bucket) AS seen,
        sum(n) OVER (PARTITION BY day, server, queue, metric) AS total,
        greatest(low, least(high, pow(1.02, bucket + 0.5))) AS value
    FROM buckets
), middle AS (
    SELECT day, server, queue, metric, {_RANKED} FROM ranked GROUP BY ALL
), counts AS (
    SELECT day, server, queue,
        count(*) FILTER (WHERE type = 'pushed') AS pushed,
        count(*) FILTER (WHERE type = 'leased') AS leased,
        count(*) FILTER (WHERE is_completion) AS completed,
        count(*) FILTER (WHERE is_failure) AS failures,
        count(*) FILTER (WHERE is_death AND state = 'dead') AS failed,
        count(*) FILTER (WHERE type = 'expired') AS retries,
        count(*) FILTER (WHERE is_death) AS died
    FROM events GROUP BY ALL
    HAVING pushed + leased + completed + failures + failed + retries > 0
)
SELECT counts.server, counts.queue, pushed, leased, completed, failures, failed, retries, died,
    {_spread("wait", 0)},
    {_spread("run", 1)},
    counts.day
FROM counts
{_joined("wait", 0)}
{_joined("run", 1)}"""

#: The same percentiles as they are, of all values.
EXACT_PERCENTILES: Final = f"""WITH {_SPANS}, ranked AS (
    SELECT *, row_number() OVER (PARTITION BY day, server, queue, metric ORDER BY us) AS rank,
        count(*) OVER (PARTITION BY day, server, queue, metric) AS n
    FROM spans
)
SELECT day, server, queue, metric, {
    ", ".join(f"min(us) FILTER (WHERE 100 * rank >= {q} * n) AS p{q}" for q in _PERCENTILES)
}
FROM ranked GROUP BY ALL"""

DEPTH_DAY: Final = f"""SELECT server, queue, epoch, {
    ", ".join(f"coalesce(sum(change) FILTER (WHERE state = '{d}'), 0) AS {d}" for d in _DEPTHS)
}, day
FROM deltas GROUP BY ALL"""

THROUGHPUT_MINUTE: Final = f"""WITH counts AS (
    SELECT server, queue, date_trunc('minute', time) AS minute,
        count(*) FILTER (WHERE type = 'pushed') AS pushed,
        count(*) FILTER (WHERE type = 'leased') AS started,
        count(*) FILTER (WHERE is_completion) AS completed,
        count(*) FILTER (WHERE is_failure) AS failures,
        count(*) FILTER (WHERE is_death) AS died
    FROM events WHERE type <> 'flushed' GROUP BY ALL
), steps AS (
    SELECT server, queue, epoch, date_trunc('minute', time) AS minute, {
    ", ".join(
        f"count_if(state = '{d}' AND change > 0) - count_if(state = '{d}' AND change < 0) AS {d}"
        for d in _DEPTHS
    )
}
    FROM deltas GROUP BY ALL
), depths AS (
    SELECT server, queue, epoch, minute, {", ".join(f"sum({d}) OVER sofar AS {d}" for d in _DEPTHS)}
    FROM steps WINDOW sofar AS (PARTITION BY server, queue, epoch ORDER BY minute)
), minutes AS (
    SELECT server, queue, minute FROM counts
    UNION SELECT server, queue, minute FROM steps
), placed AS (
    SELECT minutes.*, coalesce(len(list_filter(
        times, lambda t: t < minute + INTERVAL 1 MINUTE)), 0) AS epoch
    FROM minutes LEFT JOIN flushes USING (server)
)
SELECT placed.server, placed.queue, placed.minute,
    coalesce(pushed, 0) AS pushed, coalesce(started, 0) AS started,
    coalesce(completed, 0) AS completed, coalesce(failures, 0) AS failures,
    coalesce(died, 0) AS died,
    coalesce(depths.ready + depths.scheduled + depths.blocked, 0) AS backlog,
    {", ".join(f"coalesce(depths.{d}, 0) AS {d}" for d in _DEPTHS)},
    CAST(placed.minute AS DATE) AS day
FROM placed
LEFT JOIN counts ON counts.server = placed.server AND counts.queue = placed.queue
    AND counts.minute = placed.minute
ASOF LEFT JOIN depths ON depths.server = placed.server AND depths.queue = placed.queue
    AND depths.epoch = placed.epoch AND depths.minute <= placed.minute"""

FAILURE_GROUPS: Final = """SELECT server, fingerprint, queue, kind,
    first(error_group ORDER BY event_id) AS error_group, count(*) AS n,
    count(DISTINCT seq) AS jobs, count(*) FILTER (WHERE is_death) AS died,
    min(time) AS first_seen, max(time) AS last_seen, min(event_id) AS sample_event,
    first(seq ORDER BY event_id) AS sample_seq, first(jid ORDER BY event_id) AS sample_jid,
    first(error_message ORDER BY event_id) AS sample_message, day
FROM events
WHERE (is_failure OR type = 'doomed') AND fingerprint IS NOT NULL
GROUP BY server, fingerprint, queue, kind, day"""

PROTOCOL_DAY: Final = """SELECT server, origin, actor, count(*) AS events,
    count(*) FILTER (WHERE type = 'pushed') AS pushed,
    count(*) FILTER (WHERE type = 'leased') AS leased,
    count(*) FILTER (WHERE is_completion) AS completed,
    count(*) FILTER (WHERE is_failure) AS failures,
    count(*) FILTER (WHERE is_death) AS died, day
FROM events WHERE type <> 'flushed' GROUP BY ALL"""

ATTEMPTS: Final = """WITH held AS (
    SELECT *, count(*) FILTER (WHERE type = 'leased')
        OVER (PARTITION BY server, seq ORDER BY event_id) AS lease
    FROM events WHERE type = 'leased' OR before = 'leased'
), leases AS (SELECT * FROM held WHERE type = 'leased'),
ends AS (
    SELECT server, seq, lease, count(*) FILTER (WHERE type = 'renewed') AS renewals,
        min_by({'time': time, 'type': type, 'state': state, 'event_id': event_id, 'actor': actor,
            'run_us': run_us, 'group': error_group, 'message': error_message,
            'fingerprint': fingerprint}, event_id) FILTER (WHERE state <> 'leased') AS e
    FROM held WHERE type <> 'leased' GROUP BY ALL
)
SELECT l.server, l.seq, l.event_id AS lease_event, jid, queue, kind, origin,
    l.actor AS protocol, e.actor AS ended_by, worker, attempt, priority, created, ready_at,
    leased_at,
    CASE WHEN e IS NULL THEN flush_time ELSE e.time END AS ended_at,
    wait_us,
    CASE WHEN e IS NOT NULL
        THEN coalesce(e.run_us, greatest(0, epoch_us(e.time) - epoch_us(leased_at))) END AS run_us,
    CASE WHEN e IS NOT NULL THEN e.type WHEN flush_time IS NOT NULL THEN 'flushed'
        ELSE 'running' END AS outcome,
    CASE WHEN e IS NOT NULL THEN e.state WHEN flush_time IS NOT NULL THEN 'gone'
        ELSE 'leased' END AS state,
    e.event_id AS end_event, coalesce(ends.renewals, 0) AS renewals,
    CASE WHEN e.type IN ('failed', 'expired') THEN e.group END AS error_group,
    CASE WHEN e.type IN ('failed', 'expired') THEN e.message END AS error_message,
    CASE WHEN e.type IN ('failed', 'expired') THEN e.fingerprint END AS fingerprint,
    CAST(leased_at AS DATE) AS day
FROM (
    SELECT leases.*, times[1 + len(list_filter(ids, lambda id: id < event_id))] AS flush_time
    FROM leases LEFT JOIN flushes USING (server)
) AS l
LEFT JOIN ends ON ends.server = l.server AND ends.seq = l.seq AND ends.lease = l.lease"""

JOBS: Final = """WITH folded AS (
    SELECT server, seq,
        max_by({'jid': jid, 'kind': kind, 'origin': origin, 'queue': queue, 'priority': priority,
            'bytes': payload_bytes, 'tags': tags, 'state': state, 'actor': actor,
            'worker': worker}, event_id) AS l,
        min_by(queue, event_id) AS first_queue, min(created) AS created,
        min(ready_at) AS first_ready_at, min(leased_at) AS first_leased_at,
        max_by({'time': time, 'type': type}, event_id) FILTER (
            WHERE coalesce(before, '') NOT IN ('done', 'dead') AND state IN ('done', 'dead', 'gone')
        ) AS ended,
        max_by({'group': error_group, 'message': error_message, 'fingerprint': fingerprint},
            event_id) FILTER (WHERE fingerprint IS NOT NULL) AS error,
        count(*) FILTER (WHERE type = 'leased') AS leases,
        count(*) FILTER (WHERE is_failure) AS failures,
        count(*) FILTER (WHERE type = 'expired') AS expirations,
        count(*) FILTER (WHERE type = 'moved') AS moves,
        coalesce(sum(wait_us) FILTER (WHERE type = 'leased'), 0) AS wait_us,
        coalesce(sum(run_us), 0) AS run_us,
        count(*) AS events, min(event_id) AS first_event, max(event_id) AS last_event,
        bool_or(type = 'pushed') AS whole
    FROM events WHERE type <> 'flushed' GROUP BY ALL
), known AS (
    SELECT folded.*, l.state IN ('done', 'dead', 'gone') AS is_ended,
        CASE WHEN l.state <> 'gone' THEN
            times[1 + len(list_filter(ids, lambda id: id < last_event))] END AS flush_time
    FROM folded LEFT JOIN flushes USING (server)
)
SELECT server, seq, l.jid, l.kind, l.origin, first_queue, l.queue, l.priority,
    l.bytes AS payload_bytes, l.tags, created, first_ready_at, first_leased_at,
    CASE WHEN is_ended THEN ended.time ELSE flush_time END AS ended_at,
    CASE WHEN flush_time IS NOT NULL THEN 'gone' ELSE l.state END AS state,
    CASE WHEN is_ended THEN ended.type WHEN flush_time IS NOT NULL THEN 'flushed' END AS outcome,
    l.actor AS protocol, l.worker, leases, failures, expirations, moves, wait_us, run_us,
    error.group AS error_group, error.message AS error_message, error.fingerprint AS fingerprint,
    events, first_event, last_event, whole, CAST(created AS DATE) AS day
FROM known"""

#: A span longer than this, of a clock that was never set, is in no hour but its last.
_LONGEST: Final = "INTERVAL 31 DAY"
WORKER_HOUR: Final = f"""WITH ended AS (
    SELECT server, coalesce(worker, '') AS worker, protocol, outcome, ended_at,
        CASE WHEN leased_at > ended_at OR leased_at < ended_at - {_LONGEST} THEN ended_at
            ELSE leased_at END AS leased_at
    FROM ({ATTEMPTS}) WHERE outcome <> 'running'
), hours AS (
    SELECT *, unnest(generate_series(date_trunc('hour', leased_at), date_trunc('hour', ended_at),
        INTERVAL 1 HOUR)) AS hour
    FROM ended
)
SELECT server, worker, protocol, hour,
    CAST(sum(epoch_us(least(ended_at, hour + INTERVAL 1 HOUR))
        - epoch_us(greatest(leased_at, hour))) AS BIGINT) AS busy_us,
    count(*) FILTER (WHERE ends) AS attempts,
    count(*) FILTER (WHERE ends AND outcome IN ('completed', 'advanced')) AS completed,
    count(*) FILTER (WHERE ends AND outcome IN ('failed', 'expired')) AS failures,
    sum(epoch_us(least(ended_at, hour + INTERVAL 1 HOUR))
        - epoch_us(greatest(leased_at, hour))) / 3.6e9 AS utilisation,
    CAST(hour AS DATE) AS day
FROM (SELECT *, date_trunc('hour', ended_at) = hour AS ends FROM hours) GROUP BY ALL"""

AUDIT_SEQ: Final = """WITH counted AS (
    SELECT server, min(event_id) AS first_event, max(event_id) AS last_event, count(*) AS events,
        count(DISTINCT event_id) AS different
    FROM events GROUP BY server
), holes AS (
    SELECT server, list({'first': before + 1, 'last': event_id - 1} ORDER BY event_id)[:100] AS gaps
    FROM (SELECT server, event_id,
        lag(event_id) OVER (PARTITION BY server ORDER BY event_id) AS before FROM events)
    WHERE event_id > before + 1 GROUP BY server
)
SELECT server, first_event, last_event, events,
    last_event - first_event + 1 - different AS missing, events - different AS duplicates,
    coalesce(gaps, []) AS gaps
FROM counted LEFT JOIN holes USING (server)"""

#: Jobs whose events do not follow from each other: each must begin where the one before it ended.
AUDIT_JOBS: Final = """WITH chained AS (
    SELECT server, seq, jid, event_id, type, before, state,
        lag(state) OVER (PARTITION BY server, seq ORDER BY event_id) AS left_in
    FROM events WHERE type <> 'flushed'
)
SELECT server, seq, jid, event_id, type, before, state, left_in FROM chained
WHERE before <> coalesce(left_in, before) OR (type = 'pushed') <> (left_in IS NULL)"""

QUERIES: Final = {
    "latency_hist": LATENCY_HIST,
    "queue_day": QUEUE_DAY,
    "depth_day": DEPTH_DAY,
    "throughput_minute": THROUGHPUT_MINUTE,
    "failure_groups": FAILURE_GROUPS,
    "protocol_day": PROTOCOL_DAY,
    "attempts": ATTEMPTS,
    "jobs": JOBS,
    "worker_hour": WORKER_HOUR,
    "audit_seq": AUDIT_SEQ,
    "audit_jobs": AUDIT_JOBS,
}
