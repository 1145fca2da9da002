"""Lease jobs over HTTP, and end or renew a lease.

A job leased over HTTP has a deadline, which the server's timer enforces, and a token (tokens.py).
"""

from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND, Job, payload_size
from millrace.engine.states import LEASED, READY, STATE_NAMES
from millrace.engine.waiters import Waiter
from millrace.protocols.errors import CodedError
from millrace.protocols.registry import HTTP
from millrace.records import EndLease, LeaseJobs
from millrace.records.types import (
    MAX_BACKTRACE_LINE,
    MAX_BACKTRACE_LINES,
    MAX_ERROR_GROUP,
    MAX_ERROR_MESSAGE,
    MIN_LEASE,
)

from .pushes import check_queue
from .tokens import LeaseToken, LeaseTokens

#: A reply contains no further job after this number of bytes.
LEASE_BYTES_LIMIT: Final = 4 << 20
MAX_WAIT: Final = 3600 * SECOND


def lease_jobs(engine: Engine, queues: tuple[str, ...], request: LeaseJobs, now: int) -> list[Job]:
    until = now + request.lease_for if request.lease_for else None
    jobs: list[Job] = []
    size = 0
    while len(jobs) < request.limit and size < LEASE_BYTES_LIMIT:
        job = engine.lease(queues, request.worker, HTTP, now, until)
        if job is None:
            break
        jobs.append(job)
        size += payload_size(job) + len(job.jid) + len(job.kind) + len(job.queue)
    return jobs


def requested_queues(request: LeaseJobs) -> tuple[str, ...]:
    """Check the queue names and the lease duration of a request, and return its queues without
    duplicates.
    """
    queues = tuple(dict.fromkeys(request.queues))
    for name in queues:
        check_queue(name)
    _check_duration(request.lease_for)
    return queues


def make_waiter(queues: tuple[str, ...], request: LeaseJobs, owner: Any) -> Waiter:
    waiter = Waiter(queues, request.worker, HTTP, owner)
    waiter.lease_duration = request.lease_for
    return waiter


def end_lease(engine: Engine, tokens: LeaseTokens, request: EndLease, now: int) -> Job:
    """End or renew the lease that the token identifies; return its job."""
    job = _find_leased_job(engine, tokens.read(request.token), request.by, now)
    match request.action:
        case "complete":
            engine.complete(job, now, HTTP, result=request.result)
        case "fail":
            _fail(engine, job, request, now)
        case "release":
            engine.release(job, now, counted=True)
        case "renew":
            _check_duration(request.lease_for)
            engine.renew(job, now + (request.lease_for or job.lease_duration), now)
    return job


def _fail(engine: Engine, job: Job, request: EndLease, now: int) -> None:
    engine.fail(
        job,
        now,
        HTTP,
        request.group[:MAX_ERROR_GROUP] or "Failed",
        request.message[:MAX_ERROR_MESSAGE],
        [line[:MAX_BACKTRACE_LINE] for line in request.backtrace[:MAX_BACKTRACE_LINES]],
        retry_at=request.retry_at or None,
    )


def _find_leased_job(engine: Engine, lease: LeaseToken, worker: str, now: int) -> Job:
    """Return the job of a lease, leased again if a crash lost the lease. Raise CodedError if the
    lease has ended.
    """
    job = engine.job(lease.seq)
    if job is None:
        raise CodedError("The job no longer exists: it was completed or deleted.", "conflict")
    if job.state == LEASED and job.holder_protocol == HTTP and LeaseToken.from_job(job) == lease:
        return job
    # A crash may lose a lease after its token was sent. The job is leased again with the same
    # attempt number and lease time, so that the token stays valid after another crash.
    if (job.state, job.attempt) == (READY, lease.attempt - 1) and engine.reclaim(
        job, worker, HTTP, now, lease.leased_at
    ):
        return job
    raise CodedError(
        f"This lease has ended: the job is {STATE_NAMES[job.state]} (attempt {job.attempt}).",
        "conflict",
    )


def _check_duration(lease_for: int) -> None:
    """Check the duration of a lease; 0 selects the default."""
    if 0 < lease_for < MIN_LEASE:
        raise CodedError("A lease must last between 1 second and 365 days.")
