"""Examines a data folder without changing it: its integrity and its content."""

import contextlib
import fcntl
import gc
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from millrace.engine import consistency
from millrace.engine.dependencies import blockers_of
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.restoration import sort_for_restore
from millrace.engine.states import DONE, READY, STATE_NAMES
from millrace.protocols.spec import protocol_rules
from millrace.store import records
from millrace.store.errors import ChecksumError, StoreDamaged, StoreError
from millrace.store.store import CheckReport, OutboxRange, Progress, StoreSnapshot

from .chunked_jobs import ChunkedJobs, RecentChanges
from .commit_marker import MARKER_FILE_NAME, read_commit_marker
from .connection import check_header, check_turn, has_database, was_creation_interrupted
from .error_translation import translate_errors, translate_record_errors
from .folder import DATABASE, LOCK, owner
from .outbox_reader import SqliteOutboxReader
from .reader import (
    DatabaseContent,
    check_outbox,
    check_payloads,
    open_read_only,
    structure_problems,
)
from .schema import SCHEMA, check_schema
from .wal import log_of

#: The maximum number of reported problems.
MAX_REPORTED: Final = 20
#: The errors of SQLite when it cannot create the index of the log.
_NO_INDEX: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
)


def check_folder(folder: Path, progress: Progress | None = None) -> CheckReport:
    """Examine a data folder. If a server uses it, the server continues, and the findings describe
    a consistent snapshot.
    """
    findings = CheckReport(str(folder))
    with translate_errors(folder):
        if not folder.is_dir():
            raise StoreError(f"there is no data folder {folder}")
        with prevent_server_start(folder, findings), remove_new_log_index(folder, findings):
            examine_folder(folder, findings, progress)
    return findings


def outbox_range(folder: Path) -> OutboxRange:
    findings = CheckReport(str(folder))
    with prevent_server_start(folder, findings), remove_new_log_index(folder, findings):
        return SqliteOutboxReader(folder).range()


def read_snapshot(folder: Path, progress: Progress | None = None) -> StoreSnapshot:
    path, findings = folder / DATABASE, CheckReport(str(folder))
    with (
        translate_errors(path),
        translate_record_errors(path),
        prevent_server_start(folder, findings),
        remove_new_log_index(folder, findings),
        open_snapshot(folder, server_running=bool(findings.server)) as db,
    ):
        version = check_schema(db, path)
        if version != SCHEMA:
            raise StoreError(
                f"{path} has format {version}: start a server of this version on it once, which "
                f"migrates it to format {SCHEMA}"
            )
        content = DatabaseContent(db)
        content.read(progress)
    return content.snapshot


def examine_folder(folder: Path, findings: CheckReport, progress: Progress | None = None) -> None:
    """Examine a folder, even while a server uses it."""
    path = folder / DATABASE
    findings.bytes = sum(file.stat().st_size for file in folder.glob(DATABASE + "*"))
    try:
        with translate_errors(path), translate_record_errors(path):
            marked_turn = read_commit_marker(folder)
            if not has_database(path, folder / MARKER_FILE_NAME, marked_turn):
                raise StoreError(f"the data folder {folder} has no database")
            if was_creation_interrupted(path):
                raise StoreError(
                    f"{path} is incomplete, because its server ended while creating the file. "
                    "Start a server on the folder again"
                )
            check_header(path)
            with open_snapshot(folder, server_running=bool(findings.server)) as db:
                findings.format = check_schema(db, path)
                if findings.format == 0:
                    check_turn(folder, path, 0, marked_turn)
                if findings.format == SCHEMA:
                    _check_content(db, folder, marked_turn, findings, progress)
                _check_structure(db, path, findings)
    except StoreDamaged as damage:
        findings.problems.append(str(damage))


@contextlib.contextmanager
def open_snapshot(folder: Path, *, server_running: bool) -> Iterator[sqlite3.Connection]:
    """Open a connection with a consistent snapshot of the database."""
    path = folder / DATABASE
    log = log_of(path)
    no_writer = not server_running and not (log.exists() and log.stat().st_size)
    db = open_read_only(path, no_writer=no_writer)
    try:
        try:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            if no_writer or error.sqlite_errorcode & 0xFF not in _NO_INDEX:
                raise
            raise StoreError(
                f"cannot read {log}: SQLite needs to write an index next to it "
                f"({error.sqlite_errorname}). Free disk space, allow writing, or copy the folder "
                "to a disk with free space"
            ) from error
        yield db
    finally:
        db.close()


def _check_content(
    db: sqlite3.Connection,
    folder: Path,
    marked_turn: int,
    findings: CheckReport,
    progress: Progress | None,
) -> None:
    path = folder / DATABASE
    content = DatabaseContent(db)
    try:
        with translate_record_errors(path):
            content.read_summary()
            summary, queues = content.summary, content.snapshot.queues
            jobs = ChunkedJobs(db, summary, RecentChanges(content.turns()))
            states: Counter[str] = Counter()
            for chunk in jobs.chunks(progress):
                states.update(STATE_NAMES[job.state] for job in chunk)
                _check_chunk(chunk, jobs, summary.next_seq, path, findings)
            content.read_stats()
            if check_payloads(db) != summary.payloads:
                raise ChecksumError("payloads are missing, or older than the last turn")
            check_outbox(db, summary)
            findings.summed = True
            findings.turn = content.turn
            findings.events = summary.next_event - summary.first_event
            findings.jobs = {name: states[name] for name in STATE_NAMES if states[name]}
            findings.queues, findings.paused = len(queues), sum(queues.values())
        check_turn(folder, path, content.turn, marked_turn)
    except StoreDamaged as damage:
        findings.problems.append(str(damage))


def _check_chunk(
    chunk: list[Job], jobs: ChunkedJobs, next_seq: int, path: Path, findings: CheckReport
) -> None:
    """Check that a server can index these jobs: an engine indexes them and checks itself."""
    engine = Engine(Random(0), protocol_rules())
    engine.restore(sort_for_restore([*chunk, *_blockers(chunk, jobs)]), {})
    engine.next_seq = next_seq
    room = MAX_REPORTED - len(findings.problems)
    for problem in consistency.check_engine(engine).problems[:room]:
        what = f"job {problem.jid}" if problem.jid else f"queue {problem.queue}"
        findings.problems.append(f"{path}: {what}: {problem.what}: {problem.detail}")
    del engine  # its components refer to each other
    gc.collect()


def _blockers(chunk: list[Job], jobs: ChunkedJobs) -> Iterator[Job]:
    """The jobs of other chunks for which jobs of this chunk wait. They are checked with their own
    chunk, so this check needs only their ids, their queues, and whether they are done.
    """
    seqs = {seq for job in chunk for seq in blockers_of(job)} - {job.seq for job in chunk}
    for seq in seqs:
        found = jobs.find(seq)
        if found is not None:
            row = list(records.job_row(found))
            row[records.PAYLOAD_INDEX], row[records.FAILURE_INDEX], row[records.EXTRA_INDEX] = (
                b"",
                None,
                None,
            )
            if found.state != DONE:
                row[records.STATE_INDEX] = READY
            yield records.job_from_row(row)


def _check_structure(db: sqlite3.Connection, path: Path, findings: CheckReport) -> None:
    for problem in structure_problems(db, MAX_REPORTED):
        findings.problems.append(f"{path}: {problem}")


@contextlib.contextmanager
def prevent_server_start(folder: Path, findings: CheckReport) -> Iterator[None]:
    """Prevent a server from starting on the folder. If one is running, record its process id."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            findings.server = owner(fd)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def remove_new_log_index(folder: Path, findings: CheckReport) -> Iterator[None]:
    """Remove the index that SQLite created to read the log."""
    before = set(folder.iterdir())
    try:
        yield
    finally:
        if not findings.server:
            for path in folder.glob(DATABASE + "-*"):
                if path not in before:
                    path.unlink()
