"""Reports of the pipeline, its status and its runs."""

from typing import Final

import msgspec
from starlette.responses import Response

from millrace.extras import is_installed
from millrace.records import ListQueues, Ok, PipelineRun, QueuePage, RunPipeline
from millrace.web.analytics import MAX_DAYS, RenderedReport, ReportRange, ReportUnavailable
from millrace.web.context import RequestContext, parse_date
from millrace.web.errors import HttpError
from millrace.web.render import REPORT_POLICY, page
from millrace.web.routing import PageRoute, form_route

#: Numbers of days offered as links.
DAYS: Final = (1, 7, 30, 90)
#: Seconds to wait for a report. If it takes longer, the page displays it later.
REPORT_TIMEOUT: Final = 0.15
MAX_QUEUES: Final = 200


async def analytics(context: RequestContext) -> Response:
    choice = _choice(context)
    status = await context.ask(PipelineRun, pipeline=True)
    made, unable = None, ""
    try:
        made = await context.app_state.analytics.made(context.settings.lake, choice, REPORT_TIMEOUT)
    except ReportUnavailable as error:
        unable = str(error)
    response = page(
        context,
        "analytics.html",
        pipeline=status,
        made=made,
        unable=unable,
        choice=choice,
        days=DAYS,
        queues=await _queues(context, made),
        query=context.request.url.query,
        has_plotly=is_installed("plotly"),
    )
    response.headers["Content-Security-Policy"] = REPORT_POLICY  # analytics.js draws charts
    return response


async def pipeline(context: RequestContext) -> Response:
    """Display the status of the pipeline. The analytics page requests this during a run."""
    status = await context.ask(PipelineRun, pipeline=True)
    return page(context, "pipeline.html", pipeline=status)


async def run(context: RequestContext) -> Response:
    await context.ask(Ok, run_pipeline=RunPipeline(by=context.by))
    return context.redirect("/analytics", "Pipeline started. The tables appear when it finishes.")


async def download(context: RequestContext) -> Response:
    """Send the report as `millrace pipeline report` does: a standalone page, or JSON."""
    form = context.path("form")
    if form not in {"html", "json"}:
        raise HttpError(404, "Available formats: report.html and report.json.")
    try:
        made = await context.app_state.analytics.made(context.settings.lake, _choice(context))
        assert made is not None
        report = made.report
        if form == "html":
            body, kind = (await context.app_state.analytics.page(report)).encode(), "text/html"
        else:
            body, kind = msgspec.json.encode(report), "application/json"
    except ReportUnavailable as error:
        raise HttpError(409, str(error)) from None
    name = f"millrace-{report.range.first}-{report.range.last}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body, headers=headers, media_type=kind)


async def _queues(context: RequestContext, made: RenderedReport | None) -> list[str]:
    """Return the queues offered for selection: existing queues and the queues of the report."""
    found = await context.ask(QueuePage, queues=ListQueues(limit=MAX_QUEUES))
    told = [row.queue for row in made.report.queues.rows] if made is not None else []
    return sorted({*told, *(row.name for row in found.queues)})


def _choice(context: RequestContext) -> ReportRange:
    days = context.query("days", "7")
    is_number = days.isascii() and days.isdigit() and len(days) < 10
    if not (is_number and 0 < int(days) <= MAX_DAYS):
        raise HttpError(400, f"`days` must be between 1 and {MAX_DAYS}.")
    first, last = (parse_date(name, context.query(name)) for name in ("first", "last"))
    if first is not None and last is not None:
        if last < first:
            raise HttpError(400, "The last day is before the first day.")
        if (last - first).days >= MAX_DAYS:
            raise HttpError(400, f"A report covers at most {MAX_DAYS} days.")
    return ReportRange(first, last, int(days), context.query("queue") or None)


ROUTES: Final = [
    PageRoute(
        "/analytics",
        analytics,
        "charts of the pipeline's tables, and the last pipeline run",
        menu="Analytics",
    ),
    PageRoute("/analytics/pipeline", pipeline, "output of the last pipeline run"),
    form_route("/analytics/run", run, "start a pipeline run"),
    PageRoute("/analytics/report.{form}", download, "download of the report: `html` or `json`"),
]
