"""Translation of the errors of SQLite, of the file system and of unreadable records."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from millrace.store.errors import (
    ChecksumError,
    StoreDamaged,
    StoreError,
    StoreFailing,
    SyncFailed,
)

from . import wal

_TRANSIENT_CODES: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM)
_SYNC_CODES: Final = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
#: Errors that a damaged record causes: its values have unexpected types or are out of bounds.
_UNREADABLE_RECORD: Final = (
    msgspec.DecodeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
ADVICE: Final = "Keep a copy of the folder, and restore the newest backup."


def damaged(path: Path, what: str) -> StoreDamaged:
    """An error that names the database, a damaged log, and the remedy."""
    return StoreDamaged(f"{path}: {what}. {wal.describe_damage(path)}{ADVICE}")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the file system into store errors."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot use {error.filename or path}: {error.strerror}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        name = getattr(error, "sqlite_errorname", "")
        if code in _SYNC_CODES:
            raise SyncFailed(f"{path}: sync failed ({name}: {error})") from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFailing("disk full") from error
        if code == sqlite3.SQLITE_TOOBIG:
            raise StoreFailing("a record is too large for the store") from error
        if code & 0xFF in _TRANSIENT_CODES:
            raise StoreFailing(f"the store is busy ({name})") from error
        if code & 0xFF == sqlite3.SQLITE_IOERR:
            raise StoreFailing(f"I/O error on the disk ({name})") from error
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
            raise StoreError(f"cannot use {path}: {error} ({name})") from error
        raise damaged(path, f"damaged, or not Millrace's ({error} {name})") from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translate errors of unreadable records into StoreDamaged."""
    try:
        yield
    except ChecksumError as error:
        raise damaged(path, f"damaged: {error}") from error
    except _UNREADABLE_RECORD as error:
        raise damaged(path, f"a record cannot be read ({error!r})") from error
