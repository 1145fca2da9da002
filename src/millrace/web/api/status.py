"""Overview, queues, failures, workers, recurring jobs, tags, limits and the server."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from millrace.admin.client import SHIP_TIMEOUT
from millrace.admin.errors import AdminError
from millrace.journal import tail
from millrace.pipeline.report.model import Report
from millrace.records import (
    AuditNote,
    AuditPage,
    Configuration,
    FailureJobParameters,
    FailurePage,
    FlushBody,
    FlushRequest,
    GetQueue,
    JobFilter,
    JobPage,
    JournalPage,
    JournalParameters,
    LimitPage,
    ListAudit,
    ListFailures,
    ListQueues,
    ListTags,
    ListWorkers,
    NoMembers,
    Ok,
    Overview,
    PageRequest,
    PipelineRun,
    QlessOptionBody,
    QueueDetail,
    QueuePage,
    QueueParameters,
    Record,
    RecurringPage,
    ReportParameters,
    RunPipeline,
    ServerStatus,
    SetQlessOption,
    ShippingStatus,
    TagPage,
    TrackedPage,
    WorkerPage,
    WorkerRecord,
)
from millrace.web.analytics import ReportRange, ReportUnavailable
from millrace.web.context import RequestContext, day_number, parse_date
from millrace.web.errors import HttpError

from .endpoints import Handler
from .jobs import search


def query(
    answer: type[Record],
    operation: str,
    request: type[msgspec.Struct] = NoMembers,
    *,
    name: str = "",
) -> Handler:
    """The handler of a route that is one operation: its parameters are those of the request."""

    async def handler(context: RequestContext, asked: Any) -> Any:
        return await context.ask(answer, **{operation: True if request is NoMembers else asked})

    handler.__name__ = name or operation
    handler.__annotations__ |= {"asked": request, "return": answer}
    return handler


overview = query(Overview, "overview")
queues = query(QueuePage, "queues", ListQueues)
failures = query(FailurePage, "failures", ListFailures)
workers = query(WorkerPage, "workers", PageRequest)
recurring = query(RecurringPage, "recurring", PageRequest)
tracked = query(TrackedPage, "tracked", PageRequest)
tags = query(TagPage, "tags", ListTags)
throttles = query(LimitPage, "limits", name="throttles")
audit = query(AuditPage, "audit", ListAudit)
pipeline = query(PipelineRun, "pipeline")


async def events(context: RequestContext, asked: JournalParameters) -> JournalPage:
    folder = Path(context.settings.data)
    if not context.settings.data or not tail.has_journal(folder):
        raise HttpError(404, "This server stores no events.")
    try:
        return await asyncio.to_thread(tail.read_page, folder, asked.first, asked.limit)
    except tail.JournalUnreadable as error:
        raise HttpError(503, str(error)) from error


async def queue(context: RequestContext, asked: QueueParameters) -> QueueDetail:
    request = GetQueue(context.path("name"), day_number("date", asked.date))
    return await context.ask(QueueDetail, queue=request)


async def failure(context: RequestContext, asked: FailureJobParameters) -> JobPage:
    query = JobFilter(fingerprint=context.path("fingerprint"), failing=True)
    found = await search(context, query, "newest", asked.limit, asked.cursor)
    if not (found.jobs or found.next or asked.cursor):
        raise HttpError(404, "No job fails with this error. It may have been retried or deleted.")
    return found


async def worker(context: RequestContext) -> WorkerRecord:
    protocol, wid = context.path("protocol"), context.path("wid")
    request = ListWorkers(limit=1, protocol=protocol, wid=wid)
    found = await context.ask(WorkerPage, workers=request)
    if not found.workers:
        raise HttpError(404, f'Worker "{wid}" not found. It has ended, or holds no job.')
    return found.workers[0]


async def server(context: RequestContext) -> ServerStatus:
    found = await context.ask(ServerStatus, server=True)
    try:
        found.shipping = _shipping(context, await context.ask(ShippingStatus, journal=True))
    except AdminError as error:
        if error.code != "unavailable":
            raise
    return found


async def ship(context: RequestContext) -> ShippingStatus:
    found = await context.app_state.control.ask(ShippingStatus, patience=SHIP_TIMEOUT, ship=True)
    await context.ask(Ok, note=AuditNote("ship", by=context.by))
    return _shipping(context, found)


def _shipping(context: RequestContext, found: ShippingStatus) -> ShippingStatus:
    """Hide the lake from other roles than admin: by default it is in the data folder."""
    if context.user is None or not context.user.may("admin"):
        found.lake = ""
    return found


async def configuration(context: RequestContext) -> Configuration:
    found = await context.ask(ServerStatus, server=True)
    return Configuration(found.data, found.lake, found.settings, found.qless)


async def set_qless(context: RequestContext, body: QlessOptionBody) -> Ok:
    return await context.ask(Ok, set_qless=SetQlessOption(body.option, body.value, context.by))


async def run_pipeline(context: RequestContext) -> PipelineRun:
    await context.ask(Ok, run_pipeline=RunPipeline(context.by))
    return await context.ask(PipelineRun, pipeline=True)


async def flush(context: RequestContext, body: FlushBody) -> Ok:  # noqa: ARG001 - the body is the confirmation
    return await context.ask(Ok, flush=FlushRequest(context.by))


async def analytics(context: RequestContext, asked: ReportParameters) -> Report:
    first, last = parse_date("first", asked.first), parse_date("last", asked.last)
    if first is not None and last is not None and last < first:
        raise HttpError(400, "`last` must not be before `first`.")
    try:
        made = await context.app_state.analytics.made(
            context.settings.lake, ReportRange(first, last, asked.days, asked.queue)
        )
    except ReportUnavailable as error:
        raise HttpError(409, str(error)) from None
    assert made is not None  # only None with a time limit
    return made.report
