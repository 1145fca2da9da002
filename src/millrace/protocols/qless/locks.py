"""The locks of jobs: pop, peek, heartbeat, timeout.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

import math
from collections.abc import Generator
from itertools import islice
from typing import Final

from millrace.engine.annotations import ensure_details
from millrace.engine.details import JobDetails, LastError
from millrace.engine.job import Job
from millrace.engine.leases import (
    put_in_front,
)
from millrace.engine.queues import Queue
from millrace.engine.recurring import MAX_SPAWNED
from millrace.engine.states import DEAD, LEASED, READY
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import keep_range_in_slices, run_all_slices

from . import lua_values as lua
from .arguments import Args, parse_number, text, texts
from .errors import ScriptError
from .job_view import (
    data_of,
    wait_start,
)
from .state import QlessState, is_held

#: Number of recurring jobs that one slice of `peek` pushes.
SPAWN_BATCH_SIZE: Final = 20
#: Number of ready jobs that one slice of `peek` finds.
PEEK_BATCH_SIZE: Final = 1000


class PopLimits:
    """What a pop may still do in its next slices."""

    __slots__ = ("expired_locks", "spawned")

    def __init__(self, count: float) -> None:
        #: The number of expired locks to examine. Other jobs are leased after them.
        self.expired_locks = count
        #: The number of recurring jobs to push.
        self.spawned = MAX_SPAWNED


def pop(q: QlessState, now: int, args: Args) -> list[Job]:
    """Lease up to `count` jobs of a queue, and return them. Arguments: queue, worker, count."""
    return pop_some(q, now, args, None)


def pop_some(q: QlessState, now: int, args: Args, limits: PopLimits | None) -> list[Job]:
    """Pop jobs for one slice of a command. `limits` is None for a command with a single slice."""
    local = text(args, 0, "Queue(): no queue name provided")
    queue = q.queue_name(local)
    worker = text(args, 1, 'Pop(): Arg "worker" missing')
    count = parse_number(args, 2, 'Pop(): Arg "count" missing or not a number: ')
    engine = q.engine
    limits = limits or PopLimits(count)
    if q.is_paused(queue):
        limits.expired_locks = 0
        return []
    q.workers.seen(worker, now)
    maximum = q.options.number(f"{local}-max-concurrency") if q.options.config else 0
    if maximum > 0:
        room = max(0, maximum - q.engine.deadlines.count_unexpired(queue, now))
        count, limits.expired_locks = min(count, room), min(limits.expired_locks, room)
    if count <= 0:
        return []
    until = now + q.options.heartbeat(queue)
    usage: dict[str, int] = {}
    # The loss of the old locks may have freed room that other waiting clients have taken since.
    popped = [
        job
        for job in _end_expired_locks(q, queue, now, count, usage, limits)
        if job.state == READY
        and q.throttles.has_room_again(job, usage, now)
        and engine.lease_job(job, worker, QLESS, now, until, wait_start)
    ]
    throttled = bool(q.throttles)
    if limits.expired_locks > 0 or (throttled and not q.throttles.has_room(queue, now)):
        count = len(popped)
    spawnable = min(count - len(popped), limits.spawned)
    limits.spawned -= engine.recurring.spawn(queue, now, spawnable)
    engine.promote_due(queue, now, count - len(popped))
    if throttled:
        popped += q.throttles.lease(queue, worker, now, until, count - len(popped))
        count = len(popped)
    while len(popped) < count:
        found = engine.lease((queue,), worker, QLESS, now, until, wait_start)
        if found is None:
            break
        popped.append(found)
    for job in popped:
        details = ensure_details(job)
        details.waiting_since = now
        details.add_entry("popped", now, q.options.max_history, {"worker": worker})
        q.publisher.tracked("popped", job.jid)
    return popped


def _end_expired_locks(
    q: QlessState,
    queue: str,
    now: int,
    count: float,
    usage: dict[str, int],
    limits: PopLimits,
) -> list[Job]:
    """Report expired locks, and count the attempts whose grace period has ended. Return the jobs of
    these attempts that are ready again. Add their throttles' usage to `usage`.
    """
    lost: list[Job] = []
    count = min(count, limits.expired_locks)
    expired = q.engine.deadlines.expired(queue, now, count)
    limits.expired_locks -= len(expired) if len(expired) >= count else limits.expired_locks
    for job in expired:
        q.throttles.note_usage(job, usage)
        details = ensure_details(job)
        grace = (
            0 if q.publisher.is_dialect_a else lua.to_microseconds(q.options.number("grace-period"))
        )
        if details.lapsed_at is None or grace <= 0:
            _start_grace(q, job, details, now, grace)
            if grace > 0:
                continue
        details.lapsed_at = None
        if _count_lost_attempt(q, job, details, now):
            lost.append(job)
    return lost


def _start_grace(q: QlessState, job: Job, details: JobDetails, now: int, grace: int) -> None:
    q.publisher.tracked("stalled", job.jid)
    details.add_entry("timed-out", now, q.options.max_history)
    details.lapsed_at = job.deadline
    q.publisher.lock_lost(job)
    q.engine.renew(job, now + max(0, grace), now, expired=True)


def _count_lost_attempt(q: QlessState, job: Job, details: JobDetails, now: int) -> bool:
    """Count a lost attempt, and return whether the job is ready for another one."""
    worker, queue = job.holder, q.client_name(job.queue)
    group, message = f"failed-retries-{queue}", f'Job exhausted retries in queue "{queue}"'
    cause = "failed" if job.origin == QLESS else "expired"
    q.engine.fail(job, now, QLESS, group, message, [], cause=cause)
    if job.state == DEAD:
        details.last_error = LastError(group, message, now / 1_000_000, "")
        details.add_entry("failed", now, q.options.max_history, {"group": group})
        q.publisher.tracked("failed", job.jid)
        q.publisher.failed(job, worker, group, message)
    return job.state == READY


def peek(q: QlessState, now: int, args: Args) -> list[Job]:
    """Return the jobs that the next pops would get. Arguments: queue, count."""
    found: list[Job] = run_all_slices(peek_in_slices(q, now, args))
    return found


def peek_in_slices(
    q: QlessState, now: int, args: Args, offset: int = 0
) -> Generator[None, None, list[Job]]:
    """Return the jobs of `peek` from `offset`. Recurring jobs are pushed in slices."""
    queue = q.queue_name(text(args, 0, "Queue(): no queue name provided"))
    count = parse_number(args, 1, 'Peek(): Arg "count" missing or not a number: ')
    left = min(MAX_SPAWNED, offset + count)
    left -= len(q.engine.deadlines.expired(queue, now, left))
    while left > 0:
        wanted = min(left, SPAWN_BATCH_SIZE)
        spawned = q.engine.recurring.spawn(queue, now, wanted)
        left -= spawned
        if spawned < wanted or left <= 0:
            break
        yield
    found = q.engine.deadlines.expired(queue, now, offset + count)
    known = q.engine.queue(queue)
    wanted = math.ceil(min(offset + count, 1 << 31)) - len(found)
    if known is not None and wanted > 0:
        found += yield from _ready_and_due_jobs(q, known, now, wanted)
    return (yield from keep_range_in_slices(found, offset, math.ceil(min(offset + count, 1 << 31))))


def _first_ready_jobs(queue: Queue, wanted: int) -> Generator[None, None, list[Job]]:
    """Return the first ready jobs of a queue in slices, or at once if the queue changes."""
    found: list[Job] = []
    ready = queue.ready.first(wanted)
    try:
        while some := list(islice(ready, PEEK_BATCH_SIZE)):
            found += some
            if len(some) == PEEK_BATCH_SIZE:
                yield
    except RuntimeError:
        return list(queue.ready.first(wanted))
    return found


def _ready_and_due_jobs(
    q: QlessState, queue: Queue, now: int, wanted: int
) -> Generator[None, None, list[Job]]:
    """Return the first ready jobs, and jobs that are due by the clock of the client, in order."""
    ready = yield from _first_ready_jobs(queue, wanted)
    due = q.engine.deadlines.find_due(queue.name, now, wanted)
    if not due:
        return ready
    parked = [job for job in ready if job.seq in queue.ready.parked]
    rows = [(-job.rank, job.position, job.seq, job) for job in ready[: len(ready) - len(parked)]]
    rows += [(-job.rank, job.due_at, job.seq, job) for job in due]
    return [row[3] for row in sorted(rows, key=lambda row: row[:3])] + parked


# Holding a job


def heartbeat(q: QlessState, now: int, args: Args) -> int:
    """Extend the lock of a job, and return its new expiry time in seconds. Arguments: jid, worker,
    data.
    """
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Heatbeat(): Arg "worker" missing')  # spelled as in the original
    data = checked_data(q, now, jid, worker, args[2]) if len(args) > 2 else None
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Heartbeat(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Heartbeat(): Job {jid} not currently running: {q.shown_state(job)}")
    if not is_held(job, worker):
        raise ScriptError(f"Heartbeat(): Job {jid} given out to another worker: {job.holder}")
    q.workers.seen(worker, now)
    ensure_details(job).lapsed_at = None
    if data is not None and job.origin == QLESS:  # payloads of other protocols do not change
        q.engine.update(job, payload=data)
    q.engine.renew(job, now + q.options.heartbeat(job.queue), now)
    return math.trunc(job.deadline / 1_000_000)


def timeout(q: QlessState, now: int, args: Args) -> None:
    """Remove the locks of jobs. Arguments: jids."""
    for jid in texts(args):
        known = q.find(jid)
        if known is None:
            raise ScriptError(f"Timeout(): Job {jid} does not exist")
        if known.state != LEASED:
            raise ScriptError(f"Timeout(): Job {jid} not running")
    for seq in dict.fromkeys(job.seq for job in map(q.find, texts(args)) if job is not None):
        revoke(q, now, q.engine.tables.jobs[seq], now)


def revoke(q: QlessState, now: int, job: Job, job_time: int) -> None:
    """Remove the lock of a job; the next pop returns it. `job_time` is the time in its history."""
    details = ensure_details(job)
    details.add_entry("timed-out", job_time, q.options.max_history)
    q.publisher.lock_lost(job)
    put_in_front(job)
    q.engine.release(job, now, counted=True)


def checked_data(q: QlessState, now: int, jid: str, worker: str, data: bytes | None) -> bytes:
    """Check that the data that a worker sends for its job is JSON according to cjson. The worker
    may always return the data that it received: data of other protocols may be invalid for cjson.
    """
    try:
        return lua.check_json(data)
    except ScriptError:
        job = q.find_held(jid, worker, now)
        if data is None or job is None or data != data_of(q.engine, job):
            raise
        return data


COMMANDS: Final = {
    "pop": pop,
    "peek": peek,
    "heartbeat": heartbeat,
    "timeout": timeout,
}
