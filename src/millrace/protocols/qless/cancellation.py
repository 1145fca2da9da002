"""Remove jobs: cancel.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

from collections.abc import Callable, Container, Generator, Iterable, Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, DONE
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import SLICE_SIZE, map_in_slices, run_all_slices, sort_in_slices

from . import lua_values as lua
from .arguments import Args, texts
from .errors import ScriptError
from .job_view import (
    shown_worker,
)
from .names import decode_name
from .state import QlessState

#: Number of jobs that one slice of a long `cancel` examines or removes.
CANCEL_BATCH_SIZE: Final = 50


def cancel(q: QlessState, now: int, args: Args) -> list[str]:
    """Remove jobs, and return their jids. Arguments: jids; they must include all jobs that depend
    on them.
    """
    q.engine.caller.wait()  # a missing or completed job may have changed just now
    wanted = texts(args)
    chosen = set(wanted)
    jobs = [job for job in map(q.find, dict.fromkeys(wanted)) if job is not None]
    for job in jobs:
        run_all_slices(_check_dependents(q, job, chosen))
    for job in jobs:  # or a job would be ready briefly when its dependencies are removed
        q.engine.remove_blockers(job)
    for jid in wanted:
        _cancel_id(q, jid, now)
    return wanted


def cancel_in_slices(q: QlessState, now: int, args: Args) -> Generator[None, None, list[str]]:
    """Cancel many jobs as `cancel` does, some in each slice: dependents first."""
    q.engine.caller.wait()
    wanted = yield from map_in_slices(args, decode_name)
    chosen: dict[str, None] = {}
    for start in range(0, len(wanted), SLICE_SIZE):
        chosen.update(dict.fromkeys(wanted[start : start + SLICE_SIZE]))
        yield
    found: dict[int, str] = {}
    for count, jid in enumerate(chosen, 1):
        job = q.find(jid)
        if job is not None:
            found[job.seq] = jid
            yield from _check_dependents(q, job, chosen)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    seqs = yield from sort_in_slices(found)  # nothing changes before all are checked
    order = removal_order(
        q.engine, reversed(seqs), lambda job: job.seq in found and job.state != DONE
    )
    for count, job in enumerate(order, 1):
        if job is not None:
            # Another client may have added a dependent between two slices.
            run_all_slices(_check_dependents(q, job, chosen))
            _cancel(q, job, now)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    pending = set(found.values())
    for count, jid in enumerate(wanted, 1):
        if jid in pending:
            pending.remove(jid)
        elif q.find(jid) is None:  # it is unknown, or it is named again
            _publish_unknown(q, jid)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    return wanted


def removal_order(
    engine: Engine, seqs: Iterable[int], is_removed: Callable[[Job], bool]
) -> Iterator[Job | None]:
    """Yield the jobs to remove, each after its dependents that are removed too: otherwise a
    dependent would become ready before its removal. The caller removes each job before the next
    one. Yields None for each step that finds no job to remove. If the caller stops early, all
    remaining jobs wait for the same jobs as before.
    """
    for first in seqs:
        #: Seq -> the last examined dependent. Each job depends on the one before it.
        path = {first: 0}
        while path:
            seq, examined = path.popitem()
            job = engine.job(seq)
            if job is None or not is_removed(job):
                yield None
                continue
            dependent = engine.next_dependent(job, examined)
            if not dependent:
                yield job
                continue
            if dependent in path:  # a cycle: it keeps waiting, now for itself, until its removal
                waiting = engine.job(dependent)
                if waiting is not None and waiting.state == BLOCKED:
                    engine.block(waiting, [dependent])
            path[seq] = dependent  # a job that waits for itself is removed with its blocker
            path.setdefault(dependent, 0)
            yield None


def _check_dependents(
    q: QlessState, job: Job, chosen: Container[str]
) -> Generator[None, None, None]:
    """Raise an error if a job that depends on this one is not among the chosen jobs."""
    seq = count = 0
    while seq := q.engine.next_dependent(job, seq):
        count += 1
        if count % SLICE_SIZE == 0:
            yield
        dependent = q.engine.job(seq)
        if dependent is not None and q.client_name(dependent.jid) not in chosen:
            raise ScriptError(
                f"Cancel(): {q.client_name(job.jid)} is a dependency of "
                f"{q.client_name(dependent.jid)} but is not mentioned to be canceled"
            )


def _cancel_id(q: QlessState, jid: str, now: int) -> None:
    known = q.find(jid)
    if known is None:
        _publish_unknown(q, jid)
    elif known.state != DONE:
        _cancel(q, known, now)


def _publish_unknown(q: QlessState, jid: str) -> None:
    q.publisher.log({"jid": jid, "queue": False, "event": "canceled", "worker": False})
    q.publisher.tracked("canceled", q.engine_name(jid))


def _cancel(q: QlessState, job: Job, now: int) -> None:
    publish_cancelled(q, job)
    drop(q, job, now)


def publish_cancelled(q: QlessState, job: Job) -> None:
    """Notify all subscribers that a job is about to be removed."""
    worker = shown_worker(job)
    if q.publisher.has_subscribers and q.hub.allows(job.queue):
        names = q.client_name(job.jid), q.client_name(job.queue)
        fields = {"jid": names[0], "queue": names[1], "event": "canceled", "worker": worker}
        q.publisher.log(fields)
        if worker:
            q.publisher.publish(f"w:{worker}", lua.encode_event(fields))
    q.publisher.tracked("canceled", job.jid)


def drop(q: QlessState, job: Job, now: int) -> None:
    """Remove a job."""
    q.engine.cancel(job, now, QLESS)


COMMANDS: Final = {
    "cancel": cancel,
}
