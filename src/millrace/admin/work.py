"""`push`, `lease` and `end`: requests of HTTP clients, with audit entries and idempotency keys."""

from millrace.engine.job import Job
from millrace.protocols.http.leases import end_lease
from millrace.protocols.http.pushes import push_jobs
from millrace.protocols.http.tokens import LeaseToken
from millrace.records import EndedLease, EndLease, LeasedJob, LeasedJobs, PushedJobs, PushJobs

from .errors import require_room, require_writable
from .jobs import job_record
from .service import AdminService


def push(hub: AdminService, request: PushJobs, now: int) -> PushedJobs:
    """Push all jobs of the request, or none. A request with the idempotency key of an earlier one
    pushes nothing and returns the earlier reply.
    """
    require_room(hub.engine)
    if (
        request.key
        and (found := hub.idempotency.find(request.key, request.digest, now)) is not None
    ):
        return found
    jobs = push_jobs(hub.engine, request.jobs, now)
    hub.audit.add_work(now, request.by, "push", "jobs over HTTP", len(jobs))
    reply = PushedJobs([job_record(hub, job) for job in jobs])
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
