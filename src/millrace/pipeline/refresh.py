"""Brings the derived tables up to date, at a cost that follows the new events.

Each table stores its own position. A refresh takes the events between the position of a table and
the position of `events`, in windows, and commits rows and position of each table together. A
killed refresh leaves tables at different positions; the next one continues each table at its own.

`jobs_open` is the last table of every window. The tables of events read it at a FLUSH, at the
position of the start of the window; so it must never be ahead of them. A replaced table reads only
merged tables. It follows after the last window, once for all touched days.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.journal.location import EVENTS
from millrace.journal.table_files import File

from . import tables as d
from .delta import Change, Position, commit, create, files, open_table, position, staging
from .errors import NoLake, PipelineError
from .events import load, located
from .packed import pack, unpack, write
from .progress import Progress, silent
from .remote import shown
from .window_tables import WindowTables
from .windows import WINDOW_EVENTS, Contents, Window, contents, file_ends, windows

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

#: `jobs_open` is merged if it has more rows or files than this beside the open jobs.
MERGE_ROWS: Final = 200_000
MERGE_FILES: Final = 300
#: A day of an appended table is rewritten as one file when it has this number of files.
COMPACT_FILES: Final = 64
#: Up to this number of events, generated code costs more than it saves.
SMALL_WINDOW: Final = 200_000
#: Up to this number of rows, events and rows of the touched days together, one query computes all
#: tables and the driver writes them: about 100 MB of memory.
MAX_COLLECTED_ROWS: Final = 500_000


class Step(NamedTuple):
    """Tables with the same position, and the position that they are brought to."""

    tables: tuple[str, ...]
    start: Position
    end: Position


def steps(positions: dict[str, Position], end: Position) -> Iterator[Step]:
    """Order the work: tables that are behind are brought to the position of the next ones."""
    current = {name: dict(each) for name, each in positions.items()}
    while any(each != end for each in current.values()):
        low = min(current.values(), key=lambda each: sum(each.values()))
        ahead = [each for each in current.values() if each != low]
        target = min(ahead, key=lambda each: sum(each.values())) if ahead else dict(end)
        behind = tuple(name for name, each in current.items() if each == low)
        if any(target[server] < low[server] for server in end):
            raise PipelineError(
                f"The table {behind[0]} has events that `events` or another table does not have. "
                "Restore all tables of the lake from one backup, or remove the derived tables."
            )
        yield Step(behind, low, target)
        current |= dict.fromkeys(behind, target)


class TableRefresh:
    """The refresh of one run. `position` is the position of `events` when it started."""

    def __init__(
        self,
        spark: "SparkSession",
        root: Path,
        run: int,
        *,
        window_events: int = WINDOW_EVENTS,
        progress: Progress = silent,
    ) -> None:
        found = open_table(root, EVENTS)
        if found is None:
            raise NoLake(shown(root))
        self._spark, self._root, self._run = spark, root, run
        self._limit, self._progress = window_events, progress
        self.events: DeltaTable = found
        self._files = files(found, root, EVENTS)
        servers = sorted({file.server for file in self._files if file.server is not None})
        self.position = position(found, servers)
        self.tables = {name: create(root, table) for name, table in d.DERIVED.items()}
        #: The days whose rows were replaced, by table.
        self.days: dict[str, set[str]] = {name: set() for name in d.DERIVED}
        self.windows = 0

    def positions(self) -> dict[str, Position]:
        return {name: position(table, self.position) for name, table in self.tables.items()}

    def run(self) -> int:
        """Bring all tables to the position of `events`. Return the number of new events."""
        with tuned(self._spark, small=True):
            return self._run_steps()

    def _run_steps(self) -> int:
        before = self.positions()
        total = max(
            (sum(self.position.values()) - sum(each.values()) for each in before.values()),
            default=0,
        )
        for step in steps(before, self.position):
            found = contents(self.events, Window(step.start, step.end))
            ends = file_ends(self._files)
            all_ = list(windows(step.start, step.end, found.flushes, self._limit, ends))
            later = [n for n in step.tables if d.DERIVED[n].kind == "replace" and len(all_) > 1]
            for window in all_:
                done = total - sum(self.position.values()) + sum(window.start.values())
                self._progress("refresh", max(0, done), total)
                self._process(window, [n for n in step.tables if n not in later], found)
                self.windows += 1
            if later:
                self._process(Window(step.start, step.end), later, found)
        self._progress("refresh", total, total)
        return total

    def merge_open_jobs(self) -> bool:
        """Rewrite `jobs_open` with one row per open job if it has many rows that no longer count.
        The largest file of each server is the result of the last merge.
        """
        table = d.JOBS_OPEN
        found = files(self.tables[table.name], self._root, table.name)
        largest: dict[str | None, int] = {}
        for file in found:
            largest[file.server] = max(file.rows, largest.get(file.server, 0))
        base, rows = sum(largest.values()), sum(file.rows for file in found)
        if rows - base <= max(MERGE_ROWS, base // 2) and len(found) <= MERGE_FILES:
            return False
        load(self._spark, self._root, table, found).createOrReplaceTempView("open_rows")
        merged = self._spark.sql(d.newest("open_rows")).repartition("server")
        self._replace(table, merged, sorted({file.server or "" for file in found}))
        return True

    def compact(self) -> int:
        """Rewrite the days of appended tables that have many files. Return their number."""
        done = 0
        for table in (d.ATTEMPTS, d.JOBS):
            days_of: dict[str, list[File]] = {}
            for file in files(self.tables[table.name], self._root, table.name):
                days_of.setdefault(str(file.day), []).append(file)
            for day, found in days_of.items():
                if len(found) >= COMPACT_FILES:
                    rows = load(self._spark, self._root, table, found).repartition(1)
                    self._replace(table, rows, [day])
                    done += 1
        return done

    # One window

    def _process(self, window: Window, names: Sequence[str], found: Contents) -> None:
        """Bring tables to the end of a window, in the order of DERIVED."""
        tables = [table for name, table in d.DERIVED.items() if name in names]
        changed = [table for table in tables if window.flushes or found.counts.get(table.name, 1)]
        rows = WindowTables(self._spark, self._root, self.tables, window, window.files(self._files))
        size = window.events + sum(f.rows for table in changed for f in rows.old_files(table))
        together = not window.flushes and size <= MAX_COLLECTED_ROWS
        _tune(self._spark, small=window.events <= SMALL_WINDOW)
        rows.prepare(single=together)
        try:
            staged = self._write_together(rows, changed) if together else {}
            for table in tables:
                if not together and table in changed:
                    staged[table.name] = self._write(table, rows.rows(table))
                self._commit(table, staged.get(table.name), rows.replaced(table), window.end)
        finally:
            rows.release()

    def _write_together(self, rows: WindowTables, tables: Sequence[d.Derived]) -> dict[str, Path]:
        """Compute the rows of several tables in one query, and write them."""
        frames: dict[str, DataFrame] = {}
        for table in tables:
            frames[table.name] = rows.rows(table, frames)
        packed = pack(frames).toArrow()
        staged = {table.name: staging(self._root, table) for table in tables}
        for table in tables:
            write(unpack(packed, table), table, staged[table.name])
        return staged

    def _replace(self, table: d.Derived, rows: "DataFrame", partitions: list[str]) -> None:
        """Replace partitions with rows of the same position."""
        self._commit(table, self._write(table, rows), partitions, self.position)

    def _commit(
        self, table: d.Derived, staged: Path | None, replaced: list[str] | None, end: Position
    ) -> None:
        replaced = replaced if staged is not None else None
        change = Change(staged, replaced, end, self._run)
        commit(self._root, table, self.tables[table.name], change)
        self.days[table.name].update(replaced or ())

    def _write(self, table: d.Derived, rows: "DataFrame") -> Path:
        staged = staging(self._root, table)
        writer = rows.select(*table.all_types).write
        for column in d.DISTINCT_COLUMNS:
            writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
        writer.partitionBy(table.partition).parquet(located(staged))
        return staged


def _settings(spark: "SparkSession", *, small: bool) -> dict[str, str]:
    """The settings of the session that depend on the size of a window."""
    cores = spark.sparkContext.defaultParallelism or os.cpu_count() or 1
    return {
        "spark.sql.shuffle.partitions": "1" if small else str(cores),
        "spark.sql.codegen.wholeStage": "false" if small else "true",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if small else "FALLBACK",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.maxConcurrentOutputFileWriters": "20",
        "spark.sql.autoBroadcastJoinThreshold": "-1" if small else "10m",
        "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    }


def _tune(spark: "SparkSession", *, small: bool) -> None:
    for name, value in _settings(spark, small=small).items():
        spark.conf.set(name, value)


@contextmanager
def tuned(spark: "SparkSession", *, small: bool) -> Iterator[None]:
    """Change the settings of the session for a refresh, and restore them."""
    before = {name: spark.conf.get(name, None) for name in _settings(spark, small=small)}
    _tune(spark, small=small)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
