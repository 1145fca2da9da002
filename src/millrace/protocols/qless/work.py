"""Commands of producers and workers: put, pop, heartbeat, complete, fail, retry and similar ones.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

import math
from itertools import islice
from typing import Final

from millrace.engine.job import FOREVER, NO_PROTOCOL, QLESS, Failure, Job, Push
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED

from . import lua_values as lua
from . import recurring
from .arguments import Args, jids, number, option_number, options, raw, tags, text, texts
from .contract import ScriptError
from .job_view import (
    Failed,
    Part,
    data_of,
    forget_holder,
    part_of,
    remaining,
    shown_worker,
    state_of,
    waits_since,
)
from .names import decode_name, encode_name
from .state import Qless, is_held

#: Lease time of workers of other protocols.
LEASE_FOR: Final = 1800 * 1_000_000
DEFAULT_RETRIES: Final = 5
#: Rank above every priority: a job that lost its lock by `timeout`.
FIRST: Final = 1 << 62
#: Maximum number of completed jobs that one command removes.
RETIRE_BATCH_SIZE: Final = 100


# Putting


def put(q: Qless, now: int, args: Args) -> bytes:
    """worker, queue, jid, klass, data, delay, options"""
    queue = text(args, 1, "Queue(): no queue name provided")
    jid = text(args, 2, 'Put(): Arg "jid" missing')
    klass = text(args, 3, 'Put(): Arg "klass" missing')
    data = lua.check(raw(args, 4))
    delay = number(args, 5, 'Put(): Arg "delay" not a number: ')
    chosen = options(args, 6)
    job = q.find(jid)
    part = Part() if job is None else part_of(job)
    retries, priority = DEFAULT_RETRIES if job is None else job.retries, part.priority
    lower_first = q.lower_first if job is None or "priority" in chosen else part.lower_first
    tagged, depends = [(tag, now) for tag, _ in part.tags], []
    if chosen:
        retries, priority = _retries(chosen, retries), _priority(chosen, priority)
        tagged = [(tag, now) for tag in tags(chosen["tags"])] if "tags" in chosen else tagged
        depends = jids(chosen["depends"]) if "depends" in chosen else []
        if "throttles" in chosen:
            part.throttles = [q.scoped_throttle(tid) for tid in jids(chosen["throttles"])]
    due = now + lua.moment(delay) if delay > 0 else 0
    if q.heard:
        q.log({"jid": jid, "event": "put", "queue": queue})
    q.see(q.scoped(queue), now)
    part.priority, part.lower_first, part.since = priority, lower_first, now
    if job is None:
        job = _create(q, now, queue, jid, klass, data, due, retries, depends, part)
    else:
        _move(q, now, args, queue, job, klass, data, due, retries, depends)
    q.set_tags(job, part, tagged)
    if job.state == SCHEDULED:
        q.plan(job)
    q.tell_tracked("put", job.jid)
    return encode_name(jid)


def requeue(q: Qless, now: int, args: Args) -> bytes:
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
    depends: list[str],
    part: Part,
) -> Job:
    part.add("put", now, q.max_history, {"q": queue})
    name = q.scoped(queue)
    blockers = _blockers(q, depends)
    if jid in depends:
        blockers.append(q.engine.next_seq)  # it waits for itself until a client unblocks it
    push = Push(
        q.scoped(jid),
        klass,
        data,
        QLESS,
        name,
        retries,
        LEASE_FOR,
        rank=part.rank,
        due=due,
        place=q.place(name, now),
        blockers=blockers,
        own=part,
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
    depends: list[str],
) -> None:
    """Put a job that already exists. Its worker loses the job."""
    part = part_of(job)
    part.add("put", now, q.max_history, {"q": queue})
    if shown_worker(job) not in {"", text(args, 0, "")}:
        q.log_lost(job)
    part.expired_at, part.stalled, part.throttled = None, False, None
    job.rank = part.rank
    forget_holder(job)
    q.engine.amend(job, kind=klass, payload=data, retries=retries)
    blockers = _blockers(q, depends) if depends else None
    q.engine.move(job, q.scoped(queue), now, QLESS, due=due, blockers=blockers)


def put_again(q: Qless, now: int, job: Job, queue: str, due: int) -> None:
    """Put an existing job into a queue, unchanged, for an operator. `now` is the server's time.
    `due` uses the clock of the other times of the job.
    """
    part, theirs = part_of(job), now + q.engine.theirs
    part.add("put", theirs, q.max_history, {"q": queue})
    q.log({"jid": job.jid, "event": "put", "queue": queue})
    if job.state == LEASED:
        q.log_lost(job)
    q.see(queue, theirs)
    part.since = theirs
    part.expired_at, part.stalled, part.throttled = None, False, None
    job.rank = part.rank
    forget_holder(job)
    q.engine.move(job, queue, now, NO_PROTOCOL, due=due)
    if job.state == SCHEDULED and job.origin == QLESS:
        q.plan(job)
    q.tell_tracked("put", job.jid)


def _blockers(q: Qless, depends: list[str]) -> list[int]:
    """Return the existing jobs of these jids. The engine ignores completed jobs."""
    found = [q.find(jid) for jid in depends]
    return [job.seq for job in found if job is not None]


# Popping


def pop(q: Qless, now: int, args: Args) -> list[Job]:
    """queue, worker, count"""
    local = text(args, 0, "Queue(): no queue name provided")
    queue = q.scoped(local)
    worker = text(args, 1, 'Pop(): Arg "worker" missing')
    count = number(args, 2, 'Pop(): Arg "count" missing or not a number: ')
    engine = q.engine
    if q.is_paused(queue):
        return []
    q.hear(worker, now)
    most = q.setting(f"{local}-max-concurrency") if q.config else 0
    if most > 0:
        count = min(count, max(0, most - q.running(queue, now)))
    if count <= 0:
        return []
    until = now + q.heartbeat(queue)
    popped: list[Job] = []
    for job in _invalidate(q, queue, now, count):
        engine.lease_this(job, worker, QLESS, now, until, waits_since)
        popped.append(job)
    throttled = bool(q.throttles)
    if throttled and not q.throttles.room(queue, now):
        count = len(popped)
    recurring.spawn(q, queue, now, count - len(popped))
    q.make_due(queue, now, count - len(popped))
    if throttled:
        popped += q.throttles.lease(queue, worker, now, until, count - len(popped))
        count = len(popped)
    while len(popped) < count:
        found = engine.lease((queue,), worker, QLESS, now, until, waits_since)
        if found is None:
            break
        popped.append(found)
    for job in popped:
        if job.seq in engine.unsettled:
            engine.depend()
        part = part_of(job)
        if part.stalled:
            part.stalled, job.rank = False, part.rank
        part.expired_at, part.since = None, now
        part.add("popped", now, q.max_history, {"worker": worker})
        q.lock(job)
        q.tell_tracked("popped", job.jid)
    return popped


def _invalidate(q: Qless, queue: str, now: int, count: float) -> list[Job]:
    """Return the jobs that their workers have lost, after the notification and the grace period."""
    lost: list[Job] = []
    for job in q.expired(queue, now, count):
        part = part_of(job)
        grace = 0 if q.early else lua.moment(q.setting("grace-period"))
        if part.expired_at is None or grace <= 0:
            _lose_lock(q, job, part, now, grace)
            if grace > 0:
                continue
        part.expired_at = None
        if _use_up_a_try(q, job, part, now):
            lost.append(job)
    return lost


def _lose_lock(q: Qless, job: Job, part: Part, now: int, grace: int) -> None:
    q.tell_tracked("stalled", job.jid)
    part.add("timed-out", now, q.max_history)
    part.expired_at = job.deadline
    q.log_lost(job)
    q.engine.lapse(job, now + max(0, grace), now)
    q.lock(job)


def _use_up_a_try(q: Qless, job: Job, part: Part, now: int) -> bool:
    """Use one try. Return True if a try was left; the job is then ready."""
    worker, queue = job.holder, q.local(job.queue)
    group, message = f"failed-retries-{queue}", f'Job exhausted retries in queue "{queue}"'
    if job.origin == QLESS:
        q.engine.fail(job, now, QLESS, group, message, [])
    else:
        _end_foreign(q, now, job, group, message, "expired")
    if job.state == DEAD:
        part.failure = Failed(group, message, now / 1_000_000, "")
        part.add("failed", now, q.max_history, {"group": group})
        q.tell_tracked("failed", job.jid)
        q.log_failed(job, worker, group, message)
    return job.state == READY


def peek(q: Qless, now: int, args: Args, *, offset: int = 0) -> list[Job]:
    """queue, count"""
    queue = q.scoped(text(args, 0, "Queue(): no queue name provided"))
    count = number(args, 1, 'Peek(): Arg "count" missing or not a number: ')
    found = q.expired(queue, now, offset + count)
    recurring.spawn(q, queue, now, offset + count - len(found))
    q.make_due(queue, now, offset + count - len(found))
    known = q.engine.queues.get(queue)
    wanted = math.ceil(min(offset + count, 1 << 31)) - len(found)
    if known is not None and wanted > 0:
        found += known.ready.first(wanted)
    return found[offset:]


# Holding a job


def heartbeat(q: Qless, now: int, args: Args) -> int:
    """jid, worker, data"""
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Heatbeat(): Arg "worker" missing')
    data = _given_back(q, now, jid, worker, args[2]) if len(args) > 2 else None
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Heartbeat(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Heartbeat(): Job {jid} not currently running: {state_of(job)}")
    if not is_held(job, worker):
        raise ScriptError(f"Heartbeat(): Job {jid} given out to another worker: {job.holder}")
    q.hear(worker, now)
    part_of(job).expired_at = None
    if data is not None and job.origin == QLESS:  # payloads of other protocols do not change
        q.engine.amend(job, payload=data)
    q.engine.renew(job, now + q.heartbeat(job.queue), now)
    q.lock(job)
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
        take_away(q, now, q.engine.jobs[job], now)


def take_away(q: Qless, now: int, job: Job, theirs: int) -> None:
    """Remove the lock of a job; the next pop returns it. `theirs` is the time for the history."""
    part = part_of(job)
    part.add("timed-out", theirs, q.max_history)
    part.stalled, part.expired_at = True, None
    q.log_lost(job)
    job.rank, job.deadline = FIRST, 0
    q.engine.release(job, now, counted=True)


# Ending an attempt


def complete(q: Qless, now: int, args: Args) -> bytes:
    """jid, worker, queue, data, [next q] [delay d] [depends JSON]"""
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Complete(): Arg "worker" missing')
    queue = text(args, 2, 'Complete(): Arg "queue" missing')
    data = _given_back(q, now, jid, worker, raw(args, 3))
    chosen = _next(args) if len(args) > 4 else None
    job = _held(q, now, jid, worker, queue)
    part = part_of(job)
    part.add("done", now, q.max_history)
    part.failure, part.expired_at = None, None
    if data != data_of(job) and (job.origin == QLESS or chosen is not None):
        q.engine.amend(job, payload=data)
    q.tell_tracked("completed", job.jid)
    if chosen is None:
        return _finish(q, now, job, part, _result(job, data))
    following, delay, depends = chosen
    due = now + lua.moment(delay) if delay > 0 else 0
    return _advance(q, now, job, part, following, due, depends)


def _given_back(q: Qless, now: int, jid: str, worker: str, data: bytes | None) -> bytes:
    """Check that the data that a worker sends for its job is JSON according to cjson. The worker
    may always return the data that it received: data of other protocols may be invalid for cjson.
    """
    try:
        return lua.check(data)
    except ScriptError:
        job = q.find_held(jid, worker, now)
        if data is None or job is None or data != data_of(job):
            raise
        return data


def _result(job: Job, data: bytes) -> bytes | None:
    """Return the result of a job of another protocol: the data, if its worker changed it. Clients
    encode the data again, so different text may be the same data.
    """
    if job.origin == QLESS or data == data_of(job):
        return None
    try:
        return None if lua.decode(data) == lua.decode(data_of(job)) else data
    except ScriptError:  # numbers out of range
        return data


def _next(args: Args) -> tuple[str, lua.Number, list[str]] | None:
    """Return the next queue of a job, if any, with the delay and the dependencies."""
    chosen = dict(zip(texts(args[4::2]), args[5::2], strict=False))
    delay = lua.tonumber(chosen.get("delay", b"0"))
    if delay is None:
        raise ScriptError("assertion failed!")
    depends = jids(chosen.get("depends", b"[]"))
    if "next" in chosen:
        return decode_name(chosen["next"]), delay, depends
    for option in ("delay", "depends"):
        if option in chosen:
            raise ScriptError(f'Complete(): "{option}" cannot be used without a "next".')
    return None


def _held(q: Qless, now: int, jid: str, worker: str, queue: str) -> Job:
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Complete(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Complete(): Job {jid} is not currently running: {state_of(job)}")
    if not is_held(job, worker):
        raise ScriptError(
            f"Complete(): Job {jid} has been handed out to another worker: {job.holder}"
        )
    if job.queue != q.scoped(queue) and not q.early:
        raise ScriptError(f"Complete(): Job {jid} running in another queue: {q.local(job.queue)}")
    return job


def _finish(q: Qless, now: int, job: Job, part: Part, result: bytes | None) -> bytes:
    if q.heard:
        names = q.local(job.jid), q.local(job.queue)
        q.log({"jid": names[0], "event": "completed", "queue": names[1]})
    part.done_at = now
    job.failures = 0
    q.engine.complete(job, now, QLESS, result=result)
    _retire(q, now)
    return b"complete"


def _retire(q: Qless, now: int) -> None:
    """Remove completed jobs that are too old or exceed the maximum number, some per command."""
    kept = q.engine.kept
    oldest = now - q.keep_for
    for job in list(islice(kept.values(), RETIRE_BATCH_SIZE)):
        if part_of(job).done_at > oldest and len(kept) <= q.keep_most:
            return
        drop(q, job, now)


def drop(q: Qless, job: Job, now: int) -> None:
    """Remove a job and its tags."""
    part = part_of(job)
    q.set_tags(job, part, [])
    q.engine.cancel(job, now, QLESS)


def _advance(
    q: Qless, now: int, job: Job, part: Part, queue: str, due: int, depends: list[str]
) -> bytes:
    names = q.local(job.jid), q.local(job.queue)
    q.log({"jid": names[0], "to": queue, "event": "advanced", "queue": names[1]})
    part.add("put", now, q.max_history, {"q": queue})
    queue = q.scoped(queue)
    q.see(queue, now)
    q.engine.advance(job, now, QLESS)
    part.since = now
    forget_holder(job)
    q.engine.move(job, queue, now, QLESS, due=due, blockers=_blockers(q, depends))
    if job.state == SCHEDULED:
        q.plan(job)
    return state_of(job).encode() if job.state != LEASED else b"waiting"


def fail(q: Qless, now: int, args: Args) -> bytes:
    """jid, worker, group, message, data"""
    job, worker = _to_fail(q, now, args)
    if job.state != LEASED:
        raise ScriptError(f"Fail(): Job {q.local(job.jid)}not currently running: {state_of(job)}")
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
        _given_back(q, now, jid, worker, args[4])
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Fail(): Job {jid}does not exist")
    return job, worker


def _fail(q: Qless, now: int, job: Job, args: Args) -> bytes:
    if job.origin != QLESS:
        return _fail_foreign(q, now, job, args)
    worker, group, message = texts(args[1:4])
    q.log_failed(job, worker, group, message)
    q.tell_tracked("failed", job.jid)
    if len(args) > 4:
        q.engine.amend(job, payload=args[4])
    part = part_of(job)
    part.add("failed", now, q.max_history, {"worker": worker, "group": group})
    part.failure = Failed(group, message, now // 1_000_000, worker)
    if part.stalled:
        part.stalled, job.rank = False, part.rank
    part.expired_at = None
    if job.state == BLOCKED:
        job.failure = Failure(now, now, group, message, [])
        q.engine.kill(job, now)  # it still waits for its other dependencies if it is retried
    else:
        q.engine.fail(job, now, QLESS, group, message, [], final=True, unleased=True)
        job.failures -= 1  # this failure does not use a try
    return encode_name(q.local(job.jid))


def _fail_foreign(q: Qless, now: int, job: Job, args: Args) -> bytes:
    """Fail a job of another protocol. The rules of that protocol decide whether it is retried, and
    its payload does not change. The job is in a failure group only when it is dead.
    """
    worker, group, message = texts(args[1:4])
    part = part_of(job)
    part.expired_at = None
    _end_foreign(q, now, job, group, message, "failed")
    if job.state == DEAD:
        part.add("failed", now, q.max_history, {"worker": worker, "group": group})
        part.failure = Failed(group, message, now // 1_000_000, worker)
        q.tell_tracked("failed", job.jid)
        q.log_failed(job, worker, group, message)
    return encode_name(q.local(job.jid))


def _end_foreign(
    q: Qless,
    now: int,
    job: Job,
    group: str,
    message: str,
    cause: str,
    *,
    again_at: int | None = None,
) -> None:
    """End an attempt at a job of another protocol. The rules of that protocol decide the next
    state, but the worker may specify the delay. The times of a retry and of removal follow the
    server's clock, as for all jobs of other protocols.
    """
    engine = q.engine
    skew, engine.skew = engine.skew, 0
    now -= skew
    try:
        if job.state == BLOCKED:
            job.failure = Failure(now, now, group, message, [])
            engine.kill(job, now)
        else:
            job.leased_at -= skew
            later = None if again_at is None else again_at - skew
            engine.fail(
                job, now, QLESS, group, message, [], cause=cause, unleased=True, again_at=later
            )
    finally:
        engine.skew = skew


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
        raise ScriptError(f"Retry(): Job {jid} is not currently running: {state_of(job)}")
    if not is_held(job, worker):
        raise ScriptError(f"Retry(): Job {jid} has been given to another worker: {job.holder}")
    part = part_of(job)
    if part.expired_at is not None:
        job.deadline, part.expired_at = part.expired_at, None
    told = len(args) > 5
    group = text(args, 4, "") if len(args) > 4 else f"failed-retries-{queue}"
    message = (
        text(args, 5, "") if told else f'Job exhausted retries in queue "{q.local(job.queue)}"'
    )
    again_at = now + lua.moment(delay) if delay > 0 else now
    if job.origin == QLESS:
        q.engine.fail(job, now, QLESS, group, message, [], again_at=again_at)
    else:
        later = again_at if delay > 0 else None
        _end_foreign(q, now, job, group, message, "failed", again_at=later)
    if told:
        part.failure = Failed(group, message, now // 1_000_000, worker)
    if job.state == DEAD:
        part.add("failed", now, q.max_history, {"group": group})
        if not told:
            part.failure = Failed(group, message, now / 1_000_000, "")
        q.tell_tracked("failed", job.jid)
    elif job.state == SCHEDULED and job.origin == QLESS:
        q.plan(job)
    return -1 if job.state in {DEAD, GONE} else remaining(job)


# Cancelling


def cancel(q: Qless, now: int, args: Args) -> list[str]:
    """jids; must include all jobs that depend on them"""
    q.engine.depend()  # a missing or completed job may have changed just now
    wanted = texts(args)
    chosen = set(wanted)
    jobs = [job for job in map(q.find, dict.fromkeys(wanted)) if job is not None]
    for job in jobs:
        for dependent in q.engine.dependents(job):
            if q.local(dependent.jid) not in chosen:
                raise ScriptError(
                    f"Cancel(): {q.local(job.jid)} is a dependency of {q.local(dependent.jid)}"
                    " but is not mentioned to be canceled"
                )
    for job in jobs:
        q.engine.detach(job)  # or it would be ready briefly when its dependencies are removed
    for jid in wanted:
        known = q.find(jid)
        if known is None:
            q.log({"jid": jid, "queue": False, "event": "canceled", "worker": False})
            q.tell_tracked("canceled", q.scoped(jid))
        elif known.state != DONE:
            _cancel(q, known, now)
    return wanted


def _cancel(q: Qless, job: Job, now: int) -> None:
    tell_cancelled(q, job)
    drop(q, job, now)


def tell_cancelled(q: Qless, job: Job) -> None:
    """Notify all subscribers that a job is about to be removed."""
    worker = shown_worker(job)
    if q.heard:
        names = q.local(job.jid), q.local(job.queue)
        fields = {"jid": names[0], "queue": names[1], "event": "canceled", "worker": worker}
        q.log(fields)
        if worker:
            q.publish(f"w:{worker}", lua.event(fields))
    q.tell_tracked("canceled", job.jid)


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
