"""Stores that fail on request, like a full disk."""

import sqlite3
from typing import Any, Literal

from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.store import MemoryStore, SqliteStore, StoreWriteFailed
from millrace.store.sqlite.generations import Generations
from millrace.store.store import StoreState


class FailingMemoryStore(MemoryStore):
    fail: Literal["", "begin", "commit"] = ""

    def prepare(self, change_set: ChangeSet, engine: Engine) -> None:
        if self.fail == "begin":
            raise StoreWriteFailed("disk full")
        super().prepare(change_set, engine)

    def commit(self) -> None:
        if self.fail == "commit":
            self._prepared = None
            raise StoreWriteFailed("disk full")
        super().commit()


class FailingGenerations(Generations):
    """Fails in the middle of a change set. Writes back `max_write_back` jobs at a time."""

    fails = False
    max_write_back = 1 << 30

    def add_turn(self, change_set: ChangeSet, turn: int, size: int) -> None:
        super().add_turn(change_set, turn, size)
        if self.fails:
            raise disk_full()

    def _write_back_jobs(self, older: Any, state: Any, max_jobs: int, max_bytes: int) -> bool:
        return super()._write_back_jobs(older, state, min(max_jobs, self.max_write_back), max_bytes)

    def restart(self, *args: Any) -> None:
        super().restart(*args)
        self._no_write_back_until = 0  # a test need not wait for a hundred turns


class FailingSqliteStore(SqliteStore):
    """Fails in the middle of a change set, or at its commit. Writes back `max_write_back` jobs at a time."""

    fail: Literal["", "begin", "commit"] = ""
    max_write_back = 1 << 30

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._generations: FailingGenerations = FailingGenerations(
            self._db, self._summary, self._payloads
        )

    def prepare(self, change_set: ChangeSet, state: StoreState) -> None:
        self._generations.fails = self.fail == "begin"
        self._generations.max_write_back = self.max_write_back
        super().prepare(change_set, state)

    def commit(self) -> None:
        if self.fail != "commit":
            super().commit()
            return
        with self._undoing():
            raise disk_full()


def disk_full() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    error.sqlite_errorname = "SQLITE_FULL"
    return error
