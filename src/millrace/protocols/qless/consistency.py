"""ConsistencyCheck: the indexes of the engine and of Qless, against the jobs and notes."""

from collections.abc import Iterable
from typing import Any

from millrace.engine import consistency
from millrace.engine.consistency import Report
from millrace.engine.job import QLESS
from millrace.engine.timers import is_heap

from . import lua_values as lua
from .job_view import part_of
from .state import Heap, Qless


def report(q: Qless, now: int, *, resolve: bool) -> bytes:
    """Return the problems found, and with `resolve` the number of repaired problems."""
    found = check(q)
    repaired = 0
    if resolve and found.total:
        consistency.repair(q.engine, now)
        _rebuild(q)
        repaired = found.total - check(q).total
    return lua.encode(
        {
            "consistent": not found.total,
            "checked": found.checked,
            "total": found.total,
            "problems": [problem._asdict() for problem in found.problems],
            "repaired": repaired,
        }
    )


def check(q: Qless) -> Report:
    """Check the engine, then compare the state of Qless with the state computed from the engine."""
    found = consistency.check(q.engine)
    right = Qless(q.hub)
    right.refresh()
    _compare_heaps(q, "lock", q.locks, right.locks, found)
    _compare_heaps(q, "schedule", q.schedule, right.schedule, found)
    _compare_tags(q, right, found)
    _compare("config", q.config, right.config, found)
    _compare("tracking", q.tracked, right.tracked, found)
    _compare("recurring", q.recurring, right.recurring, found)
    _compare("throttle", q.throttles.limits, right.throttles.limits, found)
    _compare_throttled(q, right, found)
    return found


def _rebuild(q: Qless) -> None:
    q._build()  # noqa: SLF001 - it never thinks by itself that it must
    for job in q.engine.jobs.values():
        if job.origin == QLESS and job.extra is not None:
            names = _names(part_of(job).tag_names())
            if job.extra.tags != names:
                job.extra.tags = names
                q.engine.touch(job)


def _names(tags: Iterable[Any]) -> list[str]:
    return [str(tag) for tag in tags]


def _compare_heaps(
    q: Qless, what: str, has: dict[str, Heap], right: dict[str, Heap], found: Report
) -> None:
    """Report missing entries. Additional entries are valid: stale ones are skipped on use."""
    for queue, expected in right.items():
        for moment, seq in sorted(set(expected) - set(has.get(queue, ()))):
            detail = f"it is not known that something is due at {lua.seconds(moment).decode()}"
            found.add(what, detail, job=q.engine.jobs[seq])
    for queue, heap in has.items():
        if not is_heap(heap):
            found.add(what, "the earliest is not the first", queue=queue)


def _compare_tags(q: Qless, right: Qless, found: Report) -> None:
    jobs = q.engine.jobs
    for tag in q.tags.keys() | right.tags.keys():
        has, expected = q.tags.get(tag, {}), right.tags.get(tag, {})
        for seq in has.keys() | expected.keys():
            if has.get(seq) == expected.get(seq):
                continue
            if seq not in jobs:
                found.add("tag", f"{tag} leads to job {seq}, which is gone")
            elif seq not in expected:
                found.add("tag", f"{tag} leads to a job that does not have it", job=jobs[seq])
            else:
                found.add("tag", f"the job is not found by {tag}, or not in order", job=jobs[seq])
    for job in jobs.values():
        if job.origin == QLESS and job.extra is not None:
            names = _names(part_of(job).tag_names())
            if job.extra.tags != names:
                found.add("tag", f"events have {job.extra.tags}, the job has {names}", job=job)


def _compare_throttled(q: Qless, right: Qless, found: Report) -> None:
    """Check that the heap of a throttle contains its jobs. Otherwise they would never run."""
    for tid, expected in right.throttles.pending.items():
        for _, _, seq in sorted(set(expected) - set(q.throttles.pending.get(tid, ()))):
            job = q.engine.jobs[seq]
            found.add("throttle", f"it is not known that the job waits for {tid}", job=job)
    for tid, heap in q.throttles.pending.items():
        if not is_heap(heap):
            found.add("throttle", f"who waits longest for {tid} is not the first")


def _compare(what: str, has: dict[str, Any], right: dict[str, Any], found: Report) -> None:
    """Compare named items in memory with the durable items."""
    for name in has.keys() | right.keys():
        if name not in right:
            found.add(what, f"{name} is known, but not kept")
        elif name not in has:
            found.add(what, f"{name} is kept, but not known")
        elif has[name] != right[name]:
            found.add(what, f"{name} is not known as it is kept")
