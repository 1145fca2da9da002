"""Shipping: events go from the outbox of a data folder into sealed files of the lake.

Exactly once, whatever is killed when. A file is whole or not there, and its name says which events
it has, so what was shipped is known from the lake alone: the next event is that after the last one
that landed. The mark tells the same, for when files were moved away; it is written after the file,
and never tells more than is there. Only then is the server told, and only then it forgets.
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
#: For another process to be done, in seconds.
PATIENCE: Final = 60.0
#: A file ends when what went into it has so many bytes.
MOST_BYTES: Final = 32 << 20
#: Rows become columns so many at a time: a few fit into the processor's cache.
_TOGETHER: Final = 16_384


#: What may go wrong with a lake.
FAILURES: Final = (OSError, OtherContent, pa.ArrowException)


def describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


class Sealed(NamedTuple):
    landed: Landed
    #: So many events before it had gone before they could be shipped.
    missing: int


class Shipment:
    """All that was not shipped of a data folder. One process at a time ships."""

    def __init__(self, folder: Path, lake: Path, most_events: int, begun: int = 0) -> None:
        """`begun` is the event that came next when the server began, which may have made others
        since; 0: nobody has.
        """
        self._folder = folder
        self._lake = lake
        self._most_events = most_events
        self._lock = _lock(folder)
        try:
            self.server = identity(folder)
            if (lake / FOLDER).is_dir():
                sync(lake / FOLDER)  # whoever was killed after a rename may not have come so far
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
        """A lake that is ahead of its store has events of another future than this one: the folder
        is a restored copy.
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
        """Ship events until number `until` is the next, and those that come with them; without it,
        all that there are.
        """
        while until is None or self.next < until:
            pieces = Pieces(self.server, self._most_events)
            for stretch in outbox.read(self._folder, self.next):
                if not pieces.take(stretch):
                    break
            if not pieces.count:
                # All had to go, it may be: then nobody waits for them.
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
    """What goes into one file."""

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
        """Take what fits of a stretch that follows. False: nothing more does."""
        if not self.count:
            self.first = stretch.first
        elif stretch.first != self.first + self.count:
            return False  # others had to go in between: what follows goes into a file of its own
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
        """From rows to columns."""
        if not self._rows:
            return
        first = self.first + self.count - len(self._rows)
        self._tables.append(columns.table(self._server, first, self._version, self._rows))
        self._rows = []

    def table(self) -> pa.Table:
        self._turn_over()
        return pa.concat_tables(self._tables)


def _lock(folder: Path) -> int:
    """One process at a time ships; who has died a moment ago may still be about to end."""
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
