"""Leases over HTTP: lease, complete, fail, release, renew."""

import asyncio
from typing import Any, Final

from millrace.records import (
    CompletionBody,
    EndedLease,
    EndLease,
    FailureBody,
    LeaseBody,
    LeasedJobs,
    LeaseJobs,
    RenewalBody,
)
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError

from .jobs import json_or_bytes, microseconds, time_or_zero

#: Number of requests that may wait for a job at a time.
MAX_WAITING: Final = 500
#: The server itself ends a wait in time; this is added to the limit here.
WAIT_GRACE: Final = 5.0


async def lease(context: RequestContext, body: LeaseBody) -> LeasedJobs:
    request = LeaseJobs(
        queues=body.queues,
        worker=body.worker,
        limit=int(body.limit),
        wait=microseconds(body.wait),
        lease_for=0 if body.lease_for is None else microseconds(body.lease_for),
    )
    if body.wait:
        return await _wait(context, request, body.wait + WAIT_GRACE)
    return await context.ask(LeasedJobs, lease=request)


async def complete(context: RequestContext, body: CompletionBody) -> EndedLease:
    result = json_or_bytes(body.result, body.result_base64, "result")
    return await _end(context, "complete", result=result)


async def fail(context: RequestContext, body: FailureBody) -> EndedLease:
    return await _end(
        context,
        "fail",
        group=body.group,
        message=body.message,
        backtrace=body.backtrace,
        retry_at=time_or_zero(body.retry_at),
    )


async def release(context: RequestContext) -> EndedLease:
    return await _end(context, "release")


async def renew(context: RequestContext, body: RenewalBody) -> EndedLease:
    span = 0 if body.lease_for is None else microseconds(body.lease_for)
    return await _end(context, "renew", lease_for=span)


async def _end(context: RequestContext, action: Any, **more: Any) -> EndedLease:
    request = EndLease(context.path("token"), action, by=context.by, **more)
    return await context.ask(EndedLease, end=request)


async def _wait(context: RequestContext, request: LeaseJobs, timeout: float) -> LeasedJobs:  # noqa: ASYNC109
    """Wait on a separate connection to the server. It ends with the client's connection, so that no
    job is leased to a client that has left.
    """
    app_state = context.app_state
    if app_state.closed:
        raise _stopping()
    if len(app_state.waiting) >= MAX_WAITING:
        detail = f"{MAX_WAITING} requests already wait for jobs. Try again later."
        raise HttpError(503, detail, {"Retry-After": "5"})
    asking = asyncio.create_task(_first(context, request))
    leaving = asyncio.create_task(_disconnect(context))
    app_state.waiting.add(asking)
    try:
        await asyncio.wait({asking, leaving}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if asking.cancelled():
            raise _stopping()
        if asking.done():
            return asking.result()
        raise HttpError(503, "The server did not reply in time.")
    finally:
        app_state.waiting.discard(asking)
        asking.cancel()
        leaving.cancel()


def _stopping() -> HttpError:
    return HttpError(503, "The server is stopping. Try again later.", {"Retry-After": "5"})


async def _first(context: RequestContext, request: LeaseJobs) -> LeasedJobs:
    replies = context.app_state.control.follow(LeasedJobs, lease=request)
    try:
        async for leased in replies:
            return leased
        return LeasedJobs([])
    finally:
        await replies.aclose()  # type: ignore[attr-defined]


async def _disconnect(context: RequestContext) -> None:
    while (await context.request.receive())["type"] != "http.disconnect":
        pass
