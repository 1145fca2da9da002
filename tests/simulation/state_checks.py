"""What must be true of an engine, given what was promised: at any moment, and after a recovery."""

from typing import Any

from promises import Booked, BrokenPromise, Promises, name

from millrace.engine.consistency import check
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, STATE_NAMES
from millrace.engine.why import why
from millrace.protocols.qless import QlessHub, consistency

#: What is left of a job that was ended by a command, if anything is.
REMAINS = {"complete": {DONE}, "cancel": {DONE}, "bury": {DEAD}}


def check_engine(engine: Engine, promises: Promises) -> None:
    """Between two steps."""
    found = check(engine)
    if found.total:
        raise BrokenPromise(f"the engine contradicts itself: {found.problems[:3]}")
    _promises_are_kept(engine, promises)


def check_qless(hub: QlessHub) -> None:
    """What Qless knows beside the engine."""
    api: Any = hub.api
    api.qless.refresh()
    found = consistency.check(api.qless)
    if found.total:
        raise BrokenPromise(f"Qless contradicts itself: {found.problems[:3]}")


def check_recovered(engine: Engine, promises: Promises) -> None:
    """Before anything is done with what was read back."""
    _promises_are_kept(engine, promises)
    jobs = {promises.find(job.payload): job for job in engine.jobs.values()}
    for lease in promises.must_be_leased():
        job = jobs.get(lease.job)
        if job is None or job.state != LEASED:
            raise BrokenPromise(
                f"the lease of {name(lease.job)} by {lease.protocol} is lost: {job}"
            )


def nobody_waits_in_vain(engine: Engine, *, stopping: bool) -> None:
    for queue in engine.queues.values():
        if queue.waiters and len(queue.ready) and not (queue.paused or engine.halted or stopping):
            raise BrokenPromise(f"somebody waits for {queue.name}, where jobs are ready")


def _promises_are_kept(engine: Engine, promises: Promises) -> None:
    there: dict[int, list[Job]] = {}
    for job in engine.jobs.values():
        booked = promises.find(job.payload)
        if booked is None:
            raise BrokenPromise(f"nobody pushed what is there: {job}")
        there.setdefault(booked.number, []).append(job)
        _may_be_there(booked, job)
        if len(there[booked.number]) > booked.sent:
            raise BrokenPromise(f"{name(booked)} is there more often than it was pushed")
    for queue in promises.paused:
        if queue not in engine.queues or not engine.queues[queue].paused:
            raise BrokenPromise(f"{queue} is not paused any more, although that was acknowledged")
    for group in promises.groups:
        lost = [job for job in group if job.number not in there and not job.may_be_gone]
        if 0 < len(lost) < len(group) and any(job.number in there for job in group):
            raise BrokenPromise(f"{name(lost[0])} is not there, others of its transaction are")
    for booked in promises.must_be_there():
        if booked.number not in there:
            raise BrokenPromise(f"{name(booked)} is lost, although its push was acknowledged")


def _may_be_there(booked: Booked, job: Job) -> None:
    if booked.fleeting:
        return  # while the store fails it cannot go
    if not (booked.accepted or booked.unsure):
        raise BrokenPromise(f"{name(booked)} is there, although its push was refused")
    if booked.ended and not booked.again and job.state not in REMAINS[booked.ended_by]:
        raise BrokenPromise(
            f"{name(booked)} is {STATE_NAMES[job.state]} after its end was acknowledged"
        )
    if job.payload != booked.work.payload:
        raise BrokenPromise(f"{name(booked)} has another payload: {job.payload!r}")
    if job.state == DEAD and not (booked.times_leased or booked.after):
        raise BrokenPromise(f"{name(booked)} is dead, and nobody ever had it")


def check_reasons(engine: Engine, now: int) -> None:
    """Of every job that does not run it can be said why."""
    for job in engine.jobs.values():
        if not why(engine, job, now).reasons:
            raise BrokenPromise(f"nobody can say why this job does not run: {job}")


def unfinished(engine: Engine, now: int) -> list[str]:
    """Jobs that have not ended, and could."""
    found = []
    for job in engine.jobs.values():
        if job.state in {DONE, DEAD}:
            continue
        blockers = job.extra.blockers if job.state == BLOCKED and job.extra else []
        if not any(_never_ends(engine, seq) for seq in blockers):
            found.append(str(why(engine, job, now)))
    return found


def _never_ends(engine: Engine, seq: int) -> bool:
    """It has failed for good, or waits for one that has."""
    job = engine.jobs[seq]
    if job.state == BLOCKED and job.extra:
        return any(_never_ends(engine, blocker) for blocker in job.extra.blockers)
    return job.state == DEAD
