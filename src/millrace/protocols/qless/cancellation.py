"""Remove jobs: cancel.

`now` is the caller's time in microseconds, and the only time that applies to jobs of Qless.
"""

from collections.abc import Generator
from typing import Final

from millrace.engine.job import Job
from millrace.engine.states import DONE
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import SLICE_SIZE, run_all_slices

from . import lua_values as lua
from .arguments import Args, texts
from .errors import ScriptError
from .job_view import (
    shown_worker,
)
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
    for job in jobs:
        q.engine.remove_blockers(
            job
        )  # or it would be ready briefly when its dependencies are removed
    for jid in wanted:
        _cancel_id(q, jid, now)
    return wanted


def cancel_in_slices(q: QlessState, now: int, args: Args) -> Generator[None, None, list[str]]:
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
            q.engine.remove_blockers(job)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    for count, jid in enumerate(wanted, 1):
        _cancel_id(q, jid, now)
        if count % CANCEL_BATCH_SIZE == 0:
            yield
    return wanted


def _check_dependents(q: QlessState, job: Job, chosen: set[str]) -> Generator[None, None, None]:
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
        q.publisher.log({"jid": jid, "queue": False, "event": "canceled", "worker": False})
        q.publisher.tracked("canceled", q.engine_name(jid))
    elif known.state != DONE:
        _cancel(q, known, now)


def _cancel(q: QlessState, job: Job, now: int) -> None:
    publish_cancelled(q, job)
    drop(q, job, now)


def publish_cancelled(q: QlessState, job: Job) -> None:
    """Notify all subscribers that a job is about to be removed."""
    worker = shown_worker(job)
    if q.publisher.has_subscribers:
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
