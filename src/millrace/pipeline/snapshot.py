"""Reads the tables of the last run as Arrow tables, without Spark or Java.

A snapshot opens the versions that the last row of `runs` names. It keeps them: a run in the
meantime does not change the rows that a reader gets, and all tables have the same events.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import QueryBuilder

from millrace.journal.table_files import File, arrow_schema

from . import delta
from .errors import PipelineError
from .remote import fetch
from .tables import RUNS, TABLES, Derived

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Large batches, in the order of the files.
_IN_ORDER: Final = {
    "datafusion.execution.batch_size": str(1 << 17),
    "datafusion.execution.target_partitions": "1",
}


class RunRecord(NamedTuple):
    """A row of `runs`."""

    run: int
    time: datetime
    seconds: float
    events: int
    versions: dict[str, int]
    position: dict[str, int]
    failed: int
    findings: list[str]


class Extent(NamedTuple):
    """The size of a table."""

    rows: int
    bytes: int
    files: int
    days: int
    first: date | None
    last: date | None


class Unreadable(PipelineError):
    """A file of the lake is damaged."""


def schema(table: Derived) -> pa.Schema:
    return pa.schema(arrow_schema(table.all_types))


def last_run(root: Path) -> RunRecord | None:
    """Return the last run; None if there was none. Reads one small file."""
    table = delta.open_table(root, RUNS.name)
    if table is None:
        return None
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return None
    newest = pc.index(actions["max.run"], pc.max(actions["max.run"])).as_py()
    path = root / RUNS.name / actions["path"][newest].as_py()
    fetch(root, [path])
    rows = pq.ParquetFile(path).read().to_pylist()
    row = max(rows, key=lambda each: int(each["run"]))
    return RunRecord(
        run=row["run"],
        time=row["time"].astimezone(UTC),
        seconds=row["seconds"],
        events=row["events"],
        versions=dict(zip(row["tables"], row["versions"], strict=True)),
        position=dict(zip(row["servers"], row["positions"], strict=True)),
        failed=row["failed"],
        findings=row["findings"],
    )


class Snapshot:
    """The tables of the last run of a lake. Without a run, every table is empty."""

    def __init__(self, root: Path, run: RunRecord | None = None) -> None:
        self.root = root
        self.run = run or last_run(root)
        self._files: dict[str, list[File]] = {}

    @property
    def number(self) -> int:
        """The number of the run; 0 without one."""
        return 0 if self.run is None else self.run.run

    def table(self, table: Derived) -> "DeltaTable | None":
        """Open a table at the version of the run. Tables that no run refreshes are the newest."""
        if self.run is None:
            return None
        if table.name not in self.run.versions:
            return delta.open_table(self.root, table.name)
        return delta.open_table(self.root, table.name, self.run.versions[table.name])

    def files(
        self, table: Derived, first: date | None = None, last: date | None = None
    ) -> list[File]:
        """Return the files of a table in order of day, optionally from `first` to `last`."""
        if table.name not in self._files:
            self._files[table.name] = delta.files(self.table(table), self.root, table.name)
        return [
            file
            for file in self._files[table.name]
            if (first is None or file.day is None or file.day >= first)
            and (last is None or file.day is None or file.day <= last)
        ]

    def days(self, table: Derived) -> list[date]:
        return sorted({file.day for file in self.files(table) if file.day is not None})

    def extent(self, table: Derived, first: date | None = None, last: date | None = None) -> Extent:
        """Return the size of a table, from the log."""
        found = self.files(table, first, last)
        days = sorted({file.day for file in found if file.day is not None})
        return Extent(
            rows=sum(file.rows for file in found),
            bytes=sum(file.bytes for file in found),
            files=len(found),
            days=len(days),
            first=days[0] if days else None,
            last=days[-1] if days else None,
        )

    def query(self, table: Derived, sql: str) -> list[dict[str, Any]]:
        """The rows of a DataFusion query on a table; none if the table does not exist."""
        found = self.table(table)
        if found is None:
            return []
        try:
            return delta.query(found, table.name, sql)
        except Exception as error:
            raise _unreadable(table, error) from error

    def batches(
        self, table: Derived, first: date | None = None, last: date | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table, or of its days from `first` to `last`, in batches."""
        found, wanted = self.table(table), schema(table)
        if found is None:
            return
        rows = QueryBuilder(_IN_ORDER).register(table.name, found)
        for day in sorted({str(file.day or "") for file in self.files(table, first, last)}):
            where = f"WHERE day = DATE '{day}'" if day else ""
            sql = f"SELECT {', '.join(wanted.names)} FROM {table.name} {where}"
            try:
                for batch in rows.execute(sql):
                    yield pa.record_batch(batch).cast(wanted)
            except Exception as error:
                raise _unreadable(table, error) from error


def _unreadable(table: Derived, error: Exception) -> Unreadable:
    """A query raises no narrower class for a file that is damaged or that maintenance removed."""
    reason = str(error).partition("\n")[0].rstrip(".")
    return Unreadable(
        f"The table {table.name} cannot be read ({reason}). Try again, or "
        "restore the file from a backup if it is damaged."
    )


def named(name: str) -> Derived:
    """Return the table with this name."""
    table = TABLES.get(name)
    if table is None:
        raise PipelineError(f"Unknown table {name!r}. Tables: {', '.join(TABLES)}.")
    return table
