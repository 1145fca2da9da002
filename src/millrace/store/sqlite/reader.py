"""Reads all data of a database and verifies its checksums. This module never writes."""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, Final

from millrace.engine.job import Job
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.seq_set import SeqSet
from millrace.store import records
from millrace.store.errors import ChecksumError
from millrace.store.store import Progress, StoreSnapshot

from . import checksums
from .checksums import JOB, TurnSummary
from .error_translation import translate_errors, translate_record_errors
from .small_tables import RowSums

#: Loading reports its progress after this number of jobs.
PROGRESS_INTERVAL: Final = 50_000
#: Below this size of the database, a thread costs more than it saves.
_MIN_THREAD_BYTES: Final = 4 << 20
#: At startup, all payloads of a database up to this size are read. In a larger one, each payload is
#: verified when it is read: a million payloads of 1 KiB take 1.3 s of CPU.
MAX_VERIFIED_BYTES: Final = 64 << 20
_PAYLOAD_TOTALS: Final = """
    SELECT count(*), coalesce(sum(sum), 0), coalesce(sum(seq), 0),
        coalesce(sum(length(payload)), 0)
    FROM payloads
"""


def open_read_only(path: Path, *, no_writer: bool = False) -> sqlite3.Connection:
    """Return a connection that does not change the log when it is closed. Use `no_writer` if
    there is no writer and no log: SQLite then creates no index of the log.
    """
    uri = f"{path.absolute().as_uri()}?{'immutable=1' if no_writer else 'mode=ro'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)


class DatabaseContent:
    """The data that was read, and the state that the store needs to continue writing."""

    def __init__(self, db: sqlite3.Connection, jobs: JobsBySeq | None = None) -> None:
        self._db = db
        self.snapshot = StoreSnapshot(JobsBySeq() if jobs is None else jobs)
        self.turn = 0
        self.summary = TurnSummary()
        #: The position of each queue in the order of their creation.
        self.places: dict[str, int] = {}
        self.row_sums: RowSums = {"queues": {}, "notes": {}, "stats": {}}
        #: The jobs with a row in `payloads`.
        self.stored_payloads = SeqSet()
        #: The jobs that the turns changed, and the size of the turns in bytes.
        self.touched: dict[int, None] = {}
        self.turn_bytes = 0

    def read(self, progress: Progress | None = None) -> None:
        """Read everything except the events before `stats_event`, which Inspection reads."""
        self.read_summary()
        self._read_jobs(progress)
        self._read_states()
        self._replay_turns()
        self._read_payloads()
        self.read_stats()

    def read_jobs(self, seqs: set[int]) -> None:
        """Read only these jobs, without a check for missing jobs."""
        self.read_summary()
        jobs = self.snapshot.jobs
        for seq in seqs:
            for row in self._db.execute("SELECT seq, sum, record FROM jobs WHERE seq = ?", (seq,)):
                jobs[seq] = _job(*row)
            for row in self._db.execute(
                "SELECT seq, sum, record FROM states WHERE seq = ?", (seq,)
            ):
                records.apply_state(jobs[seq], _state(*row))
        self._replay_turns()
        self.snapshot.jobs = JobsBySeq(job for job in jobs.values() if job.seq in seqs)
        self.read_stats()

    def read_summary(self) -> None:
        """Read the summary of the last turn, and the queues and settings."""
        last = "SELECT id, sum, tally, changes FROM turns ORDER BY id DESC LIMIT 1"
        for turn, checksum, packed, blob in self._db.execute(last):
            _check(f"turn {turn}", checksum, checksums.turn_sum(turn, packed, blob))
            self.turn, self.summary = turn, checksums.decode_summary(packed)
        recovered, summary = self.snapshot, self.summary
        recovered.next_seq, recovered.next_event = summary.next_seq, summary.next_event
        recovered.processed, recovered.failures = summary.processed, summary.failures
        rows = self._db.execute("SELECT place, sum, name, paused FROM queues ORDER BY place")
        for place, checksum, name, paused in rows:
            _check(f"queue {name}", checksum, checksums.queue_sum(place, name, paused))
            recovered.queues[name] = bool(paused)
            self.places[name] = place
            self.row_sums["queues"][name] = checksum
        for key, checksum, value in self._db.execute("SELECT key, sum, value FROM notes"):
            _check(f"setting {key}", checksum, checksums.note_sum(key, value))
            recovered.settings[key] = value
            self.row_sums["notes"][key] = checksum

    def _read_jobs(self, progress: Progress | None) -> None:
        total = self._count_jobs() if progress is not None else 0
        jobs, found, read = self.snapshot.jobs, 0, -1
        rows = self._db.execute("SELECT seq, sum, record FROM jobs ORDER BY seq")
        while read < len(jobs):
            read = len(jobs)
            found += records.decode_jobs(islice(rows, PROGRESS_INTERVAL), JOB, jobs)
            if progress is not None and len(jobs) == read + PROGRESS_INTERVAL:
                progress(len(jobs), total)
        if found != self.summary.jobs:
            raise ChecksumError("jobs are missing, or older than the last turn")

    def _read_states(self) -> None:
        found, jobs = 0, self.snapshot.jobs
        for seq, checksum, record in self._db.execute("SELECT seq, sum, record FROM states"):
            row = _state(seq, checksum, record)
            found += checksum
            records.apply_state(jobs[seq], row)
        if found != self.summary.states:
            raise ChecksumError("changes to jobs are missing, or older than the last turn")

    def turns(self) -> Iterator[bytes]:
        """Yield the changes of each turn, in order. The numbers of turns have no gaps."""
        expected = self.summary.first_turn
        rows = self._db.execute("SELECT id, sum, tally, changes FROM turns ORDER BY id")
        for turn, checksum, packed, blob in rows:
            _check(f"turn {turn}", checksum, checksums.turn_sum(turn, packed, blob))
            if turn != expected:
                raise ChecksumError(f"turn {expected} is missing")
            expected += 1
            yield blob

    def _replay_turns(self) -> None:
        for blob in self.turns():
            self.turn_bytes += len(blob)
            records.replay(blob, self.snapshot.jobs, self.touched)

    def _read_payloads(self) -> None:
        """Compare the totals of the table with those of the jobs, and verify the total of the
        checksums. SQLite computes the totals: with a million rows this is three times as fast as
        reading them.
        """
        count, checksum, seqs, sizes = self._db.execute(_PAYLOAD_TOTALS).fetchone()
        if checksum != self.summary.payloads:
            raise ChecksumError("payloads are missing, or older than the last turn")
        self.stored_payloads, *expected = records.stored_payloads(self.snapshot.jobs)
        if [count, seqs, sizes] != expected:
            raise ChecksumError("payloads have no job, or a different size than their job says")

    def read_stats(self) -> None:
        """Read the statistics, and verify the total of the checksums of all small tables."""
        statistics = self.snapshot.statistics
        for queue, day, checksum, record in self._db.execute("SELECT * FROM stats"):
            _check(f"statistics of {queue}", checksum, checksums.day_sum(queue, day, record))
            statistics.days[queue, day] = records.decode_day(record)
            self.row_sums["stats"][queue, day] = checksum
        for events in outbox(self._db, self.summary.stats_event, self.summary.next_event):
            statistics.add_events(records.decode_any(events))
        if sum(sum(rows.values()) for rows in self.row_sums.values()) != self.summary.others:
            raise ChecksumError(
                "queues, settings or statistics are missing, or older than the last turn"
            )

    def _count_jobs(self) -> int:
        """Return the number of rows of `jobs`; 0 if there are too few for a progress report."""
        span = self._db.execute("SELECT max(seq) - min(seq) FROM jobs").fetchone()[0]
        if span is None or span < PROGRESS_INTERVAL:
            return 0
        return int(self._db.execute("SELECT count(*) FROM jobs").fetchone()[0])


def outbox(db: sqlite3.Connection, start: int, end: int) -> Iterator[bytes]:
    """Yield the events from `start` up to, but not including, `end`, one blob per commit."""
    rows = db.execute("SELECT * FROM outbox WHERE first >= ? ORDER BY first", (start,))
    for first, count, version, checksum, events in rows:
        _check(f"event {first}", checksum, checksums.events_sum(first, count, version, events))
        if first != start:
            raise ChecksumError(f"event {start} is missing")
        start += count
        yield events
    if start != end:
        raise ChecksumError(f"event {start} is missing")


def check_payloads(db: sqlite3.Connection) -> int:
    """Check that all payloads match their checksums. Return the total of the checksums."""
    total = 0
    for seq, checksum, payload in db.execute("SELECT seq, sum, payload FROM payloads"):
        _check(f"the payload of job {seq}", checksum, checksums.payload_sum(seq, payload))
        total += checksum
    return total


def check_outbox(db: sqlite3.Connection, summary: TurnSummary) -> None:
    """Check that all unshipped events exist and match their checksums."""
    for _ in outbox(db, summary.first_event, summary.next_event):
        pass


def _check(what: str, checksum: object, expected: int) -> None:
    if checksum != expected:
        raise ChecksumError(f"{what} does not match its checksum")


def _job(seq: int, checksum: int, record: bytes) -> Job:
    _check(f"job {seq}", checksum, checksums.job_sum(seq, record))
    return records.decode_job(record)


def _state(seq: int, checksum: int, record: bytes) -> list[Any]:
    _check(f"the change to job {seq}", checksum, checksums.state_sum(seq, record))
    row: list[Any] = records.decode_any(record)
    return row


class Inspection:
    """Checks the data that DatabaseContent does not read: the structure of the SQLite file, the
    whole outbox, and the payloads of a small database. For example, a free list that contains used
    pages causes damage only later. The inspection has its own connection, and its own thread if
    the database is large.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, *, max_problems: int = 1) -> None:
        self._db = db
        self._path = path
        self._max_problems = max_problems
        self._error: BaseException | None = None
        self.problems: list[str] = []
        size = path.stat().st_size
        self._reads_payloads = size <= MAX_VERIFIED_BYTES
        self._thread: Thread | None = None
        if size > _MIN_THREAD_BYTES:
            self._thread = Thread(target=self._run, name="inspection", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for the end of the inspection, and raise an error if it found a problem."""
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        with translate_errors(self._path), translate_record_errors(self._path):
            if self._error is not None:
                raise self._error
            if self.problems:
                raise ChecksumError(self.problems[0])

    def stop(self) -> None:
        """Cancel the inspection."""
        if self._thread is not None:
            self._db.interrupt()
            self._thread.join()

    def _run(self) -> None:
        try:
            self.problems = structure_problems(self._db, self._max_problems)
            if not self.problems:
                if self._reads_payloads:
                    check_payloads(self._db)
                self._check_outbox()
        except BaseException as error:
            self._error = error

    def _check_outbox(self) -> None:
        last = "SELECT tally FROM turns ORDER BY id DESC LIMIT 1"
        summary = TurnSummary()
        for (packed,) in self._db.execute(last):
            summary = checksums.decode_summary(packed)
        check_outbox(self._db, summary)


def structure_problems(db: sqlite3.Connection, max_problems: int = 1) -> list[str]:
    """Return up to `max_problems` problems that SQLite finds in the structure of a database."""
    found: Iterable[tuple[str]] = db.execute(f"PRAGMA integrity_check({max_problems})")
    return [text.replace("*** in database main ***\n", "") for (text,) in found if text != "ok"]
