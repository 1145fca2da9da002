"""`push`, `lease` and `end`: HTTP as the sixth protocol to push and process jobs.

Jobs pushed over HTTP have the retry delays of Faktory. A job leased over HTTP has a deadline, which
the server's timer enforces, and a token. The token contains the job number, the attempt, the lease
time, and a keyed digest of these that only the server can compute. Only a client with the token can
end the attempt.
"""

from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, HTTP, Job, Push
from millrace.engine.policy import DAY, SECOND
from millrace.engine.states import DEAD, DONE, LEASED, READY
from millrace.engine.waiters import Waiter
from millrace.records import (
    EndedLease,
    EndLease,
    LeasedJob,
    LeaseJobs,
    NewJob,
    PushedJobs,
    PushJobs,
)

from .actions import STATE_TEXT, set_tags
from .audit import truncate
from .bulk import check_priority, check_queue, check_tags, quoted
from .errors import AdminError, NotFound, require_room, require_writable
from .jobs import job_record
from .service import AdminService

#: Maximum jobs per push. All connections wait during a push.
MAX_PUSHED: Final = 200
MAX_PAYLOAD_BYTES: Final = 16 << 20
#: Maximum length of a job id, a kind and a worker name.
MAX_NAME_CHARS: Final = 255
MAX_DEPENDENCIES: Final = 1000
MAX_RETRIES: Final = 1_000_000
LEASE_LIMITS: Final = (SECOND, 365 * DAY)
#: The oldest job and this number of the newest jobs with the same id are examined.
MAX_SAME_ID: Final = 16

#: Size of the digest in a token, in bytes.
DIGEST_SIZE: Final = 12

MAX_QUEUES: Final = 100
MAX_LEASED: Final = 100
#: A reply contains no further job after this number of bytes.
LEASE_BYTES_LIMIT: Final = 4 << 20
MAX_WAIT: Final = 3600 * SECOND

MAX_GROUP_LENGTH: Final = 200
MAX_MESSAGE_LENGTH: Final = 10_000
MAX_BACKTRACE_LINES: Final = 50
MAX_LINE_LENGTH: Final = 1000

# Pushing


def push(hub: AdminService, asked: PushJobs, now: int) -> PushedJobs:
    """Push all jobs of the request, or none."""
    engine = hub.engine
    require_room(engine)
    if not 0 < len(asked.jobs) <= MAX_PUSHED:
        raise AdminError(f"1 to {MAX_PUSHED} jobs can be pushed at once", "too large")
    places: dict[str, int] = {}
    pushes = []
    for number, new in enumerate(asked.jobs):
        _check(new)
        if new.jid and (new.jid in places or _unfinished(engine, new.jid)):
            raise AdminError(f"there is a job {quoted(new.jid)} that is not over", "conflict")
        pushes.append(_push(engine, new, number, places, now))
        if new.jid:
            places[new.jid] = number
    jobs = engine.push_many(pushes, now)
    for job, new in zip(jobs, asked.jobs, strict=True):
        if new.tags and hub.qless is not None:
            set_tags(hub, job, list(dict.fromkeys(new.tags)), now)
    hub.audit.add_work(now, asked.by, "push", "jobs over HTTP", len(jobs))
    return PushedJobs([job_record(hub, job) for job in jobs])


def _push(engine: Engine, new: NewJob, number: int, places: dict[str, int], now: int) -> Push:
    return Push(
        new.jid,
        new.kind,
        new.payload,
        HTTP,
        new.queue,
        new.retries,
        new.lease_for,
        rank=new.priority,
        due=new.at if new.at > now else 0,
        tags=list(dict.fromkeys(new.tags)),
        blockers=[
            blocker
            for jid in dict.fromkeys(new.blockers)
            for blocker in _blockers(engine, jid, number, places)
        ],
    )


def _blockers(engine: Engine, jid: str, number: int, places: dict[str, int]) -> list[int]:
    """Resolve a job id to an earlier job of the same request, or to its jobs that are not done."""
    if jid in places:
        return [places[jid] - number]
    found = engine.find_newest(jid, MAX_SAME_ID)
    if not found:
        engine.depend()  # an uncommitted change may have removed it
        raise AdminError(
            f"there is no job {quoted(truncate(jid, MAX_NAME_CHARS))} to wait for: it is over and "
            "not kept, or never was; push without it if it need not be waited for",
            "conflict",
        )
    return [job.seq for job in found if job.state != DONE]


def _unfinished(engine: Engine, jid: str) -> bool:
    found = engine.find_newest(jid, MAX_SAME_ID)
    return any(job.state not in {DONE, DEAD} for job in found)


def _check(new: NewJob) -> None:
    check_queue(new.queue)
    check_priority(new.priority)
    check_tags(new.tags)
    if len(new.payload) > MAX_PAYLOAD_BYTES:
        raise AdminError(f"a payload is larger than {MAX_PAYLOAD_BYTES} bytes", "too large")
    if len(new.jid) > MAX_NAME_CHARS or len(new.kind) > MAX_NAME_CHARS:
        raise AdminError(f"an id or a kind is longer than {MAX_NAME_CHARS} characters")
    if not 0 <= new.retries <= MAX_RETRIES:
        raise AdminError(f"`retries` is a number between 0 and {MAX_RETRIES}")
    if not 0 <= new.at < FOREVER:
        raise AdminError("`at` is no moment that can be waited for")
    if len(new.blockers) > MAX_DEPENDENCIES:
        raise AdminError(f"it waits for more than {MAX_DEPENDENCIES} jobs")
    _check_span(new.lease_for)


def _check_span(lease_for: int) -> None:
    if not LEASE_LIMITS[0] <= lease_for <= LEASE_LIMITS[1]:
        raise AdminError("a lease lasts between a second and a year")


# Leasing


def queues_of(hub: AdminService, asked: LeaseJobs) -> tuple[str, ...]:
    """Return the requested queues without duplicates, or no queues if the server is stopping."""
    require_writable(hub.engine)
    queues = tuple(dict.fromkeys(asked.queues))
    if not 0 < len(queues) <= MAX_QUEUES:
        raise AdminError(f"name 1 to {MAX_QUEUES} queues")
    for name in queues:
        check_queue(name)
    if not 0 < len(asked.worker) <= MAX_NAME_CHARS:
        raise AdminError(f"a worker's name has 1 to {MAX_NAME_CHARS} characters")
    if not 0 < asked.most <= MAX_LEASED:
        raise AdminError(f"1 to {MAX_LEASED} jobs can be leased at once")
    if asked.lease_for:
        _check_span(asked.lease_for)
    return () if hub.stopping else queues


def lease(hub: AdminService, queues: tuple[str, ...], asked: LeaseJobs, now: int) -> list[Job]:
    until = now + asked.lease_for if asked.lease_for else None
    jobs: list[Job] = []
    size = 0
    while len(jobs) < asked.most and size < LEASE_BYTES_LIMIT:
        job = hub.engine.lease(queues, asked.worker, HTTP, now, until)
        if job is None:
            break
        jobs.append(job)
        size += len(job.payload) + len(job.jid) + len(job.kind) + len(job.queue)
    return jobs


def waiter(queues: tuple[str, ...], asked: LeaseJobs, owner: Any) -> Waiter:
    made = Waiter(queues, asked.worker, HTTP, owner)
    made.lease_for = asked.lease_for
    return made


def leased(hub: AdminService, job: Job) -> LeasedJob:
    record = job_record(hub, job)
    record.payload = job.payload
    return LeasedJob(token(hub, Lease.of(job)), job.deadline, record)


# Tokens


class Lease(NamedTuple):
    """The attempt that a token identifies."""

    seq: int
    attempt: int
    leased_at: int

    @classmethod
    def of(cls, job: Job) -> "Lease":
        return cls(job.seq, job.attempt, job.leased_at)


def token(hub: AdminService, lease: Lease) -> str:
    named = "{}-{}-{}".format(*lease)
    digest = blake2b(named.encode(), key=hub.lease_key(), digest_size=DIGEST_SIZE)
    return f"{named}-{digest.hexdigest()}"


def _read(hub: AdminService, text: str) -> Lease:
    *numbers, _digest = text.split("-")
    if len(numbers) != len(Lease._fields) or not all(map(_is_number, numbers)):
        raise AdminError("that is no token: one comes with every job that is leased")
    lease = Lease(*map(int, numbers))
    if not compare_digest(token(hub, lease).encode(), text.encode()):
        raise NotFound("no lease was given with this token")
    return lease


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


# Ending an attempt


def end(hub: AdminService, asked: EndLease, now: int) -> EndedLease:
    engine = hub.engine
    require_writable(engine)
    job = _held(hub, asked, now)
    match asked.action:
        case "complete":
            engine.complete(job, now, HTTP, result=asked.result)
        case "fail":
            _fail(engine, job, asked, now)
        case "release":
            engine.release(job, now, counted=True)
        case "renew":
            span = asked.lease_for or job.lease_for
            _check_span(span)
            engine.renew(job, now + span, now)
    if asked.action != "renew":
        hub.audit.add_work(now, asked.by, asked.action, "jobs over HTTP", 1)
    return EndedLease(job_record(hub, job) if engine.jobs.get(job.seq) is job else None)


def _fail(engine: Engine, job: Job, asked: EndLease, now: int) -> None:
    if not 0 <= asked.again_at < FOREVER:
        raise AdminError("`again_at` is no moment that can be waited for")
    engine.fail(
        job,
        now,
        HTTP,
        asked.group[:MAX_GROUP_LENGTH] or "Failed",
        asked.message[:MAX_MESSAGE_LENGTH],
        [line[:MAX_LINE_LENGTH] for line in asked.backtrace[:MAX_BACKTRACE_LINES]],
        again_at=asked.again_at or None,
    )


def _held(hub: AdminService, asked: EndLease, now: int) -> Job:
    """Return the job that a token identifies."""
    engine, lease = hub.engine, _read(hub, asked.token)
    job = engine.jobs.get(lease.seq)
    if job is None:
        raise AdminError("the job is gone: it was completed, or removed", "conflict")
    if job.state == LEASED and job.actor == HTTP and Lease.of(job) == lease:
        return job
    # A crash may lose a lease after its token was sent. The job is leased again with the same
    # number and time, so that the token stays valid after another crash.
    if (job.state, job.attempt) == (READY, lease.attempt - 1) and engine.reclaim(
        job, asked.by, HTTP, now, lease.leased_at
    ):
        return job
    raise AdminError(
        f"this attempt is over: {STATE_TEXT[job.state]}, at attempt {job.attempt}", "conflict"
    )
