"""Working on jobs by HTTP: lease, complete, fail, release, renew."""

import asyncio
from typing import Any, Final

from millrace import records as messages
from millrace.web.doors import Refusal, Visit

from . import shapes
from .asked import Completed, Failed, NewLease, Renewed, instant, microseconds
from .jobs import payload_of

#: So many may wait for a job at a time.
MOST_WAITING: Final = 500
#: The server says by itself when the time to wait is over.
GRACE: Final = 5.0


async def lease(visit: Visit, body: NewLease) -> shapes.LeaseList:
    request = messages.LeaseJobs(
        queues=body.queues,
        worker=body.worker,
        most=int(body.limit),
        wait=microseconds(body.wait),
        lease_for=0 if body.lease_for is None else microseconds(body.lease_for),
    )
    if body.wait:
        leased = await _wait(visit, request, body.wait + GRACE)
    else:
        leased = await visit.ask(messages.LeasedJobs, lease=request)
    return shapes.LeaseList([_lease(each) for each in leased.jobs])


async def complete(visit: Visit, body: Completed) -> shapes.LeaseEnd:
    return await _end(visit, "complete", result=payload_of(body.result, body.result_base64))


async def fail(visit: Visit, body: Failed) -> shapes.LeaseEnd:
    return await _end(
        visit,
        "fail",
        group=body.group,
        message=body.message,
        backtrace=body.backtrace,
        again_at=max(0, instant(body.retry_at)),
    )


async def release(visit: Visit) -> shapes.LeaseEnd:
    return await _end(visit, "release")


async def renew(visit: Visit, body: Renewed) -> shapes.LeaseEnd:
    span = 0 if body.lease_for is None else microseconds(body.lease_for)
    return await _end(visit, "renew", lease_for=span)


async def _end(visit: Visit, action: Any, **more: Any) -> shapes.LeaseEnd:
    request = messages.EndLease(visit.path("token"), action, by=visit.by, **more)
    ended = await visit.ask(messages.EndedLease, end=request)
    return shapes.LeaseEnd(None if ended.job is None else shapes.Job.of(ended.job))


async def _wait(visit: Visit, request: messages.LeaseJobs, patience: float) -> messages.LeasedJobs:
    """Over a connection of its own, so that those who wait are in nobody's way; it ends with the
    visitor's, so that no job is given to one who has left.
    """
    room = visit.room
    if room.closed:
        raise _stopping()
    if len(room.waiting) >= MOST_WAITING:
        raise Refusal(503, "too many wait for jobs already", {"Retry-After": "5"})
    asking = asyncio.create_task(_first(visit, request))
    leaving = asyncio.create_task(_left(visit))
    room.waiting.add(asking)
    try:
        await asyncio.wait({asking, leaving}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if asking.cancelled():
            raise _stopping()
        if asking.done():
            return asking.result()
        raise Refusal(503, "the server does not answer")
    finally:
        room.waiting.discard(asking)
        asking.cancel()
        leaving.cancel()


def _stopping() -> Refusal:
    return Refusal(
        503, "the server is about to stop: ask again when it is back", {"Retry-After": "5"}
    )


async def _first(visit: Visit, request: messages.LeaseJobs) -> messages.LeasedJobs:
    told = visit.room.control.follow(messages.LeasedJobs, lease=request)
    try:
        async for leased in told:
            return leased
        return messages.LeasedJobs([])
    finally:
        await told.aclose()  # type: ignore[attr-defined]


async def _left(visit: Visit) -> None:
    while (await visit.request.receive())["type"] != "http.disconnect":
        pass


def _lease(leased: messages.LeasedJob) -> shapes.Lease:
    job = shapes.Job.of(leased.job, leased.payload)
    return shapes.Lease(leased.token, shapes.moment(leased.deadline), job)
