"""Stores that fail when told to, as a full disk would make them."""

import sqlite3
from typing import Any, Literal

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.store import MemoryStore, SqliteStore, StoreFailing


class FailingMemoryStore(MemoryStore):
    fail: Literal["", "begin", "commit"] = ""

    def begin(self, batch: Batch, engine: Engine) -> None:
        if self.fail == "begin":
            raise StoreFailing("disk full")
        super().begin(batch, engine)

    def commit(self) -> None:
        if self.fail == "commit":
            self._begun = None
            raise StoreFailing("disk full")
        super().commit()


class FailingSqliteStore(SqliteStore):
    """Fails in the middle of a batch, or at its commit. Folds `fold_most` jobs at a time."""

    fail: Literal["", "begin", "commit"] = ""
    fold_most = 1 << 30

    def _age(self, batch: Batch, size: int) -> None:
        super()._age(batch, size)
        if self.fail == "begin":
            raise disk_full()

    def _fold(self, engine: Engine, most: int, *more: Any) -> None:
        super()._fold(engine, min(most, self.fold_most), *more)

    def _start_generation(self, touched: dict[int, None]) -> None:
        super()._start_generation(touched)
        self._no_fold_until = 0  # a test need not wait for a hundred turns

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
