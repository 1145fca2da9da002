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
    StoreWriteFailed,
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


def damage_error(path: Path, what: str) -> StoreDamaged:
    """An error that names the database, a damaged log, and the remedy."""
    return StoreDamaged(f"{path}: {what}. {wal.describe_damage(path)}{ADVICE}")


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the file system into store errors."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise store_error(error, path) from error


def store_error(error: OSError | sqlite3.Error, path: Path) -> StoreError:
    """The store error that corresponds to a file system or SQLite error."""
    if isinstance(error, OSError):
        return StoreError(f"cannot use {error.filename or path}: {error.strerror}")
    code = getattr(error, "sqlite_errorcode", 0)
    name = getattr(error, "sqlite_errorname", "")
    if code in _SYNC_CODES:
        return SyncFailed(f"{path}: sync failed ({name}: {error})")
    if code == sqlite3.SQLITE_FULL:
        return StoreWriteFailed("disk full")
    if code == sqlite3.SQLITE_TOOBIG:
        return StoreWriteFailed("a record is too large for the store")
    if code & 0xFF in _TRANSIENT_CODES:
        return StoreWriteFailed(f"the store is busy ({name})")
    if code & 0xFF == sqlite3.SQLITE_IOERR:
        return StoreWriteFailed(f"I/O error on the disk ({name})")
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"cannot use {path}: {error} ({name})")
    return damage_error(path, f"the file is damaged or is not a Millrace database ({error} {name})")


@contextmanager
def translate_record_errors(path: Path) -> Iterator[None]:
    """Translate errors of unreadable records into StoreDamaged."""
    try:
        yield
    except ChecksumError as error:
        raise damage_error(path, f"damaged: {error}") from error
    except _UNREADABLE_RECORD as error:
        raise damage_error(path, f"a record cannot be read ({error!r})") from error
