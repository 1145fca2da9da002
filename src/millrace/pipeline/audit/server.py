"""Compares the state of a server with the events in the lake."""

import tempfile
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from millrace.durable_files import make
from millrace.pipeline.events import load, readable
from millrace.pipeline.lake import Lake
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import LATENCY_DAY, QUEUE_DAY, QUEUE_MINUTE, merge_sql

from . import reconcile
from .results import MAX_RESULTS, Compared, Difference, Live

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH: Final = date(1970, 1, 1)


@dataclass
class Comparison:
    """The comparison of one server with its events in the lake."""

    spark: SparkSession
    lake: Lake
    live: Live
    _: KW_ONLY
    #: All events; later the events of the server that it counted, and possibly later ones.
    events: DataFrame
    #: The numbers of its flush events, and its last event in the lake.
    flushes: list[int]
    last: int
    #: Whether the lake has all events since the server was last empty.
    complete: bool
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        flushed = max((each for each in self.flushes if each <= self.live.as_of), default=0)
        self.events = self.events.where(f"server = '{self.live.server}' AND event_id > {flushed}")
        self.snapshot = Snapshot(self.lake.root)

    def jobs(self, expected: DataFrame) -> DataFrame:
        """Return AUDIT_JOBS rows for jobs that differ from `expected`, their state by events."""
        jobs = self._frame("jobs", self.live.jobs)
        return reconcile.jobs(self.live.server, expected, jobs, complete=self.complete)

    def counters(self) -> Compared:
        """Compare the statistics and the number of jobs in each state."""
        live, since = self.live, self._since()
        day = pc.field("day")
        within = live.days.filter((day >= since) & (day <= reconcile.LAST_DAY))
        if within.num_rows < live.days.num_rows:
            self.left_out.append(
                f"{live.days.num_rows - within.num_rows:,} days of its statistics are not "
                f"compared: the server is deleting days before {_format_day(since)}, and other "
                "days are not in the calendar."
            )
        days = self._frame("days", within)
        table = self._stored() or queue_days(reconcile.counted_by(self.events, days, live.as_of))
        differences = reconcile.statistics(table, days, since)
        queues = 0
        if live.queues is not None and self._can_count():
            queues = live.queues.num_rows
            depths = self._frame("queues", live.queues)
            differences = differences.unionByName(reconcile.depths(self.events, depths, live.as_of))
        rows = differences.orderBy("what", "queue", "day").limit(MAX_RESULTS).collect()
        # Usually there are no differences, so caching the result for the count is not worthwhile.
        differing = differences.count() if len(rows) == MAX_RESULTS else len(rows)
        return Compared(
            server=live.server,
            event=live.event,
            jobs=live.jobs.num_rows,
            queues=queues,
            days=within.num_rows,
            stored=self._is_stored,
            differing=differing,
            differences=[_difference(row) for row in rows],
            left_out=self.left_out,
        )

    def _since(self) -> int:
        """Return the first day to compare."""
        if self.complete:
            return self.live.since
        first = self.events.agg(F.min("event_id")).first()
        day = self.events.where(F.col("event_id") == _first_value(first)).select("day").first()
        first_day = ((_first_value(day) or _EPOCH) - _EPOCH).days + 1
        self.left_out.append(
            "The lake does not have the first events of the server: its statistics are compared "
            f"from {_format_day(first_day)} on, and the numbers of jobs in its queues are not."
        )
        return max(self.live.since, first_day)

    def _can_count(self) -> bool:
        """Test if all events have the previous job state; version 1 events may lack it."""
        if not self.complete:
            return False
        if self.events.where(F.col("before").isNull()).isEmpty():
            return True
        self.left_out.append(
            "Some events are of a version without the state before the event: the numbers of jobs "
            "in its queues are not compared."
        )
        return False

    @property
    def _is_stored(self) -> bool:
        """Whether queue_day has exactly the events that the server counted: none before a flush."""
        expected = {self.live.as_of, *self.live.days.column("event").unique().to_pylist()}
        run = self.snapshot.run
        is_refreshed = run is not None and run.position.get(self.live.server) == self.last
        return expected == {self.last} and not self.flushes and is_refreshed

    def _stored(self) -> DataFrame | None:
        files = self.snapshot.files(QUEUE_DAY)
        if not self._is_stored or not files:
            return None
        rows = load(self.spark, self.lake.root, QUEUE_DAY, files)
        return rows.where(F.col("server") == self.live.server)

    def _frame(self, what: str, table: "pa.Table") -> DataFrame:
        """Write a table from the server to a file that the Spark workers can read."""
        # Spark caches files by path, so each server's data needs a different path.
        make(self.lake.staging)
        folder = Path(tempfile.mkdtemp(prefix="live-", dir=self.lake.staging))
        path = folder / f"{what}.parquet"
        pq.write_table(table, path)
        return self.spark.read.parquet(*readable(path))


def queue_days(events: DataFrame) -> DataFrame:
    """Compute queue_day from events, in one window."""
    spark = events.sparkSession
    events.createOrReplaceTempView("window_events")
    minutes = merge_sql(QUEUE_MINUTE, f"({QUEUE_MINUTE.sql})")
    spark.sql(minutes).createOrReplaceTempView("day_minutes")
    spark.sql(LATENCY_DAY.sql).createOrReplaceTempView("day_latency")
    return spark.sql(QUEUE_DAY.sql)


def _first_value(row: Row | None) -> Any:
    return None if row is None else row[0]


def _difference(row: Row) -> Difference:
    day = None if row.day is None else _format_day(row.day)
    return Difference(row.what, row.queue, day, row.live, row.lake)


def _format_day(day: int) -> str:
    """Format a day as an ISO date; a server may have days outside the range of the calendar."""
    try:
        return (_EPOCH + timedelta(days=day)).isoformat()
    except OverflowError:
        return f"day {day:,}"
