"""Ships events from the outbox of a data folder to the table `events` of a lake.

Each event is shipped exactly once, even if processes are killed. A commit to the table adds the
files and records the number of the last event, so the table alone determines the next event. Only
after the commit does the shipper notify the server, and only then does the server delete the
events.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from deltalake.exceptions import DeltaError

from millrace.engine.events import EventTuple
from millrace.store.errors import StoreError
from millrace.store.folders import outbox_reader
from millrace.store.store import EventRange

from .events_table import EventRun, EventsTable, OtherShipper, repair
from .identity import identity, replace_identity
from .location import LakeLocation
from .maintenance import maintain
from .old_lake import last_landed

log = logging.getLogger(__name__)

LOCK: Final = "shipping"
#: The maximum time to wait for another process, in seconds.
LOCK_TIMEOUT: Final = 60.0
#: The shipper commits when the events have this number of bytes in the outbox.
MAX_COMMIT_BYTES: Final = 32 << 20
#: The number of rows per conversion to columns: a few thousand rows fit into the CPU cache.
CONVERSION_BATCH_SIZE: Final = 4096
#: Errors of a lake.
FAILURES: Final = (OSError, DeltaError, OtherShipper)


def describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


class Shipped(NamedTuple):
    """The events of one commit."""

    first: int
    last: int
    files: int
    #: The number of earlier events that were deleted before they were shipped.
    missing: int

    @property
    def events(self) -> int:
        return self.last - self.first + 1


class Shipment:
    """The shipment of all unshipped events of a data folder. Only one process at a time ships."""

    def __init__(self, folder: Path, lake: LakeLocation, max_events: int, begun: int = 0) -> None:
        """`begun` is the number of the next event at the start of the server, which may have added
        events since then; 0 if there is no server.
        """
        self._folder = folder
        self._outbox = outbox_reader(folder)
        self._lake = lake
        self._max_events = max_events
        self._lock = _lock(folder)
        try:
            self.server = identity(folder)
            for name in repair(lake, self.server):
                log.warning("The file %s of the lake's log was incomplete and was removed.", name)
            self._table = EventsTable(lake)
            self._table.sync_log()  # a process killed after a commit may not have synced it
            #: The first event that is not in the lake.
            self.next = self._next()
            self._check_identity(begun)
        except BaseException:
            os.close(self._lock)
            raise

    def _next(self) -> int:
        position = self._table.position(self.server)
        return max(position, last_landed(self._lake, self.server)) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def _check_identity(self, begun: int) -> None:
        """Assign a new identity if the lake is ahead of the store: the folder is a copy."""
        end = begun or self._outbox.range().next_event
        if self.next > end:
            self.server = replace_identity(self._folder, self.server, self.next - 1, end)
            self.next = self._next()

    def ship(self, until: int | None = None) -> Iterator[Shipped]:
        """Ship all events, or at least those before number `until`."""
        while until is None or self.next < until:
            builder = CommitBuilder(self._max_events)
            for events in self._outbox.read(self.next):
                if not builder.take(events):
                    break
            run = builder.run()
            if run is None:
                # Skip events that were deleted before they were shipped.
                self.next = max(self.next, self._outbox.range().first_event)
                return
            missing = run.first - self.next if self.next > 1 else 0
            files = self._table.append(self.server, run)
            self.next = run.next
            yield Shipped(run.first, run.next - 1, files, missing)

    def maintain(self) -> None:
        """Run the maintenance of the table that is due."""
        maintain(self._table, self.server, datetime.now(UTC).date())


class CommitBuilder:
    """Collects the events of one commit."""

    def __init__(self, max_events: int) -> None:
        self._max = max_events
        self._bytes = 0
        self._count = 0
        self._run: EventRun | None = None
        self._rows: list[EventTuple] = []
        self._version = 0

    def take(self, events: EventRange) -> bool:
        """Add the part of the next range that fits. Return False if the commit is complete."""
        if self._run is None:
            self._run = EventRun(events.first)
        elif events.first != self._run.first + self._count:
            return False  # events in between were deleted: the range goes into a new commit
        if events.version != self._version:
            self._convert(self._run)
            self._version = events.version
        rows = events.rows[: self._max - self._count]
        self._rows += rows
        self._count += len(rows)
        self._bytes += events.size
        if len(self._rows) >= CONVERSION_BATCH_SIZE:
            self._convert(self._run)
        return self._count < self._max and self._bytes < MAX_COMMIT_BYTES

    def _convert(self, run: EventRun) -> None:
        """Convert the collected rows to columns."""
        if self._rows:
            run.add(self._version, self._rows)
            self._rows = []

    def run(self) -> EventRun | None:
        """Return the collected events; None if there are none."""
        if self._run is not None:
            self._convert(self._run)
        return self._run


def _lock(folder: Path) -> int:
    """Lock the shipping of a data folder. A previous process may still be terminating."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise StoreError(f"Another process ships the events of {folder}") from None
            time.sleep(0.05)
        else:
            return fd
