"""Reads the events that a store keeps until they are shipped, while its server is running.

Each read is a short transaction: SQLite cannot restart its log during a read transaction, and
readers must not affect the server.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace.engine.events import Row
from millrace.store import changes, sums
from millrace.store.errors import Mismatch, readable, translated
from millrace.store.folder import DATABASE
from millrace.store.reading import open_read_only
from millrace.store.sums import Tally

#: A read transaction ends after this number of bytes.
LOOK: Final = 1 << 20

_ROWS: Final = """
    SELECT first, count, version, sum, events FROM outbox
    WHERE first >= (SELECT coalesce(max(first), 0) FROM outbox WHERE first <= ?) ORDER BY first
"""


class Stretch(NamedTuple):
    """Events of one commit, from number `first` on; `size` is their size in bytes."""

    first: int
    version: int
    rows: list[Row]
    size: int

    @property
    def after(self) -> int:
        """The number of the event that follows."""
        return self.first + len(self.rows)


def tally(folder: Path) -> Tally:
    """Return the counters of the last commit."""
    with _moment(folder / DATABASE) as db:
        return _tally(db)


def read(folder: Path, start: int) -> Iterator[Stretch]:
    """Yield the events from `start` on, in order. If event `start` was deleted before it was
    shipped, begin with the oldest event in the outbox. Raise an error if an event is damaged or
    missing.
    """
    while stretches := _look(folder / DATABASE, start):
        yield from stretches
        start = stretches[-1].after


def holding(folder: Path, mark: bytes, start: int, end: int) -> Iterator[Stretch]:
    """Yield the stretches from event `start` to before `end` that contain these bytes. A caller
    that knows the encoding of an event finds it without decoding all events.
    """
    path = folder / DATABASE
    while start < end:
        found, size, after = [], 0, end
        with _moment(path) as db:
            for row in db.execute(_ROWS, (max(start, _tally(db).first_event),)):
                if row[0] >= end:
                    break
                size += len(row[4])
                if mark in row[4]:
                    found.append(row)
                if size >= LOOK:
                    after = row[0] + row[1]
                    break
        with readable(path):
            for row in found:
                yield from _stretches([row], row[0])
        start = after


def _look(path: Path, start: int) -> list[Stretch]:
    found: list[tuple[Any, ...]] = []
    size = 0
    with _moment(path) as db:
        known = _tally(db)
        start = max(start, known.first_event)
        if start >= known.next_event:
            return []
        for row in db.execute(_ROWS, (start,)):
            found.append(row)
            size += len(row[4])
            if size >= LOOK:
                break
    with readable(path):
        return list(_stretches(found, start))


def _stretches(found: Iterable[tuple[Any, ...]], start: int) -> Iterator[Stretch]:
    expected = -1
    for first, count, version, summed, events in found:
        if sums.events_sum(first, count, version, events) != summed:
            raise Mismatch(f"event {first} is not as it was written")
        if first != expected and (expected >= 0 or not first <= start < first + count):
            raise Mismatch(f"event {max(start, expected)} is missing")
        expected = first + count
        rows: list[Row] = changes.decode_any(events)
        if len(rows) != count:
            raise Mismatch(f"{len(rows)} events are told to be {count}")
        skipped = max(0, start - first)
        yield Stretch(first + skipped, version, rows[skipped:], len(events))
    if expected < 0:
        raise Mismatch(f"event {start} is missing")


def _tally(db: sqlite3.Connection) -> Tally:
    for (packed,) in db.execute("SELECT tally FROM turns ORDER BY id DESC LIMIT 1"):
        return sums.decode_tally(packed)
    return Tally()


@contextmanager
def _moment(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection with a consistent snapshot, for a short time."""
    with translated(path), readable(path):
        db = open_read_only(path)
        try:
            db.execute("BEGIN")
            yield db
        finally:
            db.close()
