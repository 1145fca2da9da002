"""Ends of attempts: complete, fail, retry.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

from collections.abc import Callable, Generator
from itertools import islice
from typing import Any, Final

from millrace.engine.annotations import ensure_details
from millrace.engine.attempts import clear_failures
from millrace.engine.details import JobDetails, LastError
from millrace.engine.job import FOREVER, Failure, Job
from millrace.engine.leases import (
    clear_holder,
    end_grace,
    leave_front,
)
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .arguments import Args, argument_or_none, jids, parse_number, text, texts
from .cancellation import drop
from .dependencies import LONG_LIST, StagedJobs, with_staged
from .errors import ScriptError
from .job_view import (
    data_of,
    remaining,
    state_of,
)
from .locks import checked_data
from .names import decode_name, encode_name
from .puts import blocker_seqs, due_time
from .state import QlessState, is_held

#: Maximum number of completed jobs that one command removes.
RETIRE_BATCH_SIZE: Final = 100


def complete(
    q: QlessState, now: int, args: Args, staged: StagedJobs | None = None
) -> bytes | Generator[None, None, bytes]:
    """Complete a job, or put it into the next queue, and return its new state. Arguments: jid,
    worker, queue, data, [next queue] [delay seconds] [depends jids].
    """
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Complete(): Arg "worker" missing')
    queue = text(args, 2, 'Complete(): Arg "queue" missing')
    data = checked_data(q, now, jid, worker, argument_or_none(args, 3))
    chosen = _next_queue(args) if len(args) > 4 else None
    if chosen is not None and staged is None and len(chosen[3]) > LONG_LIST:
        return with_staged(q, jid, chosen[3], lambda found: complete(q, now, args, found))
    job = _find_held_job(q, now, jid, worker, queue)
    if chosen is not None:
        q.queue_name(chosen[0])  # the port may refuse it: before any change
    details = ensure_details(job)
    details.add_entry("done", now, q.options.max_history)
    details.last_error, details.lapsed_at = None, None
    if data != data_of(q.engine, job) and (job.origin == QLESS or chosen is not None):
        q.engine.update(job, payload=data)
    q.publisher.tracked("completed", job.jid)
    if chosen is None:
        return _finish(q, now, job, _result(q, job, data))
    following, delay, depends, _ = chosen
    blockers = blocker_seqs(q, job.seq, depends, staged)
    due = now + lua.to_microseconds(delay) if delay > 0 else 0
    reply = _advance(q, now, job, details, following, due, blockers)
    if staged is not None and job.state == BLOCKED:
        staged.block(job)
    return reply


def _result(q: QlessState, job: Job, data: bytes) -> bytes | None:
    """Return the result of a job of another protocol: the data, if its worker changed it. Clients
    encode the data again, so different text may be the same data.
    """
    if job.origin == QLESS or data == data_of(q.engine, job):
        return None
    try:
        return None if lua.decode(data) == lua.decode(data_of(q.engine, job)) else data
    except ScriptError:  # numbers out of range
        return data


def _next_queue(args: Args) -> tuple[str, lua.Number, list[str], bytes] | None:
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


def _find_held_job(q: QlessState, now: int, jid: str, worker: str, queue: str) -> Job:
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Complete(): Job {jid} does not exist")
    if job.state != LEASED:
        raise ScriptError(f"Complete(): Job {jid} is not currently running: {q.shown_state(job)}")
    if not is_held(job, worker):
        raise ScriptError(
            f"Complete(): Job {jid} has been handed out to another worker: {job.holder}"
        )
    if job.queue != q.engine_name(queue) and not q.publisher.is_dialect_a:
        raise ScriptError(
            f"Complete(): Job {jid} running in another queue: {q.client_name(job.queue)}"
        )
    return job


def _finish(q: QlessState, now: int, job: Job, result: bytes | None) -> bytes:
    if q.publisher.has_subscribers:
        names = q.client_name(job.jid), q.client_name(job.queue)
        q.publisher.log({"jid": names[0], "event": "completed", "queue": names[1]})
    clear_failures(job)
    q.engine.complete(job, now, QLESS, result=result)
    _retire(q, now)
    return b"complete"


def _retire(q: QlessState, now: int) -> None:
    """Remove completed jobs that are too old or exceed the maximum number, up to a limit per
    command.
    """
    kept = q.engine.retention.done_untrimmed
    oldest = now - q.options.completed_retention
    for job in list(islice(kept.values(), RETIRE_BATCH_SIZE)):
        if ensure_details(job).done_at > oldest and len(kept) <= q.options.max_completed:
            return
        drop(q, job, now)


def _advance(
    q: QlessState,
    now: int,
    job: Job,
    details: JobDetails,
    queue: str,
    due: int,
    blockers: list[int],
) -> bytes:
    names = q.client_name(job.jid), q.client_name(job.queue)
    q.publisher.log({"jid": names[0], "to": queue, "event": "advanced", "queue": names[1]})
    details.add_entry("put", now, q.options.max_history, {"q": queue})
    queue = q.queue_name(queue)
    q.register_queue(queue, now)
    q.engine.complete(job, now, QLESS, advances=True)
    details.waiting_since = now
    clear_holder(job)
    due = due_time(q, job, due)
    q.engine.move(job, queue, now, QLESS, due=due, blockers=blockers)
    return state_of(job).encode() if job.state != LEASED else b"waiting"


def fail(q: QlessState, now: int, args: Args) -> bytes:
    """Fail a leased job, and return its jid. Arguments: jid, worker, group, message, data."""
    job, worker = _job_to_fail(q, now, args)
    if job.state != LEASED:
        state = q.shown_state(job)
        raise ScriptError(f"Fail(): Job {q.client_name(job.jid)}not currently running: {state}")
    if not is_held(job, worker):
        raise ScriptError(
            f"Fail(): Job {q.client_name(job.jid)} running with another worker: {job.holder}"
        )
    return _fail(q, now, job, args)


def fail_any(q: QlessState, now: int, args: Args) -> bytes:
    """Fail a job in any state, by any worker. The arguments are those of `fail`."""
    job, _ = _job_to_fail(q, now, args)
    if job.state in {DONE, DEAD}:
        # The engine fails only runnable jobs. The job is never due, so no worker can get it.
        q.engine.move(job, job.queue, now, QLESS, due=FOREVER)
    return _fail(q, now, job, args)


def _job_to_fail(q: QlessState, now: int, args: Args) -> tuple[Job, str]:
    jid = text(args, 0, "Job(): no jid provided")
    worker = text(args, 1, 'Fail(): Arg "worker" missing')
    text(args, 2, 'Fail(): Arg "group" missing')
    text(args, 3, 'Fail(): Arg "message" missing')
    if len(args) > 4:
        checked_data(q, now, jid, worker, args[4])
    job = q.find_held(jid, worker, now)
    if job is None:
        raise ScriptError(f"Fail(): Job {jid}does not exist")  # without a space, as in the original
    return job, worker


def _fail(q: QlessState, now: int, job: Job, args: Args) -> bytes:
    if job.origin != QLESS:
        return _fail_foreign(q, now, job, args)
    worker, group, message = texts(args[1:4])
    q.publisher.failed(job, worker, group, message)
    q.publisher.tracked("failed", job.jid)
    if len(args) > 4:
        q.engine.update(job, payload=args[4])
    details = ensure_details(job)
    details.add_entry("failed", now, q.options.max_history, {"worker": worker, "group": group})
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
            job,
            now,
            QLESS,
            group,
            message,
            [],
            final=True,
            allow_unleased=True,
            counts_failure=False,
        )
    return encode_name(q.client_name(job.jid))


def _fail_foreign(q: QlessState, now: int, job: Job, args: Args) -> bytes:
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
        q.engine.fail(job, now, QLESS, group, message, [], allow_unleased=True)
    if job.state == DEAD:
        details.add_entry("failed", now, q.options.max_history, {"worker": worker, "group": group})
        details.last_error = LastError(group, message, now // 1_000_000, worker)
        q.publisher.tracked("failed", job.jid)
        q.publisher.failed(job, worker, group, message)
    return encode_name(q.client_name(job.jid))


def retry(q: QlessState, now: int, args: Args) -> int:
    """Retry a leased job, and return the number of remaining retries, -1 if there are none.
    Arguments: jid, queue, worker, [delay, [group, message]].
    """
    jid = text(args, 0, "Job(): no jid provided")
    queue = text(args, 1, 'Retry(): Arg "queue" missing')
    worker = text(args, 2, 'Retry(): Arg "worker" missing')
    delay = parse_number(args, 3, 'Retry(): Arg "delay" not a number: ', 0)
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
        text(args, 5, "")
        if has_error
        else f'Job exhausted retries in queue "{q.client_name(job.queue)}"'
    )
    retry_at = now + lua.to_microseconds(delay) if delay > 0 else now
    # Without a delay, the rules of the job's own protocol decide the time of the retry.
    later = retry_at if job.origin == QLESS or delay > 0 else None
    q.engine.fail(job, now, QLESS, group, message, [], retry_at=later)
    if has_error:
        details.last_error = LastError(group, message, now // 1_000_000, worker)
    if job.state == DEAD:
        details.add_entry("failed", now, q.options.max_history, {"group": group})
        if not has_error:
            details.last_error = LastError(group, message, now / 1_000_000, "")
        q.publisher.tracked("failed", job.jid)
    return -1 if job.state in {DEAD, GONE} else remaining(job)


COMMANDS: Final[dict[str, Callable[[QlessState, int, Args], Any]]] = {
    "complete": complete,
    "fail": fail,
    "retry": retry,
}
