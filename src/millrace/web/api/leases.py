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
from millrace.web.doors import Refusal, Visit

from .jobs import json_or_bytes, microseconds, time_or_zero

#: Number of requests that may wait for a job at a time.
MAX_WAITING: Final = 500
#: The server itself ends a wait in time; this is added to the limit here.
WAIT_GRACE: Final = 5.0


async def lease(visit: Visit, body: LeaseBody) -> LeasedJobs:
    request = LeaseJobs(
        queues=body.queues,
        worker=body.worker,
        most=int(body.limit),
        wait=microseconds(body.wait),
        lease_for=0 if body.lease_for is None else microseconds(body.lease_for),
    )
    if body.wait:
        return await _wait(visit, request, body.wait + WAIT_GRACE)
    return await visit.ask(LeasedJobs, lease=request)


async def complete(visit: Visit, body: CompletionBody) -> EndedLease:
    result = json_or_bytes(body.result, body.result_base64, "result")
    return await _end(visit, "complete", result=result)


async def fail(visit: Visit, body: FailureBody) -> EndedLease:
    return await _end(
        visit,
        "fail",
        group=body.group,
        message=body.message,
        backtrace=body.backtrace,
        again_at=time_or_zero(body.retry_at),
    )


async def release(visit: Visit) -> EndedLease:
    return await _end(visit, "release")


async def renew(visit: Visit, body: RenewalBody) -> EndedLease:
    span = 0 if body.lease_for is None else microseconds(body.lease_for)
    return await _end(visit, "renew", lease_for=span)


async def _end(visit: Visit, action: Any, **more: Any) -> EndedLease:
    request = EndLease(visit.path("token"), action, by=visit.by, **more)
    return await visit.ask(EndedLease, end=request)


async def _wait(visit: Visit, request: LeaseJobs, timeout: float) -> LeasedJobs:  # noqa: ASYNC109
    """Wait on a separate connection to the server. It ends with the client's connection, so that no
    job is leased to a client that has left.
    """
    room = visit.room
    if room.closed:
        raise _stopping()
    if len(room.waiting) >= MAX_WAITING:
        detail = f"{MAX_WAITING} requests already wait for jobs. Try again later."
        raise Refusal(503, detail, {"Retry-After": "5"})
    asking = asyncio.create_task(_first(visit, request))
    leaving = asyncio.create_task(_disconnect(visit))
    room.waiting.add(asking)
    try:
        await asyncio.wait({asking, leaving}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if asking.cancelled():
            raise _stopping()
        if asking.done():
            return asking.result()
        raise Refusal(503, "The server did not reply in time.")
    finally:
        room.waiting.discard(asking)
        asking.cancel()
        leaving.cancel()


def _stopping() -> Refusal:
    return Refusal(503, "The server is stopping. Try again later.", {"Retry-After": "5"})


async def _first(visit: Visit, request: LeaseJobs) -> LeasedJobs:
    replies = visit.room.control.follow(LeasedJobs, lease=request)
    try:
        async for leased in replies:
            return leased
        return LeasedJobs([])
    finally:
        await replies.aclose()  # type: ignore[attr-defined]


async def _disconnect(visit: Visit) -> None:
    while (await visit.request.receive())["type"] != "http.disconnect":
        pass
