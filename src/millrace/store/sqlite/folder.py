"""The data folder: created durably, private to its user, and used by one process at a time."""

import contextlib
import fcntl
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Final

from millrace.durable_files import make
from millrace.store.errors import DataFolderInUse, DataFolderRemoved, StoreError

log = logging.getLogger(__name__)

DATABASE: Final = "millrace.db"
LOCK: Final = "lock"
PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600
#: Permissions of the group and of other users.
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def lock(folder: Path) -> int:
    """Lock the data folder, and create it if necessary. The lock ends with the process."""
    try:
        make(folder, PRIVATE_FOLDER)
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise StoreError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        process = owner(fd)
        os.close(fd)
        raise _in_use(folder, f"process {process}") from None
    with contextlib.suppress(OSError):  # only for error messages, and the disk can be full
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def owner(fd: int) -> str:
    """The process id in a lock file."""
    return os.read(fd, 20).decode(errors="replace").strip() or "unknown"


def _in_use(folder: Path, process: str) -> DataFolderInUse:
    return DataFolderInUse(
        f"the data folder {folder} is in use by {process}. "
        "Stop that server, or start this one on another folder with --data."
    )


class DatabaseLock:
    """A lock on the database file itself, and a check that the files are still in the folder.

    The lock file alone is not enough: after `rm lock` a second server would open the database. The
    descriptor stays open until SQLite has closed the file, because closing any descriptor of a file
    ends SQLite's own locks on it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            if sys.platform == "linux":  # elsewhere flock conflicts with SQLite's own locks
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise _in_use(path.parent, "another process; its lock file was deleted") from None
        #: Name, device and inode of the database and of its log, which SQLite creates.
        self._files = [_identity(str(path), os.fstat(self._fd))]
        self._log = f"{path}-wal"

    def check_files(self) -> None:
        """Raise an error if a file was deleted or replaced: commits to it are lost."""
        try:
            if len(self._files) == 1:
                self._files.append(_identity(self._log, os.stat(self._log)))  # noqa: PTH116
            for name, device, inode in self._files:
                found = os.stat(name)  # noqa: PTH116, every commit calls it, and a path is slower
                if found.st_ino != inode or found.st_dev != device:
                    raise DataFolderRemoved(f"{name} was replaced while the server was running")
        except OSError as error:
            raise DataFolderRemoved(
                f"{error.filename} was deleted while the server was running"
                if isinstance(error, FileNotFoundError | NotADirectoryError)
                else f"{error.filename} cannot be read: {error.strerror}"
            ) from error

    def close(self) -> None:
        os.close(self._fd)


def _identity(name: str, found: os.stat_result) -> tuple[str, int, int]:
    return name, found.st_dev, found.st_ino


def make_private(folder: Path) -> None:
    """Remove the permissions of other users from the data folder and its files.

    The folder must contain a database or be empty except for the lock: the permissions of a folder
    with other contents are not changed. Log a warning if other users can read the folder.
    """
    names = {path.name for path in folder.iterdir()}
    try:
        if DATABASE in names or names <= {LOCK}:
            _restrict(folder, PRIVATE_FOLDER)
        _restrict(folder / "lake", PRIVATE_FOLDER)
        for path in folder.iterdir():
            if path.name.startswith((DATABASE, LOCK, "mark", "journal-id", "shipping")):
                _restrict(path, PRIVATE_FILE)
    except OSError as error:
        log.warning("Cannot change the permissions of %s: %s.", error.filename, error.strerror)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH):
        log.warning(
            "Other users can read the data folder %s (mode %04o). Run: chmod 700 %s",
            folder, mode, folder,
        )  # fmt: skip


def _restrict(path: Path, mode: int) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    is_file_or_folder = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    if is_file_or_folder and found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        path.chmod(mode)
