"""Reports on the pipeline's tables, built in a thread and cached until the tables change.

The tables change only when the pipeline runs; it then rewrites ops/refreshed.json. The cache key
includes the modification time of this file.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from markupsafe import Markup
from msgspec import structs

from millrace.extras import EXTRAS, install_command
from millrace.pipeline import refreshed
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake

if TYPE_CHECKING:
    from millrace.pipeline.report.model import Report

T = TypeVar("T")

#: Maximum number of cached reports, and of reports in preparation.
KEPT: Final = 8
MOST_DAYS: Final = 366


class Unable(Exception):
    """There is no report; the text says why, and what to do."""


class Choice(NamedTuple):
    """The days and the queue of a report. None selects the most recent days, or all queues."""

    first: date | None = None
    last: date | None = None
    #: Number of days, if `first` is None.
    days: int = 7
    queue: str | None = None


class Made(NamedTuple):
    report: "Report"
    #: The report's sections and figures as HTML.
    parts: Markup
    numbers: Markup


class Analytics:
    """Builds one report at a time, because a report can require much memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, Choice], Made] = OrderedDict()
        self._turn = asyncio.Lock()
        #: Reports in preparation, and finished reports until a request fetches them.
        self._begun: OrderedDict[tuple[str, Choice], asyncio.Task[Made]] = OrderedDict()

    async def made(self, lake: str, choice: Choice, patience: float | None = None) -> Made | None:
        """Return the report, or None if it takes more than `patience` seconds. The build continues,
        and a later call returns the report.
        """
        if not lake:
            raise Unable(
                "This server stores no data on disk (server.durability = memory), so it has no "
                "history."
            )
        key = (lake, choice)
        task = self._begun.get(key)
        if task is None:
            task = self._begun[key] = asyncio.create_task(self._make(lake, choice))
            task.add_done_callback(_seen)
            while len(self._begun) > KEPT:
                self._begun.popitem(last=False)[1].cancel()
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            return None
        if self._begun.get(key) is task:
            del self._begun[key]
        if task.cancelled():
            raise Unable("Too many reports are being prepared. Try again later.")
        return task.result()

    async def page(self, report: "Report") -> str:
        """Return the report as a standalone HTML page."""
        from millrace.pipeline.report.page import render  # noqa: PLC0415 - only on demand

        async with self._turn:
            return await _able(lambda: render(report))

    async def _make(self, lake: str, choice: Choice) -> Made:
        async with self._turn:
            return await _able(lambda: self._found(lake, choice))

    def _found(self, lake: str, choice: Choice) -> Made:
        from millrace.pipeline.report import making, page, standing  # noqa: PLC0415 - pyarrow is large

        there = Lake(Path(lake))
        first, last = making.chosen(there, choice.days, choice.first, choice.last)
        if (last - first).days >= MOST_DAYS:
            raise Unable(f"A report covers at most {MOST_DAYS} days.")
        key = (lake, _mark(there), Choice(first, last, 0, choice.queue))
        made = self._kept.get(key)
        if made is None:
            report = making.make(there, first, last, choice.queue)
            parts = page.parts(report) if not report.empty else Markup()
            made = self._kept[key] = Made(report, parts, page.numbers(report))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        # Events shipped since then change only the coverage.
        report = structs.replace(made.report, coverage=standing.coverage(there))
        return made._replace(report=report)


async def _able(make: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(make)
    except PipelineError as error:
        raise Unable(str(error)) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise Unable(
            f"This page requires {package}. Install it with: {install_command(package)}"
        ) from error
    except OSError as error:
        raise Unable(f"Cannot read the lake: {error}") from error


def _seen(task: asyncio.Task[Made]) -> None:
    """Retrieve the exception, so that asyncio does not log it if no request fetches the result."""
    if not task.cancelled():
        task.exception()


def _mark(lake: Lake) -> int:
    try:
        return (lake.ops / refreshed.NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
