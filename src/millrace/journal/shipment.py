"""Ships events from the outbox of a data folder to sealed files in the lake.

Each event is shipped exactly once, even if processes are killed. A file is complete or does not
exist, and its name contains the range of its events. The lake alone therefore determines the next
event: the one after the last event in the landing folder. The mark records the same number, in case
files were moved away. The shipper writes it after the file, so it is never ahead of the files. Only
then does the shipper notify the server, and only then does the server delete the events.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa

from millrace.engine.events import Row
from millrace.lasting import sync
from millrace.store.errors import StoreError

from . import columns, outbox
from .crash_points import crash_point
from .identity import identity, new_identity
from .landing import FOLDER, Landed
from .marks import last_shipped, write_mark
from .sealing import OtherContent, seal, sweep

log = logging.getLogger(__name__)

LOCK: Final = "shipping"
#: The maximum time to wait for another process, in seconds.
PATIENCE: Final = 60.0
#: The shipper completes a file when its events have this number of bytes in the outbox.
MOST_BYTES: Final = 32 << 20
#: The number of rows per conversion to columns: a few thousand rows fit into the CPU cache.
_TOGETHER: Final = 16_384


#: Errors of a lake.
FAILURES: Final = (OSError, OtherContent, pa.ArrowException)


def describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


class Sealed(NamedTuple):
    landed: Landed
    #: The number of earlier events that were deleted before they were shipped.
    missing: int


class Shipment:
    """The shipment of all unshipped events of a data folder. Only one process at a time ships."""

    def __init__(self, folder: Path, lake: Path, most_events: int, begun: int = 0) -> None:
        """`begun` is the number of the next event at the start of the server, which may have added
        events since then; 0 if there is no server.
        """
        self._folder = folder
        self._lake = lake
        self._most_events = most_events
        self._lock = _lock(folder)
        try:
            self.server = identity(folder)
            if (lake / FOLDER).is_dir():
                sync(lake / FOLDER)  # a process killed after a rename may not have synced it
            #: The first event that is not in the lake.
            self.next = last_shipped(lake, self.server) + 1
            self._check_identity(begun)
            sweep(lake, self.server)
        except BaseException:
            os.close(self._lock)
            raise

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
        """Assign a new identity if the lake is ahead of the store: the folder is a restored copy,
        and the lake contains events that this copy does not have.
        """
        if self.next <= (begun or outbox.tally(self._folder).next_event):
            return
        old, self.server = self.server, new_identity(self._folder)
        log.warning(
            "the lake has events of server %s to %d, but the data folder ends before that: it is "
            "an older copy. From here on it is server %s",
            old, self.next - 1, self.server,
        )  # fmt: skip
        self.next = last_shipped(self._lake, self.server) + 1

    def ship(self, until: int | None = None) -> Iterator[Sealed]:
        """Ship all events before number `until`, and later events in the same file. Without
        `until`, ship all events.
        """
        while until is None or self.next < until:
            pieces = Pieces(self.server, self._most_events)
            for stretch in outbox.read(self._folder, self.next):
                if not pieces.take(stretch):
                    break
            if not pieces.count:
                # Skip events that were deleted before they were shipped.
                self.next = max(self.next, outbox.tally(self._folder).first_event)
                return
            missing = pieces.first - self.next if self.next > 1 else 0
            yield Sealed(self._seal(pieces), missing)

    def _seal(self, pieces: "Pieces") -> Landed:
        sealed = seal(self._lake, pieces.table())
        self.next = sealed.last + 1
        write_mark(self._lake, self.server, sealed.last)
        crash_point("marked")
        return sealed


class Pieces:
    """The events of one file."""

    def __init__(self, server: str, most_events: int) -> None:
        self._server = server
        self._most = most_events
        self.first = 0
        self.count = 0
        self._bytes = 0
        self._tables: list[pa.Table] = []
        self._rows: list[Row] = []
        self._version = 0

    def take(self, stretch: outbox.Stretch) -> bool:
        """Add the part of the next stretch that fits. Return False if the file is complete."""
        if not self.count:
            self.first = stretch.first
        elif stretch.first != self.first + self.count:
            return False  # events in between were deleted: the stretch goes into a new file
        if stretch.version != self._version:
            self._turn_over()
            self._version = stretch.version
        rows = stretch.rows[: self._most - self.count]
        self._rows += rows
        self.count += len(rows)
        self._bytes += stretch.size
        if len(self._rows) >= _TOGETHER:
            self._turn_over()
        return self.count < self._most and self._bytes < MOST_BYTES

    def _turn_over(self) -> None:
        """Convert the collected rows to columns."""
        if not self._rows:
            return
        first = self.first + self.count - len(self._rows)
        self._tables.append(columns.table(self._server, first, self._version, self._rows))
        self._rows = []

    def table(self) -> pa.Table:
        self._turn_over()
        return pa.concat_tables(self._tables)


def _lock(folder: Path) -> int:
    """Lock the shipping of a data folder. A previous process may still be terminating, so wait for
    it.
    """
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise StoreError(f"another process ships the events of {folder}") from None
            time.sleep(0.05)
        else:
            return fd
