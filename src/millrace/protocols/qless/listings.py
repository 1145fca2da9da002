"""Commands that list jobs, workers and tags, or count jobs. They examine any number of jobs, so a
long list is made in slices.

The jobs are those of the first slice, each in its state when it is examined: a job that changes
meanwhile is listed once or not at all.
"""

from collections.abc import Generator
from typing import Any, Final

from millrace.engine.annotations import existing_details, read_details
from millrace.engine.discarded import drain
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, SCHEDULED
from millrace.engine.statistics import DAY, HISTOGRAM_BUCKETS, DurationSummary, QueueDay
from millrace.engine.tables import items_to_examine, jobs_to_examine, keys_to_examine
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import (
    SLICE_SIZE,
    filter_in_slices,
    keep_range_in_slices,
    map_in_slices,
    replace_in_slices,
    reverse_sort_in_slices,
    run_if_short,
    sort_in_slices,
)

from . import lua_values as lua
from .arguments import Args, parse_number, text
from .errors import ScriptError
from .job_view import last_put_time
from .state import QlessState

#: Names that one slice encodes.
NAMES_BATCH_SIZE: Final = 2000

# Jobs


def jobs(q: QlessState, now: int, args: Args) -> Any:
    """Return a page of the jids of jobs in a state. Arguments: complete, offset, count; or state,
    queue, offset, count.
    """
    state = text(args, 0, 'Jobs(): Arg "state" missing')
    first = 1 if state == "complete" else 2
    queue = ""
    if state != "complete":
        queue = q.queue_name(text(args, 1, 'Jobs(): Arg "queue" missing'))
    offset = int(parse_number(args, first, 'Jobs(): Arg "offset" not a number: ', 0))
    count = int(parse_number(args, first + 1, 'Jobs(): Arg "count" not a number: ', 25))
    if state == "recurring":
        return page_or_rest(recurring_of(q, queue), offset, count)
    if state == "complete":
        return run_if_short(_page_of_jids(q, _completed(q), offset, count))
    if state in {"running", "stalled"}:
        return run_if_short(_page_or_rest_of_jids(q, _leased(q, now, state, queue), offset, count))
    if state == "scheduled":
        return run_if_short(_page_of_jids(q, _scheduled(q, now, queue), offset, count))
    if state == "depends":
        return run_if_short(_page_of_jids(q, _blocked(q, queue), offset, count))
    raise ScriptError(f'Jobs(): Unknown type "{state}"')


FoundJobs = Generator[None, None, list[Job]]


def _completed(q: QlessState) -> FoundJobs:
    """Return the completed jobs, the newest first, by the clocks of their clients."""
    rows = (
        None
        if job is None or not q.is_in_database(job.queue)
        else (read_details(job).done_at, job.jid, job.seq, job)
        for job in jobs_to_examine(q.engine.tables.done_untrimmed, q.engine.tables.jobs)
    )
    order = yield from reverse_sort_in_slices(rows)
    return (yield from replace_in_slices(order, lambda row: row[3]))


def _leased(q: QlessState, now: int, state: str, queue: str) -> FoundJobs:
    deadlines = q.engine.deadlines
    order = yield from sort_in_slices(deadlines.lease_entries(queue))
    found = yield from replace_in_slices(order, lambda entry: deadlines.leased_job(queue, entry))
    if state == "running":
        return (yield from filter_in_slices(drain(found), lambda job: job.deadline >= now))
    return (yield from filter_in_slices(drain(found), lambda job: job.deadline <= now))


def _scheduled(q: QlessState, now: int, queue: str) -> FoundJobs:
    q.engine.deadlines.find_due(queue, now, q.engine.deadlines.max_found)
    waiting = yield from filter_in_slices(
        jobs_to_examine(q.engine.tables.by_state(SCHEDULED), q.engine.tables.jobs),
        lambda job: job.queue == queue and not _is_due(q, job, now),
    )
    rows = ((job.due_at, job.jid, number, job) for number, job in enumerate(drain(waiting)))
    order = yield from sort_in_slices(rows)
    return (yield from replace_in_slices(order, lambda row: row[3]))


def _is_due(q: QlessState, job: Job, now: int) -> bool:
    """Return whether a job is due, by the clock that its due time follows."""
    return job.due_at <= (now if job.origin == QLESS else q.engine.caller.server_time(now))


def _blocked(q: QlessState, queue: str) -> FoundJobs:
    rows = (
        None if job is None or job.queue != queue else (last_put_time(job), job.seq, job)
        for job in jobs_to_examine(q.engine.tables.by_state(BLOCKED), q.engine.tables.jobs)
    )
    order = yield from sort_in_slices(rows)
    return (yield from replace_in_slices(order, lambda row: row[2]))


def throttled(q: QlessState, args: Args) -> Any:
    """Return a page of the jids of throttled jobs. Arguments: queue, offset, count."""
    queue = q.queue_name(text(args, 0, 'Jobs(): Arg "queue" missing'))
    offset = int(parse_number(args, 1, 'Jobs(): Arg "offset" not a number: ', 0))
    count = int(parse_number(args, 2, 'Jobs(): Arg "count" not a number: ', 25))
    return run_if_short(_page_of_jids(q, q.throttles.throttled_in_slices(queue), offset, count))


def _page_of_jids(
    q: QlessState, work: FoundJobs, offset: int, count: int
) -> Generator[None, None, list[str]]:
    """Return the jids of up to `count` jobs from `offset`. Negative values count from the end."""
    found = yield from work
    page = yield from keep_range_in_slices(found, *range_of(len(found), offset, offset + count - 1))
    return (yield from replace_in_slices(page, lambda job: q.client_name(job.jid)))


def _page_or_rest_of_jids(
    q: QlessState, work: FoundJobs, offset: int, count: int
) -> Generator[None, None, list[str]]:
    found = yield from work
    first = len(found) if offset < 0 else min(offset, len(found))
    page = yield from keep_range_in_slices(found, first, len(found) if count < 0 else first + count)
    return (yield from replace_in_slices(page, lambda job: q.client_name(job.jid)))


def range_of(size: int, first: int, last: int) -> tuple[int, int]:
    """Return the start and the end of the range from `first` to `last` of a list, inclusive.
    Negative values count from the end.
    """
    first = max(0, first + size) if first < 0 else min(first, size)
    last = last + size if last < 0 else min(last, size - 1)
    return first, max(first, last + 1)


def page_or_rest(found: list[Any], offset: int, count: int) -> list[Any]:
    """Return up to `count` items from `offset`, or all of them if the count is negative."""
    if offset < 0:
        return []
    return found[offset:] if count < 0 else found[offset : offset + count]


def recurring_of(q: QlessState, queue: str) -> list[str]:
    mine = [r for r in q.recurring.values() if r.queue == queue]
    return [q.client_name(r.jid) for r in sorted(mine, key=lambda r: (r.next, r.jid))]


def strings_in_slices(texts: list[str]) -> Generator[None, None, bytes]:
    """Return a JSON list as `lua.strings` does."""
    parts: list[bytes] = []
    for start in range(0, len(texts), NAMES_BATCH_SIZE):
        if start:
            yield
        parts.append(lua.encode(texts[start : start + NAMES_BATCH_SIZE])[1:-1])
    return b"[%b]" % b",".join(parts) if texts else lua.EMPTY_LIST


# Workers


def workers(q: QlessState, now: int, args: Args) -> Any:
    """Return the counts of all workers, or the jobs of the named worker. Arguments: none, or
    worker.
    """
    return run_if_short(_workers(q, now, args))


def _workers(q: QlessState, now: int, args: Args) -> Generator[None, None, bytes]:
    yield from _prune_workers(q, now)
    held = yield from _held_by(q, now)
    if args:
        running, stalled = held.get(text(args, 0, ""), ([], []))
        shown = yield from strings_in_slices(running)
        return b'{"jobs":%b,"stalled":%b}' % (shown, (yield from strings_in_slices(stalled)))
    recent = yield from reverse_sort_in_slices(
        (last_seen, name) for name, last_seen in list(q.workers.last_seen.items())
    )
    names = [name for _, name in recent if q.is_in_database(name)]
    reply: bytes = lua.join_list(
        (yield from map_in_slices(names, lambda name: _counts(q, name, held)))
    )
    return reply


def _counts(q: QlessState, name: str, held: dict[str, tuple[list[str], list[str]]]) -> bytes:
    local = q.client_name(name)
    running, stalled = held.get(local, ([], []))
    return lua.encode({"name": local, "jobs": len(running), "stalled": len(stalled)})


def _prune_workers(q: QlessState, now: int) -> Generator[None, None, None]:
    oldest = now - lua.to_microseconds(q.options.number("max-worker-age"))
    old = [name for name, last_seen in q.workers.last_seen.items() if last_seen <= oldest]
    for done, name in enumerate(old, 1):
        if q.engine.unavailable_reason:
            return  # it would change settings
        if q.is_in_database(name) and q.workers.last_seen.get(name, now) <= oldest:
            q.workers.forget(name)
        if done % SLICE_SIZE == 0:
            yield


def _held_by(
    q: QlessState, now: int
) -> Generator[None, None, dict[str, tuple[list[str], list[str]]]]:
    """Return each worker's running and stalled jobs. A job with a lock that expires now is both."""
    leased = yield from filter_in_slices(
        jobs_to_examine(q.engine.tables.leased, q.engine.tables.jobs),
        lambda job: job.holder_protocol == QLESS and q.is_in_database(job.queue),
    )
    rows = ((job.deadline, job.jid, -number, job) for number, job in enumerate(drain(leased)))
    found: dict[str, tuple[list[str], list[str]]] = {}
    for done, row in enumerate(drain((yield from reverse_sort_in_slices(rows))), 1):
        job: Job = row[3]
        details = existing_details(job)
        if details is None or details.lapsed_at is None:  # else its worker knows of the lost lock
            running, stalled = found.setdefault(job.holder, ([], []))
            if job.deadline >= now:
                running.append(q.client_name(job.jid))
            if job.deadline <= now:
                stalled.append(q.client_name(job.jid))
        if done % SLICE_SIZE == 0:
            yield
    return found


# Tags


def tags_get(q: QlessState, args: Args) -> Any:
    """Return a page of the jids of the jobs with a tag. Arguments: tag, offset, count."""
    tag = text(args, 0, 'Tag(): Arg "tag" missing')
    offset = int(parse_number(args, 1, 'Tag(): Arg "offset" not a number: ', 0))
    count = int(parse_number(args, 2, 'Tag(): Arg "count" not a number: ', 25))
    return run_if_short(_tagged(q, tag, offset, count))


def _tagged(q: QlessState, tag: str, offset: int, count: int) -> Generator[None, None, bytes]:
    """Return the jobs with a tag, by the time it was added, then by jid."""
    tagged_at = q.tags.get(tag, {})
    rows: list[tuple[int, str, int]] = []
    for examined_rows, item in enumerate(items_to_examine(tagged_at, q.engine.tables.jobs), 1):
        job = None if item is None else q.engine.job(item[0])
        if job is not None and q.is_in_database(job.queue):
            rows.append((item[1], job.jid, examined_rows))
        if examined_rows % SLICE_SIZE == 0:
            yield
    order = yield from sort_in_slices(drain(rows))
    total = len(order)
    page = yield from keep_range_in_slices(order, *range_of(total, offset, offset + count - 1))
    names = yield from replace_in_slices(page, lambda row: q.client_name(row[1]))
    return b'{"total":%d,"jobs":%b}' % (total, (yield from strings_in_slices(names)))


def tags_top(q: QlessState, args: Args) -> Any:
    """Return the tags that two or more jobs have, the most used first. Arguments: offset, count."""
    offset = int(parse_number(args, 0, 'Tag(): Arg "offset" not a number: ', 0))
    count = int(parse_number(args, 1, 'Tag(): Arg "count" not a number: ', 25))
    return run_if_short(_most_used(q, offset, count))


def _most_used(q: QlessState, offset: int, count: int) -> Generator[None, None, bytes]:
    used: list[tuple[int, str]] = []
    examined_rows = 0
    for tag in keys_to_examine(q.tags):
        seqs = q.tags.get(tag, {})
        jobs = 0
        for seq in keys_to_examine(seqs) if len(seqs) > 1 else ():
            job = q.engine.job(seq)
            jobs += job is not None and q.is_in_database(job.queue)
            examined_rows += 1
            if examined_rows % SLICE_SIZE == 0:
                yield
        if jobs > 1:
            used.append((jobs, tag))
        examined_rows += 1
        if examined_rows % SLICE_SIZE == 0:
            yield
    order = yield from reverse_sort_in_slices(used)
    names = [tag for _, tag in page_or_rest(order, offset, count)]
    return (yield from strings_in_slices(names))


# Statistics


def stats(q: QlessState, now: int, args: Args) -> Any:
    """Return the statistics of a queue on one day. Arguments: queue, date."""
    queue = q.queue_name(text(args, 0, "Queue(): no queue name provided"))
    date = lua.to_microseconds(
        parse_number(args, 1, 'Stats(): Arg "date" missing or not a number: ')
    )
    return run_if_short(_stats(q, now, queue, date // DAY))


def _stats(q: QlessState, now: int, queue: str, day_number: int) -> Generator[None, None, bytes]:
    failed = yield from failed_on(q, queue, day_number)
    day = q.engine.queue_days().get((queue, day_number)) or QueueDay(queue, day_number)
    today = now // DAY
    with_histogram = today - day_number < q.options.number("histogram-history")
    if today - day_number >= q.options.number("stats-history"):
        day = QueueDay(queue, day_number)
    return lua.encode(
        {
            "run": _summary_fields(day.run, with_histogram=with_histogram),
            "failures": day.failed,
            "retries": day.retries,
            "failed": failed,
            "wait": _summary_fields(day.wait, with_histogram=with_histogram),
        }
    )


def failed_on(q: QlessState, queue: str, day_number: int) -> Generator[None, None, int]:
    """Return the number of failed jobs of a queue whose last failure was on that day."""

    def failed_then(job: Job) -> bool:
        return (
            job.queue == queue
            and job.failure is not None
            and job.failure.last_at // DAY == day_number
        )

    count, tables = 0, q.engine.tables
    for index in (tables.dead, tables.dead_untrimmed):
        for examined, job in enumerate(jobs_to_examine(index, tables.jobs), 1):
            count += job is not None and failed_then(job)
            if examined % SLICE_SIZE == 0:
                yield
    return count


def _summary_fields(spread: DurationSummary, *, with_histogram: bool) -> dict[str, Any]:
    """Return statistics with the keys of qless-core and the keys of the spec."""
    slots = spread.histogram if with_histogram else {}
    return {
        "std": float(b"%.14g" % spread.variance**0.5),
        "histogram": [slots.get(slot, 0) for slot in range(HISTOGRAM_BUCKETS)],
        "mean": float(b"%.14g" % spread.mean),
        "count": spread.count,
        "total": spread.count,
        "variance": float(b"%.14g" % spread.variance),
    }


COMMANDS: Final = {"jobs": jobs, "workers": workers, "stats": stats}
