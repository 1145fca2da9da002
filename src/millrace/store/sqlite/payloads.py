"""The table `payloads`: payloads that are too large to stay in memory.

The rows of their jobs in `turns` and `jobs` contain only the size. A change set writes and deletes
these payloads in its transaction, but on the commit thread, because writing 32 MiB takes 0.1 s. A
payload stays in memory until its commit. Then the server reads it from here when a worker takes the
job.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec

from millrace.engine.change_set import ChangeSet
from millrace.engine.errors import PayloadDamaged
from millrace.engine.seq_set import SeqSet
from millrace.store.errors import StoreDamaged

from . import checksums
from .checksums import TurnSummary
from .error_translation import translate_errors, translate_record_errors
from .reader import open_read_only

#: A payload above this size is stored in the table, unless the configuration has another limit.
MAX_INLINE_PAYLOAD: Final = 4096
#: A large payload is read in parts of this size.
PART_SIZE: Final = 1 << 20
#: A read at most MAX_GAP seqs after the last one also covers this number of following seqs. It
#: skips payloads above MAX_READ_AHEAD bytes.
READ_AHEAD_SEQS: Final = 64
MAX_GAP: Final = 16
MAX_READ_AHEAD: Final = 4096
#: A payload up to this size is read and verified as a whole, even if only a part is needed.
MAX_VERIFIED_PART: Final = 64 << 10
#: After this number of deleted payloads, the store checks whether the file has much free space.
MANY_DELETED_PAYLOADS: Final = 64


class PayloadTable:
    """The rows of the table, and the changes of the current change set."""

    def __init__(self, db: sqlite3.Connection, summary: TurnSummary) -> None:
        self._db = db
        self._summary = summary
        #: The jobs with a row.
        self._stored = SeqSet()
        self._new: dict[int, bytes] = {}
        self._deleted: list[int] = []
        self._cleared = False
        #: For `undo`: all jobs with a row before the transaction if it deletes all rows;
        #: otherwise, for each job that it changes, whether the job had a row.
        self._stored_before: SeqSet | None = None
        self._had_row: dict[int, bool] = {}
        self._deleted_rows = 0

    def load_rows(self, stored: SeqSet) -> None:
        """Continue with the rows that were read from the table."""
        self._stored = stored
        self._end()

    def add_turn(self, change_set: ChangeSet, payloads: dict[int, bytes]) -> None:
        """Remember the changes of a change set; `payloads` contains its large payloads."""
        stored = self._stored
        self._end()
        self._new = payloads
        self._cleared = change_set.cleared and bool(stored)
        if not stored or change_set.cleared:
            return
        self._deleted = [seq for seq in change_set.removed if seq in stored]
        for seq, job in change_set.rewritten.items():
            if seq in stored and not job.stored_size:
                self._deleted.append(seq)

    @property
    def has_changes(self) -> bool:
        return bool(self._new or self._deleted or self._cleared)

    def has(self, seq: int) -> bool:
        """Whether the job has a row after the current change set."""
        if seq in self._new:
            return True
        return seq in self._stored and not self._cleared and seq not in self._deleted

    def write(self) -> None:
        """Execute the changes."""
        if self._cleared:
            self._stored_before, self._stored = self._stored, SeqSet()
            self._summary.payloads = 0
            self._db.execute("DELETE FROM payloads")
        if self._deleted:
            self._delete_rows()
        if self._new:
            self._write_rows()

    def _delete_rows(self) -> None:
        self._deleted_rows += len(self._deleted)
        row = self._db.execute(
            "SELECT sum(sum) FROM payloads WHERE seq IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(self._deleted).decode(),),
        ).fetchone()
        self._summary.payloads -= row[0] or 0
        self._db.executemany(
            "DELETE FROM payloads WHERE seq = ?", [(seq,) for seq in self._deleted]
        )
        for seq in self._deleted:
            self._had_row[seq] = True
            self._stored.discard(seq)

    def _write_rows(self) -> None:
        rows = [
            (seq, checksums.payload_sum(seq, payload), payload)
            for seq, payload in self._new.items()
        ]
        self._summary.payloads += sum(row[1] for row in rows)
        self._db.executemany("INSERT INTO payloads VALUES (?, ?, ?)", rows)
        for seq in self._new:
            self._had_row.setdefault(seq, False)
            self._stored.add(seq)

    def take_committed(self) -> dict[int, bytes]:
        """End the change set, and return its payloads."""
        stored = self._new
        self._end()
        return stored

    def reset_if_many_deleted(self) -> bool:
        """Whether many rows have been deleted since this was last true."""
        if self._deleted_rows < MANY_DELETED_PAYLOADS:
            return False
        self._deleted_rows = 0
        return True

    def undo(self) -> None:
        """Restore the set of rows after the transaction was rolled back."""
        if self._stored_before is not None:
            self._stored = self._stored_before
        else:
            for seq, had_row in self._had_row.items():
                if had_row:
                    self._stored.add(seq)
                else:
                    self._stored.discard(seq)
        self._end()

    def _end(self) -> None:
        self._new, self._deleted, self._cleared = {}, [], False
        self._stored_before, self._had_row = None, {}


class SqlitePayloadReader:
    """Reads committed payloads over its own connection, even during a commit.

    Workers usually take the jobs of a queue in the order of their seqs. So a reader that
    `reads_ahead` reads the next small payloads together with the one that is needed.
    """

    def __init__(self, path: Path, *, reads_ahead: bool = False) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._reads_ahead = reads_ahead
        self._ahead: dict[int, bytes] = {}
        self._last = 0

    def read(self, seq: int) -> bytes:
        if self._reads_ahead:
            known = self._ahead.pop(seq, None)
            is_next, self._last = 0 < seq - self._last <= MAX_GAP, seq
            if known is not None:
                return known
            if is_next:
                try:
                    self._read_ahead(seq)
                except StoreDamaged:  # of this row, or of another one
                    self._ahead = {}
                return self._ahead.pop(seq, None) or self._read(seq)
        return self._read(seq)

    def forget(self, seqs: Iterable[int]) -> None:
        """Drop payloads that were read ahead, because a commit has replaced them."""
        for seq in seqs:
            self._ahead.pop(seq, None)

    def _read_ahead(self, seq: int) -> None:
        """Read this payload and the next ones, if they are small."""
        with translate_errors(self._path), translate_record_errors(self._path):
            rows = self._open().execute(
                "SELECT seq, sum, payload FROM payloads WHERE seq >= ? AND seq < ?"
                " AND length(payload) <= ?",
                (seq, seq + READ_AHEAD_SEQS, MAX_READ_AHEAD),
            )
            # A damaged payload must fail only the read of its own job.
            self._ahead = {
                each: payload
                for each, checksum, payload in rows
                if checksums.payload_sum(each, payload) == checksum
            }

    def _read(self, seq: int) -> bytes:
        with self._reading(seq):
            rows = self._open().execute("SELECT sum, payload FROM payloads WHERE seq = ?", (seq,))
            for checksum, payload in rows.fetchall():
                return _checked(seq, payload, checksum)
        return b""

    def read_large(self, seq: int) -> bytes:
        with self._reading(seq):
            db = self._open()
            db.execute("BEGIN")
            try:
                rows = db.execute("SELECT sum FROM payloads WHERE seq = ?", (seq,))
                for (checksum,) in rows.fetchall():
                    found = BytesIO()
                    with db.blobopen("payloads", "payload", seq, readonly=True) as blob:
                        while part := blob.read(PART_SIZE):
                            found.write(part)
                    return _checked(seq, found.getvalue(), checksum)
            finally:
                db.execute("ROLLBACK")
        return b""

    def read_part(self, seq: int, start: int, size: int) -> bytes:
        with self._reading(seq):
            db = self._open()
            rows = db.execute("SELECT length(payload) FROM payloads WHERE seq = ?", (seq,))
            length = next((found for (found,) in rows.fetchall()), 0)
            if length <= MAX_VERIFIED_PART:
                return self._read(seq)[start : start + size]
            if start >= length:
                return b""
            with db.blobopen("payloads", "payload", seq, readonly=True) as blob:
                blob.seek(start)
                return blob.read(size)

    def open_another(self) -> "SqlitePayloadReader":
        return SqlitePayloadReader(self._path)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _reading(self, seq: int) -> Iterator[None]:
        """Translate the errors of a read. Damage to the file fails only the reads that find it."""
        try:
            with translate_errors(self._path), translate_record_errors(self._path):
                yield
        except StoreDamaged as damage:
            raise PayloadDamaged(seq, "it cannot be read") from damage

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = open_read_only(self._path)
        return self._db


def _checked(seq: int, payload: bytes, checksum: int) -> bytes:
    if checksums.payload_sum(seq, payload) != checksum:
        raise PayloadDamaged(seq, "it does not match its checksum")
    return payload
