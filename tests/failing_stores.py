"""Stores that fail when told to, as a full disk would make them."""

import sqlite3
from typing import Literal

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
    """Fails after the last statement of a batch, or at its commit. Folds `fold_most` at a time."""

    fail: Literal["", "begin", "commit"] = ""
    fold_most = 1 << 30

    def _fold(self, engine: Engine, most: int) -> None:
        super()._fold(engine, min(most, self.fold_most))
        if self.fail == "begin":
            raise disk_full()

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
