"""The outbox of a store: events that wait for the shipper, one row per commit."""

import sqlite3
from typing import Final

from millrace.engine.events import EVENT_VERSION

from . import checksums
from .checksums import TurnSummary

#: Each commit removes about this number of bytes of shipped events; more if it has no changes.
TRIM_BYTES: Final = 256 << 10
IDLE_TRIM_BYTES: Final = 4 << 20


class SqliteOutbox:
    """The rows of the outbox. All changes are part of the transaction of a change set."""

    def __init__(self, db: sqlite3.Connection, summary: TurnSummary, max_bytes: int) -> None:
        self._db = db
        self._summary = summary
        self.max_bytes = max_bytes
        #: The first event that is not shipped yet, and whether the outbox contains earlier events
        #: that can be deleted.
        self.next_unshipped = 1
        self.has_shipped_events = False
        self.dropped = 0
        self.next_committed = 1

    @property
    def first_event(self) -> int:
        return self._summary.first_event

    @property
    def next_event(self) -> int:
        return self._summary.next_event

    @property
    def size(self) -> int:
        return self._summary.outbox_bytes

    def mark_shipped(self, until: int) -> None:
        self.next_unshipped = max(self.next_unshipped, until)
        self.has_shipped_events = self._summary.first_event < self.next_unshipped

    def write(self, count: int, events: bytes) -> None:
        summary = self._summary
        first = summary.next_event
        checksum = checksums.events_sum(first, count, EVENT_VERSION, events)
        summary.next_event += count
        summary.outbox_bytes += len(events)
        self._db.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?, ?)",
            (first, count, EVENT_VERSION, checksum, events),
        )

    def trim_shipped(self, max_bytes: int) -> None:
        """Delete whole rows of shipped events, up to `max_bytes`. The statistics, which are
        computed from events, must already have been written.
        """
        summary = self._summary
        left = max_bytes
        self.has_shipped_events = False
        rows = self._db.execute("SELECT first, count, length(events) FROM outbox ORDER BY first")
        for first, count, size in rows:
            if first + count > self.next_unshipped:
                break
            if left <= 0:
                self.has_shipped_events = True
                break
            left -= size
            summary.outbox_bytes -= size
            summary.first_event = first + count
        self._db.execute("DELETE FROM outbox WHERE first < ?", (summary.first_event,))

    def trim_oldest(self) -> None:
        """If the outbox is too large, delete its oldest events until a tenth of the maximum is
        free.
        """
        summary = self._summary
        if summary.outbox_bytes <= self.max_bytes:
            return
        first_unshipped = max(summary.first_event, self.next_unshipped)
        rows = self._db.execute("SELECT first, count, length(events) FROM outbox ORDER BY first")
        for first, count, size in rows:
            if summary.outbox_bytes <= self.max_bytes * 9 // 10 or first >= summary.stats_event:
                break
            summary.outbox_bytes -= size
            summary.first_event = first + count
        self._db.execute("DELETE FROM outbox WHERE first < ?", (summary.first_event,))
        self.dropped += max(0, summary.first_event - first_unshipped)
