"""The file `mark`: the number of the last committed turn, outside the database.

SQLite treats a damaged, truncated or missing log as one that ends there, so committed turns could
be missing without being noticed. This file has the number of the last committed turn. It is written
after each commit and never synced: after a power failure it may be older, but never newer than the
database. A missing or damaged mark is no reason to refuse the folder.

Without syncs (durability "os") the mark may survive a power failure that the turn did not survive.
So it also contains the boot id of the machine, and is ignored after the next boot.
"""

import logging
import os
from pathlib import Path
from typing import Final
from zlib import crc32

log = logging.getLogger(__name__)

MARKER_FILE_NAME: Final = "mark"
_SIZE: Final = 96
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SYNCED: Final = "synced"


def _line(turn: int, boot: str) -> bytes:
    text = b"turn %020d %b " % (turn, boot.encode())
    return (text + b"%08x" % crc32(text)).ljust(_SIZE - 1) + b"\n"


def _read_boot_id() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def read_commit_marker(folder: Path) -> int:
    """Return the last turn that the database must contain; 0 if it is unknown."""
    path = folder / MARKER_FILE_NAME
    try:
        line = path.read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        log.warning("Cannot read %s (%s): lost commits cannot be detected.", path, error.strerror)
        return 0
    if not line:
        return 0  # not written yet
    words = line.split()
    if len(words) != 4 or not words[1].isdigit():
        turn, boot = -1, ""
    else:
        turn, boot = int(words[1]), words[2].decode(errors="replace")
    if turn < 0 or line != _line(turn, boot):
        log.warning("%s is damaged and will be rewritten: lost commits cannot be detected.", path)
        return 0
    if boot != _SYNCED and (boot != _read_boot_id() or boot == "unknown"):
        log.info("Ignored %s: it was written before the last boot.", path)
        return 0
    return turn


class CommitMarker:
    """The mark of an open store."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._path = folder / MARKER_FILE_NAME
        self._sync = sync
        self._boot_id = _SYNCED if sync else _read_boot_id()
        self._fd = -1
        self._failed = False

    def write(self, turn: int) -> None:
        """Write the mark. If this fails, the older mark remains valid, and the server continues."""
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
                os.pwrite(self._fd, _line(turn, self._boot_id), 0)
                os.ftruncate(self._fd, _SIZE)
            else:
                os.pwrite(self._fd, _line(turn, self._boot_id), 0)
        except OSError as error:
            if not self._failed:
                log.warning("Cannot write %s: %s.", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        if self._fd < 0:
            return
        try:
            if self._sync:
                os.fsync(self._fd)
        except OSError as error:
            log.warning("Cannot sync %s: %s.", self._path, error.strerror)
        finally:
            os.close(self._fd)
            self._fd = -1
