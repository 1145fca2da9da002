"""The reserve file: disk space that the server releases when the disk is full.

On a full disk no write succeeds, not even the removal of jobs. With the space of the reserve,
completions and removals continue, and the server refuses only new jobs.
"""

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

NAME: Final = "reserve"
MAX_RESERVE_BYTES: Final = 16 << 20
#: On a small disk, the reserve takes at most the disk size divided by this number.
DISK_DIVISOR: Final = 8
#: Free space that must remain in addition to the reserve.
MIN_FREE_BYTES: Final = 2 << 20


class Reserve:
    """The reserve file of a data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / NAME

    def restore(self) -> bool:
        """Allocate the file unless it exists; return whether it exists now."""
        try:
            size = self._size()
            if self._path.exists() and self._path.stat().st_size >= size:
                return True
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < size + MIN_FREE_BYTES:
                return False
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Delete the file; return whether this released space."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("Cannot delete %s: %s.", self._path, error.strerror)
            return False
        return True

    def _size(self) -> int:
        disk = os.statvfs(self._folder)
        return min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // DISK_DIVISOR)
