"""Reads the events that a store keeps until they are shipped, while its server is running.

Each read is a short transaction: SQLite cannot restart its log during a read transaction, and
readers must not affect the server.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from millrace.engine.events import EventTuple
from millrace.store import records
from millrace.store.errors import ChecksumError
from millrace.store.store import EventRange, OutboxRange

from . import checksums
from .checksums import TurnSummary
from .error_translation import translate_errors, translate_record_errors
from .folder import DATABASE
from .reader import open_read_only

#: A read transaction ends after this number of bytes.
MAX_READ_BYTES: Final = 1 << 20

_ROWS: Final = """
    SELECT first, count, version, sum, events FROM outbox
    WHERE first >= (SELECT coalesce(max(first), 0) FROM outbox WHERE first <= ?) ORDER BY first
"""


class SqliteOutboxReader:
    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE

    def range(self) -> OutboxRange:
        with self._transaction() as db:
            known = _summary(db)
        return OutboxRange(known.first_event, known.next_event, known.outbox_bytes)

    def read(self, start: int) -> Iterator[EventRange]:
        while ranges := self._read_batch(start):
            yield from ranges
            start = ranges[-1].next_event

    def find(self, encoded: bytes, start: int, end: int) -> Iterator[EventRange]:
        while start < end:
            found, size, after = [], 0, end
            with self._transaction() as db:
                for row in db.execute(_ROWS, (max(start, _summary(db).first_event),)):
                    if row[0] >= end:
                        break
                    size += len(row[4])
                    if encoded in row[4]:
                        found.append(row)
                    if size >= MAX_READ_BYTES:
                        after = row[0] + row[1]
                        break
            with translate_record_errors(self._path):
                for row in found:
                    yield from _ranges([row], row[0])
            start = after

    def _read_batch(self, start: int) -> list[EventRange]:
        found: list[tuple[Any, ...]] = []
        size = 0
        with self._transaction() as db:
            known = _summary(db)
            start = max(start, known.first_event)
            if start >= known.next_event:
                return []
            for row in db.execute(_ROWS, (start,)):
                found.append(row)
                size += len(row[4])
                if size >= MAX_READ_BYTES:
                    break
        with translate_record_errors(self._path):
            return list(_ranges(found, start))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a connection with a consistent snapshot, for a short time."""
        with translate_errors(self._path), translate_record_errors(self._path):
            db = open_read_only(self._path)
            try:
                db.execute("BEGIN")
                yield db
            finally:
                db.close()


def _ranges(found: Iterable[tuple[Any, ...]], start: int) -> Iterator[EventRange]:
    expected = -1
    for first, count, version, checksum, events in found:
        if checksums.events_sum(first, count, version, events) != checksum:
            raise ChecksumError(f"event {first} does not match its checksum")
        if first != expected and (expected >= 0 or not first <= start < first + count):
            raise ChecksumError(f"event {max(start, expected)} is missing")
        expected = first + count
        rows: list[EventTuple] = records.decode_any(events)
        if len(rows) != count:
            raise ChecksumError(
                f"the row of event {first} has {len(rows)} events instead of {count}"
            )
        skipped = max(0, start - first)
        yield EventRange(first + skipped, version, rows[skipped:], len(events))
    if expected < 0:
        raise ChecksumError(f"event {start} is missing")


def _summary(db: sqlite3.Connection) -> TurnSummary:
    for (packed,) in db.execute("SELECT tally FROM turns ORDER BY id DESC LIMIT 1"):
        return checksums.decode_summary(packed)
    return TurnSummary()
