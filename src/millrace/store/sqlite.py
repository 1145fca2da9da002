"""The default store: one SQLite database in the data folder.

How a batch is kept. Writing each changed job to its own row would cost four statements a job, and
most jobs are gone a moment after they came. So a commit writes one row, the batch, to `turns`, and
one row of events to `outbox`. Rows of `jobs` and `states` follow later ("folding"), a few with each
commit, and only for jobs that have outlived a generation of turns; then those turns are deleted.
What is true is always: `jobs`, overlaid by `states`, then `turns` replayed in their order.

- `jobs` has each job as it was when folded, payload and all, and is written once;
- `states` has the changing half of those that changed since, without the payload;
- `queues`, `notes`, `stats`, `meta` are small and written as they are;
- `outbox` has events, a row per commit, until they are shipped or `outbox_max` is reached.

Changing the schema: raise SCHEMA, add a function to MIGRATIONS that leads from the version before.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.events import EVENT_VERSION
from millrace.engine.job import Job, apply, changing
from millrace.engine.stats import DAY, QueueDay

from . import changes
from .errors import DataFolderInUse, StoreDamaged, StoreError, StoreFailing, SyncFailed
from .recovered import Progress, Recovered

SCHEMA: Final = 2


def _add_notes_and_order(db: sqlite3.Connection) -> None:
    """From 1 to 2: notes, what protocols keep beside jobs; and queues in the order of their making,
    which is that of their names for those that are there.
    """
    db.execute(_NOTES)
    db.execute("ALTER TABLE queues RENAME TO old_queues")
    db.execute(_QUEUES)
    db.execute("INSERT INTO queues SELECT name, paused FROM old_queues ORDER BY name")
    db.execute("DROP TABLE old_queues")


MIGRATIONS: Final[dict[int, Callable[[sqlite3.Connection], None]]] = {1: _add_notes_and_order}

_QUEUES: Final = "CREATE TABLE queues (name TEXT PRIMARY KEY, paused INTEGER NOT NULL)"
_NOTES: Final = "CREATE TABLE notes (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_TABLES: Final = """
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, next_seq INTEGER NOT NULL, next_event INTEGER NOT NULL,
    processed INTEGER NOT NULL, failures INTEGER NOT NULL, changes BLOB NOT NULL);
CREATE TABLE jobs (seq INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE states (seq INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE stats (
    queue TEXT NOT NULL, day INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (queue, day)) WITHOUT ROWID;
CREATE TABLE outbox (
    first INTEGER PRIMARY KEY, count INTEGER NOT NULL, version INTEGER NOT NULL,
    events BLOB NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""

#: A generation of turns ends at so many bytes or jobs.
GENERATION_BYTES: Final = 8 << 20
GENERATION_JOBS: Final = 100_000
#: Statistics are kept for so many days.
STATS_DAYS: Final = 30
#: With each commit about so many bytes of older jobs are folded.
FOLD_BYTES: Final = 65_536
_PASSING_CODES: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM)
_SYNC_CODES: Final = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)

# What a generation knows of a job that is not in its table as it is in memory.
_NEW: Final = 0
_CHANGED: Final = 1
_GONE: Final = 2
_UNSURE: Final = 3

_decode_day = msgspec.msgpack.Decoder(QueueDay).decode


class SqliteStore:
    def __init__(self, folder: Path, *, sync: bool = True, outbox_max: int = 256 << 20) -> None:
        self.folder = folder
        self.outbox_max = outbox_max
        self._lock = _lock(folder)
        self._path = folder / "millrace.db"
        try:
            with _translated(self._path):
                self._db = _open(self._path, sync=sync)
        except BaseException:
            os.close(self._lock)
            raise
        self._turn = 0
        self._next_event = 1
        self._outbox_bytes = 0
        #: The first event that the rows of `stats` do not contain.
        self._stats_event = 1
        self._young: dict[int, int] = {}
        self._young_bytes = 0
        self._old: dict[int, int] = {}
        self._old_order: Iterator[int] = iter(())
        self._old_turn = 0
        self._no_fold_until = 0
        self._folding = False

    # Reading

    def load(self, progress: Progress | None = None) -> Recovered:
        with _translated(self._path), _readable(self._path):
            recovered = self._read_numbers()
            total = self._count_jobs() if progress is not None else 0
            every = 50_000
            jobs = recovered.jobs
            for (record,) in self._db.execute("SELECT record FROM jobs"):
                job = changes.decode_job(record)
                jobs[job.seq] = job
                if progress is not None and len(jobs) % every == 0:
                    progress(len(jobs), total)
            for (record,) in self._db.execute("SELECT record FROM states"):
                half = changes.decode_any(record)
                apply(jobs[half[0]], half)
            touched = self._replay(jobs)
            self._read_stats(recovered)
            self._measure_outbox()
            self._fold_all(jobs, touched)
            if progress is not None:
                progress(len(jobs), len(jobs))
        return recovered

    def reread(self, seqs: Iterable[int]) -> Recovered:
        wanted = set(seqs)
        with _translated(self._path), _readable(self._path):
            recovered = self._read_numbers()
            jobs: dict[int, Job] = {}
            for seq in wanted:
                for (record,) in self._db.execute("SELECT record FROM jobs WHERE seq = ?", (seq,)):
                    jobs[seq] = changes.decode_job(record)
                for (record,) in self._db.execute(
                    "SELECT record FROM states WHERE seq = ?", (seq,)
                ):
                    apply(jobs[seq], changes.decode_any(record))
            touched = self._replay(jobs)
            recovered.jobs = {seq: job for seq, job in jobs.items() if seq in wanted}
            # The generations went astray with the batch that failed.
            self._begin_anew(touched)
            self._read_stats(recovered)
            self._measure_outbox()
        return recovered

    # Writing

    def begin(self, batch: Batch, engine: Engine) -> None:
        with self._undoing():
            self._db.execute("BEGIN")
            if batch.cleared:
                self._clear()
            blob = changes.encode_batch(batch)
            self._turn += 1
            first = self._next_event
            self._next_event += len(batch.events)
            totals = engine.totals
            self._db.execute(
                "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?)",
                (
                    self._turn,
                    engine.next_seq,
                    self._next_event,
                    totals.processed,
                    totals.failures,
                    blob,
                ),
            )
            if batch.events:
                events = changes.encode(batch.events)
                self._outbox_bytes += len(events)
                self._db.execute(
                    "INSERT INTO outbox VALUES (?, ?, ?, ?)",
                    (first, len(batch.events), EVENT_VERSION, events),
                )
            for name, paused in batch.queues.items():
                self._write_queue(name, paused)
            for key, value in batch.notes.items():
                self._write_note(key, value)
            self._age(batch, len(blob))
            if self._turn > self._no_fold_until:
                changed = len(batch.new) + len(batch.changed) + len(batch.gone)
                changed += len(batch.rewritten)
                self._fold(engine, 64 + 2 * changed, FOLD_BYTES + 2 * len(blob))

    def commit(self) -> None:
        with self._undoing():
            self._db.execute("COMMIT")

    def probe(self) -> bool:
        """Can a megabyte be had? Asked of the file system, not of SQLite."""
        path = self.folder / "probe"
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
        except OSError:
            return False
        finally:
            path.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        try:
            with _translated(self._path):
                if self._db.in_transaction:
                    self._db.rollback()
                self._db.close()
        finally:
            os.close(self._lock)

    # Generations: which jobs are not in their tables as they are in memory

    def _age(self, batch: Batch, size: int) -> None:
        young, old = self._young, self._old
        for seq in batch.new:
            young[seq] = _NEW
        for seq in batch.changed:
            if seq not in young and old.get(seq) != _NEW:
                young[seq] = _CHANGED
        for seq in batch.rewritten:
            if young.get(seq) != _NEW and old.get(seq) != _NEW:
                young[seq] = _UNSURE
        for seq in batch.gone:
            # A job that never reached a table leaves none.
            if young.get(seq) == _NEW:
                del young[seq]
            elif old.get(seq) == _NEW:
                del old[seq]
                young.pop(seq, None)
            else:
                young[seq] = _GONE
        self._young_bytes += size
        full = self._young_bytes > GENERATION_BYTES or len(young) > GENERATION_JOBS
        if full and not self._folding:
            self._old, self._young, self._young_bytes = young, {}, 0
            self._old_order = iter(list(young))
            self._old_turn = self._turn
            self._folding = True

    def _fold(self, engine: Engine, most: int, most_bytes: int) -> None:
        """Bring up to `most` jobs of the old generation into their tables."""
        if not self._folding:
            return
        old = self._old
        new: list[tuple[int, bytes]] = []
        changed: list[tuple[int, bytes]] = []
        gone: list[tuple[int]] = []
        seq: int | None = 0
        for _ in range(most):
            if most_bytes <= 0:
                break
            seq = next(self._old_order, None)
            if seq is None:
                break
            mark = old.pop(seq, None)
            job = engine.jobs.get(seq)
            if mark is None:
                continue
            if job is None:
                gone.append((seq,))
            elif mark in {_NEW, _UNSURE}:
                new.append((seq, changes.encode(job)))
                most_bytes -= len(new[-1][1])
                if mark == _UNSURE:
                    self._db.execute("DELETE FROM states WHERE seq = ?", (seq,))
            else:
                changed.append((seq, changes.encode(changing(job))))
        self._write(new, changed, gone)
        if seq is None:
            self._end_generation(engine)

    def _end_generation(self, engine: Engine) -> None:
        """Every job of the old generation is in its table: its turns are not needed any more."""
        self._folding = False
        # The last turn stays: it has the counters.
        last = min(self._old_turn, self._turn - 1)
        self._db.execute("DELETE FROM turns WHERE id <= ?", (last,))
        statistics = engine.statistics
        # Not by the newest day alone: a caller of Qless may have any clock.
        newest = max((day for _, day in statistics.days), default=0)
        today = min(newest, engine.latest // DAY) if engine.latest else newest
        for queue, day in statistics.forget(today - STATS_DAYS):
            self._db.execute("DELETE FROM stats WHERE queue = ? AND day = ?", (queue, day))
        self._db.executemany(
            "INSERT OR REPLACE INTO stats VALUES (?, ?, ?)",
            [(*key, changes.encode(statistics.days[key])) for key in statistics.dirty],
        )
        statistics.dirty.clear()
        self._stats_event = self._next_event
        self._set("stats_event", self._stats_event)
        if self._outbox_bytes > self.outbox_max:
            self._trim_outbox()
        self._set("outbox_bytes", self._outbox_bytes)

    def _trim_outbox(self) -> None:
        """Drop the oldest events until a tenth of the bound is free."""
        rows = self._db.execute("SELECT first, length(events) FROM outbox ORDER BY first")
        keep_from = 0
        for first, size in rows:
            if self._outbox_bytes <= self.outbox_max * 9 // 10 or first >= self._stats_event:
                break
            self._outbox_bytes -= size
            keep_from = first + 1
        self._db.execute("DELETE FROM outbox WHERE first < ?", (keep_from,))

    def _fold_all(self, jobs: dict[int, Job], touched: dict[int, None]) -> None:
        """After reading: tables as the replayed turns left things, so that those need not be kept.

        One transaction, and the last turn stays for its counters. On a full disk the turns stay.
        """
        try:
            with self._undoing():
                self._write_all(jobs, touched)
        except StoreFailing:
            self._begin_anew(touched)
        else:
            self._begin_anew({})

    def _begin_anew(self, touched: dict[int, None]) -> None:
        """Let generations begin with jobs of whom the tables may say something else than memory."""
        self._young = dict.fromkeys(touched, _UNSURE)
        self._young_bytes = self._one("SELECT total(length(changes)) FROM turns")
        self._old, self._folding = {}, False
        # When the disk was full, what little space there is goes to what clients want written.
        self._no_fold_until = self._turn + 100 if touched else 0

    def _write_all(self, jobs: dict[int, Job], touched: dict[int, None]) -> None:
        if not touched:
            return
        self._db.execute("BEGIN")
        alive = [(seq, changes.encode(jobs[seq])) for seq in touched if seq in jobs]
        self._db.executemany("DELETE FROM states WHERE seq = ?", [(seq,) for seq in touched])
        self._write(alive, [], [(seq,) for seq in touched if seq not in jobs])
        self._db.execute("UPDATE turns SET changes = ? WHERE id = ?", (_NO_CHANGES, self._turn))
        self._db.execute("DELETE FROM turns WHERE id < ?", (self._turn,))
        self._db.execute("COMMIT")

    def _write(
        self, new: list[tuple[int, bytes]], changed: list[tuple[int, bytes]], gone: list[tuple[int]]
    ) -> None:
        if new:
            self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?)", new)
        if changed:
            self._db.executemany("INSERT OR REPLACE INTO states VALUES (?, ?)", changed)
        if gone:
            self._db.executemany("DELETE FROM jobs WHERE seq = ?", gone)
            self._db.executemany("DELETE FROM states WHERE seq = ?", gone)

    # Small things

    def _write_queue(self, name: str, paused: bool | None) -> None:
        if paused is None:
            self._db.execute("DELETE FROM queues WHERE name = ?", (name,))
        else:
            self._db.execute(
                "INSERT INTO queues VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET paused = excluded.paused",
                (name, paused),
            )

    def _write_note(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._db.execute("DELETE FROM notes WHERE key = ?", (key,))
        else:
            self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (key, value))

    def _clear(self) -> None:
        for table in ("turns", "jobs", "states", "queues", "stats"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608
        self._young, self._old, self._folding, self._young_bytes = {}, {}, False, 0
        self._stats_event = self._next_event
        self._set("stats_event", self._stats_event)
        self._set("outbox_bytes", self._outbox_bytes)

    def _set(self, key: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _one(self, query: str) -> int:
        row = self._db.execute(query).fetchone()
        return 0 if row is None or row[0] is None else int(row[0])

    def _count_jobs(self) -> int:
        """How many rows of `jobs`; 0 if they are so few that nobody will ask how far we are."""
        if self._one("SELECT max(seq) - min(seq) FROM jobs") < 50_000:
            return 0
        return self._one("SELECT count(*) FROM jobs")

    def _measure_outbox(self) -> None:
        """How much the outbox holds, without reading all of it."""
        known = self._one("SELECT value FROM meta WHERE key = 'outbox_bytes'")
        since = self._db.execute(
            "SELECT total(length(events)) FROM outbox WHERE first >= ?", (self._stats_event,)
        ).fetchone()
        self._outbox_bytes = known + int(since[0])

    def _read_numbers(self) -> Recovered:
        recovered = Recovered()
        row = self._db.execute(
            "SELECT id, next_seq, next_event, processed, failures FROM turns"
            " ORDER BY id DESC LIMIT 1"
        ).fetchone()
        self._turn, self._next_event = 0, 1
        if row is not None:
            self._turn, recovered.next_seq, self._next_event = row[:3]
            recovered.processed, recovered.failures = row[3:]
        rows = self._db.execute("SELECT name, paused FROM queues ORDER BY rowid")
        recovered.queues = {name: bool(paused) for name, paused in rows}
        recovered.notes = dict(self._db.execute("SELECT key, value FROM notes"))
        return recovered

    def _replay(self, jobs: dict[int, Job]) -> dict[int, None]:
        touched: dict[int, None] = {}
        for (blob,) in self._db.execute("SELECT changes FROM turns ORDER BY id"):
            changes.replay(blob, jobs, touched)
        return touched

    def _read_stats(self, recovered: Recovered) -> None:
        statistics = recovered.statistics
        for queue, day, record in self._db.execute("SELECT queue, day, record FROM stats"):
            statistics.days[queue, day] = _decode_day(record)
        self._stats_event = self._one("SELECT value FROM meta WHERE key = 'stats_event'") or 1
        rows = self._db.execute(
            "SELECT events FROM outbox WHERE first >= ? ORDER BY first", (self._stats_event,)
        )
        for (events,) in rows:
            statistics.fold(changes.decode_any(events))

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Leave no half-done transaction behind an error."""
        try:
            with _translated(self._path):
                yield
        except BaseException:
            if self._db.in_transaction:
                self._db.rollback()
            raise


_NO_CHANGES: Final = changes.encode(([], [], []))


def _open(path: Path, *, sync: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
    db.execute("PRAGMA wal_autocheckpoint = 2000")
    db.execute("PRAGMA journal_size_limit = 67108864")
    db.execute("PRAGMA cache_size = -32768")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise StoreDamaged(
            f"{path} was written by a newer Millrace (format {version}, this one reads {SCHEMA}). "
            "Start that version again, or restore a backup made before the upgrade."
        )
    if version < SCHEMA:
        _migrate(db, version)
    return db


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring the tables to this format, or leave them as they are."""
    try:
        db.execute("BEGIN IMMEDIATE")
        if version == 0:
            for statement in (*_TABLES.split(";"), _QUEUES, _NOTES):
                db.execute(statement)
        for step in range(version or SCHEMA, SCHEMA):
            MIGRATIONS[step](db)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise


def _lock(folder: Path) -> int:
    """Take the data folder for this process; the lock goes with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(lock, 20).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise DataFolderInUse(
            f"the data folder {folder} is in use by process {owner}. "
            "Stop that one, or give this one another folder with --data."
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors in our words."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        name = getattr(error, "sqlite_errorname", "")
        if code in _SYNC_CODES:
            raise SyncFailed(f"{path}: sync failed ({name}: {error})") from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFailing("disk full") from error
        if code & 0xFF in _PASSING_CODES:
            raise StoreFailing(f"the store is busy ({name})") from error
        if code & 0xFF == sqlite3.SQLITE_IOERR:
            raise StoreFailing(f"I/O error on the disk ({name})") from error
        raise StoreDamaged(
            f"{path}: {error} ({name}). The file is damaged or not Millrace's: keep a copy of the "
            "folder, and restore the newest backup."
        ) from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A record that makes no sense is damage, too."""
    try:
        yield
    except (msgspec.DecodeError, LookupError, ValueError, TypeError) as error:
        raise StoreDamaged(
            f"{path}: a record cannot be read ({error!r}). Keep a copy of the folder, and restore "
            "the newest backup."
        ) from error
