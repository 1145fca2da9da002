"""Reads the tables of the last run as Arrow tables, without Spark or Java.

A snapshot opens the versions that the last row of `runs` names. It keeps them: a run in the
meantime does not change the rows that a reader gets, and all tables have the same events.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import delta
from .delta import File
from .errors import PipelineError
from .remote import fetch
from .tables import RUNS, TABLES, Derived

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.compute import Expression

_TYPES: Final = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATE": pa.date32(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
}
_BATCH_ROWS: Final = 1 << 17


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


class TooManyRows(PipelineError):
    """A table has more rows than its reader can hold."""


def schema(table: Derived) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in table.all_types.items()])


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
        of = sorted({file.day for file in found if file.day is not None})
        return Extent(
            rows=sum(file.rows for file in found),
            bytes=sum(file.bytes for file in found),
            files=len(found),
            days=len(of),
            first=of[0] if of else None,
            last=of[-1] if of else None,
        )

    def read(
        self,
        table: Derived,
        first: date | None = None,
        last: date | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: "Expression | None" = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Read a table, or some of its `columns`, for the days from `first` to `last`. `where`
        filters the rows and may use only the selected columns. If there are more than `limit`
        rows, TooManyRows is raised before any row is read.
        """
        if limit is not None and (rows := self.extent(table, first, last).rows) > limit:
            raise TooManyRows(
                f"{table.name} has {rows:,} rows in these days, and at most {limit:,} are read at "
                "once. Select fewer days."
            )
        found = self.batches(table, first, last, columns=columns, where=where)
        return pa.Table.from_batches(found, _selected(table, columns))

    def batches(
        self,
        table: Derived,
        first: date | None = None,
        last: date | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: "Expression | None" = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same rows in batches, for tables that are larger than memory."""
        wanted = _selected(table, columns)
        for file in self.files(table, first, last):
            fetch(self.root, [file.path])
            yield from _batches(file, wanted, where)


def _selected(table: Derived, columns: Sequence[str] | None) -> pa.Schema:
    all_ = schema(table)
    return all_ if columns is None else pa.schema([all_.field(name) for name in columns])


def _batches(file: File, wanted: pa.Schema, where: "Expression | None") -> Iterator[pa.RecordBatch]:
    try:
        parquet = pq.ParquetFile(file.path)
        in_file = set(parquet.schema_arrow.names)
        names = [name for name in wanted.names if name in in_file]
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=names):
            rows = _conformed(batch, file, wanted)
            yield from (rows if where is None else rows.filter(where)).to_batches()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def _conformed(batch: pa.RecordBatch, file: File, wanted: pa.Schema) -> pa.Table:
    """Add the partition columns; columns that an older file lacks are null."""
    partition = {"day": file.day, "server": file.server}
    arrays: list[Any] = []
    for field in wanted:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        else:
            value = pa.scalar(partition.get(field.name), field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
    return pa.Table.from_arrays(arrays, schema=wanted)


def _unreadable(file: File, error: Exception) -> Unreadable:
    if isinstance(error, FileNotFoundError):
        return Unreadable(
            f"{file.path} no longer exists: the version of the table is too old. Try again."
        )
    reason = str(error).partition("\n")[0].rstrip(".")
    return Unreadable(f"{file.path} cannot be read ({reason}). Restore it from a backup.")


def named(name: str) -> Derived:
    """Return the table with this name."""
    table = TABLES.get(name)
    if table is None:
        raise PipelineError(f"Unknown table {name!r}. Tables: {', '.join(TABLES)}.")
    return table
