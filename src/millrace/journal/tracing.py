"""All that the journal knows of one job: from the outbox, and from files that were shipped.

Somebody waits for it, so it ends after a while and says whether all was looked at. Files say in
their footers which jobs and times are in them, and never change, so that what they say is
remembered.
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

#: Events of the outbox that are looked at together, the newest first.
TOGETHER: Final = 20_000
#: No more of one job is told.
MOST: Final = 2_000

_SEQ: Final = Event._fields.index("seq")
_JID: Final = Event._fields.index("jid")
_TIMES: Final = ("time", "due")
_FAILURES: Final = frozenset({"failed", "expired", "doomed"})
#: Columns with few different values, of which each is read once.
_FEW: Final = (
    "server", "type", "queue", "kind", "origin", "actor", "worker", "before", "state",
    "error_group", "error_message", "fingerprint", "source",
)  # fmt: skip


class Wanted(NamedTuple):
    """Which job: by its number, or, where that is 0, by its id. Who knows both tells both."""

    seq: int
    jid: str

    @property
    def mark(self) -> bytes:
        """What is written in every event of the job: its number, then its id."""
        seq = msgspec.msgpack.encode(self.seq) if self.seq else b""
        return seq + (msgspec.msgpack.encode(self.jid) if self.jid else b"")


class Traced(NamedTuple):
    """By their numbers, and whether that is all."""

    events: dict[int, EventRecord]
    whole: bool


_NAMES: Final = EventRecord.__struct_fields__


def not_shipped(folder: Path, wanted: Wanted, start: int, until: float) -> Traced:
    """What the outbox has from event `start` on."""
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
    """What the landing folder has, the first event that is there, and the last. Files of the given
    moments come first, then the newest.
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
    """A group of rows: which jobs are in it."""

    first_seq: int
    last_seq: int


class Extent(NamedTuple):
    groups: tuple[Group, ...]
    last_time: int


def in_file(path: Path, server: str, wanted: Wanted) -> dict[int, EventRecord]:
    """What a file of events has; one that is gone or damaged has nothing."""
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
        both = wanted.seq and wanted.jid  # then the longest column need not be read
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
    """What a file says of itself, or that nothing is in it. Only success is remembered: a file that
    cannot be read now may be readable later.
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
