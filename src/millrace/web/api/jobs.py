"""Jobs: search, detail, events, push, and actions on one job."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from millrace.admin.errors import AdminError
from millrace.admin.query_language import QueryError, parse
from millrace.records import (
    ActionRequest,
    BulkProgress,
    ChangedJobs,
    DependencyBody,
    EventPage,
    EventParameters,
    FilterBody,
    GetJob,
    JobBodies,
    JobBody,
    JobDetail,
    JobFilter,
    JobListParameters,
    JobPage,
    JobParameters,
    NewJob,
    PriorityBody,
    PushedJobs,
    PushJobs,
    QueueBody,
    SearchJobs,
    TagsBody,
)
from millrace.records.actions import JOB_ACTIONS, JobAction
from millrace.web import history
from millrace.web.doors import Refusal, Visit
from millrace.web.payload_view import whole

from .endpoints import BYTES, Nothing

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS: Final = 1_000_000
#: Seconds that a search continues until the page is full.
SEARCH_TIMEOUT: Final = 1.0
_CONDITIONS: Final = tuple(name for name in FilterBody.__struct_fields__ if name != "text")


def microseconds(seconds: float) -> int:
    return int(seconds * _MICROSECONDS)


def time_or_zero(when: datetime | None) -> int:
    return 0 if when is None else max(0, (when - _EPOCH) // timedelta(microseconds=1))


# Search and detail


async def jobs(visit: Visit, asked: JobListParameters) -> JobPage:
    given = {name: getattr(asked, name) for name in _CONDITIONS}
    conditions = FilterBody(
        **{name: value for name, value in given.items() if value is not UNSET}, text=asked.text
    )
    query = job_filter(asked.q, conditions)
    return await search(visit, query, asked.order, asked.limit, asked.cursor)


async def search(visit: Visit, query: JobFilter, order: Any, limit: int, cursor: str) -> JobPage:
    until = time.monotonic() + SEARCH_TIMEOUT
    page = JobPage([], 0, 0, cursor)
    while True:
        request = SearchJobs(query, order, page.cursor, limit - len(page.jobs))
        found = await visit.ask(JobPage, search=request)
        page = JobPage(page.jobs + found.jobs, found.looked, found.of, found.cursor)
        if not page.cursor or len(page.jobs) >= limit or time.monotonic() > until:
            return page


def job_filter(text: str, conditions: FilterBody | None) -> JobFilter:
    """The filter of a search text and of single conditions together."""
    try:
        found = parse(text)
    except QueryError as error:
        raise Refusal(400, f"Invalid search `q`: {error}") from None
    if conditions is None:
        return found
    given = {name: getattr(conditions, name) for name in _CONDITIONS}
    more = {name: value for name, value in given.items() if value is not None}
    for name, value in more.items():
        if getattr(found, name) not in {None, value}:
            raise Refusal(422, f"`q` and `{name}` contradict each other. Give one of them.")
    return msgspec.structs.replace(found, **more, words=found.words + conditions.text)


async def job(visit: Visit, asked: JobParameters) -> JobDetail:
    number = 0 if asked.number is UNSET else asked.number
    return await visit.ask(JobDetail, job=GetJob(visit.path("id"), number))


async def job_payload(visit: Visit, asked: JobParameters) -> Response:
    data = await whole(visit, await job(visit, asked))
    return Response(data, headers={"Content-Disposition": "attachment"}, media_type=BYTES)


async def job_events(visit: Visit, asked: EventParameters) -> EventPage:
    """Also of a job that no longer exists."""
    name, number = visit.path("id"), 0 if asked.number is UNSET else asked.number
    detail: JobDetail | None
    try:
        detail = await visit.ask(JobDetail, job=GetJob(name, number))
    except AdminError as error:
        if error.code != "not found":
            raise
        detail = None
    else:
        name, number = detail.job.jid, detail.job.seq
    jid = "" if number and detail is None else name
    known = await history.read(visit.settings, number, jid, detail, thorough=asked.thorough)
    if not known.events:
        more = "" if known.whole else " Only part of the journal was searched: add `thorough=true`."
        raise Refusal(404, f"No events of this job were found.{more}")
    return EventPage(list(known.events), known.whole, known.source)


# Push


async def push(visit: Visit, body: JobBodies) -> PushedJobs:
    now = time.time_ns() // 1000
    bodies = body if isinstance(body, list) else [body]
    request = PushJobs([_new_job(each, now) for each in bodies], visit.by)
    return await visit.ask(PushedJobs, push=request)


def _new_job(job: JobBody, now: int) -> NewJob:
    payload = json_or_bytes(job.payload, job.payload_base64, "payload")
    if payload is None:
        raise Refusal(400, "Each job needs `payload` or `payload_base64`.")
    if job.at is not None and job.delay:
        raise Refusal(400, "Give `at` or `delay`, not both.")
    return NewJob(
        queue=job.queue,
        payload=payload,
        kind=job.kind,
        jid=job.id,
        priority=job.priority,
        at=now + microseconds(job.delay) if job.delay else time_or_zero(job.at),
        retries=int(job.retries),
        lease_for=microseconds(job.lease_for),
        tags=job.tags,
        blockers=job.waits_for,
    )


def json_or_bytes(json: Any, in_base64: Any, name: str) -> bytes | None:
    """The bytes of a member that is given as JSON or in base64."""
    if json is not UNSET and in_base64 is not UNSET:
        raise Refusal(400, f"Give `{name}` or `{name}_base64`, not both.")
    if json is not UNSET:
        return bytes(json)
    return None if in_base64 is UNSET else in_base64


# Actions on one job

#: The body of an action, and the name of its argument in an ActionRequest.
_ARGUMENTS: Final[dict[str | None, tuple[type[msgspec.Struct], str, str]]] = {
    None: (Nothing, "", ""),
    "queue": (QueueBody, "queue", "queue"),
    "priority": (PriorityBody, "priority", "priority"),
    "tags": (TagsBody, "tags", "tags"),
    "waits_for": (DependencyBody, "waits_for", "blockers"),
}


def action_handler(declared: JobAction) -> Callable[..., Awaitable[ChangedJobs]]:
    """The handler of the route of one action."""
    body_type, member, argument = _ARGUMENTS[declared.argument]

    async def handler(visit: Visit, asked: JobParameters, body: Any) -> ChangedJobs:
        more = {argument: getattr(body, member)} if argument else {}
        return await _act(visit, asked, declared.name, **more)

    handler.__name__ = declared.operation
    handler.__annotations__ = {
        "asked": JobParameters,
        "body": body_type,
        "return": ChangedJobs,
    }
    return handler


ACTION_HANDLERS: Final = [(each, action_handler(each)) for each in JOB_ACTIONS]


async def _act(visit: Visit, asked: JobParameters, action: Any, **more: Any) -> ChangedJobs:
    which: dict[str, Any] = (
        {"jobs": [visit.path("id")]} if asked.number is UNSET else {"seqs": [asked.number]}
    )
    request = ActionRequest(action, **which, by=visit.by, **more)
    progress = await visit.ask(BulkProgress, act=request)
    if progress.refused:
        raise Refusal(409 if progress.of else 404, progress.refused[0].reason)
    return ChangedJobs(progress.done)
