"""Check that the engine's indexes agree with its jobs, and rebuild them.

The job records are the source of truth. All other state of the engine (ids, indexes by state, the
order of ready jobs, counts, timers, dependencies) is derived from them. `check_engine` derives this
state again and compares it; `repair` rebuilds it, as a restart does. Every reported problem is a
defect in the engine. Both functions examine every job, which takes about a second per 100,000 jobs.

`check_in_slices` lets the engine change between two slices. Each item is examined within one slice,
so its problems are real. Counts and the order of a queue need several slices: they are compared
only if the version of the queue is the same before and after; otherwise the queue is skipped. The
components yield after each item, with its problem or None.
"""

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from .annotations import tags_of
from .component import Problems
from .dependencies import blockers_of
from .engine import Engine
from .job import NO_PROTOCOL, Job
from .queues import SKIPPED
from .restoration import sort_for_restore
from .state_index import load_of
from .states import DONE
from .table import has_valid_state

#: A report lists at most this number of problems, and counts all of them.
MAX_LISTED_PROBLEMS: Final = 1000
#: The number of items that one slice examines.
CHECK_BATCH_SIZE: Final = 100


class ConsistencyProblem(NamedTuple):
    """One problem: its subject, the job or queue if it concerns one, and a description."""

    what: str
    jid: str
    queue: str
    detail: str


class ConsistencyReport:
    def __init__(self) -> None:
        #: The number of jobs that were examined.
        self.checked = 0
        #: The number of queues that changed during the check: their counts and their order are
        #: not compared.
        self.skipped = 0
        self.total = 0
        #: The first problems.
        self.problems: list[ConsistencyProblem] = []

    def add(self, what: str, detail: str, *, job: Job | None = None, queue: str = "") -> None:
        self.total += 1
        if len(self.problems) < MAX_LISTED_PROBLEMS:
            jid = "" if job is None else job.jid
            self.problems.append(ConsistencyProblem(what, jid, job.queue if job else queue, detail))


def check_engine(engine: Engine) -> ConsistencyReport:
    """Compare all derived state with the records, without changing anything."""
    work = check_in_slices(engine)
    while True:
        try:
            next(work)
        except StopIteration as ended:
            report: ConsistencyReport = ended.value
            return report


def check_in_slices(engine: Engine) -> Generator[None, None, ConsistencyReport]:
    """Compare all derived state with the records, and yield after each slice."""
    report = ConsistencyReport()
    report.checked = len(engine.jobs)
    for number, _ in enumerate(_check(engine, report), 1):
        if number % CHECK_BATCH_SIZE == 0:
            yield
    return report


def _check(engine: Engine, report: ConsistencyReport) -> Iterator[None]:
    for component in engine.components:
        yield from _add_all(report, component.problems())
    yield from _add_all(report, engine.timers.problems())
    yield from _add_all(report, engine.waiters.problems())
    newest = 0
    for seq in engine.jobs:
        yield
        newest = max(newest, seq)
    if newest >= engine.next_seq:
        report.add("record", f"the next seq is {engine.next_seq}, but job {newest} exists")


def _add_all(report: ConsistencyReport, found: Problems) -> Iterator[None]:
    """Report the problems of a component."""
    for problem in found:
        if problem is SKIPPED:
            report.skipped += 1
        elif problem is not None:
            report.add(problem.what, problem.detail, job=problem.job, queue=problem.queue)
        yield


def repair(engine: Engine, now: int) -> None:
    """Rebuild all derived state, and deliver newly ready jobs to waiting clients."""
    jobs = _repair_records(engine)
    engine.waiters.repair()
    for component in engine.components:
        component.clear()
    position = engine.positions.last
    for job in jobs:  # in the order of their seqs, which saves memory
        engine.jobs.put(job.seq, job)
    for job in sort_for_restore(jobs):
        engine.restoration.restore_job(job)
    engine.positions.last = position
    engine.retention.sort()
    engine.limits.recount_usage()
    for job in engine.leased.values():
        if (
            job.history.holder_protocol in engine.rules.bound_protocols
            and job.history.holder not in engine.leases.holders
        ):
            engine.timers.set(job.seq, now)
    for job in [job for job in engine.blocked.values() if not blockers_of(job)]:
        if load_of(job):
            continue
        state = engine.transitions.start_state(job, now)
        engine.transitions.apply(
            job, engine.queues[job.queue], "unblocked", state, now, NO_PROTOCOL
        )
    engine.limits.unpark_freed(now)
    engine.assignments.serve_all(now)
    engine.caller.must_wait = True


def _repair_records(engine: Engine) -> list[Job]:
    """Drop jobs with an unknown state, correct blockers and tags, and return the remaining jobs."""
    jobs = [job for job in engine.jobs.values() if has_valid_state(job)]
    for job in engine.jobs.values():
        if not has_valid_state(job):
            engine.change_set.removed[job.seq] = None
            engine.change_set.new.pop(job.seq, None)
            engine.change_set.changed.pop(job.seq, None)
    existing = {job.seq: job for job in jobs}
    for job in jobs:
        known = dict.fromkeys(blockers_of(job))
        blockers = [seq for seq in known if _can_block(engine, existing.get(seq), seq)]
        if job.extra is not None and blockers != job.extra.blockers:
            job.extra.blockers = blockers
            engine.edits.record_job(job)
        names = [str(tag) for tag, _ in tags_of(job)]
        if job.extra is not None and names != job.extra.tags:
            job.extra.tags = names
            engine.edits.record_job(job)
    return jobs


def _can_block(engine: Engine, blocker: Job | None, seq: int) -> bool:
    ended = blocker is None or blocker.state == DONE
    return not ended or seq in engine.cascades.pending
