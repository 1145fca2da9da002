"""`push`, `lease` and `end`: requests of HTTP clients, with audit entries and idempotency keys."""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final, cast

from millrace.engine.dependencies import blockers_of
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, READY, SCHEDULED, STATE_NAMES
from millrace.protocols.errors import StoreUnavailable
from millrace.protocols.http.leases import end_lease
from millrace.protocols.http.pushes import is_large, push_jobs, stage_jobs
from millrace.protocols.http.tokens import LeaseToken
from millrace.protocols.registry import HTTP
from millrace.records import (
    EndedLease,
    EndLease,
    JobRecord,
    LeasedJob,
    LeasedJobs,
    PushedJobs,
    PushJobs,
)

from .errors import AdminError, require_room, require_writable
from .jobs import job_record
from .service import AdminService

if TYPE_CHECKING:
    from millrace.records.types import State

COMMIT_FAILED: Final = "a commit failed"

#: Carries out a sealed transaction; see Connection.carry_out.
CarryOut = Callable[[str, int], Generator[None, None, bool]]


def push(hub: AdminService, request: PushJobs, now: int) -> PushedJobs:
    """Push all jobs of the request, or none. A request with the idempotency key of an earlier one
    pushes nothing and returns the earlier reply.
    """
    require_room(hub.engine)
    found = _earlier_reply(hub, request, now)
    if found is not None:
        return found
    jobs = push_jobs(hub.engine, request.jobs, now)
    return _record_push(hub, request, [job_record(hub, job) for job in jobs], now)


def takes_slices(hub: AdminService, request: PushJobs) -> bool:
    """Whether `push_in_slices` must execute the request."""
    return is_large(request.jobs) or request.key in hub.idempotency.unfinished


def push_in_slices(
    hub: AdminService, request: PushJobs, carry_out: CarryOut
) -> Iterator[PushedJobs | None]:
    """Push all jobs of a large request, or none. They are staged in slices, and then take effect as
    a whole.
    """
    unfinished = hub.idempotency.unfinished
    while request.key in unfinished:
        yield None  # another connection has sent the same request
    if not is_large(request.jobs):
        yield push(hub, request, hub.now)
        return
    engine, now = hub.engine, hub.now
    require_room(engine)
    found = _earlier_reply(hub, request, now)
    if found is not None:
        yield found
        return
    if request.key:
        unfinished.add(request.key)
    name, jobs, sealed = engine.transactions.begin(now), list[Job](), False
    try:
        yield from _stage(hub, request, name, jobs, now)
        engine.transactions.seal(name, HTTP, "", [], now)
        sealed = True
        reply = _record_push(hub, request, [_released(hub, job, now) for job in jobs], now)
    finally:
        unfinished.discard(request.key)
        if not sealed:
            engine.transactions.abandon(name, now)
    if not (yield from carry_out(name, now)):
        raise StoreUnavailable(engine.unavailable_reason or COMMIT_FAILED)
    yield reply


def _stage(
    hub: AdminService, request: PushJobs, name: str, jobs: list[Job], now: int
) -> Iterator[None]:
    engine = hub.engine
    reverts, flushes = engine.revert_count, engine.flush_count
    for _ in stage_jobs(engine, request.jobs, name, jobs, now):
        yield
        if engine.unavailable_reason or engine.revert_count != reverts:
            raise StoreUnavailable(engine.unavailable_reason or COMMIT_FAILED)
        if engine.flush_count != flushes:
            raise AdminError("No job was pushed, because the server was flushed.", "conflict")


def _released(hub: AdminService, job: Job, now: int) -> JobRecord:
    """The record of a staged job as it is after its release."""
    record = job_record(hub, job)
    state = BLOCKED if blockers_of(job) else SCHEDULED if job.due_at > now else READY
    record.state = cast("State", STATE_NAMES[state])
    record.ready_at = now if state == READY else 0
    return record


def _earlier_reply(hub: AdminService, request: PushJobs, now: int) -> PushedJobs | None:
    return hub.idempotency.find(request.key, request.digest, now) if request.key else None


def _record_push(
    hub: AdminService, request: PushJobs, records: list[JobRecord], now: int
) -> PushedJobs:
    """Record a push in the same change, and return its reply."""
    hub.audit.add_work(now, request.by, "push", "jobs over HTTP", len(records))
    reply = PushedJobs(records)
    if request.key:
        hub.idempotency.add(request.key, request.digest, reply, now)
    return reply


def leased(hub: AdminService, jobs: list[Job], payloads: list[bytes]) -> LeasedJobs:
    return LeasedJobs(
        [_leased(hub, job, payload) for job, payload in zip(jobs, payloads, strict=True)]
    )


def _leased(hub: AdminService, job: Job, payload: bytes) -> LeasedJob:
    record = job_record(hub, job)
    record.payload = payload
    return LeasedJob(hub.tokens.write(LeaseToken.from_job(job)), job.deadline, record)


def end(hub: AdminService, request: EndLease, now: int) -> EndedLease:
    engine = hub.engine
    require_writable(engine)
    job = end_lease(engine, hub.tokens, request, now)
    if request.action != "renew":
        hub.audit.add_work(now, request.by, request.action, "jobs over HTTP", 1)
    return EndedLease(job_record(hub, job) if engine.job(job.seq) is job else None)
