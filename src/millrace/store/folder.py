"""The data folder: made so that it lasts, and taken by one process at a time."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from millrace.lasting import make

from .errors import DataFolderInUse, StoreError

DATABASE: Final = "millrace.db"
LOCK: Final = "lock"


def lock(folder: Path) -> int:
    """Take the data folder, made if there is none; the lock goes with the process."""
    try:
        make(folder, 0o700)
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        process = owner(fd)
        os.close(fd)
        raise DataFolderInUse(
            f"the data folder {folder} is in use by process {process}. "
            "Stop that one, or give this one another folder with --data."
        ) from None
    with contextlib.suppress(OSError):  # it only says who we are, and the disk may be full
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def owner(fd: int) -> str:
    """The process that has this lock, as it wrote there."""
    return os.read(fd, 20).decode(errors="replace").strip() or "unknown"
