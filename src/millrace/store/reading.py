"""Reads all data of a database and verifies its checksums. This module never writes."""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Final
from zlib import crc32

import msgspec

from millrace.engine.job import Job, apply
from millrace.engine.stats import QueueDay

from . import changes, sums
from .errors import Mismatch, readable, translated
from .recovered import Progress, Recovered
from .sums import JOB, WORD, Tally

#: For each small table, the checksums of its rows by key.
RowSums = dict[str, dict[object, int]]

#: Below this size of the database, a thread costs more than it saves.
_SMALL: Final = 4 << 20

_decode_day = msgspec.msgpack.Decoder(QueueDay).decode


def open_read_only(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Return a connection that does not change the log when it is closed. Use `alone` if there is
    no writer and no log: SQLite then creates no index of the log.
    """
    uri = f"{path.absolute().as_uri()}?{'immutable=1' if alone else 'mode=ro'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)


class Content:
    """The data that was read, and the state that the store needs to continue writing."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.recovered = Recovered()
        self.turn = 0
        self.tally = Tally()
        #: The place of each queue.
        self.places: dict[str, int] = {}
        self.row_sums: RowSums = {"queues": {}, "notes": {}, "stats": {}}
        #: The jobs that the turns changed, and the size of the turns in bytes.
        self.touched: dict[int, None] = {}
        self.turn_bytes = 0

    def read(self, progress: Progress | None = None) -> None:
        """Read everything except the events before `stats_event`, which Inspection reads."""
        self.read_numbers()
        self._read_jobs(progress)
        self._read_states()
        self._read_turns()
        self._read_stats()
        if sum(sum(rows.values()) for rows in self.row_sums.values()) != self.tally.others:
            raise Mismatch("queues, notes or statistics are missing, or older than the last turn")

    def read_some(self, seqs: set[int]) -> None:
        """Read only these jobs, without a check for missing jobs."""
        self.read_numbers()
        jobs = self.recovered.jobs
        for seq in seqs:
            for row in self._db.execute("SELECT seq, sum, record FROM jobs WHERE seq = ?", (seq,)):
                jobs[seq] = _job(*row)
            for row in self._db.execute(
                "SELECT seq, sum, record FROM states WHERE seq = ?", (seq,)
            ):
                apply(jobs[seq], _state(*row))
        self._read_turns()
        self.recovered.jobs = {seq: job for seq, job in jobs.items() if seq in seqs}
        self._read_stats()

    def read_numbers(self) -> None:
        """Read the tally of the last turn, and the queues and notes."""
        last = "SELECT id, sum, tally, changes FROM turns ORDER BY id DESC LIMIT 1"
        for turn, summed, tally, blob in self._db.execute(last):
            _check(f"turn {turn}", summed, sums.turn_sum(turn, tally, blob))
            self.turn, self.tally = turn, sums.decode_tally(tally)
        recovered, tally = self.recovered, self.tally
        recovered.next_seq = tally.next_seq
        recovered.processed, recovered.failures = tally.processed, tally.failures
        rows = self._db.execute("SELECT place, sum, name, paused FROM queues ORDER BY place")
        for place, summed, name, paused in rows:
            _check(f"queue {name}", summed, sums.queue_sum(place, name, paused))
            recovered.queues[name] = bool(paused)
            self.places[name] = place
            self.row_sums["queues"][name] = summed
        for key, summed, value in self._db.execute("SELECT key, sum, value FROM notes"):
            _check(f"note {key}", summed, sums.note_sum(key, value))
            recovered.notes[key] = value
            self.row_sums["notes"][key] = summed

    def _read_jobs(self, progress: Progress | None) -> None:
        total = self._count_jobs() if progress is not None else 0
        every, jobs, found = 50_000, self.recovered.jobs, 0
        decode = changes.decode_job
        # The same as _job, without two function calls per row.
        for seq, summed, record in self._db.execute("SELECT seq, sum, record FROM jobs"):
            if crc32(record, seq & WORD ^ JOB) != summed:
                raise Mismatch(f"job {seq} is not as it was written")
            found += summed
            jobs[seq] = decode(record)
            if progress is not None and len(jobs) % every == 0:
                progress(len(jobs), total)
        if found != self.tally.jobs:
            raise Mismatch("jobs are missing, or older than the last turn")

    def _read_states(self) -> None:
        found, jobs = 0, self.recovered.jobs
        for seq, summed, record in self._db.execute("SELECT seq, sum, record FROM states"):
            half = _state(seq, summed, record)
            found += summed
            apply(jobs[seq], half)
        if found != self.tally.states:
            raise Mismatch("changes of jobs are missing, or older than the last turn")

    def _read_turns(self) -> None:
        """Replay the turns. Their numbers have no gaps."""
        expected = self.tally.first_turn
        rows = self._db.execute("SELECT id, sum, tally, changes FROM turns ORDER BY id")
        for turn, summed, tally, blob in rows:
            _check(f"turn {turn}", summed, sums.turn_sum(turn, tally, blob))
            if turn != expected:
                raise Mismatch(f"turn {expected} is missing")
            expected += 1
            self.turn_bytes += len(blob)
            changes.replay(blob, self.recovered.jobs, self.touched)

    def _read_stats(self) -> None:
        statistics = self.recovered.statistics
        for queue, day, summed, record in self._db.execute("SELECT * FROM stats"):
            _check(f"statistics of {queue}", summed, sums.day_sum(queue, day, record))
            statistics.days[queue, day] = _decode_day(record)
            self.row_sums["stats"][queue, day] = summed
        for events in outbox(self._db, self.tally.stats_event, self.tally.next_event):
            statistics.fold(changes.decode_any(events))

    def _count_jobs(self) -> int:
        """Return the number of rows of `jobs`; 0 if there are too few for a progress report."""
        span = self._db.execute("SELECT max(seq) - min(seq) FROM jobs").fetchone()[0]
        if span is None or span < 50_000:
            return 0
        return int(self._db.execute("SELECT count(*) FROM jobs").fetchone()[0])


def outbox(db: sqlite3.Connection, start: int, end: int) -> Iterator[bytes]:
    """Yield the events from `start` to before `end`, one blob per commit."""
    rows = db.execute("SELECT * FROM outbox WHERE first >= ? ORDER BY first", (start,))
    for first, count, version, summed, events in rows:
        _check(f"event {first}", summed, sums.events_sum(first, count, version, events))
        if first != start:
            raise Mismatch(f"event {start} is missing")
        start += count
        yield events
    if start != end:
        raise Mismatch(f"event {start} is missing")


def check_outbox(db: sqlite3.Connection, tally: Tally) -> None:
    """Check that all unshipped events exist and match their checksums."""
    for _ in outbox(db, tally.first_event, tally.next_event):
        pass


def _check(what: str, summed: object, expected: int) -> None:
    if summed != expected:
        raise Mismatch(f"{what} is not as it was written")


def _job(seq: int, summed: int, record: bytes) -> Job:
    _check(f"job {seq}", summed, sums.job_sum(seq, record))
    return changes.decode_job(record)


def _state(seq: int, summed: int, record: bytes) -> tuple[object, ...]:
    _check(f"the change of job {seq}", summed, sums.state_sum(seq, record))
    half: tuple[object, ...] = changes.decode_any(record)
    return half


class Inspection:
    """Checks the data that Content does not read: the structure of the SQLite file and the whole
    outbox. For example, a free list that contains used pages causes damage only later. The
    inspection has its own connection, and its own thread if the database is large.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, *, most: int = 1) -> None:
        self._db = db
        self._path = path
        self._most = most
        self._error: BaseException | None = None
        self.problems: list[str] = []
        self._thread: Thread | None = None
        if path.stat().st_size > _SMALL:
            self._thread = Thread(target=self._run, name="inspection", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for the end of the inspection, and raise an error if it found a problem."""
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        with translated(self._path), readable(self._path):
            if self._error is not None:
                raise self._error
            if self.problems:
                raise Mismatch(self.problems[0])

    def stop(self) -> None:
        """Cancel the inspection."""
        if self._thread is not None:
            self._db.interrupt()
            self._thread.join()

    def _run(self) -> None:
        try:
            self.problems = structure(self._db, self._most)
            if not self.problems:
                self._check_outbox()
        except BaseException as error:
            self._error = error

    def _check_outbox(self) -> None:
        last = "SELECT tally FROM turns ORDER BY id DESC LIMIT 1"
        tally = Tally()
        for (packed,) in self._db.execute(last):
            tally = sums.decode_tally(packed)
        check_outbox(self._db, tally)


def structure(db: sqlite3.Connection, most: int = 1) -> list[str]:
    """Return up to `most` problems that SQLite finds in the structure of a database."""
    found: Iterable[tuple[str]] = db.execute(f"PRAGMA integrity_check({most})")
    return [text.replace("*** in database main ***\n", "") for (text,) in found if text != "ok"]
