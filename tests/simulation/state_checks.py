"""Invariants of an engine, given the promises: at any time, and after a recovery."""

from collections import Counter
from typing import Any

from promises import BrokenPromise, Promises, TrackedJob, name

from millrace.engine.annotations import tags_of
from millrace.engine.consistency import check_engine
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.limits import keys_of
from millrace.engine.parked_jobs import parked_of
from millrace.engine.reasons import why
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, STATE_NAMES
from millrace.engine.transactions import TRANSACTION_PREFIX as TRANSACTIONS
from millrace.protocols.qless import consistency
from millrace.protocols.qless.hub import QlessHub

#: The possible states of a job that a command has ended.
REMAINS = {"complete": {DONE}, "cancel": {DONE}, "bury": {DEAD}, "flush": set()}


def check_promises(engine: Engine, promises: Promises) -> None:
    """Between two steps."""
    found = check_engine(engine)
    if found.total:
        raise BrokenPromise(f"the engine contradicts itself: {found.problems[:3]}")
    _promises_are_kept(engine, promises)


def check_limits(engine: Engine, now: int) -> None:
    """No job is parked while its key has capacity."""
    limits = engine.limits
    if not limits.parked.by_key or engine.unavailable_reason:
        return
    ready: Counter[str] = Counter()
    for job in engine.jobs.values():
        if job.state == READY and parked_of(job) is None:
            ready.update(keys_of(job))
    for key in limits.parked.by_key:
        maximum = limits.maximum(key, now)
        room = maximum - limits.usage(key) - ready[key] if maximum else 1
        parked = limits.parked.jobs_for_key(key)
        if key and parked and room >= 1 and key not in limits.freed_keys:
            raise BrokenPromise(f"{parked[0]} waits for {key}, which has room")


def check_qless(hub: QlessHub) -> None:
    """The state of Qless outside the engine."""
    api: Any = hub.api
    api.qless.refresh()
    found = consistency.check(api.qless)
    if found.total:
        raise BrokenPromise(f"Qless contradicts itself: {found.problems[:3]}")


def check_recovered(engine: Engine, promises: Promises) -> None:
    """Before any change to the restored state."""
    _promises_are_kept(engine, promises)
    jobs = {promises.find(engine.payload(job), job.jid): job for job in engine.jobs.values()}
    for lease in promises.must_be_leased():
        job = jobs.get(lease.job)
        if job is None or job.state != LEASED:
            raise BrokenPromise(
                f"the lease of {name(lease.job)} by {lease.protocol} is lost: {job}"
            )


def no_waiter_is_stuck(engine: Engine, now: int, *, stopping: bool) -> None:
    limits = engine.limits
    for queue in engine.queues.values():
        if (
            queue.waiters
            and len(queue.ready) > len(queue.ready.parked)
            and not (queue.paused or engine.unavailable_reason or stopping)
            and not (limits.in_use and not limits.queue_has_room(queue, now))
            and queue.name not in limits._queues_to_serve
        ):
            raise BrokenPromise(f"a client waits for {queue.name}, where jobs are ready")


def _promises_are_kept(engine: Engine, promises: Promises) -> None:
    there: dict[int, list[Job]] = {}
    for job in engine.jobs.values():
        tracked = promises.find(engine.payload(job), job.jid)
        if tracked is None:
            raise BrokenPromise(f"a job in the engine was never pushed: {job}")
        there.setdefault(tracked.number, []).append(job)
        _may_be_there(tracked, job, engine.payload(job))
        if len(there[tracked.number]) > tracked.sent:
            raise BrokenPromise(f"{name(tracked)} is there more often than it was pushed")
    _settings_hold(engine, promises, there)
    visible = {number for number, jobs in there.items() if _is_visible(engine, jobs[0])}
    for group in promises.groups:
        lost = [job for job in group if job.number not in visible and not job.may_be_gone]
        if 0 < len(lost) < len(group) and any(job.number in visible for job in group):
            raise BrokenPromise(
                f"{name(lost[0])} is missing, but other jobs of its transaction exist"
            )
    for tracked in promises.must_be_there():
        if tracked.number not in there:
            raise BrokenPromise(f"{name(tracked)} is lost, although its push was acknowledged")


def _is_visible(engine: Engine, job: Job) -> bool:
    """It is not part of a transaction that is still staged."""
    load = job.extra.load if job.state == BLOCKED and job.extra is not None else ""
    return not load.startswith(TRANSACTIONS) or engine.transactions.is_sealed(load)


def _settings_hold(engine: Engine, promises: Promises, there: dict[int, list[Job]]) -> None:
    settings = promises.settings
    for queue, paused in settings.of_kind("paused"):
        if paused and (queue not in engine.queues or not engine.queues[queue].paused):
            raise BrokenPromise(f"{queue} is not paused any more, although that was acknowledged")
    for key, maximum in settings.of_kind("limit"):
        limit = engine.limits.by_key.get(key)
        if maximum != (0 if limit is None else limit.maximum):
            raise BrokenPromise(f"the limit {key} is not {maximum}, as was acknowledged: {limit}")
    for recurring, wanted in settings.of_kind("recurring"):
        if wanted != (recurring in engine.recurring.by_id):
            raise BrokenPromise(f"the recurring job {recurring} is not {wanted}, as acknowledged")
    for (number, tag), wanted in settings.of_kind("tag"):
        jobs = there.get(number, ())
        if len(jobs) != 1 or promises.jobs[number].again:
            continue
        if wanted != (tag in [each for each, _ in tags_of(jobs[0])]):
            raise BrokenPromise(f"{name(promises.jobs[number])} has not the tags it must: {tag}")


def _may_be_there(tracked: TrackedJob, job: Job, payload: bytes) -> None:
    if tracked.fleeting:
        return  # while the store fails, the job cannot be removed
    if not (tracked.accepted or tracked.unsure):
        raise BrokenPromise(f"{name(tracked)} is there, although its push was refused")
    if tracked.ended and not tracked.again and job.state not in REMAINS[tracked.ended_by]:
        raise BrokenPromise(
            f"{name(tracked)} is {STATE_NAMES[job.state]} after its end was acknowledged"
        )
    if payload != tracked.work.payload:
        raise BrokenPromise(f"{name(tracked)} has another payload: {payload!r}")
    if job.state == DEAD and not (tracked.times_leased or tracked.after):
        raise BrokenPromise(f"{name(tracked)} is dead, but no worker ever had it")


def check_reasons(engine: Engine, now: int) -> None:
    """Every job that does not run has a reason."""
    for job in engine.jobs.values():
        if not why(engine, job, now).reasons:
            raise BrokenPromise(f"no reason found why this job does not run: {job}")


def unfinished(engine: Engine) -> list[Job]:
    """Jobs that have not ended and are able to."""
    found: list[Job] = []
    for job in engine.jobs.values():
        if job.state in {DONE, DEAD}:
            continue
        blockers = job.extra.blockers if job.state == BLOCKED and job.extra else []
        if not any(_never_ends(engine, seq) for seq in blockers):
            found.append(job)
    return found


def explained(engine: Engine, jobs: list[Job], now: int) -> list[str]:
    """The reasons why some of these jobs do not run."""
    return [str(why(engine, job, now)) for job in jobs[:5]]


def _never_ends(engine: Engine, seq: int) -> bool:
    """It has failed permanently, or depends on such a job."""
    job = engine.jobs[seq]
    if job.state == BLOCKED and job.extra:
        return any(_never_ends(engine, blocker) for blocker in job.extra.blockers)
    return job.state == DEAD
