"""Conversion of a lake of format 1: its events move to the Delta table `events`.

A lake of format 1 has events in files of batches (`tables`, listed by `ops`) and in shipped files
(`landing`). An event of a batch is either in a compacted file, which the `_sealed.json` of its day
names, or in a file of a batch after the last batch in the seal.

The conversion reads the events of each server in their order, adds the columns of event version 3,
and commits them in windows. Each commit records the last converted event, so an interrupted
conversion continues after it. At the end the old folders move to `old`. The next run of the
pipeline computes all derived tables.
"""

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from arro3.core import RecordBatch

from millrace.durable_files import make, sync, write_whole
from millrace.journal import schema
from millrace.journal.columns import FILE_FIELDS, FILE_SCHEMA, Columns
from millrace.journal.events_table import STATISTICS, EventRun, EventsTable
from millrace.journal.old_lake import CONVERSION, FOLDER, landed, unconverted
from millrace.journal.totals import LifetimeTotals

from .errors import PipelineError
from .lake import Lake, locked
from .progress import Progress, silent

#: The number of events per commit.
WINDOW_EVENTS: Final = 200_000
OLD: Final = "old"
FOLDERS: Final = ("landing", "tables", "ops", "staging")
_UNREADABLE: Final = (pa.ArrowException, OSError)

T = TypeVar("T")


class Source(NamedTuple):
    """A file of an old lake. The rows of ingested files were checked before."""

    path: Path
    first: int
    last: int
    checked: bool


class Converted(NamedTuple):
    events: int
    #: Rows that are not valid events, and files that cannot be read. They stay in `old`.
    refused: int
    unreadable: list[str]


def convert(root: Path, progress: Progress = silent) -> Converted:
    """Convert a lake, or continue an interrupted conversion."""
    lake = Lake(root)
    with locked(lake):
        if not unconverted(root):
            return Converted(0, 0, [])
        write_whole(root / CONVERSION, b"")
        sources, unreadable = _sources(lake)
        servers = [_Server(root, server, each) for server, each in sorted(sources.items())]
        total = sum(each.total for each in servers)
        done = refused = 0
        progress("convert", done, total)
        for server in servers:
            for events, wrong in server.convert():
                done += events
                refused += wrong
                progress("convert", min(done, total), total)
        _move_old_folders(root)
        (root / CONVERSION).unlink()
        sync(root)
        return Converted(done, refused, unreadable)


class _Server:
    """The conversion of the events of one server."""

    def __init__(self, root: Path, server: str, sources: list[Source]) -> None:
        self._table = EventsTable(root)
        self._server = server
        self._sources = sources
        #: The last converted event, and the first event that the shipper has put into the table.
        self._begin = self._table.converted(server)
        self._end = (
            self._table.first(server, after=self._begin)
            or max((each.last for each in sources), default=0) + 1
        )

    @property
    def total(self) -> int:
        return max(0, self._end - 1 - self._begin)

    def convert(self) -> Iterator[tuple[int, int]]:
        """Convert window by window; yield the number of events and of refused rows. The windows of
        an earlier attempt are read again for the totals.
        """
        totals = LifetimeTotals()
        start = min((each.first for each in self._sources), default=self._end)
        for first in range(start, self._end, WINDOW_EVENTS):
            last = min(first + WINDOW_EVENTS, self._end) - 1
            rows, refused = self._read(first, last)
            events = rows.to_pylist()
            for event in events:
                totals.add(event)
            if last > self._begin:
                yield self._commit(events, first, last), refused

    def _commit(self, events: list[dict[str, Any]], first: int, last: int) -> int:
        rows = pa.Table.from_pylist(events, schema=schema.arrow())
        new = rows.filter(pc.greater(rows.column("event_id"), self._begin))
        run = EventRun(first)
        run.next = last + 1
        for day, of_day in _by_day(new):
            run.day(day).add(_columns(of_day))
        self._table.append_converted(self._server, run)
        return int(new.num_rows)

    def _read(self, first: int, last: int) -> tuple[pa.Table, int]:
        """The valid events of a window in their order, each once, and the number of other rows."""
        found, refused = [], 0
        for source in self._sources:
            if source.first <= last and source.last >= first:
                rows = _rows(source.path, self._server, first, last)
                if not source.checked:
                    valid = rows.filter(_valid())
                    refused += rows.num_rows - valid.num_rows
                    rows = valid
                found.append(rows)
        if not found:
            return schema.arrow().empty_table(), refused
        rows = pa.concat_tables(found).sort_by("event_id").combine_chunks()
        ids = rows.column("event_id")
        if rows.num_rows > 1:
            new = pc.not_equal(ids.slice(1), ids.slice(0, rows.num_rows - 1))
            keep = pa.chunked_array([pa.array([True]), *new.chunks])
            rows = rows.filter(keep)
        return rows, refused


def _sources(lake: Lake) -> tuple[dict[str, list[Source]], list[str]]:
    """The files with events, by server. Ingested events are read from the files of the batches."""
    known_batches = batches(lake.root)
    found: dict[str, list[Source]] = {}
    unreadable = []
    for path in ingested_files(lake.root, known_batches):
        for server, first, last in _ranges(path):
            found.setdefault(server, []).append(Source(path, first, last, checked=True))
    known = {name for batch in known_batches for name in batch.files}
    for each in landed(lake.root):
        if each.name in known:
            continue
        path = lake.root / FOLDER / each.name
        try:
            ranges = list(_ranges(path))
        except PipelineError:
            unreadable.append(each.name)
            continue
        for server, first, last in ranges:
            found.setdefault(server, []).append(Source(path, first, last, checked=False))
    return found, unreadable


# The records of ingested events


class OldPart(msgspec.Struct, frozen=True):
    """The events of a batch on one day."""

    day: date
    files: list[str]


class OldBatch(msgspec.Struct, frozen=True):
    """The record of a batch: the landing files, and the files with their events."""

    batch: int
    files: list[str]
    parts: list[OldPart]


class OldSeal(msgspec.Struct, frozen=True):
    """The compacted files of a day, which include all batches up to `max_batch`."""

    max_batch: int
    files: list[str]


def batches(root: Path) -> list[OldBatch]:
    """Return the records of all batches, in order."""
    folder = root / "ops" / "batches"
    paths = [path for path in folder.glob("b-*.json") if not path.name.endswith(".intent.json")]
    return sorted((_decode(path, OldBatch) for path in paths), key=lambda each: each.batch)


def ingested_files(root: Path, known: list[OldBatch]) -> list[Path]:
    """Return the files with the events of these batches."""
    found: list[Path] = []
    hot, cold = root / "tables" / "events_hot", root / "tables" / "events"
    seals: dict[date, OldSeal] = {}
    for day in sorted({part.day for batch in known for part in batch.parts}):
        path = cold / f"day={day}" / "_sealed.json"
        if path.exists():
            seals[day] = _decode(path, OldSeal)
            found += [path.with_name(name) for name in seals[day].files]
    for batch in known:
        for part in batch.parts:
            if part.day not in seals or batch.batch > seals[part.day].max_batch:
                found += [hot / f"day={part.day}" / name for name in part.files]
    return found


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise PipelineError(f"{path} is damaged ({error}). Restore it from a backup.") from error


# Files


def _ranges(path: Path) -> Iterator[tuple[str, int, int]]:
    """The first and the last event of each server in a file."""
    try:
        rows = pq.read_table(path, columns=["server", "event_id"], partitioning=None)
    except (*_UNREADABLE, KeyError) as error:
        raise PipelineError(f"Cannot read {path}: {error}") from error
    ids = rows.group_by("server").aggregate([("event_id", "min"), ("event_id", "max")])
    for row in ids.to_pylist():
        if row["server"] and row["event_id_max"] is not None:
            yield row["server"], max(1, row["event_id_min"]), row["event_id_max"]


def _rows(path: Path, server: str, first: int, last: int) -> pa.Table:
    """The rows of a window with all columns of the schema. Columns that a file lacks are null."""
    wanted = (
        (pc.field("server") == server)
        & (pc.field("event_id") >= first)
        & (pc.field("event_id") <= last)
    )
    nullable = pa.schema([field.with_nullable(True) for field in schema.arrow()])
    try:
        return pq.read_table(path, filters=wanted, partitioning=None, schema=nullable)
    except _UNREADABLE as error:
        raise PipelineError(f"Cannot read {path}: {error}") from error


def _valid() -> pc.Expression:
    """Whether a row is an event: required columns are set, names are known, the move is legal."""
    cause, before, state, origin, actor = map(
        pc.field, ("type", "before", "state", "origin", "actor")
    )
    required = (pc.field(field.name).is_valid() for field in schema.FIELDS if field.required)
    moves = pc.binary_join_element_wise(cause, before, state, ">")
    legal = [">".join(each) for each in (*schema.LEGAL, (schema.FLUSHED, "gone", "gone"))]
    valid = (
        (pc.field("event_id") >= 1)
        & cause.isin(schema.TYPES)
        & state.isin(schema.STATES)
        & (origin.isin(schema.ORIGINS) | (cause == schema.FLUSHED))
        & (actor.is_null() | actor.isin(schema.ORIGINS))
        & ((before.is_null() & (pc.field("version") < 2)) | moves.isin(legal))
    )
    return reduce(and_, required, valid)


def _by_day(rows: pa.Table) -> Iterator[tuple[date, pa.Table]]:
    days = rows.column("time").cast(pa.date32())
    for day in sorted(pc.unique(days).to_pylist()):
        yield day, rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))


def _columns(rows: pa.Table) -> Columns:
    names = [field.name for field in FILE_FIELDS]
    rows = rows.select(names).cast(pa.schema(FILE_SCHEMA))
    (batch,) = rows.combine_chunks().to_batches()
    values = {}
    for name in STATISTICS:
        column = rows.column(name)
        values[name] = column.cast(pa.int64()).to_pylist()
    return Columns(values, RecordBatch.from_arrow(batch))


def _move_old_folders(root: Path) -> None:
    """Move the folders of the old format aside. A kill in between is repaired by the next call."""
    old = root / OLD
    make(old)
    for name in FOLDERS:
        folder = root / name
        if not folder.is_dir():
            continue
        target = old / name
        if target.exists():  # of an earlier conversion
            target = old / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        os.rename(folder, target)  # noqa: PTH104 - a rename within one file system
        sync(root)
        sync(old)
