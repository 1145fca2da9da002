"""The store of a data folder: one SQLite database.

Writing each changed job to its own row would cost four statements per job, and most jobs exist only
for a short time. A commit therefore inserts one row with the change set into `turns`, and one row
of events into `outbox`. The store writes rows of `jobs` and `states` back later, a few with
each commit, and only for jobs that outlive a generation of turns. It then deletes those turns. The
current data is always `jobs`, overlaid by `states`, followed by a replay of `turns` in order.

- `jobs` contains each job at the time of its write-back, with the payload, and is written once;
- `states` contains the mutable fields of jobs that changed later, without the payload;
- `payloads` contains large payloads, which the other tables omit (payloads.py);
- `queues`, `notes` and `stats` are small, and the store writes their rows directly;
- `outbox` contains events, one row per commit, until they are shipped or `outbox_max` is reached.

Each row has a checksum, and each turn records the totals of these checksums (checksums.py). The
store refuses a folder that differs from the written data, and does not change it.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from millrace.engine.change_set import ChangeSet
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.store import records
from millrace.store.errors import StoreError, StoreWriteFailed, SyncFailed
from millrace.store.store import Progress, StoreSnapshot, StoreState

from . import checksums
from .checksums import TurnSummary
from .commit_marker import CommitMarker
from .connection import CACHE_KIB, DatabaseFiles, check_turn
from .error_translation import store_error, translate_errors, translate_record_errors
from .folder import DATABASE, lock, make_private
from .generations import Generations
from .outbox import IDLE_TRIM_BYTES, TRIM_BYTES, SqliteOutbox
from .payloads import MAX_INLINE_PAYLOAD, PayloadTable, SqlitePayloadReader
from .reader import DatabaseContent, Inspection
from .reserve import Reserve
from .small_tables import SmallTables
from .wal import LogTail

#: Larger turns are split into several rows: SQLite limits a row to 1,000,000,000 bytes.
MAX_TURN_BYTES: Final = 256 << 20
#: After a flush, or a generation that deleted many rows, the store returns free space to the disk
#: if it exceeds this size.
MIN_SHRINK_BYTES: Final = 32 << 20
MIN_SHRINK_BYTES_AFTER_FLUSH: Final = 4 << 20
#: Maximum size of the live data that shrinking copies. Commits wait for the copy.
MAX_SHRINK_COPY_BYTES: Final = 64 << 20
#: If more live data remains, for example events that are not shipped yet, the store checks again
#: after this number of commits, and when it has deleted all shipped events.
SHRINK_CHECK_INTERVAL: Final = 256

_NO_CHANGES: Final = records.encode(([], [], []))


class SqliteStore:
    def __init__(
        self,
        folder: Path,
        *,
        sync: bool = True,
        outbox_max: int = 256 << 20,
        max_inline_payload: int = MAX_INLINE_PAYLOAD,
    ) -> None:
        self.folder = folder
        self.max_inline_payload = max_inline_payload
        self._lock = lock(folder)
        self._path = folder / DATABASE
        try:
            with translate_errors(self._path), translate_record_errors(self._path):
                make_private(folder)
                self._files = DatabaseFiles(folder, self._path, sync=sync)
        except BaseException:
            os.close(self._lock)
            raise
        self._db = self._files.db
        self._commit_marker = CommitMarker(folder, sync=sync)
        self._log_tail = LogTail(self._path)
        self._reserve = Reserve(folder)
        self._reserve.restore()
        #: The last turn and its summary; ahead of the tables during an uncommitted change set.
        self._turn = 0
        self._summary = TurnSummary()
        self.outbox = SqliteOutbox(self._db, self._summary, outbox_max)
        self._payloads = PayloadTable(self._db, self._summary)
        self._generations = Generations(self._db, self._summary, self._payloads)
        self._small_tables = SmallTables(self._db, self._summary)
        self.payload_reader = SqlitePayloadReader(self._path, reads_ahead=True)
        self._stored_payloads: dict[int, bytes] = {}
        self._undo_after_error = _UndoAfterError(self._path, self._undo)
        #: Whether `commit` must delete all jobs.
        self._is_clearing = False
        #: The changes of a turn that `commit` writes, after the deletion of all jobs or after large
        #: payloads.
        self._deferred_turn = b""
        #: The store returns free space to the disk above this size; 0: there is none to return.
        self._shrink_above = 0
        #: The number of commits before the next check.
        self._shrink_wait = 0

    # Reading

    def load(
        self, progress: Progress | None = None, jobs: JobsBySeq | None = None
    ) -> StoreSnapshot:
        guard = self._files.guard
        inspection = None if guard is None else Inspection(guard, self._path)
        content = DatabaseContent(self._db, jobs)
        try:
            with translate_errors(self._path), translate_record_errors(self._path):
                # Each page is read once, so a cache would only waste memory.
                self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB // 16}")
                content.read(progress)
                self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            check_turn(self.folder, self._path, content.turn, self._files.marked_turn)
        except BaseException:
            if inspection is not None:
                inspection.stop()
            raise
        if inspection is not None:
            inspection.finish()
            self._files.release()
        self._continue_from(content)
        self._payloads.load_rows(content.stored_payloads)
        with translate_errors(self._path):
            self._write_back_all(content)
        if self._turn:
            self._commit_marker.write(self._turn)
        recovered = content.snapshot
        if progress is not None:
            progress(len(recovered.jobs), len(recovered.jobs))
        return recovered

    def load_jobs(self, seqs: Iterable[int]) -> StoreSnapshot:
        content = DatabaseContent(self._db)
        with translate_errors(self._path), translate_record_errors(self._path):
            content.read_jobs(set(seqs))
        self._continue_from(content)
        # The failed change set has invalidated the generations.
        self._generations.restart(content.touched, self._turn, content.turn_bytes)
        return content.snapshot

    def _continue_from(self, content: DatabaseContent) -> None:
        self._turn = content.turn
        self._summary.assign(content.summary)
        self.outbox.next_committed = content.summary.next_event
        self._small_tables.load_rows(content.places, content.row_sums)

    def _write_back_all(self, content: DatabaseContent) -> None:
        """After loading, write the result of the replayed turns to the tables and delete the turns.

        This is one transaction. The last turn remains, because it contains the counters. If the
        disk is full, all turns remain.
        """
        before = msgspec.structs.replace(self._summary)
        try:
            with self._undoing():
                if content.touched:
                    self._write_all(content)
        except BaseException as error:
            self._summary.assign(before)
            if not isinstance(error, StoreWriteFailed):
                raise
            self._generations.restart(content.touched, self._turn, content.turn_bytes)
        else:
            self._generations.restart({}, self._turn, 0)

    def _write_all(self, content: DatabaseContent) -> None:
        self._db.execute("BEGIN")
        self._generations.write_back_all(content.snapshot.jobs, content.touched)
        self._summary.first_turn = self._turn
        packed = checksums.encode_summary(self._summary)
        checksum = checksums.turn_sum(self._turn, packed, _NO_CHANGES)
        self._db.execute("DELETE FROM turns WHERE id < ?", (self._turn,))
        self._db.execute(
            "UPDATE turns SET sum = ?, tally = ?, changes = ? WHERE id = ?",
            (checksum, packed, _NO_CHANGES, self._turn),
        )
        self._db.execute("COMMIT")

    # Writing

    def prepare(self, change_set: ChangeSet, state: StoreState) -> None:
        large: dict[int, bytes] = {}
        blob = records.encode_changes(change_set, self.max_inline_payload, large)
        events = records.encode(change_set.events) if change_set.events else b""
        outbox, generations, tables = self.outbox, self._generations, self._small_tables
        with self._undoing():
            self._db.execute("BEGIN")
            self._is_clearing = change_set.cleared
            if change_set.cleared:
                self._clear()
                self._plan_shrink(MIN_SHRINK_BYTES_AFTER_FLUSH)
            self._turn += 1
            summary, totals = self._summary, state.totals
            summary.next_seq = state.next_seq
            summary.processed, summary.failures = totals.processed, totals.failures
            if events:
                outbox.write(len(change_set.events), events)
            for name, paused in change_set.queues.items():
                if name in change_set.moved_to_end:
                    tables.write_queue(
                        name, None
                    )  # the queue may have existed: it moves to the end
                tables.write_queue(name, paused)
            if change_set.settings:
                tables.write_settings(change_set.settings)
            self._payloads.add_turn(change_set, large)
            generations.add_turn(change_set, self._turn, len(blob))
            # `commit` deletes the rows of a clearing turn, so the turn must not write any.
            if not self._is_clearing and generations.write_back(
                state, change_set, self._turn, len(blob)
            ):
                self._end_generation(state)
            if state.statistics.dropped or state.statistics.merged:
                tables.write_statistics(state)
            if outbox.has_shipped_events:
                if summary.stats_event < outbox.next_unshipped:
                    tables.write_statistics(state)
                outbox.trim_shipped(TRIM_BYTES + 4 * len(events) if change_set else IDLE_TRIM_BYTES)
                if not outbox.has_shipped_events:
                    self._shrink_wait = 0
            # The turn is written last, because its summary covers all other writes.
            if self._is_clearing or self._payloads.has_changes:
                self._deferred_turn = blob
            else:
                self._write_turn(blob)

    def _write_turn(self, blob: bytes) -> None:
        packed = checksums.encode_summary(self._summary)
        if len(blob) <= MAX_TURN_BYTES:
            self._insert_turn(packed, blob)
            return
        for number, piece in enumerate(records.split(blob, MAX_TURN_BYTES)):
            self._turn += number > 0
            self._insert_turn(packed, piece)

    def _insert_turn(self, packed: bytes, changes: bytes) -> None:
        row = (self._turn, checksums.turn_sum(self._turn, packed, changes), packed, changes)
        self._db.execute("INSERT INTO turns VALUES (?, ?, ?, ?)", row)

    def _end_generation(self, state: StoreState) -> None:
        """Delete the turns of the generation that was written back: its jobs are in the tables."""
        if self._generations.deleted_many_rows:
            self._plan_shrink(MIN_SHRINK_BYTES)
        # Keep the last turn: it contains the counters.
        last = min(self._generations.write_back_turn, self._turn - 1)
        self._db.execute("DELETE FROM turns WHERE id <= ?", (last,))
        self._summary.first_turn = last + 1
        self._small_tables.write_statistics(state)
        self.outbox.trim_oldest()

    def _clear(self) -> None:
        """Delete everything except settings and the outbox. `commit` deletes the rows of jobs and
        turns: with a million jobs this would delay all clients here.
        """
        self._generations.clear()
        self._small_tables.clear()
        self._summary.first_turn = self._turn + 1

    def commit(self) -> None:
        try:
            with self._undoing():
                if self._is_clearing:
                    self._db.execute("DELETE FROM turns")
                    self._generations.delete_rows()
                    self._is_clearing = False
                self._payloads.write()
                if self._deferred_turn:
                    self._write_turn(self._deferred_turn)
                    self._deferred_turn = b""
                if not self._db.in_transaction:  # `commit` would do nothing, without an error
                    raise StoreError(f"{self._path}: the transaction of a turn has ended early")
                # One call that releases the interpreter lock once; a statement does it four times,
                # and each time the thread of the loop can delay the commit.
                self._db.commit()
        except StoreWriteFailed:
            self._cut_log()
            raise
        self._files.lock.check_files()
        self._stored_payloads = self._payloads.take_committed()
        if self._payloads.reset_if_many_deleted():
            self._plan_shrink(MIN_SHRINK_BYTES)
        self.outbox.next_committed = self._summary.next_event
        self._commit_marker.write(self._turn)
        if self._shrink_above:
            self._shrink()

    def _cut_log(self) -> None:
        """Remove a rolled-back transaction from the log, before its replies become errors."""
        try:
            self._log_tail.cut()
        except OSError as error:
            path = error.filename or self._path
            raise SyncFailed(f"{path}: a failed commit cannot be removed: {error}") from error

    def can_write(self) -> bool:
        """Check, without SQLite, whether the file system can allocate 1 MiB. If so, truncate the
        log.
        """
        path = self.folder / "probe"
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
        except OSError:
            return False
        finally:
            path.unlink(missing_ok=True)
        self._truncate_log()
        return True

    def _plan_shrink(self, min_free: int) -> None:
        """After the next commit, return free space to the disk if there is more than this."""
        self._shrink_above = min(self._shrink_above or min_free, min_free)
        self._shrink_wait = 0

    def _shrink(self) -> None:
        """Return free pages to the disk if they are most of the file and the rest is small."""
        self._shrink_wait -= 1
        if self._shrink_wait >= 0:
            return
        self._shrink_wait = SHRINK_CHECK_INTERVAL
        with contextlib.suppress(sqlite3.Error):  # on a full disk, SQLite reuses the pages later
            (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
            (size,) = self._db.execute("PRAGMA page_size").fetchone()
            live = (pages - free) * size
            if free * size >= self._shrink_above:
                if live > min(free * size, MAX_SHRINK_COPY_BYTES):
                    return
                self._db.execute("VACUUM")
                self._truncate_log()
            self._shrink_above = 0

    def _truncate_log(self) -> None:
        """Truncate the log to return its space to the disk. An error does not stop commits."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def take_stored_payloads(self) -> dict[int, bytes]:
        stored, self._stored_payloads = self._stored_payloads, {}
        if stored:
            self.payload_reader.forget(stored)
        return stored

    def release_reserve(self) -> bool:
        return self._reserve.release()

    def restore_reserve(self) -> bool:
        return self._reserve.restore()

    def close(self) -> None:
        with ExitStack() as closing:  # closes in reverse order, even after an error
            closing.callback(os.close, self._lock)
            closing.callback(self._commit_marker.close)
            closing.callback(self._log_tail.close)
            closing.enter_context(translate_errors(self._path))
            closing.callback(self._files.close)
            closing.callback(self.payload_reader.close)

    def _undoing(self) -> "_UndoAfterError":
        """Roll back the transaction after an error."""
        return self._undo_after_error

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.rollback()
        self._payloads.undo()
        self._is_clearing, self._deferred_turn = False, b""
        self.outbox.has_shipped_events = False  # until more events are shipped


class _UndoAfterError:
    """A context manager that every commit uses; one made from a generator is slower."""

    __slots__ = ("_path", "_undo")

    def __init__(self, path: Path, undo: Callable[[], None]) -> None:
        self._path = path
        self._undo = undo

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        if error is None:
            return
        self._undo()
        if isinstance(error, OSError | sqlite3.Error):
            raise store_error(error, self._path) from error
