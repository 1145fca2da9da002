"""The derived tables: their columns, keys and definitions in SQL.

Every definition reads a window: the events of each server between two positions, as the view
`window_events`. Three kinds of tables exist.

- An appended table is a projection of the window.
- A merged table has sums. The sums of the window are added to the rows of the same days, and these
  days are replaced. The cost therefore depends on the number of rows of the touched days, not on
  the number of events before the window.
- A replaced table is computed from merged tables, for the touched days.

A FLUSH removes all jobs of a server. Windows end at each `flushed` event, so that the jobs that
it removed are known: the open jobs before the window, and the jobs of the window.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from millrace.journal import schema

from . import buckets

Kind = Literal["append", "merge", "replace", "open"]
Merge = Literal["sum", "min", "max", "sample"]

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
#: Maximum duration of a lease that counts as busy time, in days. A longer one has a wrong clock.
MAX_LEASE_DAYS: Final = 31
#: Number of bits in the lower half of a square. The sum of the squares of a day exceeds 64 bits.
HALF_BITS: Final = 31
STATES: Final = ("ready", "scheduled", "blocked", "leased", "dead")
#: Columns whose values rarely repeat. A Parquet dictionary of them costs time and saves no space.
DISTINCT_COLUMNS: Final = (
    "seq", "end_event", "last_event", "jid", "created", "ready_at", "leased_at", "ended_at",
    "first_leased_at", "since", "due", "wait_us", "run_us", "lost_us", "sum_us", "min_us", "max_us",
    "distance", "square_high", "square_low", "busy_us",
)  # fmt: skip


class Measure(NamedTuple):
    """A column of a merged table: an aggregate of events, and the way to add two rows."""

    name: str
    type: str
    sql: str
    merge: Merge = "sum"


class Derived(NamedTuple):
    """A derived table. All tables except `jobs_open` and `runs` are partitioned by `day`."""

    name: str
    kind: Kind
    #: The type of each column, in Spark's notation, without the partition column `day`.
    types: dict[str, str]
    key: tuple[str, ...]
    about: str
    #: The definition: a query on the window or, for a merged table, its rows before aggregation.
    sql: str = ""
    #: The rows that a FLUSH adds: a query on `flushed_jobs`.
    flushed: str = ""
    measures: tuple[Measure, ...] = ()
    partition: str = "day"

    @property
    def all_types(self) -> dict[str, str]:
        """The type of each column. In a table that is divided by day, `day` is the last column."""
        return self.types | ({"day": "DATE"} if self.partition == "day" else {})

    @property
    def columns(self) -> list[str]:
        return list(self.types)

    @property
    def ddl(self) -> str:
        """All columns, in Spark's notation."""
        return ", ".join(f"{name} {kind}" for name, kind in self.all_types.items())


def _types(ddl: str) -> dict[str, str]:
    """The type of each column of a DDL."""
    return dict(column.split() for column in ddl.split(","))


def _select(types: Mapping[str, str], values: Mapping[str, str], source: str, day: str = "") -> str:
    """A query for these columns, and for the `day` of each row. A column without a value here has
    the same name in the source.
    """
    listed = []
    for name, kind in types.items():
        value = values.get(name, name)
        value = f"CAST(null AS {kind})" if value == "null" else value
        listed.append(value if value == name else f"{value} AS {name}")
    days = [f"{day} AS day"] if day else []
    return f"SELECT {', '.join(listed + days)} FROM {source}"


#: The day of a row that a FLUSH adds.
_FLUSH_DAY: Final = "to_date(flushed_at)"

# Conditions on events

COMPLETION: Final = "type IN ('completed', 'advanced')"
FAILURE: Final = "(type IN ('failed', 'expired') AND state <> 'leased')"
DEATH: Final = "(type IN ('failed', 'expired', 'doomed') AND state IN ('dead', 'gone'))"
#: The priority of a job in front of its queue.
FRONT_RANK: Final = 1 << 62
#: The engine takes back the attempt of a lease that did not reach its holder. It does not if a
#: restart ended the lease (no actor), HTTP returned it, or Qless put the job in front of its queue.
_TAKEN_BACK: Final = f"""type = 'released' AND actor IS NOT NULL AND actor <> 'http'
    AND priority < {FRONT_RANK}D"""
_ENDS_LEASE: Final = "before = 'leased' AND state <> 'leased' AND type <> 'flushed'"


def begin(column: str, unit: int) -> str:
    """The start of the minute, hour or day of a time, also before 1970."""
    micros = f"unix_micros({column})"
    return f"timestamp_micros({micros} - pmod({micros}, {unit}))"


def _span(start: str, end: str) -> str:
    return f"greatest(0, unix_micros({end}) - unix_micros({start}))"


def _duration(column: str, condition: str) -> str:
    """A duration as a number that sums of any length do not overflow; 0 for other events."""
    return f"if({condition}, coalesce(CAST({column} AS DOUBLE), 0D), 0D)"


# Attempts, jobs and open jobs

_ATTEMPT_TYPES: Final = _types(
    """
    server STRING, seq BIGINT, end_event BIGINT, jid STRING, queue STRING, kind STRING,
    origin STRING, holder STRING, ended_by STRING, worker STRING, attempt BIGINT,
    priority DOUBLE, created TIMESTAMP, ready_at TIMESTAMP, leased_at TIMESTAMP,
    ended_at TIMESTAMP, wait_us BIGINT, run_us BIGINT, outcome STRING, state STRING,
    renewals BIGINT, error_group STRING, error_message STRING, fingerprint STRING
    """
)
_ERROR: Final = ("error_group", "error_message", "fingerprint")
#: The values of an open job that is leased.
_OPEN_ATTEMPT: Final = {
    "holder": "actor",
    "wait_us": _span("ready_at", "leased_at"),
    "outcome": "'running'",
} | dict.fromkeys(("end_event", "ended_by", "ended_at", "run_us", "renewals", *_ERROR), "null")
#: The attempts that have not ended, with the columns of `attempts`.
OPEN_ATTEMPTS: Final = _select(_ATTEMPT_TYPES, _OPEN_ATTEMPT, "jobs_current WHERE state = 'leased'")
ATTEMPTS: Final = Derived(
    "attempts",
    "append",
    _ATTEMPT_TYPES,
    ("server", "seq", "end_event"),
    "One row per ended lease, on the day of its end. `holder` is the protocol that leased the job, "
    "`ended_by` the protocol that ended the lease (null: the server), `outcome` the type of the "
    "event that ended it, `state` the state of the job after it.",
    sql=_select(
        _ATTEMPT_TYPES,
        {
            "end_event": "event_id",
            "queue": "coalesce(source, queue)",
            "ended_by": "actor",
            "attempt": f"attempt + if({_TAKEN_BACK}, 1, 0)",
            "ready_at": "timestamp_micros(unix_micros(leased_at) - wait_us)",
            "ended_at": "time",
            "run_us": f"coalesce(run_us, {_span('leased_at', 'time')})",
            "outcome": "type",
        }
        | {name: f"if({FAILURE}, {name}, null)" for name in _ERROR},
        f"window_events WHERE {_ENDS_LEASE}",
        "day",
    ),
    flushed=_select(
        _ATTEMPT_TYPES,
        _OPEN_ATTEMPT
        | {
            "end_event": "flush_event",
            "ended_at": "flushed_at",
            "outcome": "'flushed'",
            "state": "'gone'",
        },
        "flushed_jobs WHERE state = 'leased'",
        _FLUSH_DAY,
    ),
)

_JOB_TYPES: Final = _types(
    """
    server STRING, seq BIGINT, jid STRING, kind STRING, origin STRING, first_queue STRING,
    queue STRING, priority DOUBLE, payload_bytes BIGINT, tags ARRAY<STRING>, created TIMESTAMP,
    first_leased_at TIMESTAMP, ended_at TIMESTAMP, state STRING, outcome STRING,
    actor STRING, worker STRING, leases BIGINT, failures BIGINT, wait_us BIGINT, run_us BIGINT,
    error_group STRING, error_message STRING, fingerprint STRING, last_event BIGINT
    """
)
_OPEN_JOB_TYPES: Final = _JOB_TYPES | _types(
    "attempt BIGINT, ready_at TIMESTAMP, leased_at TIMESTAMP, due TIMESTAMP, since TIMESTAMP"
)
_JOB: Final = {
    "first_queue": "coalesce(first_queue, queue)",
    "wait_us": "wait_total_us",
    "run_us": "run_total_us",
    "last_event": "event_id",
}
JOBS: Final = Derived(
    "jobs",
    "append",
    _JOB_TYPES,
    ("server", "seq"),
    "One row per job that is gone, on the day of its last event. `outcome` is the type of the "
    "event that ended it, `actor` the protocol of the last event (null: the server). The view "
    "`jobs_all` also has the jobs that are not gone.",
    sql=_select(
        _JOB_TYPES,
        _JOB | {"ended_at": "coalesce(ended_at, time)", "outcome": "coalesce(outcome, type)"},
        "window_events WHERE state = 'gone' AND type <> 'flushed'",
        "day",
    ),
    flushed=_select(
        _JOB_TYPES,
        {
            "ended_at": "coalesce(ended_at, flushed_at)",
            "state": "'gone'",
            "outcome": "coalesce(outcome, 'flushed')",
        },
        "flushed_jobs",
        _FLUSH_DAY,
    ),
)
JOBS_OPEN: Final = Derived(
    "jobs_open",
    "open",
    _OPEN_JOB_TYPES,
    ("server", "seq", "last_event"),
    "Changes of jobs that are not gone. The row of a job with the highest `last_event` counts; a "
    "row with the state `gone` deletes the job. Totals are null until the job ends.",
    sql=_select(
        _OPEN_JOB_TYPES,
        _JOB | {"since": "time"},
        """window_events AS e LEFT SEMI JOIN last_events AS k
            ON e.server = k.server AND e.event_id = k.last
        WHERE type <> 'flushed'""",
    ),
    partition="server",
)
#: The last event of each job in the window, without jobs that were pushed and are gone in it.
LAST_EVENTS: Final = """
    SELECT server, max(event_id) AS last
    FROM window_events WHERE type <> 'flushed' GROUP BY server, seq
    HAVING NOT (max(if(type = 'pushed', 1, 0)) = 1 AND max(if(state = 'gone', 1, 0)) = 1)
"""


def newest(relation: str) -> str:
    """The open jobs of a relation with the columns of `jobs_open`."""
    return f"""
    SELECT j.* FROM {relation} AS j LEFT SEMI JOIN (
        SELECT server, seq, max(last_event) AS last FROM {relation} GROUP BY server, seq
    ) AS k ON j.server = k.server AND j.seq = k.seq AND j.last_event = k.last
    WHERE j.state <> 'gone'
    """


# Counts by queue and minute. A move between queues changes the depths of two queues: the sums are
# grouped by both, and then divided.

_COUNTS: Final = {
    "pushed": "type = 'pushed'",
    "started": "type = 'leased'",
    "completed": COMPLETION,
    "failures": FAILURE,
    "failed": f"{DEATH} AND state = 'dead'",
    "died": DEATH,
    "expired": "type = 'expired'",
}
_SUMS: Final = {
    "wait_us": _duration("wait_us", "type = 'leased'"),
    "run_us": _duration("run_us", COMPLETION),
}


def _minute_sql() -> str:
    counts = [f"count_if({condition}) AS {name}" for name, condition in _COUNTS.items()]
    sums = [f"sum({value}) AS {name}" for name, value in _SUMS.items()]
    moves = [
        f"count_if(state = '{state}') AS to_{state}, count_if(before = '{state}') AS from_{state}"
        for state in STATES
    ]
    names = [*_COUNTS, *_SUMS]
    entered = ", ".join([*names, *(f"to_{state}" for state in STATES)])
    zeros = ", ".join([*("0L" for _ in _COUNTS), *("0D" for _ in _SUMS)])
    left = ", ".join(f"-from_{state}" for state in STATES)
    columns = ", ".join([*names, *STATES])
    grouped = f"""
        SELECT server, queue, source, {begin("time", MINUTE)} AS minute, day,
            {", ".join([*counts, *sums, *moves])}
        FROM window_events WHERE type <> 'flushed' GROUP BY server, queue, source, minute, day
    """
    return f"""
        SELECT server, queue, minute, {columns}, day FROM (
            SELECT server, minute, day,
                stack(2, queue, {entered}, coalesce(source, queue), {zeros}, {left})
                    AS (queue, {columns})
            FROM ({grouped})
        )
    """


_MINUTE_TYPES: Final = (
    dict.fromkeys(_COUNTS, "BIGINT")
    | dict.fromkeys(_SUMS, "DOUBLE")
    | dict.fromkeys(STATES, "BIGINT")
)
_MINUTE_KEY: Final = _types("server STRING, queue STRING, minute TIMESTAMP")
QUEUE_MINUTE: Final = Derived(
    "queue_minute",
    "merge",
    _MINUTE_KEY | _MINUTE_TYPES,
    tuple(_MINUTE_KEY),
    "Counts of each minute with events, and by how much the number of jobs in each state changed. "
    "`died` includes jobs that were discarded after a failure, `failed` does not. The view "
    "`queue_depth` has the numbers of jobs.",
    sql=_minute_sql(),
    flushed=_select(  # it brings all depths of a server to 0
        _MINUTE_KEY | _MINUTE_TYPES,
        {"minute": begin("flushed_at", MINUTE)}
        | dict.fromkeys(_COUNTS, "0L")
        | dict.fromkeys(_SUMS, "0D")
        | {state: f"-count_if(state = '{state}')" for state in STATES},
        "flushed_jobs GROUP BY server, queue, flushed_at",
        _FLUSH_DAY,
    ),
    measures=tuple(Measure(name, kind, "") for name, kind in _MINUTE_TYPES.items()),
)


def _merged(
    name: str, keys: str, measures: tuple[Measure, ...], source: str, about: str
) -> Derived:
    """A merged table: `keys` is the DDL of its key, `source` a query with the key columns."""
    key_types = _types(keys)
    listed = ", ".join(key_types)
    sums = ", ".join(f"{measure.sql} AS {measure.name}" for measure in measures)
    return Derived(
        name,
        "merge",
        key_types | {measure.name: measure.type for measure in measures},
        tuple(key_types),
        about,
        f"SELECT {listed}, {sums}, day FROM ({source}) GROUP BY {listed}, day",
        measures=measures,
    )


def _count(name: str, condition: str) -> Measure:
    return Measure(name, "BIGINT", f"count_if({condition})")


_COUNTED: Final = tuple(
    _count(name, _COUNTS[name]) for name in ("pushed", "started", "completed", "failures", "died")
)
_RUN_SUMS: Final = (
    Measure("run_us", "DOUBLE", f"sum({_SUMS['run_us']})"),
    Measure("lost_us", "DOUBLE", f"sum({_duration('run_us', FAILURE)})"),
)

KIND_HOUR: Final = _merged(
    "kind_hour",
    "server STRING, queue STRING, kind STRING, origin STRING, actor STRING, hour TIMESTAMP",
    (
        Measure("events", "BIGINT", "count(*)"),
        *_COUNTED,
        Measure("wait_us", "DOUBLE", f"sum({_SUMS['wait_us']})"),
        *_RUN_SUMS,
    ),
    f"SELECT *, {begin('time', HOUR)} AS hour FROM window_events WHERE type <> 'flushed'",
    "Counts by queue, kind, pushing protocol and acting protocol (null: the server). `run_us` is "
    "the time of successful attempts, `lost_us` of failed ones.",
)
TAG_DAY: Final = _merged(
    "tag_day",
    "server STRING, queue STRING, kind STRING, tag STRING",
    (*_COUNTED, *_RUN_SUMS),
    "SELECT *, explode(array_distinct(tags)) AS tag FROM window_events "
    "WHERE type <> 'flushed' AND size(tags) > 0",
    "Counts and times of jobs with a tag.",
)

# Wait times (of `leased`) and run times (of `completed` and `advanced`)

_SPANS: Final = f"""
    SELECT server, queue, kind, time, day, if(type = 'leased', 'wait', 'run') AS metric,
        coalesce(if(type = 'leased', wait_us, run_us), 0) AS us
    FROM window_events WHERE type = 'leased' OR {COMPLETION}
"""
_CELL: Final = f"us - us % if(us < {MINUTE}L, {SECOND}L, if(us < {HOUR}L, {MINUTE}L, {HOUR}L))"


def half_cell(cell: str) -> str:
    """Half the length of a cell."""
    lengths = f"if({cell} < {HOUR}L, {MINUTE // 2}L, {HOUR // 2}L)"
    return f"if({cell} < {MINUTE}L, {SECOND // 2}L, {lengths})"


_DISTANCE: Final = f"us - cell - {half_cell('cell')}"
_SPAN_MEASURES: Final = (
    Measure("n", "BIGINT", "count(*)"),
    Measure("sum_us", "DOUBLE", "sum(CAST(us AS DOUBLE))"),
    Measure("min_us", "BIGINT", "min(us)", "min"),
    Measure("max_us", "BIGINT", "max(us)", "max"),
)
LATENCY_DAY: Final = _merged(
    "latency_day",
    "server STRING, queue STRING, kind STRING, metric STRING, bucket INT, cell BIGINT",
    (
        *_SPAN_MEASURES,
        Measure("distance", "BIGINT", "sum(distance)"),
        Measure("square_high", "BIGINT", f"sum(shiftright(distance * distance, {HALF_BITS}))"),
        Measure("square_low", "BIGINT", f"sum(distance * distance & {(1 << HALF_BITS) - 1}L)"),
    ),
    f"SELECT *, {_DISTANCE} AS distance FROM (SELECT *, {buckets.bucket_sql('us')} AS bucket, "
    f"{_CELL} AS cell FROM ({_SPANS}))",
    "Waits (of `leased`) and runs (of `completed`, `advanced`) in buckets that grow by 2 %. Rows "
    "of any days, queues and kinds can be added and give percentiles within 1 %. `cell` is the "
    "start of a second below a minute, of a minute below an hour, and of an hour beyond. "
    "`distance` and the two halves of its squares, measured from the middle of the cell, give the "
    "exact variance.",
)
LATENCY_HOUR: Final = _merged(
    "latency_hour",
    "server STRING, queue STRING, metric STRING, hour TIMESTAMP, bucket INT",
    _SPAN_MEASURES,
    f"SELECT *, {begin('time', HOUR)} AS hour, "
    f"{buckets.bucket_sql('us', buckets.COARSE)} AS bucket FROM ({_SPANS})",
    "The same by hour, in buckets that grow by 10 %.",
)
FAILURE_GROUPS: Final = _merged(
    "failure_groups",
    "server STRING, fingerprint STRING, queue STRING, kind STRING",
    (
        Measure("n", "BIGINT", "count(*)"),
        _count("jobs", "NOT coalesce(repeat, type = 'doomed')"),
        _count("died", DEATH),
        Measure("first_seen", "TIMESTAMP", "min(time)", "min"),
        Measure("last_seen", "TIMESTAMP", "max(time)", "max"),
        Measure("sample_event", "BIGINT", "min(event_id)", "min"),
        Measure("error_group", "STRING", "min_by(error_group, event_id)", "sample"),
        Measure("sample_seq", "BIGINT", "min_by(seq, event_id)", "sample"),
        Measure("sample_jid", "STRING", "min_by(jid, event_id)", "sample"),
        Measure("sample_message", "STRING", "min_by(error_message, event_id)", "sample"),
    ),
    f"SELECT * FROM window_events WHERE fingerprint IS NOT NULL AND ({FAILURE} OR type = 'doomed')",
    "Failures with the same fingerprint, and the first one of the day as a sample. `jobs` counts "
    "the failures that differ from the failure before of the same job.",
)
WORKER_HOUR: Final = _merged(
    "worker_hour",
    "server STRING, worker STRING, holder STRING, hour TIMESTAMP",
    (
        Measure("busy_us", "BIGINT", f"sum(least(stop, at + {HOUR}L) - greatest(start, at))"),
        _count("attempts", "ends"),
        _count("completed", "ends AND outcome IN ('completed', 'advanced')"),
        _count("failures", "ends AND outcome IN ('failed', 'expired')"),
    ),
    f"""
    SELECT *, timestamp_micros(at) AS hour, to_date(timestamp_micros(at)) AS day,
        at = stop - pmod(stop, {HOUR}L) AS ends
    FROM (
        SELECT *, explode(
            sequence(start - pmod(start, {HOUR}L), stop - pmod(stop, {HOUR}L), {HOUR}L)
        ) AS at
        FROM (
            SELECT server, coalesce(worker, '') AS worker, holder, outcome,
                unix_micros(ended_at) AS stop,
                if(unix_micros(ended_at) - unix_micros(leased_at)
                    BETWEEN 0 AND {MAX_LEASE_DAYS * DAY}L,
                    unix_micros(leased_at), unix_micros(ended_at)) AS start
            FROM ended_leases WHERE leased_at IS NOT NULL
        )
    )
    """,
    "How long each worker held jobs, of leases that have ended, divided at the hour. A lease that "
    "ended before its start or took more than 31 days has no length: the clock of the client is "
    "wrong.",
)

#: The slot of a cell in Qless's histogram: 60 seconds, 59 minutes, 23 hours, 6 days; null beyond.
_SLOT: Final = f"""CASE WHEN cell < {MINUTE}L THEN greatest(0L, cell DIV {SECOND}L)
    WHEN cell < {HOUR}L THEN 59 + cell DIV {MINUTE}L
    WHEN cell < {DAY}L THEN 118 + cell DIV {HOUR}L
    WHEN cell < {7 * DAY}L THEN 141 + cell DIV {DAY}L END"""
SLOTS: Final = 148
PERCENTS: Final = (50, 90, 95, 99)
_QUEUE: Final = "server, queue, day, metric"
# DECIMAL, because products of the longest spans exceed 64 bits.
_WHOLE: Final = f"""CAST(
    (CAST(cell AS DECIMAL(19,0)) + {half_cell("cell")}) * CAST(n AS DECIMAL(10,0))
    + CAST(distance AS DECIMAL(19,0)) AS DECIMAL(30,0))"""
#: The sum of the squares of the distances from the mean of the cell, from exact integers.
_SQUARES: Final = f"""CAST(
    CAST(CAST(high AS DECIMAL(19,0)) * CAST({1 << HALF_BITS} AS DECIMAL(10,0))
        + CAST(low AS DECIMAL(19,0)) AS DECIMAL(28,0)) * CAST(n AS DECIMAL(10,0))
    - CAST(distance AS DECIMAL(19,0)) * CAST(distance AS DECIMAL(19,0)) AS DOUBLE) / n"""


def _metric(name: str) -> str:
    """The columns of a metric in a group of rows of `metrics`."""
    own = f"FILTER (WHERE metric = '{name}')"
    percentiles = (f"any_value(p{percent}) {own} AS {name}_p{percent}_us" for percent in PERCENTS)
    return f"""
        coalesce(max(n) {own}, 0L) AS {name}_n, coalesce(max(mean) {own}, 0D) AS {name}_mean,
        coalesce(max(var) {own}, 0D) AS {name}_var,
        coalesce(any_value(hist) {own}, array_repeat(0L, {SLOTS})) AS {name}_hist,
        {", ".join(percentiles)}
    """


def _metric_types(name: str) -> dict[str, str]:
    types = {"n": "BIGINT", "mean": "DOUBLE", "var": "DOUBLE", "hist": "ARRAY<BIGINT>"}
    types |= {f"p{percent}_us": "DOUBLE" for percent in PERCENTS}
    return {f"{name}_{column}": kind for column, kind in types.items()}


_DAY_COUNTS: Final = ("pushed", "started", "completed", "failures", "failed", "expired", "died")
#: Reads the rows of the touched days as `day_minutes` (queue_minute) and `day_latency`.
_QUEUE_DAY_SQL: Final = f"""
WITH counts AS (
    SELECT server, queue, day,
        {", ".join(f"sum({name}) AS {name}" for name in (*_DAY_COUNTS, *STATES))}
    FROM day_minutes GROUP BY server, queue, day
), cells AS (
    SELECT {_QUEUE}, cell, sum(n) AS n, sum(distance) AS distance, sum(square_high) AS high,
        sum(square_low) AS low
    FROM day_latency GROUP BY {_QUEUE}, cell
), spread AS (
    SELECT {_QUEUE}, cell, n, sum(n) OVER alike AS total,
        CAST(sum({_WHOLE}) OVER alike AS DOUBLE) / sum(n) OVER alike AS mean,
        CAST({_WHOLE} AS DOUBLE) / n AS own_mean, {_SQUARES} AS squares
    FROM cells
    WINDOW alike AS (PARTITION BY {_QUEUE} ORDER BY cell
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
), slots AS (
    SELECT {_QUEUE}, {_SLOT} AS slot, sum(n) AS n, max(total) AS total, max(mean) AS mean,
        sum(squares + n * pow(own_mean - mean, 2)) AS squares
    FROM spread GROUP BY {_QUEUE}, slot
), moments AS (
    SELECT {_QUEUE}, max(total) AS n, max(mean) / {SECOND} AS mean,
        if(max(total) > 1, sum(squares) / (max(total) - 1) / ({SECOND}D * {SECOND}D), 0D) AS var,
        map_from_entries(collect_list(if(slot IS NULL, null, struct(slot, n)))) AS slots
    FROM slots GROUP BY {_QUEUE}
), merged AS (
    SELECT {_QUEUE}, bucket, sum(n) AS n, min(min_us) AS low, max(max_us) AS high
    FROM day_latency GROUP BY {_QUEUE}, bucket
), ranked AS (
    SELECT {_QUEUE}, bucket, {buckets.value_sql("bucket", "low", "high")} AS value,
        100 * sum(n) OVER (PARTITION BY {_QUEUE} ORDER BY bucket
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS reached,
        sum(n) OVER (PARTITION BY {_QUEUE}) AS total
    FROM merged
), percentiles AS (
    SELECT {_QUEUE}, {
    ", ".join(f"min_by(value, if(reached >= total * {p}, bucket, null)) AS p{p}" for p in PERCENTS)
}
    FROM ranked GROUP BY {_QUEUE}
), metrics AS (
    SELECT m.server, m.queue, m.day, m.metric, n, mean, var,
        transform(sequence(0, {SLOTS - 1}),
            slot -> coalesce(try_element_at(slots, CAST(slot AS BIGINT)), 0L)) AS hist,
        {", ".join(f"p{percent}" for percent in PERCENTS)}
    FROM moments AS m JOIN percentiles AS p ON m.server = p.server AND m.queue = p.queue
        AND m.day = p.day AND m.metric = p.metric
)
SELECT c.server, c.queue, {", ".join(f"max({name}) AS {name}" for name in _DAY_COUNTS)},
    {_metric("wait")}, {_metric("run")}, {", ".join(f"max({name}) AS {name}" for name in STATES)},
    c.day
FROM counts AS c
    LEFT JOIN metrics AS m ON c.server = m.server AND c.queue = m.queue AND c.day = m.day
WHERE {" OR ".join(f"c.{name} <> 0" for name in (*_DAY_COUNTS, *STATES))}
GROUP BY c.server, c.queue, c.day
"""

QUEUE_DAY: Final = Derived(
    "queue_day",
    "replace",
    _types("server STRING, queue STRING")
    | dict.fromkeys(_DAY_COUNTS, "BIGINT")
    | _metric_types("wait")
    | _metric_types("run")
    | dict.fromkeys(STATES, "BIGINT"),
    ("server", "queue"),
    "Qless's statistics for every queue: mean and variance in seconds, histograms of 148 slots; "
    "and by how much the number of jobs in each state changed.",
    _QUEUE_DAY_SQL,
)

#: The history of the runs: each names the version of every table that belongs to it.
RUNS: Final = Derived(
    "runs",
    "append",
    _types(
        """
        run BIGINT, time TIMESTAMP, seconds DOUBLE, events BIGINT, tables ARRAY<STRING>,
        versions ARRAY<BIGINT>, servers ARRAY<STRING>, positions ARRAY<BIGINT>, failed BIGINT,
        findings ARRAY<STRING>, millrace STRING
        """
    ),
    ("run",),
    "One row per run: the version of each table, the last event of each server, the number of "
    "failed checks and their findings. Readers open the versions of the last row.",
    partition="",
)

#: The journal. Its files are also divided by server.
EVENTS: Final = Derived(
    "events", "append", _types(schema.ddl()), ("server", "event_id"), "Every event, as shipped."
)
AUDIT_JOBS: Final = Derived(
    "audit_jobs",
    "replace",
    _types("server STRING, seq BIGINT, jid STRING, problem STRING, event_id BIGINT, detail STRING"),
    ("server", "seq", "problem", "event_id"),
    "Findings of the last audit: illegal transitions, lost jobs, jobs that ended twice or were "
    "leased twice at once.",
    partition="",
)

#: Every derived table. A run refreshes them in this order.
DERIVED: Final = {
    table.name: table
    for table in (
        ATTEMPTS, JOBS, QUEUE_MINUTE, KIND_HOUR, LATENCY_DAY, LATENCY_HOUR, TAG_DAY, FAILURE_GROUPS,
        WORKER_HOUR, QUEUE_DAY, JOBS_OPEN,
    )
}  # fmt: skip

TABLES: Final = {EVENTS.name: EVENTS} | DERIVED | {RUNS.name: RUNS, AUDIT_JOBS.name: AUDIT_JOBS}


def merge_sql(table: Derived, relation: str) -> str:
    """Add the rows of a merged table that have the same key."""
    keys = ", ".join(table.key)
    return f"""
        SELECT {keys}, {", ".join(_merge(measure) for measure in table.measures)}, day
        FROM {relation} GROUP BY {keys}, day
    """


def _merge(measure: Measure) -> str:
    if measure.merge == "sample":
        return f"min_by({measure.name}, sample_event) AS {measure.name}"
    return f"{measure.merge}({measure.name}) AS {measure.name}"
