"""The overview and its live stream."""

import asyncio
from collections import Counter
from typing import Final

from starlette.responses import Response, StreamingResponse

from millrace.engine.statistics import DAY
from millrace.records import (
    FailurePage,
    ListFailures,
    Overview,
    PageRequest,
    TrackedPage,
    WorkerPage,
)
from millrace.web.charts import error_rate, history, rates
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.render import page
from millrace.web.routing import PageRoute

#: Numbers of days offered for the history, as in Faktory.
DAYS: Final = (7, 30, 90, 180)
MAX_GROUPS: Final = 5
MAX_TRACKED: Final = 100
MAX_WORKERS: Final = 25


async def overview(context: RequestContext) -> Response:
    days = _days(context.query("days", "30"))
    found, failures, tracked, workers = await asyncio.gather(
        context.ask(Overview, overview=True),
        context.ask(FailurePage, failures=ListFailures(MAX_GROUPS)),
        context.ask(TrackedPage, tracked=PageRequest(limit=MAX_TRACKED)),
        context.ask(WorkerPage, workers=PageRequest(limit=MAX_WORKERS)),
    )
    states = Counter(row.job.state if row.job else "gone" for row in tracked.tracked)
    return page(
        context,
        "overview.html",
        charts=True,
        overview=found,
        rates=rates(found.samples),
        error_rate=error_rate(found.samples),
        history=history(found.days, found.now // DAY, days),
        days=days,
        choices=DAYS,
        failures=failures,
        tracked=tracked,
        tracked_states=states.most_common(),
        workers=workers,
        busiest=sorted(workers.workers, key=lambda worker: -worker.count)[:10],
    )


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HttpError(400, f"`days` must be a number up to {DAYS[-1]}.")
    return min(max(int(text), 1), DAYS[-1])


async def live(context: RequestContext) -> Response:
    if context.app_state.live.is_full:
        raise HttpError(503, "Too many open pages. Close one and try again.")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        context.app_state.live.events(), media_type="text/event-stream", headers=headers
    )


ROUTES: Final = [
    PageRoute(
        "/",
        overview,
        "throughput, backlog, errors, connections, commit latency, history by day",
        menu="Overview",
    ),
    PageRoute("/live", live, "the live stream of the pages (server-sent events)"),
]
