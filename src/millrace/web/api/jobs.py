"""Jobs: looking for them, looking at one, and doing something to it."""

import time
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from millrace import records as messages
from millrace.admin.query_language import QueryError, parse
from millrace.web.doors import Refusal, Visit
from millrace.web.payloads import whole

from . import shapes
from .asked import (
    JobAsked,
    JobsAsked,
    NewJob,
    NewJobs,
    Query,
    ToPriority,
    ToQueue,
    Undepend,
    WithTags,
    instant,
    microseconds,
)
from .endpoints import BYTES

#: A search that has found too little goes on for so many seconds, and then says how far it came.
PATIENCE: Final = 1.0
_SAME: Final = tuple(name for name in Query.__struct_fields__ if name != "text")


async def jobs(visit: Visit, asked: JobsAsked) -> shapes.JobList:
    given = {name: getattr(asked, name) for name in _SAME}
    query = Query(
        **{name: value for name, value in given.items() if value is not UNSET}, text=asked.text
    )
    return await search(visit, meant(asked.q, query), asked.order, asked.limit, asked.cursor)


async def search(
    visit: Visit, query: messages.JobFilter, order: Any, limit: int, cursor: str
) -> shapes.JobList:
    until = time.monotonic() + PATIENCE
    rows: list[messages.JobRecord] = []
    while True:
        request = messages.SearchJobs(query, order, cursor, limit - len(rows))
        found = await visit.ask(messages.JobPage, search=request)
        rows += found.jobs
        cursor = found.cursor
        if not cursor or len(rows) >= limit or time.monotonic() > until:
            break
    return shapes.JobList(
        [shapes.Job.of(row) for row in rows], found.looked, found.of, cursor or None
    )


def meant(text: str, query: Query | None) -> messages.JobFilter:
    """What the words of a search and what single members ask for, together."""
    try:
        found = parse(text)
    except QueryError as error:
        raise Refusal(400, f"`q` cannot be understood: {error}") from None
    if query is None:
        return found
    given = {name: getattr(query, name) for name in _SAME}
    more = {name: value for name, value in given.items() if value is not None}
    for name, value in more.items():
        if getattr(found, name) not in {None, value}:
            raise Refusal(422, f"`q` and `{name}` ask for different things: give one of them")
    return msgspec.structs.replace(found, **more, words=found.words + query.text)


async def job(visit: Visit, asked: JobAsked) -> shapes.JobInfo:
    return shapes.JobInfo.of(await _detail(visit, asked))


async def job_payload(visit: Visit, asked: JobAsked) -> Response:
    """Its bytes, as they came."""
    data = await whole(visit, await _detail(visit, asked))
    return Response(data, headers={"Content-Disposition": "attachment"}, media_type=BYTES)


async def _detail(visit: Visit, asked: JobAsked) -> messages.JobDetail:
    number = 0 if asked.number is UNSET else asked.number
    request = messages.GetJob(visit.path("id"), number)
    return await visit.ask(messages.JobDetail, job=request)


# Pushing


async def push(visit: Visit, body: NewJobs) -> shapes.PushedJobs:
    now = time.time_ns() // 1000
    jobs = body if isinstance(body, list) else [body]
    request = messages.PushJobs([_new(job, now) for job in jobs], visit.by)
    pushed = await visit.ask(messages.PushedJobs, push=request)
    return shapes.PushedJobs([shapes.Job.of(row) for row in pushed.jobs])


def _new(job: NewJob, now: int) -> messages.NewJob:
    if (job.payload is UNSET) == (job.payload_base64 is UNSET):
        raise Refusal(400, "each job has either a `payload` or a `payload_base64`")
    if job.at is not None and job.delay:
        raise Refusal(400, "a job has either `at` or a `delay`")
    at = instant(job.at)
    if job.delay:
        at = now + microseconds(job.delay)
    return messages.NewJob(
        queue=job.queue,
        payload=bytes(job.payload) if job.payload is not UNSET else job.payload_base64,  # type: ignore[arg-type]
        kind=job.kind,
        jid=job.id,
        priority=job.priority,
        at=max(0, at),
        retries=int(job.retries),
        lease_for=microseconds(job.lease_for),
        tags=job.tags,
        blockers=job.waits_for,
    )


# Doing something to one


async def retry_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "retry")


async def kill_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "kill")


async def cancel_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "cancel")


async def delete_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "delete")


async def move_job(visit: Visit, asked: JobAsked, body: ToQueue) -> shapes.Done:
    return await _act(visit, asked, "move", queue=body.queue)


async def change_priority(visit: Visit, asked: JobAsked, body: ToPriority) -> shapes.Done:
    return await _act(visit, asked, "priority", priority=body.priority)


async def tag_job(visit: Visit, asked: JobAsked, body: WithTags) -> shapes.Done:
    return await _act(visit, asked, "tag", tags=body.tags)


async def untag_job(visit: Visit, asked: JobAsked, body: WithTags) -> shapes.Done:
    return await _act(visit, asked, "untag", tags=body.tags)


async def track_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "track")


async def untrack_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "untrack")


async def undepend_job(visit: Visit, asked: JobAsked, body: Undepend) -> shapes.Done:
    return await _act(visit, asked, "undepend", blockers=body.waits_for)


async def time_out_job(visit: Visit, asked: JobAsked) -> shapes.Done:
    return await _act(visit, asked, "timeout")


async def _act(visit: Visit, asked: JobAsked, action: Any, **more: Any) -> shapes.Done:
    which: dict[str, Any] = (
        {"jobs": [visit.path("id")]} if asked.number is UNSET else {"seqs": [asked.number]}
    )
    request = messages.ActionRequest(action, **which, by=visit.by, **more)
    acted = await visit.ask(messages.BulkProgress, act=request)
    if acted.refused:
        raise Refusal(409 if acted.of else 404, acted.refused[0].reason)
    return shapes.Done(acted.done)


def payload_of(given: Any, in_base64: Any) -> bytes | None:
    """What was given as JSON or in base64."""
    if given is not UNSET and in_base64 is not UNSET:
        raise Refusal(400, "give it as JSON or in base64, not both")
    if given is not UNSET:
        return bytes(given)
    return None if in_base64 is UNSET else in_base64
