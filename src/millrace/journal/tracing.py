"""Returns all events of one job from the outbox and from shipped files.

A user waits for the result, so a search has a time limit and reports whether it is complete. The
footer of a file contains the ranges of its jobs and times. Files never change, so these ranges are
cached.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.engine.events import Event, Row
from millrace.records import EventRecord
from millrace.store.errors import StoreError

from . import columns, outbox
from .identity import known_identity
from .landing import FOLDER, landed

#: The number of events per search step in the outbox, from the newest to the oldest.
TOGETHER: Final = 20_000
#: The maximum number of events per job.
MOST: Final = 2_000

_SEQ: Final = Event._fields.index("seq")
_JID: Final = Event._fields.index("jid")
_TIMES: Final = ("time", "due")
_FAILURES: Final = frozenset({"failed", "expired", "doomed"})
#: Columns with few different values. They are read as dictionaries.
_FEW: Final = (
    "server", "type", "queue", "kind", "origin", "actor", "worker", "before", "state",
    "error_group", "error_message", "fingerprint", "source",
)  # fmt: skip


class Wanted(NamedTuple):
    """The requested job, by its number, or by its id if the number is 0. Give both if both are
    known.
    """

    seq: int
    jid: str

    @property
    def mark(self) -> bytes:
        """The bytes that every event of the job contains: its number, then its id."""
        seq = msgspec.msgpack.encode(self.seq) if self.seq else b""
        return seq + (msgspec.msgpack.encode(self.jid) if self.jid else b"")


class Traced(NamedTuple):
    """Events by number, and whether the result is complete."""

    events: dict[int, EventRecord]
    whole: bool


_NAMES: Final = EventRecord.__struct_fields__


def not_shipped(folder: Path, wanted: Wanted, start: int, until: float) -> Traced:
    """Return the events of a job in the outbox, from event `start` on."""
    found: dict[int, EventRecord] = {}
    try:
        tally = outbox.tally(folder)
        first, end = max(start, tally.first_event), tally.next_event
        while end > first and time.monotonic() < until and len(found) < MOST:
            begin = max(first, end - TOGETHER)
            for stretch in outbox.holding(folder, wanted.mark, begin, end):
                found |= _among(stretch, wanted)
            end = begin
    except (StoreError, OSError):
        return Traced(found, whole=False)
    return Traced(found, whole=end <= first)


def _among(stretch: outbox.Stretch, wanted: Wanted) -> dict[int, EventRecord]:
    place, value = (_SEQ, wanted.seq) if wanted.seq else (_JID, wanted.jid)
    rows: list[Row] = []
    numbers: list[int] = []
    for number, row in enumerate(stretch.rows, stretch.first):
        if row[place] == value:
            rows.append(row)
            numbers.append(number)
    if not rows:
        return {}
    made = _told(columns.table("", 1, stretch.version, rows))
    for event, number in zip(made, numbers, strict=True):
        event.event_id = number
    return {event.event_id: event for event in made}


def shipped(
    folder: Path, lake: Path, wanted: Wanted, moments: Sequence[int], until: float
) -> tuple[Traced, int, int]:
    """Return the events in the landing folder, and the first and the last event of this server
    there. The search reads files that contain the given times first, then the newest files.
    """
    try:
        server = known_identity(folder)
        files = [each for each in landed(lake) if each.server == server]
    except (StoreError, OSError):
        return Traced({}, whole=False), 0, 0
    if not files:
        return Traced({}, whole=True), 0, 0
    paths = [lake / FOLDER / each.name for each in files]
    found: dict[int, EventRecord] = {}
    whole = True
    for path in _in_turn(paths, moments):
        if time.monotonic() > until or len(found) >= MOST:
            whole = False
            break
        found |= in_file(path, server, wanted)
    return Traced(found, whole), files[0].first, files[-1].last


def _in_turn(paths: Sequence[Path], moments: Iterable[int]) -> Iterator[Path]:
    seen: set[int] = set()
    for moment in sorted(moments, reverse=True):
        at = bisect_left(paths, moment, key=lambda path: _extent(path).last_time)
        for place in (at, at + 1):
            if place < len(paths) and place not in seen:
                seen.add(place)
                yield paths[place]
    for place in reversed(range(len(paths))):
        if place not in seen:
            yield paths[place]


class Group(NamedTuple):
    """A row group, with the range of its job numbers."""

    first_seq: int
    last_seq: int


class Extent(NamedTuple):
    groups: tuple[Group, ...]
    last_time: int


def in_file(path: Path, server: str, wanted: Wanted) -> dict[int, EventRecord]:
    """Return the events of a job in a file; none if the file was deleted or is damaged."""
    found: dict[int, EventRecord] = {}
    places = [
        place
        for place, group in enumerate(_extent(path).groups)
        if not wanted.seq or group.first_seq <= wanted.seq <= group.last_seq
    ]
    if not places:
        return found
    column, value = ("seq", wanted.seq) if wanted.seq else ("jid", wanted.jid)
    try:
        file = pq.ParquetFile(path, read_dictionary=list(_FEW))
        both = wanted.seq and wanted.jid  # in this case the longest column need not be read
        names = [name for name in _columns(file) if not both or name != "jid"]
        for place in places:
            of = file.read_row_group(place, columns=[column]).column(column)
            if not pc.any(pc.equal(of, value)).as_py():
                continue
            table = file.read_row_group(place, columns=names)
            mask = pc.and_(pc.equal(table.column(column), value), _of(table, server))
            some = table.filter(mask).slice(0, MOST)
            if both:
                some = some.append_column("jid", pa.repeat(pa.scalar(wanted.jid), some.num_rows))
            found |= {event.event_id: event for event in _told(some)}
    except (pa.ArrowException, OSError):
        return found
    return found


def _columns(file: pq.ParquetFile) -> list[str]:
    return [name for name in (*_NAMES, "server") if name in file.schema_arrow.names]


def _of(table: pa.Table, server: str) -> Any:
    return pc.equal(table.column("server"), server)


def _told(table: pa.Table) -> list[EventRecord]:
    names = [name for name in _NAMES if name in table.column_names]
    table = table.select(names)
    for name in _TIMES:
        place = table.column_names.index(name)
        moments = table.column(place).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        table = table.set_column(place, name, moments)
    events = msgspec.convert(table.to_pylist(), list[EventRecord])
    for event in events:
        _keep_own(event)
    return events


def _keep_own(event: EventRecord) -> None:
    """Remove the wait and the error that the end of a lease or a job repeats."""
    if event.type != "leased":
        event.wait_us = None
    if event.type not in _FAILURES:
        event.error_group = event.error_message = event.fingerprint = None


def _extent(path: Path) -> Extent:
    """Return the ranges in the footer of a file; empty ranges if it cannot be read. Only successful
    reads are cached, because the file may be readable later.
    """
    try:
        return _read_extent(path)
    except (pa.ArrowException, OSError):
        return Extent((), 0)


@lru_cache(maxsize=50_000)
def _read_extent(path: Path) -> Extent:
    about = pq.read_metadata(path)
    names = [about.schema.column(place).name for place in range(about.num_columns)]
    seq, moment = names.index("seq"), names.index("time")
    groups, last = [], 0
    for place in range(about.num_row_groups):
        group = about.row_group(place)
        of = group.column(seq).statistics
        known = of is not None and of.has_min_max
        groups.append(Group(of.min, of.max) if known else Group(0, 1 << 63))
        at = group.column(moment).statistics
        if at is not None and at.has_min_max:
            last = max(last, int(at.max.timestamp() * 1_000_000))
    return Extent(tuple(groups), last)
