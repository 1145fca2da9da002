"""`push`, `lease` and `end`: HTTP as a sixth way to push jobs and to work them.

What HTTP pushes has Faktory's waits between its tries. What it leases has a deadline that the
server's timer keeps, and a token, `<number>-<attempt>`: whoever has that may end the attempt, and
nobody else.
"""

from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, HTTP, Job, Push
from millrace.engine.policy import DAY, SECOND
from millrace.engine.queues import Waiter
from millrace.engine.states import DEAD, DONE, LEASED, READY

from .acting import check_priority, check_queue, check_tags, quoted
from .answering import Answering, Telling
from .doing import IS, set_tags
from .errors import NotFound, Refused, need_durable
from .hub import ControlHub
from .messages import (
    Ended,
    EndLease,
    Leased,
    LeaseJobs,
    NewJob,
    Pushed,
    PushJobs,
)
from .rows import whole

#: So many jobs are pushed at once: everybody waits meanwhile.
MOST_PUSHED: Final = 200
LONGEST_PAYLOAD: Final = 16 << 20
#: A job's id, kind, and the name of a worker.
LONGEST_NAME: Final = 255
MOST_BLOCKERS: Final = 1000
MOST_RETRIES: Final = 1_000_000
LEASE_FOR: Final = (SECOND, 365 * DAY)
#: A jid is looked for among so many jobs that have it.
MOST_TWINS: Final = 16

MOST_QUEUES: Final = 100
MOST_LEASED: Final = 100
#: After so many bytes no further job is handed out in the same answer.
LARGE_ANSWER: Final = 4 << 20
LONGEST_WAIT: Final = 3600 * SECOND

LONGEST_GROUP: Final = 200
LONGEST_MESSAGE: Final = 10_000
MOST_BACKTRACE: Final = 50
LONGEST_LINE: Final = 1000

# Pushing


def push(hub: ControlHub, asked: PushJobs, now: int) -> Pushed:
    """All of them, or none."""
    engine = hub.engine
    need_durable(engine)
    if not 0 < len(asked.jobs) <= MOST_PUSHED:
        raise Refused(f"1 to {MOST_PUSHED} jobs can be pushed at once", "too large")
    places: dict[str, int] = {}
    pushes = []
    for number, new in enumerate(asked.jobs):
        _check(new)
        if new.jid and (new.jid in places or _unfinished(engine, new.jid)):
            raise Refused(f"there is a job {quoted(new.jid)} that is not over", "conflict")
        pushes.append(_push(engine, new, number, places, now))
        if new.jid:
            places[new.jid] = number
    jobs = engine.push_many(pushes, now)
    for job, new in zip(jobs, asked.jobs, strict=True):
        if new.tags and hub.qless is not None:
            set_tags(hub, job, list(dict.fromkeys(new.tags)), now)
    hub.audit.add_work(now, asked.by, "push", "jobs over HTTP", len(jobs))
    return Pushed([whole(hub, job) for job in jobs])


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
    """What a jid stands for: a job before it in the same request, or those that are not done. What
    is not there any more may well be done.
    """
    if jid in places:
        return [places[jid] - number]
    return [job.seq for job in engine.find_newest(jid, MOST_TWINS) if job.state != DONE]


def _unfinished(engine: Engine, jid: str) -> bool:
    found = engine.find_newest(jid, MOST_TWINS)
    return any(job.state not in {DONE, DEAD} for job in found)


def _check(new: NewJob) -> None:
    check_queue(new.queue)
    check_priority(new.priority)
    check_tags(new.tags)
    if len(new.payload) > LONGEST_PAYLOAD:
        raise Refused(f"a payload is larger than {LONGEST_PAYLOAD} bytes", "too large")
    if len(new.jid) > LONGEST_NAME or len(new.kind) > LONGEST_NAME:
        raise Refused(f"an id or a kind is longer than {LONGEST_NAME} characters")
    if not 0 <= new.retries <= MOST_RETRIES:
        raise Refused(f"`retries` is a number between 0 and {MOST_RETRIES}")
    if not 0 <= new.at < FOREVER:
        raise Refused("`at` is no moment that can be waited for")
    if len(new.blockers) > MOST_BLOCKERS:
        raise Refused(f"it waits for more than {MOST_BLOCKERS} jobs")
    _check_span(new.lease_for)


def _check_span(lease_for: int) -> None:
    if not LEASE_FOR[0] <= lease_for <= LEASE_FOR[1]:
        raise Refused("a lease lasts between a second and a year")


# Leasing


def queues_of(hub: ControlHub, asked: LeaseJobs) -> tuple[str, ...]:
    """The queues that are meant, each once; none if the server is about to stop."""
    need_durable(hub.engine)
    queues = tuple(dict.fromkeys(asked.queues))
    if not 0 < len(queues) <= MOST_QUEUES:
        raise Refused(f"name 1 to {MOST_QUEUES} queues")
    for name in queues:
        check_queue(name)
    if not 0 < len(asked.worker) <= LONGEST_NAME:
        raise Refused(f"a worker's name has 1 to {LONGEST_NAME} characters")
    if not 0 < asked.most <= MOST_LEASED:
        raise Refused(f"1 to {MOST_LEASED} jobs can be leased at once")
    if asked.lease_for:
        _check_span(asked.lease_for)
    return () if hub.stopping else queues


def lease(hub: ControlHub, queues: tuple[str, ...], asked: LeaseJobs, now: int) -> list[Job]:
    until = now + asked.lease_for if asked.lease_for else None
    jobs: list[Job] = []
    size = 0
    while len(jobs) < asked.most and size < LARGE_ANSWER:
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


def leased(hub: ControlHub, job: Job) -> Leased:
    return Leased(whole(hub, job), f"{job.seq}-{job.attempt}", job.deadline, job.payload)


# Ending an attempt


def end(hub: ControlHub, asked: EndLease, now: int) -> Ended:
    engine = hub.engine
    need_durable(engine)
    job = _held(engine, asked, now)
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
    return Ended(whole(hub, job) if engine.jobs.get(job.seq) is job else None)


def _fail(engine: Engine, job: Job, asked: EndLease, now: int) -> None:
    if not 0 <= asked.again_at < FOREVER:
        raise Refused("`again_at` is no moment that can be waited for")
    engine.fail(
        job,
        now,
        HTTP,
        asked.group[:LONGEST_GROUP] or "Failed",
        asked.message[:LONGEST_MESSAGE],
        [line[:LONGEST_LINE] for line in asked.backtrace[:MOST_BACKTRACE]],
        again_at=asked.again_at or None,
    )


def _held(engine: Engine, asked: EndLease, now: int) -> Job:
    """The job that a token is the right to."""
    seq, attempt = _read(asked.token)
    job = engine.jobs.get(seq)
    if job is None:
        if seq >= engine.next_seq:
            raise NotFound(f"there never was a job {seq}")
        engine.depend()  # it may be gone since just now
        raise Refused("the job is gone: it was completed, or removed", "conflict")
    if job.state == LEASED and job.actor == HTTP and job.attempt == attempt:
        return job
    # A lease that a crash has forgotten was given all the same.
    if (job.state, job.attempt) == (READY, attempt - 1) and engine.reclaim(
        job, asked.by, HTTP, now
    ):
        return job
    engine.depend()
    raise Refused(f"this attempt is over: {IS[job.state]}, at attempt {job.attempt}", "conflict")


def _read(token: str) -> tuple[int, int]:
    seq, _, attempt = token.partition("-")
    for number in (seq, attempt):
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise Refused("that is no token: one comes with every job that is leased")
    return int(seq), int(attempt)


ANSWERS: Final[dict[str, Answering]] = {"push": push, "end": end}
LONG: Final[dict[str, Telling]] = {}
