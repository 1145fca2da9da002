"""Examines a data folder without changing it: its integrity and its content."""

import contextlib
import fcntl
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from millrace.engine import consistency
from millrace.engine.engine import Engine
from millrace.engine.states import STATE_NAMES
from millrace.engine.transitions import in_order

from .errors import StoreDamaged, StoreError, readable, translated
from .folder import DATABASE, LOCK, owner
from .mark import NAME, read_mark
from .opening import check_header, check_turn, has_database, was_in_the_making
from .reading import Content, check_outbox, open_read_only, structure
from .recovered import Progress, Recovered
from .schema import SCHEMA, check_schema
from .wal import log_of

#: The maximum number of reported problems.
MAX_REPORTED: Final = 20
#: The SQLite errors if the index of the log cannot be created.
_NO_INDEX: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
)


class Findings(msgspec.Struct):
    """The content of a data folder, and its problems."""

    folder: str
    #: The process that serves the folder; empty if there is none.
    server: str = ""
    format: int = 0
    turn: int = 0
    jobs: dict[str, int] = {}
    queues: int = 0
    paused: int = 0
    #: Events that are not shipped yet.
    events: int = 0
    bytes: int = 0
    #: Whether all checksums were verified; older formats have none.
    summed: bool = False
    problems: list[str] = []


def examine(folder: Path, progress: Progress | None = None) -> Findings:
    """Examine a data folder. If a server uses it, the server continues, and the findings describe
    the state between two commits.
    """
    findings = Findings(str(folder))
    with translated(folder):
        if not folder.is_dir():
            raise StoreError(f"there is no data folder {folder}")
        with held(folder, findings), traceless(folder, findings):
            look(folder, findings, progress)
    return findings


def look(folder: Path, findings: Findings, progress: Progress | None = None) -> None:
    """Examine a folder, also while a server uses it."""
    path = folder / DATABASE
    findings.bytes = sum(file.stat().st_size for file in folder.glob(DATABASE + "*"))
    try:
        with translated(path), readable(path):
            marked = read_mark(folder)
            if not has_database(path, folder / NAME, marked):
                raise StoreError(f"there is nothing in the data folder {folder}")
            if was_in_the_making(path):
                raise StoreError(f"{path} was not yet made when its server died: start one again")
            check_header(path)
            with reader(folder, served=bool(findings.server)) as db:
                findings.format = check_schema(db, path)
                if findings.format == 0:
                    check_turn(folder, path, 0, marked)
                if findings.format == SCHEMA:
                    _read(db, folder, marked, findings, progress)
                _check_structure(db, path, findings)
    except StoreDamaged as damage:
        findings.problems.append(str(damage))


@contextlib.contextmanager
def reader(folder: Path, *, served: bool) -> Iterator[sqlite3.Connection]:
    """Open a connection with a consistent snapshot of the database."""
    path = folder / DATABASE
    log = log_of(path)
    alone = not served and not (log.exists() and log.stat().st_size)
    db = open_read_only(path, alone=alone)
    try:
        try:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            if alone or error.sqlite_errorcode & 0xFF not in _NO_INDEX:
                raise
            raise StoreError(
                f"cannot read {log}: that takes an index, written beside it "
                f"({error.sqlite_errorname}). Make room there, allow writing, or copy the folder "
                "to where both is so"
            ) from error
        yield db
    finally:
        db.close()


def _read(
    db: sqlite3.Connection,
    folder: Path,
    marked: int,
    findings: Findings,
    progress: Progress | None,
) -> None:
    path = folder / DATABASE
    content = Content(db)
    try:
        with readable(path):
            content.read(progress)
            tally = content.tally
            check_outbox(db, tally)
            findings.summed = True
            findings.turn = content.turn
            findings.events = tally.next_event - tally.first_event
            _read_engine(content.recovered, path, findings)
        check_turn(folder, path, content.turn, marked)
    except StoreDamaged as damage:
        findings.problems.append(str(damage))


def _read_engine(recovered: Recovered, path: Path, findings: Findings) -> None:
    findings.queues, findings.paused = len(recovered.queues), sum(recovered.queues.values())
    states = Counter(STATE_NAMES[job.state] for job in recovered.jobs.values())
    findings.jobs = {name: states[name] for name in STATE_NAMES if states[name]}
    engine = Engine(Random(0))
    engine.restore(in_order(recovered.jobs.values()), recovered.queues)
    engine.next_seq = recovered.next_seq
    for problem in consistency.check(engine).problems[:MAX_REPORTED]:
        what = f"job {problem.jid}" if problem.jid else f"queue {problem.queue}"
        findings.problems.append(f"{path}: {what}: {problem.what}: {problem.detail}")


def _check_structure(db: sqlite3.Connection, path: Path, findings: Findings) -> None:
    for problem in structure(db, MAX_REPORTED):
        findings.problems.append(f"{path}: {problem}")


@contextlib.contextmanager
def held(folder: Path, findings: Findings) -> Iterator[None]:
    """Prevent a server from starting. If one is running, record its process id."""
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
def traceless(folder: Path, findings: Findings) -> Iterator[None]:
    """Remove the index that SQLite created to read the log."""
    before = set(folder.iterdir())
    try:
        yield
    finally:
        if not findings.server:
            for path in folder.glob(DATABASE + "-*"):
                if path not in before:
                    path.unlink()
