"""Opens the database: migrates an older format, and refuses other files without changing them."""

import sqlite3
from pathlib import Path
from typing import Final

from millrace.store.errors import ChecksumError, StoreDamaged

from . import schema, wal
from .commit_marker import MARKER_FILE_NAME, read_commit_marker
from .error_translation import ADVICE, damage_error
from .folder import DatabaseLock
from .reader import open_read_only, structure_problems

CACHE_KIB: Final = 32 << 10
_MAGIC: Final = b"SQLite format 3\0"
#: Bytes 18 to 23: rollback journal (after creation) or WAL; no reserved bytes; three constants.
_MODES: Final = (bytes((1, 1, 0, 64, 32, 32)), bytes((2, 2, 0, 64, 32, 32)))
_UTF8: Final = b"\0\0\0\1"
#: Bytes 52 to 55 are zero if auto-vacuum is off.
_ZERO: Final = bytes(4)


class DatabaseFiles:
    """The connections of an open database. `guard` is read-only. While it is open, closing `db`
    does not remove the log, so that a refused folder remains unchanged.
    """

    def __init__(self, folder: Path, path: Path, *, sync: bool) -> None:
        #: The last turn that the database must contain.
        self.marked_turn = read_commit_marker(folder)
        self.guard: sqlite3.Connection | None = None
        if was_creation_interrupted(path):
            roll_back_creation(path)
        if has_database(path, folder / MARKER_FILE_NAME, self.marked_turn):
            check_header(path)
        self.lock = DatabaseLock(path)
        if path.stat().st_size:
            self.guard = open_read_only(path)
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            self._open_files()
            self._prepare(folder, path, sync=sync)
        except BaseException:
            self.close()
            raise

    def _open_files(self) -> None:
        """Open the files. SQLite does this with the first statement of a connection, and the guard
        must be first.
        """
        if self.guard is not None:
            self.guard.execute("PRAGMA schema_version").fetchone()

    def _prepare(self, folder: Path, path: Path, *, sync: bool) -> None:
        version = schema.check_schema(self.db, path)
        if version == 0:
            check_turn(folder, path, 0, self.marked_turn)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
        # Some builds of SQLite overwrite deleted pages with zeros. A deletion then writes as much
        # data as it deletes, and fails on a full disk.
        self.db.execute("PRAGMA secure_delete = OFF").fetchone()
        self.db.execute("PRAGMA wal_autocheckpoint = 2000")
        self.db.execute("PRAGMA journal_size_limit = 16777216")
        self.db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if 0 < version < schema.SCHEMA:
            for problem in structure_problems(self.db):
                raise ChecksumError(problem)
        if version < schema.SCHEMA:
            schema.migrate(self.db, version)

    def release(self) -> None:
        """Close the guard after the database was verified. Closing `db` then removes the log."""
        if self.guard is not None:
            self.guard.close()
            self.guard = None

    def close(self) -> None:
        try:
            if self.db.in_transaction:
                self.db.rollback()
            self.db.close()
        finally:
            self.release()
            self.lock.close()


def was_creation_interrupted(path: Path) -> bool:
    """Whether a process ended while creating the database. After its creation the database uses a
    write-ahead log, so this file does not exist.
    """
    return path.with_name(path.name + "-journal").exists()


def roll_back_creation(path: Path) -> None:
    """Let SQLite undo the unfinished creation of a database. A power failure can leave any part of
    its first pages, so this must precede every check of the file.
    """
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA schema_version").fetchone()
    finally:
        db.close()


def has_database(path: Path, mark: Path, marked_turn: int) -> bool:
    """Return whether the database exists. Raise StoreDamaged if only its mark or its log exists."""
    if path.exists() and path.stat().st_size:
        return True
    log = wal.log_of(path)
    evidence = [mark] if marked_turn else []
    if log.exists() and wal.examine(log.read_bytes()).frames:
        evidence.append(log)
    if evidence:
        raise StoreDamaged(
            f"{path} is {'empty' if path.exists() else 'missing'}, but {evidence[0]} exists. Put "
            "the database back, or restore the newest backup. To start with an "
            "empty store, empty the folder."
        )
    return False


def check_header(path: Path) -> None:
    """Refuse a file that SQLite would treat as another kind of database. Afterwards, the file must
    not be opened outside SQLite, because closing it would release the locks of SQLite.
    """
    with path.open("rb") as file:
        header = file.read(100)
    is_valid = header[:16] == _MAGIC and len(header) == 100
    if not is_valid or header[18:24] not in _MODES or header[56:60] not in {_UTF8, _ZERO}:
        raise damage_error(
            path, "the file is damaged or is not a Millrace database: its header is invalid"
        )
    if header[52:56] != _ZERO:
        raise damage_error(path, "damaged: its header refers to pages that do not exist")


def check_turn(folder: Path, path: Path, turn: int, marked_turn: int) -> None:
    """Refuse a database that ends with `turn` if the later turn `marked_turn` was committed."""
    if turn >= marked_turn:
        return
    log = wal.log_of(path)
    if not log.exists():
        cause = f"Its log {log} is missing, or it is an older copy. "
    else:
        cause = (
            wal.describe_damage(path)
            or f"Its log {log} is truncated, or either file is an older copy. "
        )
    raise StoreDamaged(
        f"{path} ends with turn {turn}, but turn {marked_turn} was committed. {cause}"
        f"Changes acknowledged after turn {turn} are missing. {ADVICE} To continue without them, "
        f"remove {folder / MARKER_FILE_NAME}."
    )
