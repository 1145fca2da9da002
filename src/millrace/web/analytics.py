"""Reports on the pipeline's tables, built in a thread and cached until the tables change.

The tables change only when the pipeline runs. The cache key includes the number of the last run
and the time of the last answer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from markupsafe import Markup
from msgspec import structs

from millrace.extras import EXTRAS, install_command
from millrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from millrace.pipeline.report.model import Report

T = TypeVar("T")

#: Maximum number of cached reports, and of reports in preparation.
REPORT_CACHE_SIZE: Final = 8
MAX_DAYS: Final = 366


class ReportUnavailable(Exception):
    """There is no report; the text says why, and what to do."""


class ReportRange(NamedTuple):
    """The days and the queue of a report. None selects the most recent days, or all queues."""

    first: date | None = None
    last: date | None = None
    #: Number of days, if `first` is None.
    days: int = 7
    queue: str | None = None


class RenderedReport(NamedTuple):
    report: "Report"
    #: The report's sections and figures as HTML.
    parts: Markup
    numbers: Markup


class Analytics:
    """Builds one report at a time, because a report can require much memory."""

    def __init__(self, *, is_limited: bool = False) -> None:
        #: The reports contain all queues, so a rule for queues excludes them.
        self._is_limited = is_limited
        self._kept: OrderedDict[tuple[str, int, int, ReportRange], RenderedReport] = OrderedDict()
        self._turn = asyncio.Lock()
        #: Reports in preparation, and finished reports until a request fetches them.
        self._begun: OrderedDict[tuple[str, ReportRange], asyncio.Task[RenderedReport]] = (
            OrderedDict()
        )

    async def made(
        self, lake: str, choice: ReportRange, patience: float | None = None
    ) -> RenderedReport | None:
        """Return the report, or None if it takes more than `patience` seconds. The build continues,
        and a later call returns the report.
        """
        if self._is_limited:
            raise ReportUnavailable("Reports contain all queues, and web.queues is set.")
        if not lake:
            raise ReportUnavailable(
                "This server stores no data on disk (server.durability = memory), so it has no "
                "history."
            )
        key = (lake, choice)
        task = self._begun.get(key)
        if task is None:
            task = self._begun[key] = asyncio.create_task(self._make(lake, choice))
            task.add_done_callback(_seen)
            while len(self._begun) > REPORT_CACHE_SIZE:
                self._begun.popitem(last=False)[1].cancel()
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            return None
        if self._begun.get(key) is task:
            del self._begun[key]
        if task.cancelled():
            raise ReportUnavailable("Too many reports are being prepared. Try again later.")
        return task.result()

    async def page(self, report: "Report") -> str:
        """Return the report as a standalone HTML page."""
        from millrace.pipeline.report.page import render  # noqa: PLC0415 - only on demand

        async with self._turn:
            return await _able(lambda: render(report))

    async def _make(self, lake: str, choice: ReportRange) -> RenderedReport:
        async with self._turn:
            return await _able(lambda: self._found(lake, choice))

    def _found(self, lake: str, choice: ReportRange) -> RenderedReport:
        from millrace.pipeline import answers  # noqa: PLC0415 - as below
        from millrace.pipeline.remote import local_root  # noqa: PLC0415
        from millrace.pipeline.report import build, page, status  # noqa: PLC0415 - pyarrow is large
        from millrace.pipeline.snapshot import Snapshot  # noqa: PLC0415

        snapshot = Snapshot(local_root(lake))
        first, last = build.chosen_days(snapshot, choice.days, choice.first, choice.last)
        if (last - first).days >= MAX_DAYS:
            raise ReportUnavailable(f"A report covers at most {MAX_DAYS} days.")
        run = 0 if snapshot.run is None else snapshot.run.run
        key = (
            lake,
            run,
            answers.changed_at(snapshot.root),
            ReportRange(first, last, 0, choice.queue),
        )
        made = self._kept.get(key)
        if made is None:
            report = build.build(snapshot, first, last, choice.queue)
            parts = page.parts(report) if not report.empty else Markup()
            made = self._kept[key] = RenderedReport(report, parts, page.numbers(report))
            while len(self._kept) > REPORT_CACHE_SIZE:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        # Events shipped since then change only the coverage.
        report = structs.replace(made.report, coverage=status.coverage(snapshot))
        return made._replace(report=report)


async def _able(make: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(make)
    except PipelineError as error:
        raise ReportUnavailable(str(error)) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise ReportUnavailable(
            f"This page requires {package}. Install it with: {install_command(package)}"
        ) from error
    except OSError as error:
        raise ReportUnavailable(f"Cannot read the lake: {error}") from error


def _seen(task: asyncio.Task[RenderedReport]) -> None:
    """Retrieve the exception, so that asyncio does not log it if no request fetches the result."""
    if not task.cancelled():
        task.exception()
