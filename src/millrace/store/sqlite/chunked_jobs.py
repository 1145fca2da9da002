"""Reads all jobs of a database in chunks, for a check that needs little memory.

The rows of `jobs` and `states` are read together, in the order of their seqs. The turns change jobs
at any position of this order, so their last changes are collected first: turns are deleted when
their jobs are in the tables, so there are few of them.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from millrace.engine.job import Job
from millrace.store import records
from millrace.store.errors import ChecksumError
from millrace.store.store import Progress

from . import checksums
from .checksums import TurnSummary

#: A chunk ends at this number of jobs, or of bytes of their rows.
CHUNK_JOBS: Final = 10_000
CHUNK_BYTES: Final = 8 << 20

_ROW: Final = """
    SELECT jobs.seq, jobs.sum, jobs.record, states.sum, states.record
    FROM jobs LEFT JOIN states ON states.seq = jobs.seq
"""


class RecentChanges:
    """The last changes to jobs that the turns contain."""

    def __init__(self, turns: Iterable[bytes]) -> None:
        self.new: dict[int, Job] = {}
        self._states: dict[int, list[Any]] = {}
        self._gone: set[int] = set()
        for blob in turns:
            self._add(blob)

    def _add(self, blob: bytes) -> None:
        new, changed, gone = records.decode_any(blob)
        for row in new:
            job = records.job_from_row(row)
            self.new[job.seq] = job
            self._states.pop(job.seq, None)
        for row in changed:
            known = self.new.get(row[0])
            if known is None:
                self._states[row[0]] = row
            else:
                records.apply_state(known, row)
        for seq in gone:
            self.new.pop(seq, None)
            self._states.pop(seq, None)
            self._gone.add(seq)

    def apply_to(self, job: Job) -> Job | None:
        """A job from the tables with its changes from the turns; None if a turn removed or replaced
        it.
        """
        if job.seq in self.new or job.seq in self._gone:
            return None
        state = self._states.get(job.seq)
        if state is not None:
            records.apply_state(job, list(state))
        return job


class ChunkedJobs:
    """All jobs of a database. Iterate over `chunks` once, which verifies the checksums."""

    def __init__(self, db: sqlite3.Connection, summary: TurnSummary, recent: RecentChanges) -> None:
        self._db = db
        self._summary = summary
        self._recent = recent
        self._stored_payloads = 0

    def chunks(self, progress: Progress | None = None) -> Iterator[list[Job]]:
        total = self._count("jobs") if progress is not None else 0
        jobs_sum = states_sum = size = 0
        chunk: list[Job] = []
        for read, row in enumerate(self._db.execute(_ROW + "ORDER BY jobs.seq"), 1):
            jobs_sum += row[1]
            states_sum += row[3] or 0
            job = self._recent.apply_to(_job(*row))
            if job is not None:
                chunk.append(job)
                size += len(row[2])
            if len(chunk) >= CHUNK_JOBS or size >= CHUNK_BYTES:
                yield self._checked(chunk)
                chunk, size = [], 0
                if progress is not None:
                    progress(read, total)
        if jobs_sum != self._summary.jobs:
            raise ChecksumError("jobs are missing, or older than the last turn")
        if states_sum != self._summary.states:
            raise ChecksumError("changes to jobs are missing, or older than the last turn")
        yield self._checked(chunk)
        new = iter(self._recent.new.values())
        while chunk := list(islice(new, CHUNK_JOBS)):
            yield self._checked(chunk)
        if self._count("payloads") != self._stored_payloads:
            raise ChecksumError("there are payloads without a job")

    def find(self, seq: int) -> Job | None:
        """The job with this seq."""
        if seq in self._recent.new:
            return self._recent.new[seq]
        for row in self._db.execute(_ROW + "WHERE jobs.seq = ?", (seq,)):
            return self._recent.apply_to(_job(*row))
        return None

    def _checked(self, chunk: list[Job]) -> list[Job]:
        """The same jobs, after a comparison of their payload sizes with the table `payloads`."""
        for job in chunk:
            if job.stored_size:
                self._stored_payloads += 1
                query = "SELECT length(payload) FROM payloads WHERE seq = ?"
                if self._db.execute(query, (job.seq,)).fetchone() != (job.stored_size,):
                    raise ChecksumError(f"the payload of job {job.seq} has the wrong size")
        return chunk

    def _count(self, table: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608


def _job(seq: int, job_sum: int, record: bytes, state_sum: int | None, state: bytes | None) -> Job:
    if checksums.job_sum(seq, record) != job_sum:
        raise ChecksumError(f"job {seq} does not match its checksum")
    job = records.decode_job(record)
    if state is not None:
        if checksums.state_sum(seq, state) != state_sum:
            raise ChecksumError(f"the change to job {seq} does not match its checksum")
        records.apply_state(job, records.decode_any(state))
    return job
