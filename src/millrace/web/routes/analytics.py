"""Reports of the pipeline, its status and its runs."""

from datetime import date
from typing import Final

import msgspec
from starlette.responses import Response

from millrace.extras import is_installed
from millrace.records import (
    ListQueues,
    Ok,
    PipelineRun,
    QueuePage,
    RunPipeline,
)
from millrace.web.analytics import MOST_DAYS, Choice, Made, Unable
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.render import REPORT_POLICY, page

#: Numbers of days offered as links.
DAYS: Final = (1, 7, 30, 90)
#: Seconds to wait for a report. If it takes longer, the page displays it later.
PATIENCE: Final = 0.15
MOST_QUEUES: Final = 200


async def analytics(visit: Visit) -> Response:
    choice = _choice(visit)
    status = await visit.ask(PipelineRun, pipeline=True)
    made, unable = None, ""
    try:
        made = await visit.room.analytics.made(visit.settings.lake, choice, PATIENCE)
    except Unable as error:
        unable = str(error)
    response = page(
        visit,
        "analytics.html",
        pipeline=status,
        made=made,
        unable=unable,
        choice=choice,
        days=DAYS,
        queues=await _queues(visit, made),
        query=visit.request.url.query,
        has_plotly=is_installed("plotly"),
    )
    response.headers["Content-Security-Policy"] = REPORT_POLICY  # analytics.js draws charts
    return response


async def pipeline(visit: Visit) -> Response:
    """Display the status of the pipeline. The analytics page requests this during a run."""
    status = await visit.ask(PipelineRun, pipeline=True)
    return page(visit, "pipeline.html", pipeline=status)


async def run(visit: Visit) -> Response:
    await visit.ask(Ok, run_pipeline=RunPipeline(by=visit.by))
    return visit.back("/analytics", "Pipeline started. The tables appear when it finishes.")


async def download(visit: Visit) -> Response:
    """Send the report as `millrace pipeline report` does: a standalone page, or JSON."""
    form = visit.path("form")
    if form not in {"html", "json"}:
        raise Refusal(404, "Available formats: report.html and report.json.")
    try:
        made = await visit.room.analytics.made(visit.settings.lake, _choice(visit))
        assert made is not None
        report = made.report
        if form == "html":
            body, kind = (await visit.room.analytics.page(report)).encode(), "text/html"
        else:
            body, kind = msgspec.json.encode(report), "application/json"
    except Unable as error:
        raise Refusal(409, str(error)) from None
    name = f"millrace-{report.range.first}-{report.range.last}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body, headers=headers, media_type=kind)


async def _queues(visit: Visit, made: Made | None) -> list[str]:
    """Return the queues offered for selection: existing queues and the queues of the report."""
    found = await visit.ask(QueuePage, queues=ListQueues(most=MOST_QUEUES))
    told = [row.queue for row in made.report.queues.rows] if made is not None else []
    return sorted({*told, *(row.name for row in found.queues)})


def _choice(visit: Visit) -> Choice:
    days = visit.query("days", "7")
    is_number = days.isascii() and days.isdigit() and len(days) < 10
    if not (is_number and 0 < int(days) <= MOST_DAYS):
        raise Refusal(400, f"`days` must be between 1 and {MOST_DAYS}.")
    first, last = _date(visit, "first"), _date(visit, "last")
    if first is not None and last is not None:
        if last < first:
            raise Refusal(400, "The last day is before the first day.")
        if (last - first).days >= MOST_DAYS:
            raise Refusal(400, f"A report covers at most {MOST_DAYS} days.")
    return Choice(first, last, int(days), visit.query("queue") or None)


def _date(visit: Visit, name: str) -> date | None:
    text = visit.query(name)
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refusal(400, f"`{name}` must be a day such as 2026-11-16.") from None


DOORS: Final = [
    Door("/analytics", analytics, role="read"),
    Door("/analytics/pipeline", pipeline, role="read"),
    Door("/analytics/run", run, role="operate", methods=("POST",)),
    Door("/analytics/report.{form}", download, role="read"),
]
