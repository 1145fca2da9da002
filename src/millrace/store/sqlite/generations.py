"""The tables `jobs` and `states`, and the jobs that differ between them and memory.

A generation contains the jobs of consecutive turns. When it is full, each commit writes some of its
jobs back to their tables while the next generation fills; then its turns are deleted.
"""

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from millrace.engine.change_set import ChangeSet
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.store import records
from millrace.store.store import StoreState

from . import checksums
from .checksums import TurnSummary
from .payloads import PayloadTable

#: A generation of turns ends at this number of bytes or jobs, or of rows to delete.
GENERATION_BYTES: Final = 8 << 20
GENERATION_JOBS: Final = 100_000
MANY_DELETED_ROWS: Final = 10_000
#: Each commit writes back about this number of bytes of older jobs.
WRITE_BACK_BYTES: Final = 65_536
#: At start-up, the store writes back this number of jobs at a time.
WRITE_BACK_BATCH_SIZE: Final = 1000

# The difference between memory and the tables for a job of a generation: it has no row, its state
# differs, it was removed, or all of its rows may differ.
_NEW: Final = 0
_CHANGED: Final = 1
_GONE: Final = 2
_UNSURE: Final = 3

#: Rows of `jobs` or `states` as they are written: seq, sum, record.
Rows = list[tuple[int, int, bytes]]


class Generations:
    """The rows of both tables. All changes are part of the transaction of a change set."""

    def __init__(
        self, db: sqlite3.Connection, summary: TurnSummary, payloads: PayloadTable
    ) -> None:
        self._db = db
        self._payloads = payloads
        self._summary = summary
        self._new: dict[int, int] = {}
        self._new_bytes = 0
        #: Jobs of the new generation that have a row to delete.
        self._new_removed = 0
        self._writing_back: dict[int, int] | None = None
        self._write_back_order: Iterator[int] = iter(())
        #: The last turn of the older generation.
        self.write_back_turn = 0
        self._no_write_back_until = 0
        self._deleted_rows = 0

    def restart(self, touched: dict[int, None], turn: int, turn_bytes: int) -> None:
        """Start with the jobs that may differ between the tables and memory."""
        self._new = dict.fromkeys(touched, _UNSURE)
        self._new_bytes = turn_bytes
        self._writing_back = None
        # If the disk was full, reserve the remaining space for the changes by clients.
        self._no_write_back_until = turn + 100 if touched else 0

    def clear(self) -> None:
        """Remove all jobs. `delete_rows` must follow in the same transaction."""
        self._new, self._writing_back, self._new_bytes, self._new_removed = {}, None, 0, 0
        self._summary.jobs = self._summary.states = 0

    def delete_rows(self) -> None:
        """Delete all jobs, which takes a tenth of a second per million."""
        for table in ("jobs", "states"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608

    def add_turn(self, change_set: ChangeSet, turn: int, size: int) -> None:
        """Add the jobs of a change set to the new generation."""
        new = self._new
        older: dict[int, int] = {} if self._writing_back is None else self._writing_back
        for seq in change_set.new:
            new[seq] = _NEW
        for seq in change_set.changed:
            if seq not in new and older.get(seq) != _NEW:
                new[seq] = _CHANGED
        for seq in change_set.rewritten:
            if new.get(seq) != _NEW and older.get(seq) != _NEW:
                new[seq] = _UNSURE
        for seq in change_set.removed:
            # A job without a row needs no deletion.
            if new.get(seq) == _NEW:
                del new[seq]
            elif older.get(seq) == _NEW:
                del older[seq]
                new.pop(seq, None)
            else:
                new[seq] = _GONE
                self._new_removed += 1
        self._new_bytes += size
        full = (
            self._new_bytes > GENERATION_BYTES
            or len(new) > GENERATION_JOBS
            or self._new_removed >= MANY_DELETED_ROWS
        )
        if full and self._writing_back is None:
            self._writing_back, self._new, self._new_bytes, self._new_removed = new, {}, 0, 0
            self._write_back_order = iter(list(new))
            self.write_back_turn = turn
            self._deleted_rows = 0

    def write_back(self, state: StoreState, change_set: ChangeSet, turn: int, size: int) -> bool:
        """Write some jobs of the older generation to their tables. Return whether all of them
        are written.
        """
        if self._writing_back is None or turn <= self._no_write_back_until:
            return False
        changed = len(change_set.new) + len(change_set.changed) + len(change_set.removed)
        changed += len(change_set.rewritten)
        if not self._write_back_jobs(
            self._writing_back, state, 64 + 2 * changed, WRITE_BACK_BYTES + 2 * size
        ):
            return False
        self._writing_back = None
        return True

    @property
    def deleted_many_rows(self) -> bool:
        """Whether the last generation that was written back deleted many rows."""
        return self._deleted_rows >= MANY_DELETED_ROWS

    def _write_back_jobs(
        self, older: dict[int, int], state: StoreState, max_jobs: int, max_bytes: int
    ) -> bool:
        new: Rows = []
        changed: Rows = []
        unsure: list[int] = []
        gone: list[int] = []
        seq: int | None = 0
        for _ in range(max_jobs):
            if max_bytes <= 0:
                break
            seq = next(self._write_back_order, None)
            if seq is None:
                break
            difference = older.pop(seq, None)
            job = state.job(seq)
            if difference is None:
                continue
            if job is None:
                gone.append(seq)
            elif difference in {_NEW, _UNSURE}:
                record = records.encode_job(job, without_payload=self._payloads.has(seq))
                new.append((seq, checksums.job_sum(seq, record), record))
                max_bytes -= len(record)
                if difference == _UNSURE:
                    unsure.append(seq)
            else:
                record = records.encode(records.state_row(job))
                changed.append((seq, checksums.state_sum(seq, record), record))
        self._deleted_rows += len(gone)
        self._write(new, changed, unsure, gone)
        return seq is None

    def write_back_all(self, jobs: JobsBySeq, touched: dict[int, None]) -> None:
        """Write the result of replayed turns to the tables, in batches that need little memory."""
        seqs = iter(touched)
        while batch := list(islice(seqs, WRITE_BACK_BATCH_SIZE)):
            existing = [seq for seq in batch if seq in jobs]
            encoded = ((seq, records.encode(jobs[seq])) for seq in existing)
            new = [(seq, checksums.job_sum(seq, record), record) for seq, record in encoded]
            self._write(new, [], existing, [seq for seq in batch if seq not in jobs])

    def _write(self, new: Rows, changed: Rows, unsure: list[int], gone: list[int]) -> None:
        """Write rows of jobs and of states. The jobs in `unsure`, which are also in `new`, and in
        `gone` may already have rows.
        """
        summary = self._summary
        replaced = [*unsure, *gone]
        if replaced:
            summary.jobs -= self._sum_of("jobs", replaced)
        if replaced or changed:
            summary.states -= self._sum_of("states", [*replaced, *(row[0] for row in changed)])
        if new:
            summary.jobs += sum(row[1] for row in new)
            self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", new)
        if changed:
            summary.states += sum(row[1] for row in changed)
            self._db.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", changed)
        if replaced:
            keys = [(seq,) for seq in replaced]
            self._db.executemany("DELETE FROM states WHERE seq = ?", keys)
            self._db.executemany("DELETE FROM jobs WHERE seq = ?", keys[len(unsure) :])

    def _sum_of(self, table: str, seqs: list[int]) -> int:
        """Return the total of the checksums of the existing rows with these seqs."""
        row = self._db.execute(
            f"SELECT sum(sum) FROM {table} WHERE seq IN (SELECT value FROM json_each(?))",  # noqa: S608
            (msgspec.json.encode(seqs).decode(),),
        ).fetchone()
        return int(row[0] or 0)
