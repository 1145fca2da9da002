"""Every table of the lake: its columns, its key, and its partitioning.

All tables are Parquet (zstd) with times in UTC. A table that is divided by `day` has one folder
for each day, such as `day=2026-11-16`; the folder name holds `day`, and the files do not. The
meaning of `day` depends on the table: the day of the event, of the lease, or of the push. Every
event has all of these days, so that a refresh can determine which days an event touches.
"""

from typing import Final, NamedTuple

from millrace.journal import schema


class Table(NamedTuple):
    name: str
    ddl: str
    #: The columns that, together with the day, identify a row.
    key: tuple[str, ...]
    #: The meaning of its days, as text; empty if the table is a single file.
    day: str
    about: str

    @property
    def columns(self) -> list[str]:
        return list(self.types)

    @property
    def types(self) -> dict[str, str]:
        """The type of each column, in Spark's notation."""
        return dict(column.split(maxsplit=1) for column in _split(self.ddl))


def _split(ddl: str) -> list[str]:
    """Split a DDL into columns; commas inside a type do not separate columns."""
    parts, depth = [""], 0
    for char in ddl:
        depth += (char == "<") - (char == ">")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


_SPREAD: Final = """
    {0}_n BIGINT, {0}_mean DOUBLE, {0}_var DOUBLE, {0}_hist ARRAY<BIGINT>,
    {0}_p50_us DOUBLE, {0}_p90_us DOUBLE, {0}_p95_us DOUBLE, {0}_p99_us DOUBLE
"""
_DEPTHS: Final = "ready BIGINT, scheduled BIGINT, blocked BIGINT, leased BIGINT, dead BIGINT"

EVENTS: Final = Table(
    "events", schema.ddl(), ("server", "event_id"), "of the event", "Every event, checked."
)
QUARANTINE: Final = Table(
    "quarantine",
    f"{schema.ddl()}, reasons ARRAY<STRING>, file STRING, batch BIGINT",
    ("file", "server", "event_id"),
    "",
    "Rows that are no events, and why.",
)
ATTEMPTS: Final = Table(
    "attempts",
    """
    server STRING, seq BIGINT, lease_event BIGINT, jid STRING, queue STRING, kind STRING,
    origin STRING, protocol STRING, ended_by STRING, worker STRING, attempt BIGINT,
    priority DOUBLE, created TIMESTAMP, ready_at TIMESTAMP, leased_at TIMESTAMP,
    ended_at TIMESTAMP, wait_us BIGINT, run_us BIGINT, outcome STRING, state STRING,
    end_event BIGINT, renewals BIGINT, error_group STRING, error_message STRING,
    fingerprint STRING
    """,
    ("server", "seq", "lease_event"),
    "of the lease",
    "One row per lease: when it was ready, leased, ended, and how. `protocol` leased it, "
    "`ended_by` ended it (null: the server), `outcome` is the type of the event that ended it, or "
    "`running`.",
)
JOBS: Final = Table(
    "jobs",
    """
    server STRING, seq BIGINT, jid STRING, kind STRING, origin STRING, first_queue STRING,
    queue STRING, priority DOUBLE, payload_bytes BIGINT, tags ARRAY<STRING>, created TIMESTAMP,
    first_ready_at TIMESTAMP, first_leased_at TIMESTAMP, ended_at TIMESTAMP, state STRING,
    outcome STRING, protocol STRING, worker STRING, leases BIGINT, failures BIGINT,
    expirations BIGINT, moves BIGINT, wait_us BIGINT, run_us BIGINT, error_group STRING,
    error_message STRING, fingerprint STRING, events BIGINT, first_event BIGINT,
    last_event BIGINT, whole BOOLEAN
    """,
    ("server", "seq"),
    "of the push",
    "One row per job: its whole life. `outcome` is the type of the event that ended it, null while "
    "it goes on; `whole` says that its push is in the lake.",
)
LATENCY_HIST: Final = Table(
    "latency_hist",
    """
    server STRING, queue STRING, kind STRING, metric STRING, bucket INT, n BIGINT,
    sum_us DOUBLE, sumsq DOUBLE, min_us BIGINT, max_us BIGINT
    """,
    ("server", "queue", "kind", "metric", "bucket"),
    "of the event",
    "Waits (of `leased`) and runs (of `completed`, `advanced`) in buckets that grow by 2 %: rows "
    "of any days, queues and kinds can be added, and give percentiles within 1 %.",
)
QUEUE_DAY: Final = Table(
    "queue_day",
    f"""
    server STRING, queue STRING, pushed BIGINT, leased BIGINT, completed BIGINT,
    failures BIGINT, failed BIGINT, retries BIGINT, died BIGINT,
    {_SPREAD.format("wait")}, {_SPREAD.format("run")}
    """,
    ("server", "queue"),
    "of the event",
    "Qless's statistics for every queue: mean and variance in seconds, histograms of 148 slots.",
)
DEPTH_DAY: Final = Table(
    "depth_day",
    f"server STRING, queue STRING, epoch BIGINT, {_DEPTHS}",
    ("server", "queue", "epoch"),
    "of the event",
    "By how much the number of jobs in each state changed on a day; an epoch ends with a FLUSH.",
)
THROUGHPUT_MINUTE: Final = Table(
    "throughput_minute",
    f"""
    server STRING, queue STRING, minute TIMESTAMP, pushed BIGINT, started BIGINT,
    completed BIGINT, failures BIGINT, died BIGINT, backlog BIGINT, {_DEPTHS}
    """,
    ("server", "queue", "minute"),
    "of the event",
    "What happened in each minute in which something did, and how many jobs were in each state at "
    "its end; `backlog` are those ready, scheduled or blocked.",
)
FAILURE_GROUPS: Final = Table(
    "failure_groups",
    """
    server STRING, fingerprint STRING, queue STRING, kind STRING, error_group STRING, n BIGINT,
    jobs BIGINT, died BIGINT, first_seen TIMESTAMP, last_seen TIMESTAMP, sample_event BIGINT,
    sample_seq BIGINT, sample_jid STRING, sample_message STRING
    """,
    ("server", "fingerprint", "queue", "kind"),
    "of the event",
    "Failures by the shape of their words, with the first of the day as a sample.",
)
WORKER_HOUR: Final = Table(
    "worker_hour",
    """
    server STRING, worker STRING, protocol STRING, hour TIMESTAMP, busy_us BIGINT,
    attempts BIGINT, completed BIGINT, failures BIGINT, utilisation DOUBLE
    """,
    ("server", "worker", "protocol", "hour"),
    "of the hour",
    "How long each worker held jobs, of attempts that have ended, clipped at the hour; "
    "`utilisation` is how many at once, on average. Workq and Go Job Queue name no workers.",
)
PROTOCOL_DAY: Final = Table(
    "protocol_day",
    """
    server STRING, origin STRING, actor STRING, events BIGINT, pushed BIGINT, leased BIGINT,
    completed BIGINT, failures BIGINT, died BIGINT
    """,
    ("server", "origin", "actor"),
    "of the event",
    "Who pushed and who worked: the protocols of the jobs and of those who acted on them (null: "
    "the server).",
)
AUDIT_SEQ: Final = Table(
    "audit_seq",
    """
    server STRING, first_event BIGINT, last_event BIGINT, events BIGINT, missing BIGINT,
    duplicates BIGINT, gaps ARRAY<STRUCT<first: BIGINT, last: BIGINT>>
    """,
    ("server",),
    "",
    "Is every event there once? The first 100 gaps are named.",
)
AUDIT_JOBS: Final = Table(
    "audit_jobs",
    "server STRING, seq BIGINT, jid STRING, problem STRING, event_id BIGINT, detail STRING",
    ("server", "seq", "problem", "event_id"),
    "",
    "Jobs whose events cannot be: illegal transitions, lost, ended twice, leased twice at once.",
)

TABLES: Final = {
    table.name: table
    for table in (
        EVENTS, QUARANTINE, ATTEMPTS, JOBS, LATENCY_HIST, QUEUE_DAY, DEPTH_DAY, THROUGHPUT_MINUTE,
        FAILURE_GROUPS, WORKER_HOUR, PROTOCOL_DAY, AUDIT_SEQ, AUDIT_JOBS,
    )
}  # fmt: skip
