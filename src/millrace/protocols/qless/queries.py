"""Commands that read: jobs, queues, workers, failures, tags, statistics, options."""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, Final

from millrace.engine.annotations import read_details
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.statistics import DAY, SLOTS, QueueDay, Spread
from millrace.protocols.registry import QLESS

from . import lua_values as lua
from .arguments import Args, number, text, texts
from .errors import ScriptError
from .job_view import (
    klass_of,
    remaining,
    shown_data,
    shown_expiry,
    shown_priority,
)
from .names import decode_name, encode_name
from .slices import SLICE_SIZE, map_in_slices, sort_in_slices
from .state import DEFAULTS, Qless

#: Number of queues that one slice writes.
QUEUES_BATCH_SIZE: Final = 100

# Jobs


def job_json(q: Qless, job: Job, queue_key: str = "q") -> bytes:
    """Encode a job for all commands. In a history, dialect D has a different key for the queue."""
    details, state, encode = read_details(job), job.state, lua.encode
    over = state in {DONE, DEAD}
    data, encoding = shown_data(q.engine, job)
    return (
        b'{"jid":%b,"retries":%d,"data":%b%b,"failure":%b,"expires":%b,"remaining":%d,'
        b'"spawned_from_jid":%b,"dependencies":%b,"klass":%b,"tracked":%b,"tags":%b,"queue":%b,'
        b'"state":"%b","history":%b,"dependents":%b,"priority":%b,"worker":%b}'
    ) % (
        encode(q.local(job.jid)),
        job.retries,
        encode(decode_name(data)),
        encoding,
        lua.EMPTY_LIST if details.last_error is None and not over else failure_json(job),
        b"0" if over else shown_expiry(job),
        remaining(job),
        encode(details.spawned_from) if details.spawned_from else b"false",
        lua.strings(dependencies(q, job)) if state == BLOCKED else lua.EMPTY_LIST,
        encode(klass_of(job)),
        b"true" if job.jid in q.tracked else b"false",
        encode(details.tag_names()) if details.tags else lua.EMPTY_LIST,
        b'""' if state == DONE else encode(q.local(job.queue)),
        b"running" if state == LEASED else q.shown_state(job).encode(),
        history_json(details.log, queue_key),
        lua.strings([q.local(each.jid) for each in q.engine.dependents(job)]),
        lua.number(shown_priority(job, lower_first=q.lower_first)),
        b'""' if over else encode(job.history.holder),
    )


def failure_json(job: Job) -> bytes:
    failure = read_details(job).last_error
    if failure is not None:
        return b'{"group":%b,"message":%b,"when":%b,"worker":%b}' % (
            lua.string(failure.group),
            lua.string(failure.message),
            lua.number(failure.when),
            lua.string(failure.worker),
        )
    known = job.history.failure
    if known is None or job.state != DEAD:
        return lua.EMPTY_LIST
    # A worker of another protocol reported the failure.
    return b'{"group":%b,"message":%b,"when":%d,"worker":%b}' % (
        lua.string(known.group),
        lua.string(known.message),
        known.last_at // 1_000_000,
        lua.string(job.history.holder),
    )


def history_json(history: list[Any], queue_key: str) -> bytes:
    return lua.encode([_shown_stage(stage, queue_key) for stage in history])


def _shown_stage(stage: Any, queue_key: str) -> dict[str, Any]:
    when, what, more = stage
    if more is None:
        return {"when": when, "what": what}
    if what == "put" and queue_key != "q":
        more = {queue_key: more["q"]} if "q" in more else more
    return {**more, "when": when, "what": what}


def stages(history: list[Any]) -> list[dict[str, Any]]:
    """Return the history in the format of dialect A: the events in one queue after another."""
    found: list[dict[str, Any]] = []
    for when, what, more in history:
        if what == "put":
            found.append({"q": (more or {}).get("q", ""), "put": when})
        elif found and what in {"popped", "done", "failed"}:
            found[-1][what] = when
            if what == "popped" and more and "worker" in more:
                found[-1]["worker"] = more["worker"]
    return found


def dependencies(q: Qless, job: Job) -> list[str]:
    seqs = () if job.extra is None else job.extra.blockers
    found = map(q.engine.jobs.get, seqs)
    return [q.local(blocker.jid) for blocker in found if blocker is not None]


def get(q: Qless, now: int, args: Args) -> bytes | None:
    """jid"""
    job = q.find(text(args, 0, "Job(): no jid provided"))
    return None if job is None else job_json(q, job)


def multiget(q: Qless, now: int, args: Args) -> bytes:
    """jids, each once: a request could repeat the jid of a large job"""
    found = map(q.find, dict.fromkeys(texts(args)))
    return lua.listed([job_json(q, job) for job in found if job is not None])


def jobs(q: Qless, now: int, args: Args) -> list[str]:
    """complete, offset, count; or state, queue, offset, count"""
    state = text(args, 0, 'Jobs(): Arg "state" missing')
    first = 1 if state == "complete" else 2
    if state != "complete":
        queue = q.queue_name(text(args, 1, 'Jobs(): Arg "queue" missing'))
    offset = int(number(args, first, 'Jobs(): Arg "offset" not a number: ', 0))
    count = int(number(args, first + 1, 'Jobs(): Arg "count" not a number: ', 25))
    if state == "complete":
        return part_list(q, reversed(completed(q)), offset, offset + count - 1)
    if state == "running":
        running = [job for job in q.engine.deadlines.leased(queue) if job.history.deadline >= now]
        return limited(q, running, offset, count)
    if state == "stalled":
        expired = [job for job in q.engine.deadlines.leased(queue) if job.history.deadline <= now]
        return limited(q, expired, offset, count)
    if state == "recurring":
        return limited_names(recurring_of(q, queue), offset, count)
    if state == "scheduled":
        q.engine.deadlines.find_due(queue, now, q.engine.deadlines.max_found)
        found = (job for job in q.queue_jobs(queue, SCHEDULED) if not _is_due(q, job, now))
        waiting = sorted(found, key=lambda job: (job.due_at, job.jid))
        return part_list(q, waiting, offset, offset + count - 1)
    if state == "depends":
        waiting = list(q.queue_jobs(queue, BLOCKED))
        return part_list(q, waiting, offset, offset + count - 1)
    raise ScriptError(f'Jobs(): Unknown type "{state}"')


def _is_due(q: Qless, job: Job, now: int) -> bool:
    """Return whether a job is due, by the clock that its due time follows."""
    return job.due_at <= (now if job.origin == QLESS else q.engine.caller.server_time(now))


def completed(q: Qless) -> list[Job]:
    """Return the completed jobs, the oldest first."""
    return [job for job in q.engine.done_kept.values() if q.is_listed(job.queue)]


def recurring_of(q: Qless, queue: str) -> list[str]:
    mine = [r for r in q.recurring.values() if r.queue == queue]
    return [q.local(r.jid) for r in sorted(mine, key=lambda r: (r.next, r.jid))]


def part_list(q: Qless, found: Iterable[Job], first: int, last: int) -> list[str]:
    """Return a range from `first` to `last` inclusive. Negative values count from the end."""
    names = [q.local(job.jid) for job in found]
    return names[slice(*range_of(len(names), first, last))]


def range_of(size: int, first: int, last: int) -> tuple[int, int]:
    """Return the start and the end of the range from `first` to `last` of a list."""
    first = max(0, first + size) if first < 0 else first
    last = last + size if last < 0 else last
    return first, max(first, last + 1)


def limited(q: Qless, found: list[Job], offset: int, count: int) -> list[str]:
    return limited_names([q.local(job.jid) for job in found], offset, count)


def limited_names(names: list[str], offset: int, count: int) -> list[str]:
    """Return up to `count` names from `offset`, or all names if the count is negative."""
    if offset < 0:
        return []
    return names[offset:] if count < 0 else names[offset : offset + count]


def length(q: Qless, now: int, args: Args) -> int:
    """queue"""
    queue = q.engine.queues.get(q.queue_name(text(args, 0, "Queue(): no queue name provided")))
    return 0 if queue is None else sum(queue.counts[s] for s in (LEASED, READY, SCHEDULED))


# Queues and workers


def queues(q: Qless, now: int, args: Args) -> bytes | Generator[None, None, bytes]:
    """No arguments for all; or one name"""
    if args:
        return counts_json(q, now, q.queue_name(text(args, 0, "")))
    return list_queues(q, lambda name: counts_json(q, now, name), lua.listed)


def list_queues(
    q: Qless, write: Callable[[str], bytes], finish: Callable[[list[bytes]], bytes]
) -> bytes | Generator[None, None, bytes]:
    """Return a list of all queues. A long list is written in slices."""
    if len(q.engine.queues) <= QUEUES_BATCH_SIZE:
        return finish([write(name) for name in queue_names(q)])
    return _many_queues(q, write, finish)


def _many_queues(
    q: Qless, write: Callable[[str], bytes], finish: Callable[[list[bytes]], bytes]
) -> Generator[None, None, bytes]:
    names = [queue.name for queue in q.engine.queues.values() if queue.registered]
    seen, listed = q.first_seen, q.is_listed
    order = yield from sort_in_slices((seen.get(name, 0), name) for name in names if listed(name))
    rows: list[bytes] = []
    for _, name in order:
        rows.append(write(name))
        if len(rows) % QUEUES_BATCH_SIZE == 0:
            yield
    return finish(rows)


def queue_names(q: Qless) -> list[str]:
    """Return the engine's names of all queues, by the time of their first use."""
    names = (queue.name for queue in q.engine.queues.values() if queue.registered)
    known = filter(q.is_listed, names)
    return sorted(known, key=lambda name: (q.first_seen.get(name, 0), name))


def counts_json(q: Qless, now: int, name: str) -> bytes:
    counts = counted(q, now, name)
    counts["paused"] = q.is_paused(name)
    return lua.encode({"name": q.local(name), **counts})


def counted(q: Qless, now: int, name: str) -> dict[str, Any]:
    due = len(q.engine.deadlines.find_due(name, now, float("inf")))
    queue = q.engine.queues.get(name)
    by_state = [0] * 6 if queue is None else queue.counts
    stalled = sum(job.history.deadline <= now for job in q.engine.deadlines.leased(name))
    return {
        "waiting": by_state[READY] + due,
        "running": by_state[LEASED] - stalled,
        "stalled": stalled,
        "scheduled": by_state[SCHEDULED] - due,
        "depends": by_state[BLOCKED],
        "recurring": q.recurring_count(name),
    }


def workers(q: Qless, now: int, args: Args) -> bytes:
    """No arguments for all; or one name"""
    prune_workers(q, now)
    if args:
        running, stalled = held_by(q, now).get(text(args, 0, ""), ([], []))
        return b'{"jobs":%b,"stalled":%b}' % (lua.strings(running), lua.strings(stalled))
    held = held_by(q, now)
    recent = sorted(q.workers.items(), key=lambda item: (item[1], item[0]), reverse=True)
    names = [q.local(name) for name, _ in recent if q.is_listed(name)]
    rows = [(name, *held.get(name, ([], []))) for name in names]
    return lua.listed(
        [
            lua.encode({"name": name, "jobs": len(running), "stalled": len(stalled)})
            for name, running, stalled in rows
        ]
    )


def prune_workers(q: Qless, now: int) -> None:
    if q.engine.unavailable:
        return  # it would change settings
    oldest = now - lua.to_microseconds(q.setting("max-worker-age"))
    for name in [name for name, heard in q.workers.items() if heard <= oldest]:
        if q.is_listed(name):
            q.forget_worker(name)


def held_by(q: Qless, now: int) -> dict[str, tuple[list[str], list[str]]]:
    """Return each worker's running and stalled jobs. A job with a lock that expires now is both."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    held = (job for job in q.engine.leased.values() if job.history.holder_protocol == QLESS)
    leased = [job for job in held if q.is_listed(job.queue)]
    for job in sorted(leased, key=lambda job: (job.history.deadline, job.jid), reverse=True):
        if read_details(job).lapsed_at is not None:
            continue  # its worker has been notified of the lost lock
        running, stalled = found.setdefault(job.history.holder, ([], []))
        if job.history.deadline >= now:
            running.append(q.local(job.jid))
        if job.history.deadline <= now:
            stalled.append(q.local(job.jid))
    return found


# Failures


def failed(q: Qless, now: int, args: Args) -> bytes | Generator[None, None, bytes]:
    """Groups with their counts; or group, start, limit"""
    start = int(number(args, 1, 'Failed(): Arg "start" is not a number: ', 0))
    limit = int(number(args, 2, 'Failed(): Arg "limit" is not a number: ', 25))
    reply: bytes | Generator[None, None, bytes]
    reply = at_once_if_few(q, _failed(q, args, start, limit))
    return reply


def _failed(q: Qless, args: Args, start: int, limit: int) -> Generator[None, None, bytes]:
    groups = yield from failure_groups(q)
    if not args:
        return lua.encode({group: len(found) for group, found in groups.items()})
    found = groups.get(text(args, 0, ""), [])
    first, last = range_of(len(found), start, start + limit - 1)
    listed = islice(reversed(found), first, last)
    names = yield from map_in_slices(listed, lambda job: q.local(job.jid))
    return b'{"total":%d,"jobs":%b}' % (len(found), lua.strings(names))


def at_once_if_few(q: Qless, work: Generator[None, None, Any]) -> Any:
    """The result of work on all failed jobs, or the work itself if they are many."""
    if len(q.engine.dead) + len(q.engine.dead_kept) > SLICE_SIZE:
        return work
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value


def group_of(job: Job) -> str:
    failure = read_details(job).last_error
    if failure is not None:
        return failure.group
    return "" if job.history.failure is None else job.history.failure.group


def failure_groups(q: Qless) -> Generator[None, None, dict[str, list[Job]]]:
    """Return the failed jobs by group, the oldest failure first, in slices."""
    groups: dict[str, list[tuple[int, int, Job]]] = {}
    jobs = (*q.engine.dead.values(), *q.engine.dead_kept.values())
    for count, job in enumerate(jobs, 1):
        if job.state == DEAD and q.is_listed(job.queue):
            failed_at = 0 if job.history.failure is None else job.history.failure.last_at
            groups.setdefault(group_of(job), []).append((failed_at, count, job))
        if count % SLICE_SIZE == 0:
            yield
    ordered: dict[str, list[Job]] = {}
    for group, found in groups.items():
        order = yield from sort_in_slices(found)
        ordered[group] = [job for _, _, job in order]
    return ordered


# Tags


def tagged(q: Qless, tag: str) -> list[Job]:
    """Return the jobs with a tag, by the time it was added, then by jid."""
    found = [(when, q.engine.jobs.get(seq)) for seq, when in q.tags.get(tag, {}).items()]
    mine = [(when, job) for when, job in found if job and q.is_listed(job.queue)]
    known = [(when, job.jid, job) for when, job in mine]
    return [job for _, _, job in sorted(known, key=lambda each: each[:2])]


def tags_get(q: Qless, args: Args) -> bytes:
    """tag, offset, count"""
    tag = text(args, 0, 'Tag(): Arg "tag" missing')
    offset = int(number(args, 1, 'Tag(): Arg "offset" not a number: ', 0))
    count = int(number(args, 2, 'Tag(): Arg "count" not a number: ', 25))
    found = tagged(q, tag)
    names = part_list(q, found, offset, offset + count - 1)
    return b'{"total":%d,"jobs":%b}' % (len(found), lua.strings(names))


def tags_top(q: Qless, args: Args) -> list[str]:
    """offset, count: tags of two jobs or more, the most used first"""
    offset = int(number(args, 0, 'Tag(): Arg "offset" not a number: ', 0))
    count = int(number(args, 1, 'Tag(): Arg "count" not a number: ', 25))
    counts = [(len(tagged(q, tag)), tag) for tag, seqs in q.tags.items() if len(seqs) > 1]
    used = [each for each in counts if each[0] > 1]
    return limited_names([tag for _, tag in sorted(used, reverse=True)], offset, count)


# Statistics


def stats(q: Qless, now: int, args: Args) -> bytes:
    """queue, date"""
    queue = q.queue_name(text(args, 0, "Queue(): no queue name provided"))
    date = lua.to_microseconds(number(args, 1, 'Stats(): Arg "date" missing or not a number: '))
    number_of_day = date // DAY
    day = q.engine.current_statistics().days.get((queue, number_of_day)) or QueueDay(
        queue, number_of_day
    )
    today = now // DAY
    with_histogram = today - number_of_day < q.setting("histogram-history")
    if today - number_of_day >= q.setting("stats-history"):
        day = QueueDay(queue, number_of_day)
    return lua.encode(
        {
            "run": _spread(day.run, with_histogram=with_histogram),
            "failures": day.failed,
            "retries": day.retries,
            "failed": sum(
                job.queue == queue
                and job.history.failure is not None
                and job.history.failure.last_at // DAY == number_of_day
                for job in (*q.engine.dead.values(), *q.engine.dead_kept.values())
            ),
            "wait": _spread(day.wait, with_histogram=with_histogram),
        }
    )


def _spread(spread: Spread, *, with_histogram: bool) -> dict[str, Any]:
    """Return statistics with the keys of the code and the keys of the spec."""
    slots = spread.histogram if with_histogram else {}
    return {
        "std": float(b"%.14g" % spread.variance**0.5),
        "histogram": [slots.get(slot, 0) for slot in range(SLOTS)],
        "mean": float(b"%.14g" % spread.mean),
        "count": spread.count,
        "total": spread.count,
        "variance": float(b"%.14g" % spread.variance),
    }


# Tracking and configuration


def tracked_jobs(q: Qless) -> list[tuple[str, Job | None]]:
    """Return the tracked ids of the current database, each with its job."""
    found = [(jid, q.engine.find(jid)) for jid in q.engine.annotations.tracked_in_order()]
    return [
        (q.local(jid), job) for jid, job in found if q.is_listed(jid if job is None else job.queue)
    ]


def tracked(q: Qless, shown_as: Callable[[Qless, Job], bytes] = job_json) -> bytes:
    """Return the tracked jobs, and the ids of tracked jobs that no longer exist."""
    found = tracked_jobs(q)
    shown = [shown_as(q, job) for _, job in found if job is not None]
    gone = [jid for jid, job in found if job is None]
    return b'{"expired":%b,"jobs":%b}' % (lua.strings(gone), lua.listed(shown))


def config_of(q: Qless) -> dict[str, str]:
    """Return the options that were set in the current database."""
    return {q.local(name): value for name, value in q.config.items() if q.is_listed(name)}


def config_get(q: Qless, now: int, args: Args) -> bytes | int | None:
    """All options, or one: a default is a number, a value that was set is text."""
    if not args:
        return lua.encode({**DEFAULTS, **config_of(q)})
    option = text(args, 0, "")
    value = q.config.get(q.scoped(option))
    if value is not None:
        return encode_name(value)
    default = DEFAULTS.get(option)
    return default.encode() if isinstance(default, str) else default


COMMANDS: Final = {
    "get": get,
    "multiget": multiget,
    "jobs": jobs,
    "length": length,
    "queues": queues,
    "workers": workers,
    "failed": failed,
    "stats": stats,
    "config.get": config_get,
}
