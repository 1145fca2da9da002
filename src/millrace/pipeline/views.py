"""Views for SQL: every table of a snapshot, and views that combine them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from . import tables as d
from .answers import opened
from .events import load
from .snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS: Final = ("events", "pushed", "started", "completed", "failures", "died")
_JOB: Final = ", ".join(d.JOBS.columns)
_STATES: Final = ", ".join(
    f"sum({state}) OVER (PARTITION BY server, queue ORDER BY minute) AS {state}"
    for state in d.STATES
)


def _sums(names: tuple[str, ...]) -> str:
    return ", ".join(f"sum({name}) AS {name}" for name in names)


#: The definition of each view, in an order in which a view can read the views before it.
VIEWS: Final = {
    "jobs_current": d.newest("jobs_open"),
    "jobs_all": f"SELECT {_JOB} FROM jobs UNION ALL SELECT {_JOB} FROM jobs_current",
    "attempts_all": f"SELECT {', '.join(d.ATTEMPTS.columns)} FROM attempts "
    f"UNION ALL {d.OPEN_ATTEMPTS}",
    "queue_depth": f"SELECT server, queue, minute, {_STATES} FROM queue_minute",
    "protocol_day": f"SELECT server, origin, actor, {_sums(_COUNTS)}, day "
    "FROM kind_hour GROUP BY server, origin, actor, day",
    "cost_day": "SELECT server, queue, kind, "
    f"{_sums(('started', 'completed', 'failures', 'died', 'run_us', 'lost_us'))}, day "
    "FROM kind_hour GROUP BY server, queue, kind, day",
}


class QueryResult(NamedTuple):
    """Rows of a query as plain values. `more` says whether there are more than the limit."""

    columns: list[str]
    rows: list[dict[str, Any]]
    more: bool


def query(spark: "SparkSession", root: Path, sql: str, limit: int) -> QueryResult:
    """Run a query on the tables of the last run."""
    snapshot = opened(root)
    create_views(spark, snapshot)
    found = spark.sql(sql).limit(limit + 1)
    rows = [row.asDict(recursive=True) for row in found.collect()]
    plain = msgspec.to_builtins(rows[:limit], str_keys=True)
    return QueryResult(found.columns, plain, len(rows) > limit)


def create_views(spark: "SparkSession", snapshot: Snapshot) -> None:
    """Create a view in the session for every table of the snapshot, and the views of VIEWS."""
    for name, table in d.TABLES.items():
        rows = load(spark, snapshot.root, table, snapshot.files(table))
        rows.createOrReplaceTempView(name)
    for name, sql in VIEWS.items():
        spark.sql(sql).createOrReplaceTempView(name)
