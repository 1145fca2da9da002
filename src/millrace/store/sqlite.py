"""The default store: one SQLite database in the data folder.

Writing each changed job to its own row would cost four statements per job, and most jobs exist only
for a short time. A commit therefore inserts one row with the batch into `turns`, and one row of
events into `outbox`. The store writes rows of `jobs` and `states` later ("folding"), a few with
each commit, and only for jobs that outlive a generation of turns. It then deletes those turns. The
current data is always `jobs`, overlaid by `states`, followed by a replay of `turns` in order.

- `jobs` contains each job at the time of its folding, with the payload, and is written once;
- `states` contains the mutable fields of jobs that changed later, without the payload;
- `queues`, `notes` and `stats` are small, and the store writes their rows directly;
- `outbox` contains events, one row per commit, until they are shipped or `outbox_max` is reached.

Each row has a checksum, and each turn records the totals of these checksums (sums.py). The store
refuses a folder that differs from the written data, and does not change it.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.events import EVENT_VERSION
from millrace.engine.job import Job, changing

from . import changes, sums
from .errors import StoreFailing, readable, translated
from .folder import DATABASE, lock, make_private
from .mark import Mark
from .opening import Opened, check_turn
from .reading import Content, Inspection, RowSums
from .recovered import Progress, Recovered
from .reserve import Reserve
from .sums import Tally

#: A generation of turns ends at this number of bytes or jobs.
GENERATION_BYTES: Final = 8 << 20
GENERATION_JOBS: Final = 100_000
#: Larger turns are split into several rows: SQLite limits a row to 1,000,000,000 bytes.
MAX_TURN_BYTES: Final = 256 << 20
#: Each commit folds about this number of bytes of older jobs.
FOLD_BYTES: Final = 65_536
#: Each commit removes about this number of bytes of shipped events; more if it has no changes.
TRIM_BYTES: Final = 256 << 10
TRIM_BYTES_ALONE: Final = 4 << 20

#: After a flush, or a generation that deleted this number of rows, the store returns free space to
#: the disk if it exceeds this size.
MANY_DELETED_ROWS: Final = 10_000
MIN_SHRINK_BYTES: Final = 32 << 20
MIN_SHRINK_BYTES_AFTER_FLUSH: Final = 4 << 20
#: Shrinking copies the rest of the database while commits wait.
MAX_SHRINK_COPY_BYTES: Final = 64 << 20

# The difference between memory and the tables for a job of a generation.
_NEW: Final = 0
_CHANGED: Final = 1
_GONE: Final = 2
_UNSURE: Final = 3

#: Rows of `jobs` or `states` as they are written: seq, sum, record.
Rows = list[tuple[int, int, bytes]]


class SqliteStore:
    def __init__(self, folder: Path, *, sync: bool = True, outbox_max: int = 256 << 20) -> None:
        self.folder = folder
        self.outbox_max = outbox_max
        self._lock = lock(folder)
        self._path = folder / DATABASE
        try:
            with translated(self._path), readable(self._path):
                make_private(folder)
                self._opened = Opened(folder, self._path, sync=sync)
        except BaseException:
            os.close(self._lock)
            raise
        self._db = self._opened.db
        self._mark = Mark(folder, sync=sync)
        self._reserve = Reserve(folder)
        self._reserve.restore()
        #: The last turn and its tally; ahead of the tables during an uncommitted batch.
        self._turn = 0
        self._tally = Tally()
        self._places: dict[str, int] = {}
        self._last_place = 0
        self._row_sums: RowSums = {"queues": {}, "notes": {}, "stats": {}}
        self._young: dict[int, int] = {}
        self._young_bytes = 0
        #: Jobs of the young generation that have a row to delete.
        self._young_gone = 0
        self._old: dict[int, int] = {}
        self._old_order: Iterator[int] = iter(())
        self._old_turn = 0
        self._no_fold_until = 0
        self._folding = False
        #: If the file has more free space than this after the commit, shrink it; 0: no check.
        self._shrink_above = 0
        #: Rows that the folding generation has deleted.
        self._deleted_rows = 0
        #: The first event that is not shipped yet, and whether the outbox contains earlier events
        #: that can be deleted.
        self._unshipped = 1
        self.trims = False
        #: The number of events that were deleted before they were shipped.
        self.dropped = 0
        #: The number of the next event after the committed events.
        self.next_committed = 1

    @property
    def first_event(self) -> int:
        """The oldest event in the outbox."""
        return self._tally.first_event

    @property
    def next_event(self) -> int:
        """The number of the next event, including the events of an uncommitted batch."""
        return self._tally.next_event

    @property
    def outbox_bytes(self) -> int:
        return self._tally.outbox_bytes

    # Reading

    def load(self, progress: Progress | None = None) -> Recovered:
        guard = self._opened.guard
        inspection = None if guard is None else Inspection(guard, self._path)
        content = Content(self._db)
        try:
            with translated(self._path), readable(self._path):
                content.read(progress)
            check_turn(self.folder, self._path, content.turn, self._opened.marked)
        except BaseException:
            if inspection is not None:
                inspection.stop()
            raise
        if inspection is not None:
            inspection.finish()
            self._opened.release()
        self._go_on_from(content)
        with translated(self._path):
            self._fold_all(content)
        if self._turn:
            self._mark.write(self._turn)
        recovered = content.recovered
        if progress is not None:
            progress(len(recovered.jobs), len(recovered.jobs))
        return recovered

    def reread(self, seqs: Iterable[int]) -> Recovered:
        content = Content(self._db)
        with translated(self._path), readable(self._path):
            content.read_some(set(seqs))
        self._go_on_from(content)
        # The failed batch has invalidated the generations.
        self._start_generation(content.touched)
        return content.recovered

    def _go_on_from(self, content: Content) -> None:
        self._turn, self._tally = content.turn, content.tally
        self.next_committed = content.tally.next_event
        self._places, self._row_sums = content.places, content.row_sums
        self._last_place = max(content.places.values(), default=0)
        self._young_bytes = content.turn_bytes

    # Writing

    def begin(self, batch: Batch, engine: Engine) -> None:
        blob = changes.encode_batch(batch)
        events = changes.encode(batch.events) if batch.events else b""
        with self._undoing():
            self._db.execute("BEGIN")
            if batch.cleared:
                self._clear()
            self._shrink_above = MIN_SHRINK_BYTES_AFTER_FLUSH if batch.cleared else 0
            self._turn += 1
            tally, totals = self._tally, engine.totals
            tally.next_seq = engine.next_seq
            tally.processed, tally.failures = totals.processed, totals.failures
            if events:
                self._write_events(len(batch.events), events)
            for name, paused in batch.queues.items():
                if name in batch.opened:
                    self._write_queue(name, None)  # the queue may have existed: it gets a new place
                self._write_queue(name, paused)
            for key, value in batch.notes.items():
                self._write_note(key, value)
            self._age(batch, len(blob))
            if self._turn > self._no_fold_until:
                changed = len(batch.new) + len(batch.changed) + len(batch.gone)
                changed += len(batch.rewritten)
                self._fold(engine, 64 + 2 * changed, FOLD_BYTES + 2 * len(blob))
            if engine.statistics.dropped:
                self._write_stats(engine)
                tally.stats_event = tally.next_event
            if self.trims:
                self._trim_shipped(engine, TRIM_BYTES + 4 * len(events) if batch else 0)
            # The turn is written last, because its tally covers all other writes.
            packed = sums.encode_tally(tally)
            large = len(blob) > MAX_TURN_BYTES
            for number, piece in enumerate(
                changes.split(blob, MAX_TURN_BYTES) if large else [blob]
            ):
                self._turn += number > 0
                summed = sums.turn_sum(self._turn, packed, piece)
                row = (self._turn, summed, packed, piece)
                self._db.execute("INSERT INTO turns VALUES (?, ?, ?, ?)", row)

    def commit(self) -> None:
        with self._undoing():
            self._db.execute("COMMIT")
        self._opened.lock.check_files()
        self.next_committed = self._tally.next_event
        self._mark.write(self._turn)
        if self._shrink_above:
            self._shrink(self._shrink_above)
            self._shrink_above = 0

    def shipped(self, until: int) -> None:
        """Record that the events before `until` are in the lake. Batches may delete them."""
        self._unshipped = max(self._unshipped, until)
        self.trims = self._tally.first_event < self._unshipped

    def probe(self) -> bool:
        """Check, without SQLite, whether the file system can allocate 1 MiB. Truncate the log."""
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

    def _shrink(self, min_free: int) -> None:
        """Return free pages to the disk if they are most of the file and the rest is small."""
        with contextlib.suppress(sqlite3.Error):  # on a full disk, SQLite reuses the pages later
            (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
            (size,) = self._db.execute("PRAGMA page_size").fetchone()
            live = (pages - free) * size
            if free * size >= min_free and live <= min(free * size, MAX_SHRINK_COPY_BYTES):
                self._db.execute("VACUUM")
                self._truncate_log()

    def _truncate_log(self) -> None:
        """Truncate the log to return its space to the disk. An error does not stop commits."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def release_reserve(self) -> bool:
        return self._reserve.release()

    def restore_reserve(self) -> bool:
        return self._reserve.restore()

    def close(self) -> None:
        try:
            with translated(self._path):
                self._opened.close()
            self._mark.close()
        finally:
            os.close(self._lock)

    # Generations: jobs that differ between memory and the tables

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
            # A job without a row needs no deletion.
            if young.get(seq) == _NEW:
                del young[seq]
            elif old.get(seq) == _NEW:
                del old[seq]
                young.pop(seq, None)
            else:
                young[seq] = _GONE
                self._young_gone += 1
        self._young_bytes += size
        full = (
            self._young_bytes > GENERATION_BYTES
            or len(young) > GENERATION_JOBS
            or self._young_gone >= MANY_DELETED_ROWS
        )
        if full and not self._folding:
            self._old, self._young, self._young_bytes, self._young_gone = young, {}, 0, 0
            self._old_order = iter(list(young))
            self._old_turn = self._turn
            self._folding = True

    def _fold(self, engine: Engine, most: int, most_bytes: int) -> None:
        """Write up to `most` jobs of the old generation to their tables."""
        if not self._folding:
            return
        old = self._old
        new: Rows = []
        changed: Rows = []
        unsure: list[int] = []
        gone: list[int] = []
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
                gone.append(seq)
            elif mark in {_NEW, _UNSURE}:
                record = changes.encode(job)
                new.append((seq, sums.job_sum(seq, record), record))
                most_bytes -= len(record)
                if mark == _UNSURE:
                    unsure.append(seq)
            else:
                record = changes.encode(changing(job))
                changed.append((seq, sums.state_sum(seq, record), record))
        self._deleted_rows += len(gone)
        self._write(new, changed, unsure, gone)
        if seq is None:
            self._end_generation(engine)

    def _end_generation(self, engine: Engine) -> None:
        """Delete the turns of the old generation, because every job of it is in its table."""
        self._folding = False
        if self._deleted_rows >= MANY_DELETED_ROWS:
            self._shrink_above = MIN_SHRINK_BYTES
        self._deleted_rows = 0
        # Keep the last turn: it contains the counters.
        last = min(self._old_turn, self._turn - 1)
        self._db.execute("DELETE FROM turns WHERE id <= ?", (last,))
        tally = self._tally
        tally.first_turn = last + 1
        self._write_stats(engine)
        tally.stats_event = tally.next_event
        if tally.outbox_bytes > self.outbox_max:
            self._trim_outbox()

    def _write_stats(self, engine: Engine) -> None:
        statistics = engine.statistics
        old = statistics.forget(statistics.since(engine.clock))
        for key in (*old, *statistics.dropped):
            self._note_sum("stats", key, 0)
            self._db.execute("DELETE FROM stats WHERE queue = ? AND day = ?", key)
        for key in statistics.dirty:
            record = changes.encode(statistics.days[key])
            summed = self._note_sum("stats", key, sums.day_sum(*key, record))
            self._db.execute(
                "INSERT OR REPLACE INTO stats VALUES (?, ?, ?, ?)", (*key, summed, record)
            )
        statistics.dirty.clear()
        statistics.dropped.clear()

    def _trim_shipped(self, engine: Engine, most_bytes: int) -> None:
        """Delete whole rows of shipped events, up to `most_bytes`. Write the statistics first,
        because they are computed from events.
        """
        tally = self._tally
        if tally.stats_event < self._unshipped:
            self._write_stats(engine)
            tally.stats_event = tally.next_event
        left = most_bytes or TRIM_BYTES_ALONE
        self.trims = False
        rows = self._db.execute("SELECT first, count, length(events) FROM outbox ORDER BY first")
        for first, count, size in rows:
            if first + count > self._unshipped:
                break
            if left <= 0:
                self.trims = True
                break
            left -= size
            tally.outbox_bytes -= size
            tally.first_event = first + count
        self._db.execute("DELETE FROM outbox WHERE first < ?", (tally.first_event,))

    def _trim_outbox(self) -> None:
        """Delete the oldest events until a tenth of `outbox_max` is free."""
        tally = self._tally
        kept = max(tally.first_event, self._unshipped)
        rows = self._db.execute("SELECT first, count, length(events) FROM outbox ORDER BY first")
        for first, count, size in rows:
            if tally.outbox_bytes <= self.outbox_max * 9 // 10 or first >= tally.stats_event:
                break
            tally.outbox_bytes -= size
            tally.first_event = first + count
        self._db.execute("DELETE FROM outbox WHERE first < ?", (tally.first_event,))
        self.dropped += max(0, tally.first_event - kept)

    def _fold_all(self, content: Content) -> None:
        """After loading, write the result of the replayed turns to the tables and delete the turns.

        This is one transaction. The last turn remains, because it contains the counters. If the
        disk is full, all turns remain.
        """
        touched = content.touched
        try:
            with self._undoing():
                if touched:
                    self._write_all(content.recovered.jobs, touched)
        except StoreFailing:
            self._start_generation(touched)
        else:
            self._young_bytes = 0
            self._start_generation({})

    def _start_generation(self, touched: dict[int, None]) -> None:
        """Start the generations with the jobs that may differ between the tables and memory."""
        self._young = dict.fromkeys(touched, _UNSURE)
        self._old, self._folding = {}, False
        # If the disk was full, reserve the remaining space for the changes of clients.
        self._no_fold_until = self._turn + 100 if touched else 0

    def _write_all(self, jobs: dict[int, Job], touched: dict[int, None]) -> None:
        before = msgspec.structs.replace(self._tally)
        try:
            self._db.execute("BEGIN")
            alive = [seq for seq in touched if seq in jobs]
            records = [changes.encode(jobs[seq]) for seq in alive]
            new = [
                (seq, sums.job_sum(seq, record), record)
                for seq, record in zip(alive, records, strict=True)
            ]
            self._write(new, [], alive, [seq for seq in touched if seq not in jobs])
            self._tally.first_turn = self._turn
            packed = sums.encode_tally(self._tally)
            summed = sums.turn_sum(self._turn, packed, _NO_CHANGES)
            self._db.execute("DELETE FROM turns WHERE id < ?", (self._turn,))
            self._db.execute(
                "UPDATE turns SET sum = ?, tally = ?, changes = ? WHERE id = ?",
                (summed, packed, _NO_CHANGES, self._turn),
            )
            self._db.execute("COMMIT")
        except BaseException:
            self._tally = before
            raise

    def _write(self, new: Rows, changed: Rows, unsure: list[int], gone: list[int]) -> None:
        """Write rows of jobs and of states. The jobs of `unsure`, which are also in `new`, and of
        `gone` may already have rows.
        """
        tally = self._tally
        over = [*unsure, *gone]
        if over:
            tally.jobs -= self._sum_of("jobs", over)
        if over or changed:
            tally.states -= self._sum_of("states", [*over, *(row[0] for row in changed)])
        if new:
            tally.jobs += sum(row[1] for row in new)
            self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", new)
        if changed:
            tally.states += sum(row[1] for row in changed)
            self._db.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", changed)
        if over:
            keys = [(seq,) for seq in over]
            self._db.executemany("DELETE FROM states WHERE seq = ?", keys)
            self._db.executemany("DELETE FROM jobs WHERE seq = ?", keys[len(unsure) :])

    def _sum_of(self, table: str, seqs: list[int]) -> int:
        """Return the total of the checksums of the existing rows with these numbers."""
        row = self._db.execute(
            f"SELECT sum(sum) FROM {table} WHERE seq IN (SELECT value FROM json_each(?))",  # noqa: S608
            (msgspec.json.encode(seqs).decode(),),
        ).fetchone()
        return int(row[0] or 0)

    # Small tables and events

    def _write_events(self, count: int, events: bytes) -> None:
        tally = self._tally
        first = tally.next_event
        summed = sums.events_sum(first, count, EVENT_VERSION, events)
        tally.next_event += count
        tally.outbox_bytes += len(events)
        self._db.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?, ?)",
            (first, count, EVENT_VERSION, summed, events),
        )

    def _write_queue(self, name: str, paused: bool | None) -> None:
        if paused is None:
            self._note_sum("queues", name, 0)
            place = self._places.pop(name, None)
            if place is not None:
                self._db.execute("DELETE FROM queues WHERE place = ?", (place,))
            return
        if name not in self._places:
            self._last_place += 1
            self._places[name] = self._last_place
        place = self._places[name]
        summed = self._note_sum("queues", name, sums.queue_sum(place, name, paused))
        self._db.execute(
            "INSERT OR REPLACE INTO queues VALUES (?, ?, ?, ?)", (place, summed, name, paused)
        )

    def _write_note(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._note_sum("notes", key, 0)
            self._db.execute("DELETE FROM notes WHERE key = ?", (key,))
        else:
            summed = self._note_sum("notes", key, sums.note_sum(key, value))
            self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (key, summed, value))

    def _note_sum(self, table: str, key: object, summed: int) -> int:
        """Update the tally for a written row of queues, notes or stats; 0 means that the row is
        deleted.
        """
        known = self._row_sums[table]
        self._tally.others += summed - known.pop(key, 0)
        if summed:
            known[key] = summed
        return summed

    def _clear(self) -> None:
        """Delete everything except notes and the outbox."""
        for table in ("turns", "jobs", "states", "queues", "stats"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608
        self._young, self._old, self._folding, self._young_bytes = {}, {}, False, 0
        tally = self._tally
        tally.jobs = tally.states = 0
        tally.first_turn = self._turn + 1
        tally.stats_event = tally.next_event
        self._places = {}
        self._row_sums["queues"], self._row_sums["stats"] = {}, {}
        tally.others = sum(self._row_sums["notes"].values())

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Roll back the transaction after an error."""
        try:
            with translated(self._path):
                yield
        except BaseException:
            if self._db.in_transaction:
                self._db.rollback()
            self.trims = False  # until more events are shipped
            raise


_NO_CHANGES: Final = changes.encode(([], [], []))
