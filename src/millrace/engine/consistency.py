"""Do the engine's indexes say what its jobs say? Every disagreement is found, and can be mended.

A job's record is what is true; everything else in the engine is made from records and could be made
again: who is found by which id, which jobs are in which state, the order of the ready ones, counts,
timers, who waits for whom. So `check` makes in thought what should be there and compares, and
`repair` makes it anew, as a restart would. Nothing here should ever find anything. It looks at
every job, which takes about a second for each hundred thousand of them.
"""

# ruff: noqa: SLF001 - what is private to the engine is the subject here

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify
from itertools import chain
from typing import Any, Final, NamedTuple

from .engine import Engine
from .job import FOREVER, NO_PROTOCOL, Job
from .jobs import LIFE, in_order
from .policy import BOUND, UNTIMED
from .queues import Queue, Ready
from .states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED, STATE_NAMES

#: So many problems are told one by one; all are counted.
MOST_TOLD: Final = 1000
#: The states that a job can be kept in.
_KEPT: Final = range(6)


class Problem(NamedTuple):
    """One disagreement: between what, of which job or queue if it is of one, and what is wrong."""

    what: str
    jid: str
    queue: str
    detail: str


class Report:
    def __init__(self) -> None:
        #: How many jobs were looked at.
        self.checked = 0
        self.total = 0
        #: The first of them.
        self.problems: list[Problem] = []

    def add(self, what: str, detail: str, *, job: Job | None = None, queue: str = "") -> None:
        self.total += 1
        if len(self.problems) < MOST_TOLD:
            jid = "" if job is None else job.jid
            self.problems.append(Problem(what, jid, job.queue if job else queue, detail))


def check(engine: Engine) -> Report:
    """Look at everything, and change nothing."""
    report = Report()
    report.checked = len(engine.jobs)
    _check_records(engine, report)
    _check_ids(engine, report)
    _check_states(engine, report)
    _check_loads(engine, report)
    for job, detail in engine.failing.wrong(engine.jobs):
        report.add("failure", detail, job=job)
    _check_queues(engine, report)
    _check_timers(engine, report)
    _check_dependencies(engine, report)
    return report


def repair(engine: Engine, now: int) -> None:
    """Make anew whatever is made from records. Those who wait for what turns up are given it."""
    _mend_records(engine)
    _clear(engine)
    position = engine.position
    for job in in_order(engine.jobs.values()):
        engine._restore(job)
    engine.position = position
    for job in sorted(engine.dead.values(), key=lambda dead: dead.due):
        engine.dead.move_to_end(job.seq)
    for job in engine.leased.values():
        if job.actor in BOUND and job.holder not in engine.holders:
            engine.timers.set(job.seq, now)
    for job in [job for job in engine.blocked.values() if not _blockers(job) and not _load(job)]:
        state = engine._start(job, now)
        engine._change(job, engine.queues[job.queue], "unblocked", state, now, NO_PROTOCOL)
    for queue in list(engine.queues.values()):
        engine._serve(queue, now)
    engine.depend()


def _blockers(job: Job) -> list[int]:
    return [] if job.extra is None else job.extra.blockers


def _load(job: Job) -> str:
    return "" if job.extra is None else job.extra.load


# Records


def _check_records(engine: Engine, report: Report) -> None:
    """What must be right in the records themselves, or nothing can be made from them."""
    for seq, job in engine.jobs.items():
        if job.seq != seq:
            report.add("record", f"job {job.seq} is kept as job {seq}", job=job)
        if job.state not in _KEPT:
            report.add("record", f"the job's state is {job.state}, which is none", job=job)
    newest = max((job.seq for job in engine.jobs.values()), default=0)
    if newest >= engine.next_seq:
        report.add("record", f"the next job would be {engine.next_seq}, but there is {newest}")


def _mend_records(engine: Engine) -> None:
    jobs = {job.seq: job for job in engine.jobs.values() if job.state in _KEPT}
    for job in engine.jobs.values():
        if job.state not in _KEPT:
            engine.batch.gone[job.seq] = None
            engine.batch.new.pop(job.seq, None)
            engine.batch.changed.pop(job.seq, None)
    engine.jobs.clear()
    engine.jobs.update(jobs)
    for job in jobs.values():
        blockers = [seq for seq in dict.fromkeys(_blockers(job)) if _can_block(engine, seq)]
        if job.extra is not None and blockers != job.extra.blockers:
            job.extra.blockers = blockers
            engine.touch(job)


def _can_block(engine: Engine, seq: int) -> bool:
    blocker = engine.jobs.get(seq)
    return blocker is not None and blocker.state != DONE


# Ids


def _check_ids(engine: Engine, report: Report) -> None:
    """Of the jobs of one id the oldest is found; the others are its twins, in their order."""
    named: dict[str, list[Job]] = {}
    for _, job in sorted(engine.jobs.items()):
        named.setdefault(job.jid, []).append(job)
    for jid, jobs in named.items():
        found = engine.by_jid.get(jid)
        if found is None:
            report.add("id", "the job is not found by its id", job=jobs[0])
        elif found is not jobs[0]:
            report.add("id", f"job {found.seq} is found instead of {jobs[0].seq}", job=jobs[0])
        twins = engine._twins.get(jid, [])
        if [twin.seq for twin in twins] != [job.seq for job in jobs[1:]]:
            report.add("id", "not all jobs of this id are found, in their order", job=jobs[0])
    for jid in (engine.by_jid.keys() | engine._twins.keys()) - named.keys():
        report.add("id", f"{jid} leads to a job that is gone")


# States


def _check_states(engine: Engine, report: Report) -> None:
    """Every job is in the one place that its state says, but for the ready ones: see queues."""
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
                report.add("state", f"a job that is gone is listed as {name}", job=job)
            elif job.state == READY or job.state not in _KEPT or engine._place_of(job) is not place:
                state = STATE_NAMES[job.state]
                report.add("state", f"the job is {state} but listed as {name}", job=job)
    for job in engine.jobs.values():
        if job.state in _KEPT and job.state != READY and job.seq not in engine._place_of(job):
            report.add("state", f"the job is {STATE_NAMES[job.state]} but not listed", job=job)


def _check_loads(engine: Engine, report: Report) -> None:
    """Blocked jobs that came with a load are listed with it, and nobody else is."""
    for load, staged in engine.staged.items():
        for seq, job in staged.items():
            if engine.blocked.get(seq) is not job or _load(job) != load:
                report.add("load", f"the job is said to wait for the load {load}", job=job)
        if not staged:
            report.add("load", f"the load {load} is listed without a job")
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
            report.add("queue", "the job's queue is not there", job=job)
    for name, queue in engine.queues.items():
        if queue.name != name:
            report.add("queue", f"it is kept as {name}", queue=queue.name)
        for state in _KEPT:
            right, said = counts[name, state], queue.counts[state]
            if said != right:
                detail = f"{said} jobs are counted as {STATE_NAMES[state]}, but {right} are"
                report.add("count", detail, queue=name)
        _check_ready(queue, ready.get(name, []), report)
        for waiter in queue.waiters.values():
            if engine._waiters.get(waiter.key) is not waiter:
                report.add("waiter", "somebody is waited for who waits no longer", queue=name)
    retrying = sum(job.state == SCHEDULED and job.failures > 0 for job in engine.jobs.values())
    if engine.retrying != retrying:
        report.add("count", f"{engine.retrying} jobs are counted as retried, but {retrying} are")


def _check_ready(queue: Queue, expected: list[Job], report: Report) -> None:
    """All ready jobs of the queue are in line, each once, in their order."""
    ready, mine = queue.ready, {job.seq: job for job in expected}
    in_line = Counter(job.seq for job in ready)
    for job in ready:
        if mine.get(job.seq) is not job:
            report.add("ready", f"the job is in line in {queue.name}, but not ready there", job=job)
    for job in expected:
        times = in_line[job.seq]
        if times != 1:
            report.add("ready", f"the job is ready, but {times} times in line", job=job)
    if len(ready) != sum(in_line.values()):
        report.add("ready", f"{len(ready)} are said to be in line", queue=queue.name)
    if not _is_in_order(ready):
        report.add("ready", "ready jobs are not in their order", queue=queue.name)
    early = sum(job.place < 0 for job in ready)
    if ready.early != early:
        detail = f"{ready.early} jobs are counted as ahead of all others, but {early} are"
        report.add("count", detail, queue=queue.name)


def _is_in_order(ready: Ready) -> bool:
    """Those that are first in, first out are; the others have the keys they should have, in a heap
    whose first is the least.
    """
    fifo = [job for job in chain(ready._swept, ready._fifo) if job.seq not in ready._ghosts]
    places = [(-job.rank, job.place, job.seq) for job in fifo]
    if places != sorted(places) or any(rank for rank, _, _ in places):
        return False
    heap, tickets = ready._heap, ready._tickets
    if not is_heap([key[:4] for key in heap]):
        return False
    entries = {id(key) for key in heap}
    for seq, key in tickets.items():
        job = key[4]
        if key[:3] != (-job.rank, job.place, seq) or id(key) not in entries:
            return False
    return True


def is_heap(entries: Sequence[Any]) -> bool:
    return all(entries[(at - 1) // 2] <= entries[at] for at in range(1, len(entries)))


# Timers


def _check_timers(engine: Engine, report: Report) -> None:
    """A timer for every job that waits for a moment, and for none that is gone.

    Which moment is not compared: a caller's clock may differ from ours, and what falls due while
    nothing can be kept is put off.
    """
    timers = engine.timers
    for job in engine.jobs.values():
        if _is_timed(job) and timers.when(job.seq) is None:
            what = "end of the lease" if job.state == LEASED else "moment"
            report.add("timer", f"nobody waits for the {what} of a {_state(job)} job", job=job)
        if job.expires and timers.when(job.seq + LIFE) is None:
            report.add("timer", "nobody waits for the end of the job's time to live", job=job)
    entries = {id(entry) for entry in timers.heap}
    if not is_heap([entry[:2] for entry in timers.heap]):
        report.add("timer", "the earliest is not the first")
    for key, entry in timers._live.items():
        if id(entry) not in entries:
            report.add("timer", "a timer is set that never comes")
        if not isinstance(key, int):
            continue
        if key < 0:
            if key not in engine._waiters:
                report.add("timer", "a timer is set for somebody who waits no longer")
            continue
        known = engine.jobs.get(key if key < LIFE else key - LIFE)
        if known is None:
            report.add("timer", f"a timer is set for job {key % LIFE}, which is gone")
        elif not _may_have(known, lifelong=key >= LIFE):
            report.add("timer", f"a timer is set that no {_state(known)} job has", job=known)


def _state(job: Job) -> str:
    return STATE_NAMES[job.state]


def _is_timed(job: Job) -> bool:
    if job.state == LEASED:
        return job.actor not in UNTIMED
    if job.state in {DONE, DEAD}:
        return not job.expires and job.due != FOREVER
    return job.state == SCHEDULED


def _may_have(job: Job, *, lifelong: bool) -> bool:
    """Jobs whose client is gone may wait for the disk, to go with it or to be given back."""
    if lifelong:
        return bool(job.expires) or (job.extra is not None and job.extra.fleeting)
    return _is_timed(job) or (job.state == LEASED and job.actor in BOUND)


# Dependencies


def _check_dependencies(engine: Engine, report: Report) -> None:
    """Who waits for whom is told by both sides alike."""
    for job in engine.jobs.values():
        blockers = _blockers(job)
        if job.state == BLOCKED and not blockers and not _load(job):
            report.add("dependency", "the job is blocked, but waits for nobody", job=job)
        if len(set(blockers)) < len(blockers):
            report.add("dependency", "the job waits for the same one twice", job=job)
        for seq in dict.fromkeys(blockers):
            _check_blocker(engine, job, seq, report)
    for seq, waiting in engine._dependents.items():
        for dependent, times in Counter(waiting).items():
            _check_dependent(engine, seq, dependent, times, report)


def _check_blocker(engine: Engine, job: Job, seq: int, report: Report) -> None:
    blocker = engine.jobs.get(seq)
    if blocker is None:
        report.add("dependency", f"the job waits for job {seq}, which is gone", job=job)
    elif blocker.state == DONE:
        report.add("dependency", f"the job waits for {blocker.jid}, which is done", job=job)
    elif job.seq not in engine._dependents.get(seq, ()):
        report.add("dependency", f"{blocker.jid} does not know that the job waits for it", job=job)


def _check_dependent(engine: Engine, seq: int, dependent: int, times: int, report: Report) -> None:
    job = engine.jobs.get(dependent)
    if job is None:
        report.add("dependency", f"job {dependent} is gone, but said to wait for job {seq}")
    elif seq not in _blockers(job):
        report.add("dependency", f"the job is said to wait for job {seq}, but does not", job=job)
    elif times > 1:
        report.add("dependency", f"the job is said {times} times to wait for job {seq}", job=job)


# Making anew


def _clear(engine: Engine) -> None:
    """Empty everything that is made from records."""
    for key in [key for key in engine.timers._live if isinstance(key, int)]:
        if key >= 0 or key not in engine._waiters:
            engine.timers.cancel(key)
    engine.timers.heap = list(engine.timers._live.values())
    heapify(engine.timers.heap)
    _clear_queues(engine.queues.values(), engine)
    engine.queues = {queue.name: queue for queue in engine.queues.values()}
    engine.by_jid.clear()
    engine._twins.clear()
    for place in (*engine._index.values(), engine.dying, engine.kept):
        place.clear()
    engine.staged.clear()
    engine._dependents.clear()
    engine.failing.clear()
    engine.retrying = 0


def _clear_queues(queues: Iterable[Queue], engine: Engine) -> None:
    for queue in queues:
        queue.ready = Ready()
        queue.counts = [0] * len(_KEPT)
        for key, waiter in list(queue.waiters.items()):
            if engine._waiters.get(key) is not waiter:
                del queue.waiters[key]
