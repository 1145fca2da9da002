"""`act`: actions on a list of jobs, or on all jobs that match a query.

The operation selects all jobs before it changes the first one, and changes each job at most once,
even if the job moves: the search does not find a retried job again. A long operation runs in slices
and yields to other connections between them. If the client disconnects, the operation stops.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.errors import EngineError, QueueRefused
from millrace.engine.job import Job
from millrace.engine.seq_set import SeqSet
from millrace.engine.states import BLOCKED, STATE_NAMES
from millrace.protocols.http.pushes import check_queue
from millrace.records import (
    JOB_ACTIONS,
    ActionRequest,
    BulkProgress,
    JobFilter,
    OperatorAction,
    RecurringAction,
    SkippedJob,
)
from millrace.records.types import MAX_NAMED_JOBS

from .actions import apply, is_tracked, untrack_id
from .errors import AdminError, NotApplicable, require_writable
from .filters import FilterMatcher
from .query_language import quoted, write
from .search import matching_jobs
from .service import MAX_NAME_LENGTH, AdminService, jobs_by_id

#: Jobs changed per slice.
ACTION_SLICE_SIZE: Final = 25
#: If a job has more dependents than this, they are unblocked in slices before the job is deleted.
MAX_DEPENDENTS_PER_SLICE: Final = 500
#: Dependent jobs examined per slice.
SCAN_SLICE_SIZE: Final = 500
#: Number of examined jobs between two progress replies during the search.
SCAN_PROGRESS_INTERVAL: Final = 10_000
#: Number of processed jobs between two progress replies.
PROGRESS_INTERVAL: Final = 500
#: Maximum refused jobs listed individually in the reply.
MAX_LISTED_SKIPS: Final = 100


def act_on_jobs(
    hub: AdminService, request: ActionRequest, now: int
) -> Iterator[BulkProgress | None]:
    require_writable(hub.engine)
    _check(request)
    if JOB_ACTIONS[request.action].argument == "queue":
        hub.engine.check_queue(request.queue)  # before the first job changes
    if request.query is None:
        return _act_on_some(hub, request)
    return _act_on_all(hub, request, request.query)


def _act_on_some(hub: AdminService, request: ActionRequest) -> Iterator[BulkProgress | None]:
    engine, acted = hub.engine, BulkProgress(0, [], finished=False)
    only = None if request.only is None else FilterMatcher(hub, request.only)
    jobs: dict[int, Job] = {}
    for name in request.jobs:
        found = jobs_by_id(engine, name)
        if found:
            job = next((each for each in found if only is None or only.admits(each)), found[0])
            jobs[job.seq] = job
        elif request.action == "untrack" and is_tracked(hub, name):
            untrack_id(hub, name)  # clients may still track a deleted job
            acted.done += 1
        else:
            _refuse(acted, name, "Job not found.")
    for seq in request.seqs:
        if seq in engine.tables.jobs:
            jobs[seq] = engine.tables.jobs[seq]
        else:
            _refuse(acted, str(seq), "Job not found.")
    names = list(dict.fromkeys([*request.jobs, *map(str, request.seqs)]))
    acted.total = acted.done + len(jobs)
    seqs = SeqSet()
    for seq in jobs:
        seqs.add(seq)
    ordered = _in_order(engine, request, jobs.values(), seqs)
    for _ in _do_all(hub, request, ordered, acted, ", ".join(names[:MAX_LISTED_SKIPS]), only):
        yield None
    yield acted


def _act_on_all(
    hub: AdminService, request: ActionRequest, query: JobFilter
) -> Iterator[BulkProgress | None]:
    engine, acted = hub.engine, BulkProgress(0, [], finished=False)
    meaning = FilterMatcher(hub, query)
    undone, seqs = engine.revert_count, SeqSet()
    # The garbage collector would examine each of a million jobs in a list.
    selected = array("q")
    found = matching_jobs(hub, query)
    for job in found:
        if job is not None:
            selected.append(job.seq)
            if request.action == "cancel":
                seqs.add(job.seq)
        elif found.examined - acted.examined >= SCAN_PROGRESS_INTERVAL:
            acted.examined, acted.total = found.examined, found.total
            yield acted
        else:
            yield None
    check_not_reverted(engine, undone, acted)
    acted.examined, acted.total = 0, len(selected)
    ordered = _in_order(engine, request, _present(engine, selected), seqs)
    told = 0
    for _ in _do_all(hub, request, ordered, acted, write(query) or "all jobs", meaning):
        tell = acted.examined - told >= PROGRESS_INTERVAL
        told = acted.examined if tell else told
        yield acted if tell else None
    yield acted


def _do_all(
    hub: AdminService,
    request: ActionRequest,
    jobs: Iterable[Job | None],
    acted: BulkProgress,
    target: str,
    meaning: FilterMatcher | None = None,
) -> Iterator[None]:
    """Apply the action to all jobs in slices, and record it in the audit log. Between slices, other
    clients may remove a job or change it so that it no longer matches.
    """
    engine = hub.engine
    undone = engine.revert_count
    target += describe_argument(JOB_ACTIONS[request.action], request)
    number = hub.audit.add(hub.now, request.by, request.action, target)
    try:
        for job in jobs:
            if job is None:
                yield
                check_not_reverted(engine, undone, acted)
                continue
            if request.action == "delete":
                for _ in _let_go(hub, job, meaning):
                    yield
                    check_not_reverted(engine, undone, acted)
            acted.examined += 1
            if engine.job(job.seq) is not job:
                if request.query is None:
                    _refuse(acted, job.jid, "The job no longer exists.")
            elif meaning is None or meaning.admits(job):
                _do(hub, job, request, acted)
            elif request.only is not None:
                reason = f"The job is {STATE_NAMES[job.state]} and no longer matches."
                _refuse(acted, job.jid, reason)
            if acted.examined % ACTION_SLICE_SIZE == 0:
                yield
                check_not_reverted(engine, undone, acted)
    finally:
        if not engine.unavailable_reason and engine.revert_count == undone:
            hub.audit.count(number, acted.done)
    acted.examined, acted.finished = acted.total, True


def check_not_reverted(engine: Engine, undone: int, acted: BulkProgress) -> None:
    """Raise AdminError if the engine has reverted changes or halted since the operation started."""
    if engine.revert_count != undone or engine.unavailable_reason:
        reason = engine.unavailable_reason or "the store failed"
        some = f"only some of {acted.done} were changed" if acted.done else "nothing was changed"
        raise AdminError(f"{reason}: {some}, try again later", "unavailable")


def _do(hub: AdminService, job: Job, request: ActionRequest, acted: BulkProgress) -> None:
    try:
        apply(hub, job, request, hub.now)
    except (NotApplicable, EngineError, QueueRefused) as reason:
        _refuse(acted, job.jid, str(reason) or str(type(reason).__doc__))
    else:
        acted.done += 1


def _refuse(acted: BulkProgress, name: str, reason: str) -> None:
    acted.skipped_count += 1
    if len(acted.skipped) < MAX_LISTED_SKIPS:
        acted.skipped.append(SkippedJob(name, reason))


def _let_go(hub: AdminService, job: Job, meaning: FilterMatcher | None) -> Iterator[None]:
    """Before a job with a large number of dependents is deleted, unblock them in slices."""
    engine, last, passed = hub.engine, 0, 0
    if engine.first_dependents(job, 0)[1] <= MAX_DEPENDENTS_PER_SLICE or (
        meaning and not meaning.admits(job)
    ):
        return
    while last := engine.next_dependent(job, last):
        waiting = engine.job(last)
        if waiting is not None and waiting.state == BLOCKED:
            engine.unblock(waiting, [job.seq], hub.now)
        passed += 1
        if passed % ACTION_SLICE_SIZE == 0:
            yield
            if meaning and not meaning.admits(job):
                return  # the job stays, so the remaining dependents stay blocked


def _present(engine: Engine, seqs: Iterable[int]) -> Iterator[Job | None]:
    """Yield the jobs with these seqs that still exist. Yield None at the end of a slice."""
    gone = 0
    for seq in seqs:
        job = engine.job(seq)
        if job is not None:
            yield job
            continue
        gone += 1
        if gone % SCAN_SLICE_SIZE == 0:
            yield None


def _in_order(
    engine: Engine, request: ActionRequest, jobs: Iterable[Job | None], seqs: SeqSet
) -> Iterable[Job | None]:
    """Order the jobs so that the action cancels dependents before their blockers. It then neither
    unblocks a job that it cancels later, nor refuses a job because of a dependent that it cancels
    as well.
    """
    if request.action != "cancel" or not engine.tables.blocked:
        return jobs
    return _dependents_first(engine, jobs, seqs)


def _dependents_first(
    engine: Engine, jobs: Iterable[Job | None], seqs: SeqSet
) -> Iterator[Job | None]:
    """Yield dependents before their blockers. Yield None at the end of a slice, because one job may
    have a large number of dependents.
    """
    seen, passed = SeqSet(), 0
    for first in jobs:
        if first is None:
            yield None
            continue
        # Pairs of a job and its last examined dependent.
        path = [(first, 0)] if first.seq not in seen else []
        seen.add(first.seq)
        while path:
            job, last = path.pop()
            last = engine.next_dependent(job, last)
            if not last:
                yield job
                continue
            path.append((job, last))
            if last in seqs and last not in seen and last in engine.tables.jobs:
                seen.add(last)
                path.append((engine.tables.jobs[last], 0))
            passed += 1
            if passed % SCAN_SLICE_SIZE == 0:
                yield None


# Validation of requests


def _check(request: ActionRequest) -> None:
    some = request.jobs or request.seqs
    if bool(some) == (request.query is not None):
        raise AdminError("Give either jobs or a query.")
    if len(request.jobs) + len(request.seqs) > MAX_NAMED_JOBS:
        raise AdminError(f"More than {MAX_NAMED_JOBS} jobs are named. Use a query.", "too large")
    if any(len(name) > MAX_NAME_LENGTH for name in (*request.jobs, *request.waits_for)):
        raise AdminError(f"A name is longer than {MAX_NAME_LENGTH} characters.", "too large")
    if request.only is not None and (request.query is not None or request.only.terms):
        raise AdminError("`only` requires named jobs and supports no text terms.")
    check_argument(JOB_ACTIONS[request.action], request)


def check_argument(action: OperatorAction, request: ActionRequest | RecurringAction) -> None:
    if action.argument == "queue":
        check_queue(request.queue)
    elif action.argument == "tags" and not request.tags:
        raise AdminError("Give at least one tag.")


def describe_argument(action: OperatorAction, request: ActionRequest | RecurringAction) -> str:
    """Describe the argument for the audit log."""
    match action.argument:
        case "queue":
            return f" to the queue {quoted(request.queue)}"
        case "priority":
            return f" to {request.priority:g}"
        case "tags":
            return " with " + ", ".join(map(quoted, request.tags))
        case "waits_for" if isinstance(request, ActionRequest) and request.waits_for:
            return " of " + ", ".join(request.waits_for)
    return ""
