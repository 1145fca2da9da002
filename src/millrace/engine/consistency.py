"""Check that the engine's indexes agree with its jobs, and rebuild them.

A job's record is the truth. All other state of the engine (ids, indexes by state, the order of
ready jobs, counts, timers, dependencies) is derived from the records. `check` derives it again and
compares; `repair` rebuilds it, as a restart would. A problem found here is a defect of the engine.
Both examine every job, which takes about a second per 100,000 jobs.
"""

from collections import Counter
from typing import Final, NamedTuple

from .dependencies import blockers_of
from .engine import Engine
from .job import FOREVER, NO_PROTOCOL, Job
from .policy import BOUND, UNTIMED
from .queues import Queue
from .states import DEAD, DONE, LEASED, READY, SCHEDULED, STATE_NAMES
from .transitions import LIFE, in_order

#: A report lists at most this number of problems, and counts all of them.
MAX_LISTED_PROBLEMS: Final = 1000
#: The states of existing jobs.
_STATES: Final = range(6)


class Problem(NamedTuple):
    """One problem: its subject, the job or queue if it concerns one, and a description."""

    what: str
    jid: str
    queue: str
    detail: str


class Report:
    def __init__(self) -> None:
        #: The number of jobs that were examined.
        self.checked = 0
        self.total = 0
        #: The first problems.
        self.problems: list[Problem] = []

    def add(self, what: str, detail: str, *, job: Job | None = None, queue: str = "") -> None:
        self.total += 1
        if len(self.problems) < MAX_LISTED_PROBLEMS:
            jid = "" if job is None else job.jid
            self.problems.append(Problem(what, jid, job.queue if job else queue, detail))


def check(engine: Engine) -> Report:
    """Examine all state without a change."""
    report = Report()
    report.checked = len(engine.jobs)
    _check_records(engine, report)
    for job, detail in engine.table.problems():
        report.add("id", detail, job=job)
    _check_states(engine, report)
    _check_loads(engine, report)
    for failed, detail in engine.failing.wrong(engine.jobs):
        report.add("failure", detail, job=failed)
    _check_queues(engine, report)
    _check_timers(engine, report)
    for job, detail in engine.dependencies.problems():
        report.add("dependency", detail, job=job)
    return report


def repair(engine: Engine, now: int) -> None:
    """Rebuild all derived state, and deliver jobs that became ready to waiting clients."""
    _repair_records(engine)
    _clear(engine)
    position = engine.position
    for job in in_order(engine.jobs.values()):
        engine.restore_job(job)
    engine.position = position
    engine.retention.sort()
    for job in engine.leased.values():
        if job.actor in BOUND and job.holder not in engine.holders:
            engine.timers.set(job.seq, now)
    for job in [job for job in engine.blocked.values() if not blockers_of(job) and not _load(job)]:
        state = engine.start_state(job, now)
        engine.apply(job, engine.queues[job.queue], "unblocked", state, now, NO_PROTOCOL)
    for queue in list(engine.queues.values()):
        engine.serve(queue, now)
    engine.depend()


def _load(job: Job) -> str:
    return "" if job.extra is None else job.extra.load


# Records


def _check_records(engine: Engine, report: Report) -> None:
    """Check the records themselves."""
    for seq, job in engine.jobs.items():
        if job.seq != seq:
            report.add("record", f"job {job.seq} is listed as job {seq}", job=job)
        if job.state not in _STATES:
            report.add("record", f"the job has the unknown state {job.state}", job=job)
    newest = max((job.seq for job in engine.jobs.values()), default=0)
    if newest >= engine.next_seq:
        report.add("record", f"the next seq is {engine.next_seq}, but job {newest} exists")


def _repair_records(engine: Engine) -> None:
    jobs = {job.seq: job for job in engine.jobs.values() if job.state in _STATES}
    for job in engine.jobs.values():
        if job.state not in _STATES:
            engine.batch.gone[job.seq] = None
            engine.batch.new.pop(job.seq, None)
            engine.batch.changed.pop(job.seq, None)
    engine.jobs.clear()
    engine.jobs.update(jobs)
    for job in jobs.values():
        blockers = [seq for seq in dict.fromkeys(blockers_of(job)) if _can_block(engine, seq)]
        if job.extra is not None and blockers != job.extra.blockers:
            job.extra.blockers = blockers
            engine.touch(job)


def _can_block(engine: Engine, seq: int) -> bool:
    blocker = engine.jobs.get(seq)
    return blocker is not None and blocker.state != DONE


# States


def _check_states(engine: Engine, report: Report) -> None:
    """Every job is in the index of its state. Ready jobs are checked with their queues."""
    places = {
        "scheduled": engine.scheduled,
        "blocked": engine.blocked,
        "leased": engine.leased,
        "done": engine.done,
        "dead": engine.dead,
        "dying": engine.dying,
        "kept": engine.kept,
    }
    for name, place in places.items():
        for seq, job in place.items():
            if engine.jobs.get(seq) is not job:
                report.add("state", f"a job that does not exist is listed as {name}", job=job)
            elif not _belongs_in(engine, job, place):
                state = STATE_NAMES[job.state]
                report.add("state", f"the job is {state} but listed as {name}", job=job)
    for job in engine.jobs.values():
        if job.state in _STATES and job.state != READY and job.seq not in engine.index_of_job(job):
            report.add("state", f"the job is {STATE_NAMES[job.state]} but not listed", job=job)


def _belongs_in(engine: Engine, job: Job, place: dict[int, Job]) -> bool:
    indexed = job.state != READY and job.state in _STATES
    return indexed and engine.index_of_job(job) is place


def _check_loads(engine: Engine, report: Report) -> None:
    """A load lists the blocked jobs that were staged with it, and no others."""
    for load, staged in engine.staged.items():
        for seq, job in staged.items():
            if engine.blocked.get(seq) is not job or _load(job) != load:
                report.add("load", f"the job is listed with the load {load}", job=job)
        if not staged:
            report.add("load", f"the load {load} is empty")
    for job in engine.blocked.values():
        if _load(job) and job.seq not in engine.staged.get(_load(job), ()):
            report.add("load", f"the job is not listed with its load {_load(job)}", job=job)


# Queues


def _check_queues(engine: Engine, report: Report) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    ready: dict[str, list[Job]] = {}
    for job in engine.jobs.values():
        counts[job.queue, job.state] += 1
        if job.state == READY:
            ready.setdefault(job.queue, []).append(job)
        if job.queue not in engine.queues:
            report.add("queue", "the job's queue does not exist", job=job)
    for name, queue in engine.queues.items():
        if queue.name != name:
            report.add("queue", f"it is listed as {name}", queue=queue.name)
        for state in _STATES:
            right, said = counts[name, state], queue.counts[state]
            if said != right:
                detail = f"{said} jobs are counted as {STATE_NAMES[state]}, but {right} are"
                report.add("count", detail, queue=name)
        _check_ready(queue, ready.get(name, []), report)
    for name, detail in engine.waiters.problems():
        report.add("waiter" if name else "timer", detail, queue=name)
    retrying = sum(job.state == SCHEDULED and job.failures > 0 for job in engine.jobs.values())
    if engine.retrying != retrying:
        report.add("count", f"{engine.retrying} jobs are counted as retried, but {retrying} are")


def _check_ready(queue: Queue, expected: list[Job], report: Report) -> None:
    """The ready queue has each ready job once, in its order."""
    ready, mine = queue.ready, {job.seq: job for job in expected}
    in_line = Counter(job.seq for job in ready)
    for job in ready:
        if mine.get(job.seq) is not job:
            report.add(
                "ready",
                f"the job is in the ready queue of {queue.name}, but not ready there",
                job=job,
            )
    for job in expected:
        times = in_line[job.seq]
        if times != 1:
            report.add("ready", f"the job is ready, but {times} times in the ready queue", job=job)
    if len(ready) != sum(in_line.values()):
        report.add("ready", f"the ready queue reports {len(ready)} jobs", queue=queue.name)
    if not ready.is_in_order():
        report.add("ready", "the ready jobs are not in their order", queue=queue.name)
    early = sum(job.place < 0 for job in ready)
    if ready.early != early:
        detail = f"{ready.early} jobs are counted as ahead of all others, but {early} are"
        report.add("count", detail, queue=queue.name)


# Timers


def _check_timers(engine: Engine, report: Report) -> None:
    """Every job that waits for a time has a timer, and no other job has one.

    The times are not compared: clients' clocks differ from the server's, and timers are delayed
    while the store fails.
    """
    timers = engine.timers
    for job in engine.jobs.values():
        if _is_timed(job) and timers.when(job.seq) is None:
            report.add("timer", f"the {_state(job)} job has no timer", job=job)
        if job.expires and timers.when(job.seq + LIFE) is None:
            report.add("timer", "the job's time to live has no timer", job=job)
    for detail in timers.problems():
        report.add("timer", detail)
    for key in timers.keys():  # noqa: SIM118 - it is a method of the heap
        if not isinstance(key, int) or key < 0:
            continue
        known = engine.jobs.get(key if key < LIFE else key - LIFE)
        if known is None:
            report.add("timer", f"a timer is set for job {key % LIFE}, which does not exist")
        elif not _may_have(known, lifelong=key >= LIFE):
            report.add("timer", f"a {_state(known)} job has a timer", job=known)


def _state(job: Job) -> str:
    return STATE_NAMES[job.state]


def _is_timed(job: Job) -> bool:
    if job.state == LEASED:
        return job.actor not in UNTIMED
    if job.state in {DONE, DEAD}:
        return not job.expires and job.due != FOREVER
    return job.state == SCHEDULED


def _may_have(job: Job, *, lifelong: bool) -> bool:
    """While the store fails, jobs whose client is gone may have a timer that ends them later."""
    if lifelong:
        return bool(job.expires) or (job.extra is not None and job.extra.fleeting)
    return _is_timed(job) or (job.state == LEASED and job.actor in BOUND)


# Rebuilding


def _clear(engine: Engine) -> None:
    """Empty all derived state."""
    engine.waiters.repair()
    for key in engine.timers.keys():  # noqa: SIM118 - it is a method of the heap
        if isinstance(key, int) and key >= 0:
            engine.timers.cancel(key)
    engine.timers.rebuild()
    engine.queue_set.clear_jobs()
    engine.table.clear_ids()
    engine.retention.clear()
    for index in (engine.scheduled, engine.blocked, engine.leased):
        index.clear()
    engine.staged.clear()
    engine.dependencies.clear()
    engine.failing.clear()
    engine.retrying = 0
