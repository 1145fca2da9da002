"""`act`: what people do to jobs, to some or to all that a query means.

Which jobs are meant is settled before the first is touched, and each is done at most once, however
it moves: what a retry makes ready is not found again. If it takes long, others have their turns in
between; whoever asked and goes away stops it where it is.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from millrace.engine.engine import Engine
from millrace.engine.errors import EngineError
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED
from millrace.records import MAX_PRIORITY, ActionRequest, BulkProgress, JobFilter, SkippedJob

from .actions import ACTIONS, STATE_TEXT, is_tracked, require_qless, untrack_id
from .errors import AdminError, NotApplicable, NotFound, require_writable
from .filters import FilterMatcher
from .search import matching_jobs
from .service import MAX_NAME_LENGTH, AdminService, jobs_by_id

#: So many jobs may be named in one request.
MAX_NAMED_JOBS: Final = 1000
#: So many are changed before others have their turn.
ACTION_SLICE_SIZE: Final = 50
#: If more than so many wait for a job, they are let go before it is deleted.
MAX_DEPENDENTS_PER_SLICE: Final = 500
#: So many of those who wait for jobs are passed before others have their turn.
SCAN_SLICE_SIZE: Final = 500
#: While jobs are looked for, that is told after so many.
SCAN_PROGRESS_INTERVAL: Final = 10_000
#: After so many it is told how far it is.
PROGRESS_INTERVAL: Final = 500
#: So many refusals are told one by one.
MAX_LISTED_SKIPS: Final = 100
MAX_TAGS: Final = 100
MAX_TAG_LENGTH: Final = 255
#: The longest name that a queue can be given here; Go Job Queue knows none that is longer.
MAX_QUEUE_NAME_BYTES: Final = 255


def act_on_jobs(hub: AdminService, asked: ActionRequest, now: int) -> Iterator[BulkProgress | None]:
    require_writable(hub.engine)
    _check(hub, asked)
    if asked.query is None:
        return _act_on_some(hub, asked)
    return _act_on_all(hub, asked, asked.query)


def _act_on_some(hub: AdminService, asked: ActionRequest) -> Iterator[BulkProgress | None]:
    engine, acted = hub.engine, BulkProgress(0, [], over=False)
    only = None if asked.only is None else FilterMatcher(hub, asked.only)
    jobs: dict[int, Job] = {}
    for name in asked.jobs:
        found = jobs_by_id(engine, name)
        if found:
            job = next((each for each in found if only is None or only.admits(each)), found[0])
            jobs[job.seq] = job
        elif asked.action == "untrack" and is_tracked(hub, name):
            untrack_id(hub, name)  # somebody waits to hear of it, but it is gone
            acted.done += 1
        else:
            _refuse(acted, name, "there is no such job")
    for seq in asked.seqs:
        if seq in engine.jobs:
            jobs[seq] = engine.jobs[seq]
        else:
            _refuse(acted, str(seq), "there is no such job")
    names = list(dict.fromkeys([*asked.jobs, *map(str, asked.seqs)]))
    acted.of = acted.done + len(jobs)
    ordered = _in_order(engine, asked, jobs.values(), set(jobs))
    for _ in _do_all(hub, asked, ordered, acted, ", ".join(names[:MAX_LISTED_SKIPS]), only):
        yield None
    yield acted


def _act_on_all(
    hub: AdminService, asked: ActionRequest, query: JobFilter
) -> Iterator[BulkProgress | None]:
    engine, meaning, acted = hub.engine, FilterMatcher(hub, query), BulkProgress(0, [], over=False)
    undone, jobs, seqs = engine.reverts, list[Job](), set[int]()
    found = matching_jobs(hub, query)
    for job in found:
        if job is not None:
            jobs.append(job)
            if asked.action == "cancel":
                seqs.add(job.seq)
        elif found.looked - acted.looked >= SCAN_PROGRESS_INTERVAL:
            acted.looked, acted.of = found.looked, found.of
            yield acted
        else:
            yield None
    check_not_reverted(engine, undone, acted)
    acted.looked, acted.of = 0, len(jobs)
    ordered = _in_order(engine, asked, jobs, seqs)
    told = 0
    for _ in _do_all(hub, asked, ordered, acted, format_filter(query), meaning):
        tell = acted.looked - told >= PROGRESS_INTERVAL
        told = acted.looked if tell else told
        yield acted if tell else None
    yield acted


def _do_all(
    hub: AdminService,
    asked: ActionRequest,
    jobs: Iterable[Job | None],
    acted: BulkProgress,
    target: str,
    meaning: FilterMatcher | None = None,
) -> Iterator[None]:
    """Do it to all of these, pausing now and then, and note it. Meanwhile others may do something
    to them: then it may be gone, or meant no longer.
    """
    engine = hub.engine
    undone = engine.reverts
    number = hub.audit.add(hub.now, asked.by, asked.action, target + _how(asked))
    try:
        for job in jobs:
            if job is None:
                yield
                check_not_reverted(engine, undone, acted)
                continue
            if asked.action == "delete":
                for _ in _let_go(hub, job, meaning):
                    yield
                    check_not_reverted(engine, undone, acted)
            acted.looked += 1
            if engine.jobs.get(job.seq) is not job:
                if asked.query is None:
                    _refuse(acted, job.jid, "it is gone")
            elif meaning is None or meaning.admits(job):
                _do(hub, job, asked, acted)
            elif asked.only is not None:
                _refuse(acted, job.jid, f"it is not where it was seen: {STATE_TEXT[job.state]}")
            if acted.looked % ACTION_SLICE_SIZE == 0:
                yield
                check_not_reverted(engine, undone, acted)
    finally:
        if not engine.halted and engine.reverts == undone:
            hub.audit.count(number, acted.done)
    acted.looked, acted.over = acted.of, True


def check_not_reverted(engine: Engine, undone: int, acted: BulkProgress) -> None:
    """What was done may have been undone meanwhile: then nobody knows what more to do."""
    if engine.reverts != undone or engine.halted:
        reason = engine.halted or "the store failed"
        some = f"only some of {acted.done} were changed" if acted.done else "nothing was changed"
        raise AdminError(f"{reason}: {some}, try again later", "unavailable")


def _do(hub: AdminService, job: Job, asked: ActionRequest, acted: BulkProgress) -> None:
    try:
        ACTIONS[asked.action](hub, job, asked, hub.now)
    except (NotApplicable, EngineError) as reason:
        _refuse(acted, job.jid, str(reason) or str(type(reason).__doc__))
    else:
        acted.done += 1


def _refuse(acted: BulkProgress, name: str, reason: str) -> None:
    acted.refused_count += 1
    if len(acted.refused) < MAX_LISTED_SKIPS:
        acted.refused.append(SkippedJob(name, reason))


def _let_go(hub: AdminService, job: Job, meaning: FilterMatcher | None) -> Iterator[None]:
    """If very many wait for a job that is about to be deleted, they are let go some at a time."""
    engine, last, passed = hub.engine, 0, 0
    if engine.some_dependents(job, 0)[1] <= MAX_DEPENDENTS_PER_SLICE or (
        meaning and not meaning.admits(job)
    ):
        return
    while last := engine.next_dependent(job, last):
        waiting = engine.jobs.get(last)
        if waiting is not None and waiting.state == BLOCKED:
            engine.unblock(waiting, [job.seq], hub.now)
        passed += 1
        if passed % ACTION_SLICE_SIZE == 0:
            yield
            if meaning and not meaning.admits(job):
                return  # it will not be deleted: the others wait on


def _in_order(
    engine: Engine, asked: ActionRequest, jobs: Iterable[Job], seqs: set[int]
) -> Iterable[Job | None]:
    """Jobs that are cancelled go before those that they wait for: so nobody is let go for a moment,
    and nothing is refused for the sake of one that goes as well.
    """
    if asked.action != "cancel" or not engine.blocked:
        return jobs
    return _dependents_first(engine, jobs, seqs)


def _dependents_first(engine: Engine, jobs: Iterable[Job], seqs: set[int]) -> Iterator[Job | None]:
    """None lets others have their turn: very many may wait for one job."""
    seen: set[int] = set()
    passed = 0
    for first in jobs:
        # Each with the last of those who wait for it that was looked at.
        path = [(first, 0)] if first.seq not in seen else []
        seen.add(first.seq)
        while path:
            job, last = path.pop()
            last = engine.next_dependent(job, last)
            if not last:
                yield job
                continue
            path.append((job, last))
            if last in seqs and last not in seen and last in engine.jobs:
                seen.add(last)
                path.append((engine.jobs[last], 0))
            passed += 1
            if passed % SCAN_SLICE_SIZE == 0:
                yield None


# What was asked


def _check(hub: AdminService, asked: ActionRequest) -> None:
    some = asked.jobs or asked.seqs
    if bool(some) == (asked.query is not None):
        raise AdminError("say which jobs are meant: some, or a query")
    if len(asked.jobs) + len(asked.seqs) > MAX_NAMED_JOBS:
        raise AdminError(f"more than {MAX_NAMED_JOBS} jobs are named: use a query", "too large")
    if any(len(name) > MAX_NAME_LENGTH for name in (*asked.jobs, *asked.blockers)):
        raise AdminError(f"a name is longer than {MAX_NAME_LENGTH} characters", "too large")
    if asked.only is not None and (asked.query is not None or asked.only.words):
        raise AdminError("`only` is for jobs that are named, and knows no words")
    if asked.action == "move":
        check_queue(asked.queue)
    elif asked.action == "priority":
        check_priority(asked.priority)
    elif asked.action in {"tag", "untag"}:
        check_tags(asked.tags)
        if not asked.tags:
            raise AdminError("say which tags")
    elif asked.action in {"track", "untrack"}:
        try:
            require_qless(hub)
        except NotApplicable as reason:
            raise NotFound(str(reason)) from None


def check_queue(name: str) -> None:
    if not name or len(name.encode()) > MAX_QUEUE_NAME_BYTES:
        raise AdminError(f"a queue's name has 1 to {MAX_QUEUE_NAME_BYTES} bytes")


def check_priority(number: float) -> None:
    if not math.isfinite(number) or abs(number) > MAX_PRIORITY:
        raise AdminError("A priority must lie between -(2^53) and 2^53.")


def check_tags(tags: list[str]) -> None:
    if len(tags) > MAX_TAGS or any(not 0 < len(tag) <= MAX_TAG_LENGTH for tag in tags):
        raise AdminError(f"at most {MAX_TAGS} tags, each of 1 to {MAX_TAG_LENGTH} characters")


def format_filter(query: JobFilter) -> str:
    """A query for the audit log, as one would type it."""
    said = [
        f"{name}:{quoted(value)}"
        for name in JobFilter.__struct_fields__
        if name != "words" and (value := getattr(query, name)) is not None
    ]
    return " ".join([*said, *map(quoted, query.words)]) or "all jobs"


def quoted(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = text and not any(char.isspace() or char in '":' for char in text)
    return text if plain else '"' + text.replace('"', '\\"') + '"'


def _how(asked: ActionRequest) -> str:
    match asked.action:
        case "move":
            return f" to the queue {quoted(asked.queue)}"
        case "priority":
            return f" to {asked.priority:g}"
        case "tag" | "untag":
            return " with " + ", ".join(map(quoted, asked.tags))
        case "undepend" if asked.blockers:
            return " of " + ", ".join(asked.blockers)
    return ""
