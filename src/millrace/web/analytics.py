"""The pipeline's tables as a report, made in a thread and kept while the tables are the same.

Tables change only when the pipeline has run: its mark (ops/refreshed.json) says which they are.
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

#: So many reports are remembered.
KEPT: Final = 8
MOST_DAYS: Final = 366


class Unable(Exception):
    """There is no report; the text says why, and what to do."""


class Choice(NamedTuple):
    """Of which days, and of which queue; None: the last ones, and all of them."""

    first: date | None = None
    last: date | None = None
    #: If no first day is given: so many.
    days: int = 7
    queue: str | None = None


class Made(NamedTuple):
    report: "Report"
    #: The report's parts and its numbers, as they stand in a page.
    parts: Markup
    numbers: Markup


class Analytics:
    """One report is made at a time: each may take a good deal of memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, Choice], Made] = OrderedDict()
        self._turn = asyncio.Lock()
        #: What is being made, until somebody has asked what became of it.
        self._begun: OrderedDict[tuple[str, Choice], asyncio.Task[Made]] = OrderedDict()

    async def made(self, lake: str, choice: Choice, patience: float | None = None) -> Made | None:
        """The report, or None if it takes longer than that: then it is there later."""
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
        """The report as a page of its own, to be kept."""
        from millrace.pipeline.report.page import render  # noqa: PLC0415 - only when asked for

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
        # What was shipped since has changed; the rest of it has not.
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
    """Whoever began it may be gone: then nobody need hear that it failed."""
    if not task.cancelled():
        task.exception()


def _mark(lake: Lake) -> int:
    try:
        return (lake.ops / refreshed.NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
