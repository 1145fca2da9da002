"""Put jobs into queues: put, requeue.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from millrace.engine.annotations import ensure_details
from millrace.engine.details import JobDetails
from millrace.engine.job import NO_PROTOCOL, Job, NewJob
from millrace.engine.leases import (
    clear_holder,
    leave_front,
)
from millrace.engine.states import BLOCKED, LEASED
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .arguments import (
    Args,
    argument_or_none,
    jids,
    option_number,
    options,
    parse_number,
    tags,
    text,
)
from .dependencies import LONG_LIST, StagedJobs, with_staged
from .errors import ScriptError
from .job_view import (
    shown_worker,
)
from .names import encode_name
from .state import QlessState

#: Lease time of workers of other protocols.
LEASE_DURATION: Final = 1800 * 1_000_000
DEFAULT_RETRIES: Final = 5


def put(
    q: QlessState,
    now: int,
    args: Args,
    staged: StagedJobs | None = None,
    *,
    must_exist: bool = False,
) -> bytes | Generator[None, None, bytes]:
    """Put a job into a queue, and return its jid. Arguments: worker, queue, jid, klass, data,
    delay, options.
    """
    queue = text(args, 1, "Queue(): no queue name provided")
    jid = text(args, 2, 'Put(): Arg "jid" missing')
    klass = text(args, 3, 'Put(): Arg "klass" missing')
    data = lua.check_json(argument_or_none(args, 4))
    delay = parse_number(args, 5, 'Put(): Arg "delay" not a number: ')
    chosen = options(args, 6)
    if chosen and staged is None and len(chosen.get("depends", b"")) > LONG_LIST:
        return with_staged(
            q, jid, chosen["depends"], lambda found: put(q, now, args, found, must_exist=must_exist)
        )
    # Checked before any change, because the port may refuse the queues.
    name = q.queue_name(queue)
    if q.hub.rule is not None and "throttles" in chosen:
        list(map(q.throttle_name, jids(chosen["throttles"])))
    job = q.find(jid)
    if must_exist and job is None:
        raise ScriptError(f"Requeue(): Job {jid} does not exist")
    details = JobDetails() if job is None else ensure_details(job)
    retries, priority = DEFAULT_RETRIES if job is None else job.retries, details.priority
    lower_first = q.lower_first if job is None or "priority" in chosen else details.lower_first
    tagged, depends = [(tag, now) for tag, _ in details.tags], []
    if chosen:
        retries, priority = _retries(chosen, retries), _priority(chosen, priority)
        tagged = [(tag, now) for tag in tags(chosen["tags"])] if "tags" in chosen else tagged
        depends = jids(chosen["depends"]) if "depends" in chosen and staged is None else []
        if "throttles" in chosen:
            keys = [q.engine_throttle_name(tid) for tid in jids(chosen["throttles"])]
            if job is None:
                details.limits = keys
            else:
                q.engine.set_limit_keys(job, keys)
    due = now + lua.to_microseconds(delay) if delay > 0 else 0
    if q.publisher.has_subscribers:
        q.publisher.log({"jid": jid, "event": "put", "queue": queue})
    q.register_queue(name, now)
    details.priority, details.lower_first, details.waiting_since = priority, lower_first, now
    if job is None:
        details.tags = tagged
        blockers = _blockers_of_new(q, jid, depends, staged)
        job = _create(q, now, queue, jid, klass, data, due, retries, blockers, details)
    else:
        is_listed = bool(depends) or (staged is not None and staged.has_names)
        replaced = blocker_seqs(q, job.seq, depends, staged) if is_listed else None
        _move(q, now, args, queue, job, klass, data, due, retries, replaced)
        q.engine.set_tags(job, tagged)
    if staged is not None and job.state == BLOCKED:
        staged.block(job)
    q.publisher.tracked("put", job.jid)
    return encode_name(q.client_name(job.jid))  # the engine chooses an id in place of an empty one


def requeue(q: QlessState, now: int, args: Args) -> bytes | Generator[None, None, bytes]:
    """Put a job that already exists. The arguments are those of `put`."""
    jid = text(args, 2, "Job(): no jid provided")
    if q.find(jid) is None:
        raise ScriptError(f"Requeue(): Job {jid} does not exist")
    return put(q, now, args, must_exist=True)  # it may end before the last slice


def _retries(chosen: dict[str, bytes], known: int) -> int:
    if "retries" in chosen:
        retries = option_number(chosen["retries"], 'Put(): Arg "retries" not a number: ')
        return lua.to_int64(retries)
    return known


def _priority(chosen: dict[str, bytes], known: float) -> float:
    if "priority" in chosen:
        return option_number(chosen["priority"], 'Put(): Arg "priority" not a number')
    return known


def _create(
    q: QlessState,
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
    details.add_entry("put", now, q.options.max_history, {"q": queue})
    name = q.queue_name(queue)
    push = NewJob(
        q.engine_name(jid),
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
    q: QlessState,
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
    details.add_entry("put", now, q.options.max_history, {"q": queue})
    if shown_worker(job) not in {"", text(args, 0, "")}:
        q.publisher.lock_lost(job)
    details.lapsed_at, details.parked = None, None
    leave_front(job)
    clear_holder(job)
    q.engine.update(job, kind=klass, payload=data, retries=retries)
    due = due_time(q, job, due)
    q.engine.move(job, q.queue_name(queue), now, QLESS, due=due, blockers=blockers)


def due_time(q: QlessState, job: Job, due: int) -> int:
    """Return a due time by the clock of the job: jobs of other protocols follow the server's."""
    return q.engine.caller.server_time(due) if due and job.origin != QLESS else due


def put_again(q: QlessState, now: int, job: Job, queue: str, due: int) -> None:
    """Put an existing job into a queue, unchanged, for an operator. `now` is the server's time.
    `due` uses the same clock as the other times of the job.
    """
    details, job_time = ensure_details(job), q.engine.time_of(job, now)
    details.add_entry("put", job_time, q.options.max_history, {"q": queue})
    if q.hub.allows(queue):
        q.publisher.log({"jid": job.jid, "event": "put", "queue": queue})
    if job.state == LEASED:
        q.publisher.lock_lost(job)
    q.register_queue(queue, job_time)
    details.waiting_since = job_time
    details.lapsed_at, details.parked = None, None
    leave_front(job)
    clear_holder(job)
    q.engine.move(job, queue, now, NO_PROTOCOL, due=due)
    q.publisher.tracked("put", job.jid)


def blocker_seqs(
    q: QlessState, seq: int, depends: list[str], staged: StagedJobs | None
) -> list[int]:
    """Return the seqs of the existing jobs with these jids. The engine ignores completed jobs. Of
    staged dependencies of the job with this seq, return only the first one.
    """
    if staged is not None:
        return staged.first(seq)
    found = [q.find(jid) for jid in depends]
    return [job.seq for job in found if job is not None]


def _blockers_of_new(
    q: QlessState, jid: str, depends: list[str], staged: StagedJobs | None
) -> list[int]:
    seq = q.engine.next_seq
    blockers = blocker_seqs(q, seq, depends, staged)
    if jid in depends:
        blockers.append(seq)  # it waits for itself until a client unblocks it
    return blockers


COMMANDS: Final[dict[str, Callable[[QlessState, int, Args], Any]]] = {
    "put": put,
    "requeue": requeue,
}
