"""Commands that read: jobs, queues, workers, failures, tags, statistics, options."""

from collections.abc import Callable, Generator
from itertools import chain, islice
from typing import Any, Final

from millrace.engine.annotations import existing_details, read_details
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.tables import jobs_to_examine
from millrace.protocols.payload_reads import read_ahead, release_payload
from millrace.protocols.slices import (
    SLICE_SIZE,
    at_once_if_short,
    filter_in_slices,
    map_in_slices,
    sort_in_slices,
)

from . import batches
from . import lua_values as lua
from .arguments import Args, number, text
from .job_view import (
    JobText,
    klass_of,
    remaining,
    shown_expiry,
    shown_priority,
    with_data,
)
from .listings import range_of, strings_in_slices
from .names import encode_name
from .options import DEFAULTS
from .state import Qless

#: Number of queues that one slice writes.
QUEUES_BATCH_SIZE: Final = 100

# Jobs


def job_text(q: Qless, job: Job, queue_key: str = "q") -> JobText:
    """Encode a job for all commands. In a history, dialect D has a different key for the queue."""
    details, state, encode = read_details(job), job.state, lua.encode
    over = state in {DONE, DEAD}
    head = b'{"jid":%b,"retries":%d,"data":' % (encode(q.local(job.jid)), job.retries)
    tail = (
        b',"failure":%b,"expires":%b,"remaining":%d,'
        b'"spawned_from_jid":%b,"dependencies":%b,"klass":%b,"tracked":%b,"tags":%b,"queue":%b,'
        b'"state":"%b","history":%b,"dependents":%b,"priority":%b,"worker":%b}'
    ) % (
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
    return JobText(head, True, tail)


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
    found = map(q.engine.job, seqs)
    return [q.local(blocker.jid) for blocker in found if blocker is not None]


def get(q: Qless, now: int, args: Args) -> Any:
    """jid"""
    return batches.get(q, q.find(text(args, 0, "Job(): no jid provided")), job_text)


def multiget(q: Qless, now: int, args: Args) -> Any:
    """jids"""
    return batches.multiget(q, args, job_text, lua.listed)


def length(q: Qless, now: int, args: Args) -> int:
    """queue"""
    queue = q.engine.queue(q.queue_name(text(args, 0, "Queue(): no queue name provided")))
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
    reply: bytes | Generator[None, None, bytes] = at_once_if_short(_many_queues(q, write, finish))
    return reply


def _many_queues(
    q: Qless, write: Callable[[str], bytes], finish: Callable[[list[bytes]], bytes]
) -> Generator[None, None, bytes]:
    rows: list[bytes] = []
    for name in (yield from queue_names(q)):
        rows.append(write(name))
        if len(rows) % QUEUES_BATCH_SIZE == 0:
            yield
    return finish(rows)


def queue_names(q: Qless) -> Generator[None, None, list[str]]:
    """Return the engine's names of all queues, by the time of their first use, in slices."""
    seen, listed = q.first_seen, q.is_listed
    known = filter_in_slices(
        list(q.engine.tables.queues.values()), lambda queue: queue.registered and listed(queue.name)
    )
    order = yield from sort_in_slices((seen.get(q.name, 0), q.name) for q in (yield from known))
    return (yield from map_in_slices(order, lambda row: row[1]))


def counts_json(q: Qless, now: int, name: str) -> bytes:
    counts = counted(q, now, name)
    counts["paused"] = q.is_paused(name)
    return lua.encode({"name": q.local(name), **counts})


def counted(q: Qless, now: int, name: str) -> dict[str, Any]:
    due = len(q.engine.deadlines.find_due(name, now, float("inf")))
    queue = q.engine.queue(name)
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


# Failures


def failed(q: Qless, now: int, args: Args) -> bytes | Generator[None, None, bytes]:
    """Groups with their counts; or group, start, limit"""
    start = int(number(args, 1, 'Failed(): Arg "start" is not a number: ', 0))
    limit = int(number(args, 2, 'Failed(): Arg "limit" is not a number: ', 25))
    reply: bytes | Generator[None, None, bytes] = at_once_if_short(_failed(q, args, start, limit))
    return reply


def _failed(q: Qless, args: Args, start: int, limit: int) -> Generator[None, None, bytes]:
    groups = yield from failure_groups(q)
    if not args:
        return lua.encode({group: len(found) for group, found in groups.items()})
    found = groups.get(text(args, 0, ""), [])
    first, last = range_of(len(found), start, start + limit - 1)
    listed = islice(reversed(found), first, last)
    names = yield from map_in_slices(listed, lambda job: q.local(job.jid))
    return b'{"total":%d,"jobs":%b}' % (len(found), (yield from strings_in_slices(names)))


def group_of(job: Job) -> str:
    details = existing_details(job)
    if details is not None and details.last_error is not None:
        return details.last_error.group
    return "" if job.history.failure is None else job.history.failure.group


def failure_groups(q: Qless) -> Generator[None, None, dict[str, list[Job]]]:
    """Return the failed jobs by group, the oldest failure first, in slices."""
    groups: dict[str, list[tuple[int, int, int, Job]]] = {}
    jobs = chain(jobs_to_examine(q.engine.tables.dead), jobs_to_examine(q.engine.tables.dead_kept))
    for count, job in enumerate(jobs, 1):
        if job is not None and job.state == DEAD and q.is_listed(job.queue):
            failed_at = 0 if job.history.failure is None else job.history.failure.last_at
            row = failed_at, job.position, job.seq, job
            groups.setdefault(group_of(job), []).append(row)
        if count % SLICE_SIZE == 0:
            yield
    ordered: dict[str, list[Job]] = {}
    for group, found in groups.items():
        order = yield from sort_in_slices(found)
        ordered[group] = [row[3] for row in order]
    return ordered


# Tracking and configuration


TrackedJobs = list[tuple[str, Job | None]]


def tracked_jobs(q: Qless) -> Generator[None, None, TrackedJobs]:
    """Return the tracked ids of the current database, each with its job, by the start of the
    tracking, in slices.
    """
    known = q.engine.annotations.tracked
    order = yield from sort_in_slices((known.get(jid, 0), jid) for jid in list(known))
    found = yield from map_in_slices(order, lambda row: (row[1], q.engine.find(row[1])))
    mine = yield from filter_in_slices(
        found, lambda row: q.is_listed(row[0] if row[1] is None else row[1].queue)
    )
    return (yield from map_in_slices(mine, lambda row: (q.local(row[0]), row[1])))


def tracked(
    q: Qless,
    write: batches.JobWriter = job_text,
    finish: Callable[[list[bytes]], bytes] = lua.listed,
) -> Any:
    """Return the tracked jobs, and the ids of tracked jobs that no longer exist."""
    return at_once_if_short(_tracked(q, write, finish))


def _tracked(
    q: Qless, write: batches.JobWriter, finish: Callable[[list[bytes]], bytes]
) -> Generator[None, None, bytes]:
    gone: list[str] = []
    shown: list[bytes] = []
    for done, (jid, job) in enumerate((yield from tracked_jobs(q)), 1):
        if job is not None:
            yield from read_ahead(q.engine, job)
        if job is None or job.seq not in q.engine.tables.jobs:
            gone.append(jid)
        else:
            shown.append(with_data(q.engine, job, write(q, job)))
            release_payload(q.engine, job)
        if done % batches.JOBS_BATCH_SIZE == 0:
            yield
    return b'{"expired":%b,"jobs":%b}' % ((yield from strings_in_slices(gone)), finish(shown))


def config_of(q: Qless) -> dict[str, str]:
    """Return the options that were set in the current database."""
    return {q.local(name): value for name, value in q.options.config.items() if q.is_listed(name)}


def config_get(q: Qless, now: int, args: Args) -> bytes | int | None:
    """All options, or one: a default is a number, a value that was set is text."""
    if not args:
        return lua.encode({**DEFAULTS, **config_of(q)})
    option = text(args, 0, "")
    value = q.options.config.get(q.scoped(option))
    if value is not None:
        return encode_name(value)
    default = DEFAULTS.get(option)
    return default.encode() if isinstance(default, str) else default


COMMANDS: Final = {
    "get": get,
    "multiget": multiget,
    "length": length,
    "queues": queues,
    "failed": failed,
    "config.get": config_get,
}
