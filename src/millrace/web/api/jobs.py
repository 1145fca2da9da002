"""Jobs: search, detail, events, push, and actions on one job."""

import time
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from millrace.admin.query_language import QueryError, parse
from millrace.records import (
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
    PushedJobs,
    PushJob,
    PushJobs,
    SearchJobs,
)
from millrace.web import history
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.payload_view import require_payload, whole

from .endpoints import BYTES

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS: Final = 1_000_000
#: Seconds that a search continues until the page is full.
SEARCH_TIMEOUT: Final = 1.0
_CONDITIONS: Final = tuple(name for name in JobFilter.__struct_fields__ if name != "terms")


def microseconds(seconds: float) -> int:
    return int(seconds * _MICROSECONDS)


def time_or_zero(when: datetime | None) -> int:
    return 0 if when is None else max(0, (when - _EPOCH) // timedelta(microseconds=1))


# Search and detail


async def jobs(context: RequestContext, asked: JobListParameters) -> JobPage:
    query = job_filter(asked.q, asked)
    return await search(context, query, asked.order, asked.limit, asked.cursor)


async def search(
    context: RequestContext, query: JobFilter, order: Any, limit: int, cursor: str
) -> JobPage:
    until = time.monotonic() + SEARCH_TIMEOUT
    page = JobPage([], 0, 0, cursor)
    while True:
        request = SearchJobs(query, order, page.next, limit - len(page.jobs))
        found = await context.ask(JobPage, search=request)
        page = JobPage(page.jobs + found.jobs, found.examined, found.total, found.next)
        if not page.next or len(page.jobs) >= limit or time.monotonic() > until:
            return page


def job_filter(text: str, conditions: FilterBody | None) -> JobFilter:
    """The filter of a search text and of single conditions together."""
    try:
        found = parse(text)
    except QueryError as error:
        raise HttpError(400, f"Invalid search `q`: {error}") from None
    if conditions is None:
        return found
    given = {name: getattr(conditions, name) for name in _CONDITIONS}
    more = {name: value for name, value in given.items() if value is not None}
    for name, value in more.items():
        if getattr(found, name) not in {None, value}:
            raise HttpError(422, f"`q` and `{name}` contradict each other. Give one of them.")
    return msgspec.structs.replace(found, **more, terms=found.terms + conditions.terms)


async def job(context: RequestContext, asked: JobParameters) -> JobDetail:
    detail = await context.ask(JobDetail, job=GetJob(context.path("id"), asked.number or 0))
    require_payload(detail)
    return detail


async def job_payload(context: RequestContext, asked: JobParameters) -> Response:
    data = await whole(context, await job(context, asked))
    return Response(data, headers={"Content-Disposition": "attachment"}, media_type=BYTES)


async def job_events(context: RequestContext, asked: EventParameters) -> EventPage:
    """Also of a job that no longer exists."""
    name, number = context.path("id"), asked.number or 0
    detail = await context.find(JobDetail, job=GetJob(name, number))
    if detail is not None:
        name, number = detail.job.jid, detail.job.seq
    jid = "" if number and detail is None else name
    known = await history.read(context.settings, number, jid, detail, thorough=asked.thorough)
    if not known.events:
        more = (
            "" if known.complete else " Only part of the journal was searched: add `thorough=true`."
        )
        raise HttpError(404, f"No events of this job were found.{more}")
    return EventPage(list(known.events), known.complete, known.source)


# Push


async def push(context: RequestContext, body: JobBodies) -> PushedJobs:
    now = time.time_ns() // 1000
    bodies = body if isinstance(body, list) else [body]
    key = context.request.headers.get("idempotency-key", "")
    digest = blake2b(msgspec.json.encode(bodies), digest_size=16).hexdigest() if key else ""
    request = PushJobs([_new_job(each, now) for each in bodies], context.by, key, digest)
    return await context.ask(PushedJobs, push=request)


def _new_job(job: JobBody, now: int) -> PushJob:
    payload = json_or_bytes(job.payload, job.payload_base64, "payload")
    if payload is None:
        raise HttpError(400, "Each job needs `payload` or `payload_base64`.")
    if job.at is not None and job.delay:
        raise HttpError(400, "Give `at` or `delay`, not both.")
    return PushJob(
        queue=job.queue,
        payload=payload,
        kind=job.kind,
        jid=job.id,
        priority=job.priority,
        at=now + microseconds(job.delay) if job.delay else time_or_zero(job.at),
        retries=int(job.retries),
        lease_for=microseconds(job.lease_for),
        tags=job.tags,
        waits_for=job.waits_for,
        retention=-1 if job.keep_result is None else microseconds(job.keep_result),
    )


def json_or_bytes(json: Any, in_base64: Any, name: str) -> bytes | None:
    """The bytes of a member that is given as JSON or in base64."""
    if json is not UNSET and in_base64 is not UNSET:
        raise HttpError(400, f"Give `{name}` or `{name}_base64`, not both.")
    if json is not UNSET:
        return bytes(json)
    return None if in_base64 is UNSET else in_base64
