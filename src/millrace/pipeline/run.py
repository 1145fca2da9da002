"""A whole run: take in what is new, refresh the tables that it affects, check them.

Whether there is anything to do is found out without Spark, which takes ten seconds to start.
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
    """What a run did. Nothing, if there was nothing new."""

    taken: "Taken | None"
    checks: list[Check]
    seconds: float

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.failed]


class Outstanding(NamedTuple):
    """What there is to do."""

    #: Events that no batch has, as the files' names say.
    events: int
    files: int
    #: A run was interrupted, or tables are older than the events.
    unfinished: bool

    def __bool__(self) -> bool:
        return bool(self.files) or self.unfinished


def outstanding(lake: Lake) -> Outstanding:
    """What a run would do; answered without Spark."""
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
    """Do what is outstanding; the session is asked for only then."""
    began = time.monotonic()
    with commit.locked(lake):
        todo = outstanding(lake)
        if not todo:
            return Ran(None, [], time.monotonic() - began)
        from .ingest import ingest  # noqa: PLC0415 - they load Spark
        from .refresh import refresh  # noqa: PLC0415

        spark = session(todo)
        taken = ingest(spark, lake, progress)
        refresh(spark, lake, progress)
        progress("check", 0, 0)
        checks = quality.check(lake)
        return Ran(taken, checks, time.monotonic() - began)
