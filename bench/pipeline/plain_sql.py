"""The tables in SQL that both DuckDB and DataFusion accept, from the view `events`.

The queries compute the same rows as the pipeline, with two differences: `worker_hour` does not
divide a lease at the hour, and `queue_day` and `tag_day` are left out. The oracle (oracle_sql.py)
has exact definitions; these are the cheapest ones.
"""

from typing import Final

_COMPLETION: Final = "type IN ('completed', 'advanced')"
_FAILURE: Final = "(type IN ('failed', 'expired') AND state <> 'leased')"
_DEATH: Final = "(type IN ('failed', 'expired', 'doomed') AND state IN ('dead', 'gone'))"
_COUNTS: Final = f"""
    count(*) FILTER (WHERE type = 'pushed') AS pushed,
    count(*) FILTER (WHERE type = 'leased') AS started,
    count(*) FILTER (WHERE {_COMPLETION}) AS completed,
    count(*) FILTER (WHERE {_FAILURE}) AS failures,
    count(*) FILTER (WHERE {_DEATH}) AS died,
    sum(wait_us) FILTER (WHERE type = 'leased') AS wait_us,
    sum(run_us) FILTER (WHERE {_COMPLETION}) AS run_us"""
_MOVES: Final = ", ".join(
    f"count(*) FILTER (WHERE state = '{state}') - count(*) FILTER (WHERE before = '{state}') "
    f"AS {state}"
    for state in ("ready", "scheduled", "blocked", "leased", "dead")
)
_SPANS: Final = f"""(
    SELECT server, queue, kind, time, day, CASE WHEN type = 'leased' THEN 'wait' ELSE 'run' END
        AS metric, coalesce(CASE WHEN type = 'leased' THEN wait_us ELSE run_us END, 0) AS us
    FROM events WHERE type = 'leased' OR {_COMPLETION}) AS spans"""
_SUMS: Final = "count(*) AS n, sum(us) AS sum_us, min(us) AS min_us, max(us) AS max_us"


def _bucket(growth: str) -> str:
    return f"CAST(floor(ln(greatest(us, 1)) / ln({growth})) AS INTEGER)"


QUERIES: Final = {
    "attempts": """SELECT server, seq, event_id, jid, queue, kind, origin, holder, actor, worker,
        attempt, priority, created, leased_at, time, wait_us, run_us, type, state, renewals,
        error_group, error_message, fingerprint, day
        FROM events WHERE before = 'leased' AND state <> 'leased'""",
    "jobs": """SELECT server, seq, jid, kind, origin, coalesce(first_queue, queue) AS first_queue,
        queue, priority, payload_bytes, tags, created, first_leased_at, ended_at, state, outcome,
        actor, worker, leases, failures, wait_total_us, run_total_us, error_group, error_message,
        fingerprint, event_id, day FROM events WHERE state = 'gone'""",
    # The few keys are the first relation: DataFusion holds that one in memory.
    "jobs_open": """SELECT e.* FROM (
        SELECT server AS s, seq AS q, max(event_id) AS last FROM events GROUP BY server, seq
        HAVING count(*) FILTER (WHERE state = 'gone') = 0
        ) AS k JOIN events AS e ON e.server = s AND e.seq = q AND e.event_id = last""",
    "queue_minute": f"""SELECT server, queue, date_trunc('minute', time) AS minute, day,
        {_COUNTS}, {_MOVES} FROM events GROUP BY 1, 2, 3, 4""",
    "kind_hour": f"""SELECT server, queue, kind, origin, actor, date_trunc('hour', time) AS hour,
        day, count(*) AS events, {_COUNTS} FROM events GROUP BY 1, 2, 3, 4, 5, 6, 7""",
    "latency_day": f"""SELECT server, queue, kind, metric, {_bucket("1.02")} AS bucket, day,
        CAST(floor(us / 1000000.0) AS BIGINT) AS cell, {_SUMS}, sum(us % 1000000) AS distance
        FROM {_SPANS} GROUP BY 1, 2, 3, 4, 5, 6, 7""",
    "latency_hour": f"""SELECT server, queue, metric, date_trunc('hour', time) AS hour,
        {_bucket("1.1")} AS bucket, day, {_SUMS} FROM {_SPANS} GROUP BY 1, 2, 3, 4, 5, 6""",
    "failure_groups": f"""SELECT server, fingerprint, queue, kind, day, count(*) AS n,
        count(*) FILTER (WHERE {_DEATH}) AS died, min(time) AS first_seen, max(time) AS last_seen,
        min(event_id) AS sample_event
        FROM events WHERE fingerprint IS NOT NULL AND {_FAILURE} GROUP BY 1, 2, 3, 4, 5""",
    "worker_hour": """SELECT server, worker, holder, date_trunc('hour', time) AS hour, day,
        sum(run_us) AS busy_us, count(*) AS attempts
        FROM events WHERE before = 'leased' AND state <> 'leased' GROUP BY 1, 2, 3, 4, 5""",
}
