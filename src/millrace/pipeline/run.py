"""A complete run: ingests new events, refreshes the affected tables and checks them.

The run first determines without Spark whether there is any work, because Spark takes ten seconds
to start.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from . import commit, quality
from .lake import Lake
from .ledger import Ledger
from .progress import Progress, silent
from .quality import Check
from .refreshed import mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .ingest import Taken


class Ran(NamedTuple):
    """The result of a run. `taken` is None if there was no work."""

    taken: "Taken | None"
    checks: list[Check]
    seconds: float

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.failed]


class Outstanding(NamedTuple):
    """The work that a run has to do."""

    #: Number of events in files that are in no batch, according to the file names.
    events: int
    files: int
    #: Whether a run was interrupted, or tables are older than the events.
    unfinished: bool

    def __bool__(self) -> bool:
        return bool(self.files) or self.unfinished


def outstanding(lake: Lake) -> Outstanding:
    """Return the work that a run would do. This does not need Spark."""
    ledger = Ledger(lake)
    waiting = ledger.waiting()
    events = sum(each.events for each in waiting)
    unfinished = (
        ledger.interrupted() is not None
        or mark(lake).batch < ledger.last
        or not quality.is_checked(lake, ledger)
    )
    return Outstanding(events, len(waiting), unfinished)


def run(
    lake: Lake,
    session: "Callable[[Outstanding], SparkSession]",
    progress: Progress = silent,
) -> Ran:
    """Do the outstanding work; `session` is called only if there is any."""
    began = time.monotonic()
    with commit.locked(lake):
        todo = outstanding(lake)
        if not todo:
            return Ran(None, [], time.monotonic() - began)
        from .ingest import ingest  # noqa: PLC0415 - these modules load Spark
        from .refresh import refresh  # noqa: PLC0415

        spark = session(todo)
        taken = ingest(spark, lake, progress)
        refresh(spark, lake, progress)
        progress("check", 0, 0)
        checks = quality.check(lake)
        return Ran(taken, checks, time.monotonic() - began)
