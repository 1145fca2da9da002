"""Commands of producers and workers: put, pop, heartbeat, complete, fail, retry and similar ones.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

import math
from collections.abc import Generator
from itertools import islice
from typing import Final

from millrace.engine.annotations import ensure_details
from millrace.engine.attempts import clear_failures
from millrace.engine.details import JobDetails, LastError
from millrace.engine.job import FOREVER, NO_PROTOCOL, Failure, Job, NewJob
from millrace.engine.leases import (
    clear_holder,
    end_grace,
    leave_front,
    put_in_front,
)
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, READY
from millrace.protocols.queue_rules import unlimited_engine
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import SLICE_SIZE, run_at_once

from . import lua_values as lua
from .arguments import Args, jids, number, option_number, options, raw, tags, text, texts
from .dependencies import LONG_LIST, StagedJobs, with_staged
from .errors import ScriptError
from .job_view import (
    data_of,
    remaining,
    shown_worker,
    state_of,
    waits_since,
)
from .names import decode_name, encode_name
from .state import Qless, is_held

#: Lease time of workers of other protocols.
LEASE_DURATION: Final = 1800 * 1_000_000
DEFAULT_RETRIES: Final = 5
#: Maximum number of completed jobs that one command removes.
RETIRE_BATCH_SIZE: Final = 100
#: Number of jobs that one slice of a long `cancel` examines or removes.
CANCEL_BATCH_SIZE: Final = 50


# Putting


def put(
    q: Qless, now: int, args: Args, staged: StagedJobs | None = None
) -> bytes | Generator[None, None, bytes]:
    """worker, queue, jid, klass, data, delay, options"""
    queue = text(args, 1, "Queue(): no queue name provided")
    jid = text(args, 2, 'Put(): Arg "jid" missing')
    klass = text(args, 3, 'Put(): Arg "klass" missing')
    data = lua.check(raw(args, 4))
    delay = number(args, 5, 'Put(): Arg "delay" not a number: ')
    chosen = options(args, 6)
    if chosen and staged is None and len(chosen.get("depends", b"")) > LONG_LIST:
        return with_staged(q, jid, chosen["depends"], lambda found: put(q, now, args, found))
    name = q.queue_name(queue)  # the port may refuse it: before any change
    job = q.find(jid)
    details = JobDetails() if job is None else ensure_details(job)
    retries, priority = DEFAULT_RETRIES if job is None else job.retries, details.priority
    lower_first = q.lower_first if job is None or "priority" in chosen else details.lower_first
    tagged, depends = [(tag, now) for tag, _ in details.tags], []
    if chosen:
        retries, priority = _retries(chosen, retries), _priority(chosen, priority)
        tagged = [(tag, now) for tag in tags(chosen["tags"])] if "tags" in chosen else tagged
        depends = jids(chosen["depends"]) if "depends" in chosen and staged is None else []
        if "throttles" in chosen:
            keys = [q.scoped_throttle(tid) for tid in jids(chosen["throttles"])]
            if job is None:
                details.limits = keys
            else:
                q.engine.limits.set_keys(job, keys)
    due = now + lua.to_microseconds(delay) if delay > 0 else 0
    if q.has_subscribers:
        q.publish_log({"jid": jid, "event": "put", "queue": queue})
    q.register_queue(name, now)
    details.priority, details.lower_first, details.waiting_since = priority, lower_first, now
    if job is None:
        details.tags = tagged
        blockers = _blockers_of_new(q, jid, depends, staged)
        job = _create(q, now, queue, jid, klass, data, due, retries, blockers, details)
    else:
        replaced = _blockers(q, job.seq, depends, staged) if depends or staged else None
        _move(q, now, args, queue, job, klass, data, due, retries, replaced)
        q.engine.set_tags(job, tagged)
    if staged is not None and job.state == BLOCKED:
        staged.block(job)
    q.publish_tracked("put", job.jid)
    return encode_name(q.local(job.jid))  # the engine chooses an id in place of an empty one


def requeue(q: Qless, now: int, args: Args) -> bytes | Generator[None, None, bytes]:
    """Put a job that already exists."""
    jid = text(args, 2, "Job(): no jid provided")
    if q.find(jid) is None:
        raise ScriptError(f"Requeue(): Job {jid} does not exist")
    return put(q, now, args)


def _retries(chosen: dict[str, bytes], known: int) -> int:
    if "retries" in chosen:
        retries = option_number(chosen["retries"], 'Put(): Arg "retries" not a number: ')
        return lua.whole(retries)
    return known


def _priority(chosen: dict[str, bytes], known: float) -> float:
    if "priority" in chosen:
        return option_number(chosen["priority"], 'Put(): Arg "priority" not a number')
    return known


def _create(
    q: Qless,
    now: int,
    queue: str,
    jid: str,
    klass: str,
    data: bytes,
    due: int,
    retries: int,
    blockers: list[int],
    details: JobDetails,
) -> Job:
    details.add_entry("put", now, q.max_history, {"q": queue})
    name = q.queue_name(queue)
    push = NewJob(
        q.scoped(jid),
        klass,
        data,
        QLESS,
        name,
        retries,
        LEASE_DURATION,
        rank=details.rank,
        due_at=due,
        tags=[str(tag) for tag, _ in details.tags],
        blockers=blockers,
        details=details,
    )
    return q.engine.push(push, now)


def _move(
    q: Qless,
    now: int,
    args: Args,
    queue: str,
    job: Job,
    klass: str,
    data: bytes,
    due: int,
    retries: int,
    blockers: list[int] | None,
) -> None:
    """Put a job that already exists. Its worker loses the job."""
    details = ensure_details(job)
    details.add_entry("put", now, q.max_history, {"q": queue})
    if shown_worker(job) not in {"", text(args, 0, "")}:
        q.publish_lock_lost(job)
    details.lapsed_at, details.parked = None, None
    leave_front(job)
    clear_holder(job)
    q.engine.update(job, kind=klass, payload=data, retries=retries)
    due = _due(q, job, due)
    q.engine.move(job, q.queue_name(queue), now, QLESS, due=due, blockers=blockers)


def _due(q: Qless, job: Job, due: int) -> int:
    """Return a due time by the clock of the job: jobs of other protocols follow the server's."""
    return q.engine.caller.server_time(due) if due and job.origin != QLESS else due


def put_again(q: Qless, now: int, job: Job, queue: str, due: int) -> None:
    """Put an existing job into a queue, unchanged, for an operator. `now` is the server's time.
    `due` uses the clock of the other times of the job.
    """
    details, job_time = ensure_details(job), q.engine.time_of(job, now)
    details.add_entry("put", job_time, q.max_history, {"q": queue})
    q.publish_log({"jid": job.jid, "event": "put", "queue": queue})
    if job.state == LEASED:
        q.publish_lock_lost(job)
    q.register_queue(queue, job_time)
    details.waiting_since = job_time
    details.lapsed_at, details.parked = None, None
    leave_front(job)
    clear_holder(job)
    q.engine.move(job, queue, now, NO_PROTOCOL, due=due)
    q.publish_tracked("put", job.jid)


def _blockers(q: Qless, seq: int, depends: list[str], staged: StagedJobs | None) -> list[int]:
    """Return the existing jobs of these jids. The engine ignores completed jobs. Of staged
    dependencies of the job with this seq, return only the first one.
    """
    if staged is not None:
        return staged.first(seq)
    found = [q.find(jid) for jid in depends]
    return [job.seq for job in found if job is not None]


def _blockers_of_new(
    q: Qless, jid: str, depends: list[str], staged: StagedJobs | None
) -> list[int]:
    seq = q.engine.next_seq
    blockers = _blockers(q, seq, depends, staged)
    if jid in depends:
        blockers.append(seq)  # it waits for itself until a client unblocks it
    return blockers


# Popping


def pop(q: Qless, now: int, args: Args) -> list[Job]:
    """queue, worker, count"""
    local = text(args, 0, "Queue(): no queue name provided")
    queue = q.queue_name(local)
    worker = text(args, 1, 'Pop(): Arg "worker" missing')
    count = number(args, 2, 'Pop(): Arg "count" missing or not a number: ')
    engine = q.engine
    if q.is_paused(queue):
        return []
    q.worker_seen(worker, now)
    maximum = q.setting(f"{local}-max-concurrency") if q.config else 0
    if maximum > 0:
        count = min(count, max(0, maximum - q.engine.deadlines.running(queue, now)))
    if count <= 0:
        return []
    until = now + q.heartbeat(queue)
    popped: list[Job] = []
    usage: dict[str, int] = {}
    for job in _invalidate(q, queue, now, count, usage):
        # The loss of the old locks may have freed room that other waiting clients have taken since.
        if job.state == READY and q.throttles.has_room_again(job, usage, now):
            engine.lease_job(job, worker, QLESS, now, until, waits_since)
            popped.append(job)
    throttled = bool(q.throttles)
    if throttled and not q.throttles.room(queue, now):
        count = len(popped)
    q.engine.recurring.spawn(queue, now, count - len(popped))
    engine.promote_due(queue, now, count - len(popped))
    if throttled:
        popped += q.throttles.lease(queue, worker, now, until, count - len(popped))
        count = len(popped)
    while len(popped) < count:
        found = engine.lease((queue,), worker, QLESS, now, until, waits_since)
        if found is None:
            break
        popped.append(found)
    for job in popped:
        details = ensure_details(job)
        details.waiting_since = now
        details.add_entry("popped", now, q.max_history, {"worker": worker})
        q.publish_tracked("popped", job.jid)
    return popped


def _invalidate(q: Qless, queue: str, now: int, count: float, usage: dict[str, int]) -> list[Job]:
    """Return the jobs whose locks have expired, after the notification and the grace period. Add
    the usage of their throttles before the expiry to `usage`.
    """
    lost: list[Job] = []
    for job in q.engine.deadlines.expired(queue, now, count):
        q.throttles.note_usage(job, usage)
        details = ensure_details(job)
        grace = 0 if q.early else lua.to_microseconds(q.setting("grace-period"))
        if details.lapsed_at is None or grace <= 0:
            _lose_lock(q, job, details, now, grace)
            if grace > 0:
                continue
        details.lapsed_at = None
        if _count_lost_attempt(q, job, details, now):
            lost.append(job)
    return lost


def _lose_lock(q: Qless, job: Job, details: JobDetails, now: int, grace: int) -> None:
    q.publish_tracked("stalled", job.jid)
    details.add_entry("timed-out", now, q.max_history)
    details.lapsed_at = job.deadline
    q.publish_lock_lost(job)
    q.engine.renew(job, now + max(0, grace), now, expired=True)


def _count_lost_attempt(q: Qless, job: Job, details: JobDetails, now: int) -> bool:
    """Count a lost attempt, and return whether the job is ready for another one."""
    worker, queue = job.holder, q.local(job.queue)
    group, message = f"failed-retries-{queue}", f'Job exhausted retries in queue "{queue}"'
    cause = "failed" if job.origin == QLESS else "expired"
    q.engine.fail(job, now, QLESS, group, message, [], cause=cause)
    if job.state == DEAD:
        details.last_error = LastError(group, message, now / 1_000_000, "")
        details.add_entry("failed", now, q.max_history, {"group": group})
        q.publish_tracked("failed", job.jid)
        q.publish_failed(job, worker, group, message)
    return job.state == READY


def peek(q: Qless, now: int, args: Args, *, offset: int = 0) -> list[Job]:
    """queue, count"""
    queue = q.queue_name(text(args, 0, "Queue(): no queue name provided"))
    count = number(args, 1, 'Peek(): Arg "count" missing or not a number: ')
    found = q.engine.deadlines.expired(queue, now, offset + count)
    q.engine.recurring.spawn(queue, now, offset + count - len(found))
    known = q.engine.queues.get(queue)
    wanted = math.ceil(min(offset + count, 1 << 31)) - len(found)
    if known is not None and wanted > 0:
        found += _with_due(q, known, now, wanted)[:wanted]
    return found[offset:]


def _with_due(q: Qless, queue: Queue, now: int, wanted: int) -> list[Job]:
    """Return the first ready jobs, and jobs that are due by the clock of the client, in order."""
    ready = list(queue.ready.first(wanted))
    due = q.engine.deadlines.find_due(queue.name, now, wanted)
    if not due:
        return ready
    parked = [job for job in ready if job.seq in queue.ready.parked]
    rows = [(-job.rank, job.position, job.seq, job) for job in ready[: len(ready) - len(parked)]]
    rows += [(-job.rank, job.due_at, job.seq, job) for job in due]
    return [row[3] for row in sorted(rows, key=lambda row: row[:3])] + parked


# Holding a job


def heartbeat(q: Qless, now: int, args: Args) -> int:
    """jid, worker, data"""
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Heatbeat(): Arg "worker" missing')  # spelled as in the original
    data = _checked_data(q, now, jid, worker, args[2]) if len(args) > 2 else None
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Heartbeat(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Heartbeat(): Job {jid} not currently running: {q.shown_state(job)}")
    if not is_held(job, worker):
        raise ScriptError(f"Heartbeat(): Job {jid} given out to another worker: {job.holder}")
    q.worker_seen(worker, now)
    ensure_details(job).lapsed_at = None
    if data is not None and job.origin == QLESS:  # payloads of other protocols do not change
        q.engine.update(job, payload=data)
    q.engine.renew(job, now + q.heartbeat(job.queue), now)
    return math.trunc(job.deadline / 1_000_000)


def timeout(q: Qless, now: int, args: Args) -> None:
    """jids"""
    for jid in texts(args):
        known = q.find(jid)
        if known is None:
            raise ScriptError(f"Timeout(): Job {jid} does not exist")
        if known.state != LEASED:
            raise ScriptError(f"Timeout(): Job {jid} not running")
    for job in dict.fromkeys(job.seq for job in map(q.find, texts(args)) if job is not None):
        revoke(q, now, q.engine.jobs[job], now)


def revoke(q: Qless, now: int, job: Job, job_time: int) -> None:
    """Remove the lock of a job; the next pop returns it. `job_time` is the time in its history."""
    details = ensure_details(job)
    details.add_entry("timed-out", job_time, q.max_history)
    q.publish_lock_lost(job)
    put_in_front(job)
    q.engine.release(job, now, counted=True)


# Ending an attempt


def complete(
    q: Qless, now: int, args: Args, staged: StagedJobs | None = None
) -> bytes | Generator[None, None, bytes]:
    """jid, worker, queue, data, [next q] [delay d] [depends JSON]"""
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Complete(): Arg "worker" missing')
    queue = text(args, 2, 'Complete(): Arg "queue" missing')
    data = _checked_data(q, now, jid, worker, raw(args, 3))
    chosen = _next(args) if len(args) > 4 else None
    if chosen is not None and staged is None and len(chosen[3]) > LONG_LIST:
        return with_staged(q, jid, chosen[3], lambda found: complete(q, now, args, found))
    job = _held(q, now, jid, worker, queue)
    if chosen is not None:
        q.queue_name(chosen[0])  # the port may refuse it: before any change
    details = ensure_details(job)
    details.add_entry("done", now, q.max_history)
    details.last_error, details.lapsed_at = None, None
    if data != data_of(q.engine, job) and (job.origin == QLESS or chosen is not None):
        q.engine.update(job, payload=data)
    q.publish_tracked("completed", job.jid)
    if chosen is None:
        return _finish(q, now, job, details, _result(q, job, data))
    following, delay, depends, _ = chosen
    blockers = _blockers(q, job.seq, depends, staged)
    due = now + lua.to_microseconds(delay) if delay > 0 else 0
    reply = _advance(q, now, job, details, following, due, blockers)
    if staged is not None and job.state == BLOCKED:
        staged.block(job)
    return reply


def _checked_data(q: Qless, now: int, jid: str, worker: str, data: bytes | None) -> bytes:
    """Check that the data that a worker sends for its job is JSON according to cjson. The worker
    may always return the data that it received: data of other protocols may be invalid for cjson.
    """
    try:
        return lua.check(data)
    except ScriptError:
        job = q.find_held(jid, worker, now)
        if data is None or job is None or data != data_of(q.engine, job):
            raise
        return data


def _result(q: Qless, job: Job, data: bytes) -> bytes | None:
    """Return the result of a job of another protocol: the data, if its worker changed it. Clients
    encode the data again, so different text may be the same data.
    """
    if job.origin == QLESS or data == data_of(q.engine, job):
        return None
    try:
        return None if lua.decode(data) == lua.decode(data_of(q.engine, job)) else data
    except ScriptError:  # numbers out of range
        return data


def _next(args: Args) -> tuple[str, lua.Number, list[str], bytes] | None:
    """Return the next queue of a job, if any, with the delay, the dependencies and their text. A
    long text is not decoded.
    """
    chosen = dict(zip(texts(args[4::2]), args[5::2], strict=False))
    delay = lua.tonumber(chosen.get("delay", b"0"))
    if delay is None:
        raise ScriptError("assertion failed!")
    listed = chosen.get("depends", b"[]")
    depends = jids(listed) if len(listed) <= LONG_LIST else []
    if "next" in chosen:
        return decode_name(chosen["next"]), delay, depends, listed
    for option in ("delay", "depends"):
        if option in chosen:
            raise ScriptError(f'Complete(): "{option}" cannot be used without a "next".')
    return None


def _held(q: Qless, now: int, jid: str, worker: str, queue: str) -> Job:
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Complete(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Complete(): Job {jid} is not currently running: {q.shown_state(job)}")
    if not is_held(job, worker):
        raise ScriptError(
            f"Complete(): Job {jid} has been handed out to another worker: {job.holder}"
        )
    if job.queue != q.scoped(queue) and not q.early:
        raise ScriptError(f"Complete(): Job {jid} running in another queue: {q.local(job.queue)}")
    return job


def _finish(q: Qless, now: int, job: Job, details: JobDetails, result: bytes | None) -> bytes:
    if q.has_subscribers:
        names = q.local(job.jid), q.local(job.queue)
        q.publish_log({"jid": names[0], "event": "completed", "queue": names[1]})
    clear_failures(job)
    q.engine.complete(job, now, QLESS, result=result)
    _retire(q, now)
    return b"complete"


def _retire(q: Qless, now: int) -> None:
    """Remove completed jobs that are too old or exceed the maximum number, some per command."""
    kept = unlimited_engine(q.engine).done_kept
    oldest = now - q.completed_retention
    for job in list(islice(kept.values(), RETIRE_BATCH_SIZE)):
        if ensure_details(job).done_at > oldest and len(kept) <= q.max_completed:
            return
        drop(q, job, now)


def drop(q: Qless, job: Job, now: int) -> None:
    """Remove a job."""
    q.engine.cancel(job, now, QLESS)


def _advance(
    q: Qless, now: int, job: Job, details: JobDetails, queue: str, due: int, blockers: list[int]
) -> bytes:
    names = q.local(job.jid), q.local(job.queue)
    q.publish_log({"jid": names[0], "to": queue, "event": "advanced", "queue": names[1]})
    details.add_entry("put", now, q.max_history, {"q": queue})
    queue = q.queue_name(queue)
    q.register_queue(queue, now)
    q.engine.complete(job, now, QLESS, advances=True)
    details.waiting_since = now
    clear_holder(job)
    due = _due(q, job, due)
    q.engine.move(job, queue, now, QLESS, due=due, blockers=blockers)
    return state_of(job).encode() if job.state != LEASED else b"waiting"


def fail(q: Qless, now: int, args: Args) -> bytes:
    """jid, worker, group, message, data"""
    job, worker = _to_fail(q, now, args)
    if job.state != LEASED:
        state = q.shown_state(job)
        raise ScriptError(f"Fail(): Job {q.local(job.jid)}not currently running: {state}")
    if not is_held(job, worker):
        raise ScriptError(
            f"Fail(): Job {q.local(job.jid)} running with another worker: {job.holder}"
        )
    return _fail(q, now, job, args)


def fail_any(q: Qless, now: int, args: Args) -> bytes:
    """Fail a job in any state, by any worker."""
    job, _ = _to_fail(q, now, args)
    if job.state in {DONE, DEAD}:
        # The engine fails only runnable jobs. The job is never due, so no worker can get it.
        q.engine.move(job, job.queue, now, QLESS, due=FOREVER)
    return _fail(q, now, job, args)


def _to_fail(q: Qless, now: int, args: Args) -> tuple[Job, str]:
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Fail(): Arg "worker" missing')
    text(args, 2, 'Fail(): Arg "group" missing')
    text(args, 3, 'Fail(): Arg "message" missing')
    if len(args) > 4:
        _checked_data(q, now, jid, worker, args[4])
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Fail(): Job {jid}does not exist")  # without a space, as in the original
    return job, worker


def _fail(q: Qless, now: int, job: Job, args: Args) -> bytes:
    if job.origin != QLESS:
        return _fail_foreign(q, now, job, args)
    worker, group, message = texts(args[1:4])
    q.publish_failed(job, worker, group, message)
    q.publish_tracked("failed", job.jid)
    if len(args) > 4:
        q.engine.update(job, payload=args[4])
    details = ensure_details(job)
    details.add_entry("failed", now, q.max_history, {"worker": worker, "group": group})
    details.last_error = LastError(group, message, now // 1_000_000, worker)
    if details.front:
        leave_front(job)
    details.lapsed_at = None
    if job.state == BLOCKED:
        failure = Failure(now, now, group, message, [])
        q.engine.kill(
            job, now, failure
        )  # it still waits for its other dependencies if it is retried
    else:
        q.engine.fail(
            job, now, QLESS, group, message, [], final=True, unleased=True, uses_try=False
        )
    return encode_name(q.local(job.jid))


def _fail_foreign(q: Qless, now: int, job: Job, args: Args) -> bytes:
    """Fail a job of another protocol. The rules of that protocol decide whether it is retried, and
    its payload does not change. The job is in a failure group only when it is dead.
    """
    worker, group, message = texts(args[1:4])
    details = ensure_details(job)
    details.lapsed_at = None
    if job.state == BLOCKED:
        time = q.engine.time_of(job, now)
        q.engine.kill(job, now, Failure(time, time, group, message, []))
    else:
        q.engine.fail(job, now, QLESS, group, message, [], unleased=True)
    if job.state == DEAD:
        details.add_entry("failed", now, q.max_history, {"worker": worker, "group": group})
        details.last_error = LastError(group, message, now // 1_000_000, worker)
        q.publish_tracked("failed", job.jid)
        q.publish_failed(job, worker, group, message)
    return encode_name(q.local(job.jid))


def retry(q: Qless, now: int, args: Args) -> int:
    """jid, queue, worker, [delay, [group, message]]"""
    jid = text(args, 0, "Job(): no jid provided")
    queue = text(args, 1, 'Retry(): Arg "queue" missing')
    worker = text(args, 2, 'Retry(): Arg "worker" missing')
    delay = number(args, 3, 'Retry(): Arg "delay" not a number: ', 0)
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Retry(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Retry(): Job {jid} is not currently running: {q.shown_state(job)}")
    if not is_held(job, worker):
        raise ScriptError(f"Retry(): Job {jid} has been given to another worker: {job.holder}")
    details = ensure_details(job)
    if details.lapsed_at is not None:
        end_grace(job)
    has_error = len(args) > 5
    group = text(args, 4, "") if len(args) > 4 else f"failed-retries-{queue}"
    message = (
        text(args, 5, "") if has_error else f'Job exhausted retries in queue "{q.local(job.queue)}"'
    )
    retry_at = now + lua.to_microseconds(delay) if delay > 0 else now
    # Without a delay, the rules of the job's own protocol decide the time of the retry.
    later = retry_at if job.origin == QLESS or delay > 0 else None
    q.engine.fail(job, now, QLESS, group, message, [], retry_at=later)
    if has_error:
        details.last_error = LastError(group, message, now // 1_000_000, worker)
    if job.state == DEAD:
        details.add_entry("failed", now, q.max_history, {"group": group})
        if not has_error:
            details.last_error = LastError(group, message, now / 1_000_000, "")
        q.publish_tracked("failed", job.jid)
    return -1 if job.state in {DEAD, GONE} else remaining(job)


# Cancelling


def cancel(q: Qless, now: int, args: Args) -> list[str]:
    """jids; they must include all jobs that depend on them"""
    q.engine.caller.wait()  # a missing or completed job may have changed just now
    wanted = texts(args)
    chosen = set(wanted)
    jobs = [job for job in map(q.find, dict.fromkeys(wanted)) if job is not None]
    for job in jobs:
        run_at_once(_check_dependents(q, job, chosen))
    for job in jobs:
        q.engine.detach(job)  # or it would be ready briefly when its dependencies are removed
    for jid in wanted:
        _cancel_id(q, jid, now)
    return wanted


def cancel_in_slices(q: Qless, now: int, args: Args) -> Generator[None, None, list[str]]:
    """Cancel many jobs as `cancel` does, some in each slice."""
    q.engine.caller.wait()
    wanted = texts(args)
    chosen = set(wanted)
    for count, jid in enumerate(dict.fromkeys(wanted), 1):
        job = q.find(jid)
        if job is not None:
            yield from _check_dependents(q, job, chosen)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    for count, jid in enumerate(chosen, 1):  # nothing changes before all are checked
        job = q.find(jid)
        if job is not None:
            q.engine.detach(job)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    for count, jid in enumerate(wanted, 1):
        _cancel_id(q, jid, now)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    return wanted


def _check_dependents(q: Qless, job: Job, chosen: set[str]) -> Generator[None, None, None]:
    """Raise an error if a job that depends on this one is not among the chosen jobs."""
    seq = count = 0
    while seq := q.engine.next_dependent(job, seq):
        count += 1
        if count % SLICE_SIZE == 0:
            yield
        dependent = q.engine.jobs.get(seq)
        if dependent is not None and q.local(dependent.jid) not in chosen:
            raise ScriptError(
                f"Cancel(): {q.local(job.jid)} is a dependency of {q.local(dependent.jid)}"
                " but is not mentioned to be canceled"
            )


def _cancel_id(q: Qless, jid: str, now: int) -> None:
    known = q.find(jid)
    if known is None:
        q.publish_log({"jid": jid, "queue": False, "event": "canceled", "worker": False})
        q.publish_tracked("canceled", q.scoped(jid))
    elif known.state != DONE:
        _cancel(q, known, now)


def _cancel(q: Qless, job: Job, now: int) -> None:
    publish_cancelled(q, job)
    drop(q, job, now)


def publish_cancelled(q: Qless, job: Job) -> None:
    """Notify all subscribers that a job is about to be removed."""
    worker = shown_worker(job)
    if q.has_subscribers:
        names = q.local(job.jid), q.local(job.queue)
        fields = {"jid": names[0], "queue": names[1], "event": "canceled", "worker": worker}
        q.publish_log(fields)
        if worker:
            q.publish(f"w:{worker}", lua.event(fields))
    q.publish_tracked("canceled", job.jid)


COMMANDS: Final = {
    "put": put,
    "requeue": requeue,
    "pop": pop,
    "peek": peek,
    "heartbeat": heartbeat,
    "timeout": timeout,
    "complete": complete,
    "fail": fail,
    "retry": retry,
    "cancel": cancel,
}
