"""Overview, queues, failures, workers, recurring jobs, tags, limits and the server."""

from datetime import UTC, date, datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from millrace.admin.client import SHIPPED_WITHIN
from millrace.admin.errors import AdminError
from millrace.pipeline.report.model import Report
from millrace.records import (
    ActionRequest,
    ActionStatus,
    AuditNote,
    AuditPage,
    AuditParameters,
    Configuration,
    FailureJobParameters,
    FailurePage,
    FailureParameters,
    Flush,
    FlushBody,
    GetQueue,
    JobFilter,
    JobPage,
    LimitPage,
    ListAudit,
    ListQueues,
    ListWorkers,
    Ok,
    Overview,
    PageParameters,
    PageRequest,
    PipelineRun,
    PriorityBody,
    QlessOptionBody,
    QueueAction,
    QueueBody,
    QueueDetail,
    QueueListParameters,
    QueuePage,
    QueueParameters,
    QueueRecord,
    RecurringAction,
    RecurringPage,
    ReportParameters,
    RunPipeline,
    ServerStatus,
    SetQlessOption,
    ShippingStatus,
    TagPage,
    TagParameters,
    TagsBody,
    TrackedPage,
    WorkerAction,
    WorkerPage,
    WorkerRecord,
)
from millrace.web.analytics import Choice, Unable
from millrace.web.doors import Refusal, Visit

from .bulk import started
from .endpoints import Reply
from .jobs import search

# Overview and queues


async def overview(visit: Visit) -> Overview:
    return await visit.ask(Overview, overview=True)


async def queues(visit: Visit, asked: QueueListParameters) -> QueuePage:
    request = ListQueues(asked.text, asked.cursor, asked.limit, asked.paused)
    return await visit.ask(QueuePage, queues=request)


async def queue(visit: Visit, asked: QueueParameters) -> QueueDetail:
    day = -1 if asked.date is UNSET else _day(asked.date)
    return await visit.ask(QueueDetail, queue=GetQueue(visit.path("name"), day))


async def pause_queue(visit: Visit) -> QueueRecord:
    return await _change_queue(visit, "pause")


async def resume_queue(visit: Visit) -> QueueRecord:
    return await _change_queue(visit, "resume")


async def clear_queue(visit: Visit) -> Reply[ActionStatus]:
    return await _empty_queue(visit, "clear")


async def remove_queue(visit: Visit) -> Reply[ActionStatus]:
    return await _empty_queue(visit, "remove")


async def _change_queue(visit: Visit, action: Literal["pause", "resume"]) -> QueueRecord:
    name = visit.path("name")
    await visit.ask(dict, act_on_queue=QueueAction(name, action, visit.by))
    return (await visit.ask(QueueDetail, queue=GetQueue(name))).queue


async def _empty_queue(visit: Visit, action: Literal["clear", "remove"]) -> Reply[ActionStatus]:
    name = visit.path("name")
    await visit.ask(QueueDetail, queue=GetQueue(name))  # 404 if it does not exist
    request = QueueAction(name, action, visit.by)
    return await started(visit, f"{action.capitalize()} queue {name}", act_on_queue=request)


def _day(text: str) -> int:
    try:
        found = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) // 86_400
    except ValueError:
        raise Refusal(400, f"`date` is not a valid day: {text}") from None
    if found < 0:
        raise Refusal(400, "`date` must not be before 1970-01-01.")
    return found


# Failures


async def failures(visit: Visit, asked: FailureParameters) -> FailurePage:
    return await visit.ask(FailurePage, failures=PageRequest(most=asked.limit))


async def failure(visit: Visit, asked: FailureJobParameters) -> JobPage:
    query = JobFilter(fingerprint=visit.path("fingerprint"), failing=True)
    found = await search(visit, query, "newest", asked.limit, asked.cursor)
    if not (found.jobs or found.cursor or asked.cursor):
        raise Refusal(404, "No job fails with this error. It may have been retried or deleted.")
    return found


async def retry_failure(visit: Visit) -> Reply[ActionStatus]:
    return await _act_on_group(visit, "retry")


async def delete_failure(visit: Visit) -> Reply[ActionStatus]:
    return await _act_on_group(visit, "delete")


async def _act_on_group(visit: Visit, action: Literal["retry", "delete"]) -> Reply[ActionStatus]:
    fingerprint = visit.path("fingerprint")
    query = JobFilter(fingerprint=fingerprint, failing=True)
    request = ActionRequest(action, query=query, by=visit.by)
    title = f"{action.capitalize()} jobs of failure group {fingerprint}"
    return await started(visit, title, act=request)


# Workers


async def workers(visit: Visit, asked: PageParameters) -> WorkerPage:
    return await visit.ask(WorkerPage, workers=ListWorkers(asked.cursor, asked.limit))


async def worker(visit: Visit) -> WorkerRecord:
    protocol, wid = visit.path("protocol"), visit.path("wid")
    request = ListWorkers(most=1, protocol=protocol, wid=wid)
    found = await visit.ask(WorkerPage, workers=request)
    if not found.workers:
        raise Refusal(404, f'Worker "{wid}" not found. It has ended, or holds no job.')
    return found.workers[0]


async def quiet_worker(visit: Visit) -> Ok:
    return await _signal(visit, "quiet")


async def terminate_worker(visit: Visit) -> Ok:
    return await _signal(visit, "terminate")


async def _signal(visit: Visit, action: Literal["quiet", "terminate"]) -> Ok:
    if visit.path("protocol") != "faktory":
        raise Refusal(409, "Only Faktory workers accept signals.")
    request = WorkerAction(visit.path("wid"), action, visit.by)
    return await visit.ask(Ok, act_on_worker=request)


# Recurring jobs, tracked jobs, tags and limits


async def recurring(visit: Visit, asked: PageParameters) -> RecurringPage:
    return await visit.ask(RecurringPage, recurring=PageRequest(asked.cursor, asked.limit))


async def cancel_recurring(visit: Visit) -> Ok:
    return await _change_recurring(visit, "cancel")


async def move_recurring(visit: Visit, body: QueueBody) -> Ok:
    return await _change_recurring(visit, "move", queue=body.queue)


async def change_recurring_priority(visit: Visit, body: PriorityBody) -> Ok:
    return await _change_recurring(visit, "priority", priority=body.priority)


async def tag_recurring(visit: Visit, body: TagsBody) -> Ok:
    return await _change_recurring(visit, "tag", tags=body.tags)


async def untag_recurring(visit: Visit, body: TagsBody) -> Ok:
    return await _change_recurring(visit, "untag", tags=body.tags)


async def _change_recurring(visit: Visit, action: Any, **more: Any) -> Ok:
    request = RecurringAction(visit.path("id"), action, by=visit.by, **more)
    return await visit.ask(Ok, act_on_recurring=request)


async def tracked(visit: Visit, asked: PageParameters) -> TrackedPage:
    return await visit.ask(TrackedPage, tracked=PageRequest(asked.cursor, asked.limit))


async def tags(visit: Visit, asked: TagParameters) -> TagPage:
    return await visit.ask(TagPage, tags=PageRequest(most=asked.limit))


async def throttles(visit: Visit) -> LimitPage:
    return await visit.ask(LimitPage, throttles=True)


# The server


async def server(visit: Visit) -> ServerStatus:
    found = await visit.ask(ServerStatus, server=True)
    try:
        found.shipping = await visit.ask(ShippingStatus, journal=True)
    except AdminError as error:
        if error.code != "unavailable":
            raise
    return found


async def ship(visit: Visit) -> ShippingStatus:
    found = await visit.room.control.ask(ShippingStatus, patience=SHIPPED_WITHIN, ship=True)
    await visit.ask(Ok, note=AuditNote("ship", by=visit.by))
    return found


async def configuration(visit: Visit) -> Configuration:
    found = await visit.ask(ServerStatus, server=True)
    return Configuration(found.data, found.lake, found.settings, found.qless)


async def set_qless(visit: Visit, body: QlessOptionBody) -> Ok:
    return await visit.ask(Ok, set_qless=SetQlessOption(body.option, body.value, visit.by))


async def audit(visit: Visit, asked: AuditParameters) -> AuditPage:
    return await visit.ask(AuditPage, audit=ListAudit(asked.cursor, asked.limit))


async def pipeline(visit: Visit) -> PipelineRun:
    return await visit.ask(PipelineRun, pipeline=True)


async def run_pipeline(visit: Visit) -> PipelineRun:
    await visit.ask(Ok, run_pipeline=RunPipeline(visit.by))
    return await pipeline(visit)


async def flush(visit: Visit, body: FlushBody) -> Ok:  # noqa: ARG001 - the body is the confirmation
    return await visit.ask(Ok, flush=Flush(visit.by))


# The report


async def analytics(visit: Visit, asked: ReportParameters) -> Report:
    first, last = _date("first", asked.first), _date("last", asked.last)
    if first is not None and last is not None and last < first:
        raise Refusal(400, "`last` must not be before `first`.")
    queue = None if asked.queue is UNSET else asked.queue
    try:
        made = await visit.room.analytics.made(
            visit.settings.lake, Choice(first, last, asked.days, queue)
        )
    except Unable as error:
        raise Refusal(409, str(error)) from None
    assert made is not None  # only None with a time limit
    return made.report


def _date(name: str, text: str | UnsetType) -> date | None:
    if text is UNSET:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refusal(400, f"`{name}` is not a valid day: {text}") from None
