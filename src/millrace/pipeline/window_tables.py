"""The rows of the derived tables for one window, as DataFrames.

A small window is computed in one partition. Spark then needs no exchange, and one query with one
task computes all tables.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.journal.table_files import File

from . import tables as d
from .delta import files
from .events import load
from .windows import Window, days, lease_days

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

#: Up to this number of open jobs of a window, Spark sends their last events to every task (about
#: 50 MB) and does not shuffle the events.
MAX_BROADCAST_ROWS: Final = 500_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class WindowTables:
    """The tables at the end of a window. `events` are the files with its events."""

    def __init__(
        self,
        spark: "SparkSession",
        root: Path,
        tables: "Mapping[str, DeltaTable | None]",
        window: Window,
        events: Sequence[File],
    ) -> None:
        self._spark, self._root, self._tables = spark, root, tables
        self._window, self._events = window, events
        self._touched, self._lease_days = days(events), lease_days(events)
        self._single = False
        self._last_events: DataFrame | None = None

    def prepare(self, *, single: bool) -> None:
        """Create the views that the definitions read, in one partition or in many."""
        self._single = single
        read = load(self._spark, self._root, d.EVENTS, self._events)
        if not self._window.covers(self._events):
            read = read.where(self._window.condition())
        self._view("window_events", self._gathered(read))
        if self._window.flushes:
            self._flushed_jobs()
        self._view("ended_leases", self._spark.sql(self._definition(d.ATTEMPTS)))

    def release(self) -> None:
        """Free the memory that the window uses in Spark."""
        if self._last_events is not None:
            self._last_events.unpersist()

    def replaced(self, table: d.Derived) -> list[str] | None:
        """The partitions whose rows the window replaces; None if it appends rows."""
        if table.kind == "append":
            return None
        if table.kind == "open":
            return [flush.server for flush in self._window.flushes] or None
        if table is not d.WORKER_HOUR:
            return self._touched
        found = set(self._lease_days)
        for flush in self._window.flushes:
            for before in range(d.MAX_LEASE_DAYS + 1):
                found.add((flush.time.date() - timedelta(days=before)).isoformat())
        return sorted(found)

    def old_files(self, table: d.Derived) -> list[File]:
        """The files of a table, divided by day, that the window replaces."""
        wanted = set(self.replaced(table) or ())
        found = files(self._tables[table.name], self._root, table.name)
        return [file for file in found if file.day is not None and file.day.isoformat() in wanted]

    def rows(self, table: d.Derived, new: "Mapping[str, DataFrame] | None" = None) -> "DataFrame":
        """The new rows of a table. `new` has the rows of tables that are not committed yet."""
        if table is d.ATTEMPTS:
            return self._spark.sql("SELECT * FROM ended_leases")
        if table is d.JOBS:
            return self._spark.sql(self._definition(table))
        if table.kind == "merge":
            return self._merged(table)
        if table.kind == "open":
            return self._open_jobs()
        for view, source in (("day_minutes", d.QUEUE_MINUTE), ("day_latency", d.LATENCY_DAY)):
            rows = (new or {}).get(source.name)
            self._view(view, self._old(source) if rows is None else rows)
        return self._spark.sql(table.sql)

    def _merged(self, table: d.Derived) -> "DataFrame":
        new = self._definition(table)
        old = self.old_files(table)
        if not old and table is not d.QUEUE_MINUTE:
            return self._spark.sql(new)
        self._view("old_rows", self._old(table))
        columns = ", ".join(table.all_types)
        added = self._spark.sql(f"{new} UNION ALL SELECT {columns} FROM old_rows")
        self._view("added_rows", self._gathered(added))
        return self._spark.sql(d.merge_sql(table, "added_rows"))

    def _open_jobs(self) -> "DataFrame":
        rows = self._changed_jobs()
        if self._window.flushes:
            rows = rows.where(f"server NOT IN ({self._flushed_servers()})")
        return rows

    def _changed_jobs(self) -> "DataFrame":
        """The last state of each job in the window, except jobs that came and went in it."""
        if self._last_events is None:
            last = self._spark.sql(d.LAST_EVENTS)
            if not self._single:
                self._last_events = last = last.persist()
                small = last.count() <= MAX_BROADCAST_ROWS
                last = last.hint("broadcast" if small else "shuffle_hash")
            self._view("last_events", last)
        return self._spark.sql(d.JOBS_OPEN.sql)

    def _flushed_jobs(self) -> None:
        """Create the view of the jobs that the flushes of the window removed."""
        servers = self._flushed_servers()
        before = [
            file
            for file in files(self._tables[d.JOBS_OPEN.name], self._root, d.JOBS_OPEN.name)
            if any(flush.server == file.server for flush in self._window.flushes)
        ]
        self._view("open_before", load(self._spark, self._root, d.JOBS_OPEN, before))
        self._view("changed_jobs", self._changed_jobs())
        columns = ", ".join(d.JOBS_OPEN.columns)
        self._view(
            "open_rows",
            self._spark.sql(
                f"SELECT {columns} FROM open_before UNION ALL "
                f"SELECT {columns} FROM changed_jobs WHERE server IN ({servers})"
            ),
        )
        flushes = ", ".join(
            f"('{flush.server}', {flush.event_id}L, timestamp_micros({_micros(flush.time)}L))"
            for flush in self._window.flushes
        )
        self._view(
            "flushed_jobs",
            self._spark.sql(
                f"SELECT j.*, flush_event, flushed_at FROM ({d.newest('open_rows')}) AS j "
                f"JOIN (VALUES {flushes}) AS f(server, flush_event, flushed_at) "
                "ON j.server = f.server"
            ).drop("f.server"),
        )

    def _flushed_servers(self) -> str:
        return ", ".join(f"'{flush.server}'" for flush in self._window.flushes)

    def _definition(self, table: d.Derived) -> str:
        """The query of a table on the window, with the rows that its flushes add."""
        if not self._window.flushes or not table.flushed:
            return table.sql
        return f"{table.sql} UNION ALL {table.flushed}"

    def _old(self, table: d.Derived) -> "DataFrame":
        return self._gathered(load(self._spark, self._root, table, self.old_files(table)))

    def _gathered(self, rows: "DataFrame") -> "DataFrame":
        return rows.coalesce(1) if self._single else rows

    def _view(self, name: str, rows: "DataFrame") -> None:
        rows.createOrReplaceTempView(name)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
