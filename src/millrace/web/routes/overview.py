"""The overview and its live stream."""

import asyncio
from collections import Counter
from typing import Final

from starlette.responses import Response, StreamingResponse

from millrace.engine.stats import DAY
from millrace.records import FailurePage, Overview, PageRequest, TrackedPage, WorkerPage
from millrace.web.charts import error_rate, history, rates
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.render import page

#: Numbers of days offered for the history, as in Faktory.
DAYS: Final = (7, 30, 90, 180)
MOST_GROUPS: Final = 5
MOST_TRACKED: Final = 100
MOST_WORKERS: Final = 25


async def overview(visit: Visit) -> Response:
    days = _days(visit.query("days", "30"))
    found, failures, tracked, workers = await asyncio.gather(
        visit.ask(Overview, overview=True),
        visit.ask(FailurePage, failures=PageRequest(most=MOST_GROUPS)),
        visit.ask(TrackedPage, tracked=PageRequest(most=MOST_TRACKED)),
        visit.ask(WorkerPage, workers=PageRequest(most=MOST_WORKERS)),
    )
    states = Counter(row.job.state if row.job else "gone" for row in tracked.tracked)
    return page(
        visit,
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
        raise Refusal(400, f"`days` must be a number up to {DAYS[-1]}.")
    return min(max(int(text), 1), DAYS[-1])


async def live(visit: Visit) -> Response:
    if visit.room.live.is_full:
        raise Refusal(503, "Too many open pages. Close one and try again.")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        visit.room.live.events(), media_type="text/event-stream", headers=headers
    )


DOORS: Final = [Door("/", overview, role="read"), Door("/live", live, role="read")]
