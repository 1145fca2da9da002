"""Commands that read jobs, queues, failures, tracked jobs and options."""

from collections.abc import Callable, Generator
from itertools import chain, islice
from typing import Any, Final

from millrace.engine.annotations import existing_details, read_details
from millrace.engine.discarded import drain
from millrace.engine.job import Job
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.tables import jobs_to_examine, keys_to_examine
from millrace.protocols.payload_reads import read_ahead, release_payload
from millrace.protocols.slices import (
    SLICE_SIZE,
    filter_in_slices,
    free_in_slices,
    map_in_slices,
    replace_in_slices,
    run_if_short,
    sort_in_slices,
)

from . import job_replies
from . import lua_values as lua
from .arguments import Args, parse_number, text
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
from .resp import Reply
from .state import QlessState

#: Number of queues that one slice writes.
QUEUE_BATCH_SIZE: Final = 100

# Jobs


def job_text(q: QlessState, job: Job, queue_key: str = "q") -> JobText:
    """Encode a job for all commands. In a history, dialect D has a different key for the queue."""
    details, state, encode = read_details(job), job.state, lua.encode
    has_ended = state in {DONE, DEAD}
    head = b'{"jid":%b,"retries":%d,"data":' % (encode(q.client_name(job.jid)), job.retries)
    tail = (
        b',"failure":%b,"expires":%b,"remaining":%d,'
        b'"spawned_from_jid":%b,"dependencies":%b,"klass":%b,"tracked":%b,"tags":%b,"queue":%b,'
        b'"state":"%b","history":%b,"dependents":%b,"priority":%b,"worker":%b}'
    ) % (
        lua.EMPTY_LIST if details.last_error is None and not has_ended else failure_json(job),
        b"0" if has_ended else shown_expiry(job),
        remaining(job),
        encode(details.spawned_from) if details.spawned_from else b"false",
        lua.encode_strings(dependencies(q, job)) if state == BLOCKED else lua.EMPTY_LIST,
        encode(klass_of(job)),
        b"true" if job.jid in q.tracked else b"false",
        encode(details.tag_names()) if details.tags else lua.EMPTY_LIST,
        b'""' if state == DONE else encode(q.client_name(job.queue)),
        b"running" if state == LEASED else q.shown_state(job).encode(),
        history_json(details.log, queue_key),
        lua.encode_strings(q.client_jids(q.engine.dependents(job))),
        lua.format_number(shown_priority(job, lower_first=q.lower_first)),
        b'""' if has_ended else encode(job.history.holder),
    )
    return JobText(head, True, tail)


def failure_json(job: Job) -> bytes:
    failure = read_details(job).last_error
    if failure is not None:
        return b'{"group":%b,"message":%b,"when":%b,"worker":%b}' % (
            lua.encode_string(failure.group),
            lua.encode_string(failure.message),
            lua.format_number(failure.when),
            lua.encode_string(failure.worker),
        )
    known = job.history.failure
    if known is None or job.state != DEAD:
        return lua.EMPTY_LIST
    # A worker of another protocol reported the failure.
    return b'{"group":%b,"message":%b,"when":%d,"worker":%b}' % (
        lua.encode_string(known.group),
        lua.encode_string(known.message),
        known.last_at // 1_000_000,
        lua.encode_string(job.history.holder),
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
    """Return the history in the format of dialect A: one entry per queue that the job was in."""
    found: list[dict[str, Any]] = []
    for when, what, more in history:
        if what == "put":
            found.append({"q": (more or {}).get("q", ""), "put": when})
        elif found and what in {"popped", "done", "failed"}:
            found[-1][what] = when
            if what == "popped" and more and "worker" in more:
                found[-1]["worker"] = more["worker"]
    return found


def dependencies(q: QlessState, job: Job) -> list[str]:
    seqs = () if job.extra is None else job.extra.blockers
    found = map(q.engine.job, seqs)
    return [q.client_name(blocker.jid) for blocker in found if blocker is not None]


def get(q: QlessState, now: int, args: Args) -> Any:
    """Return a job, or None if it does not exist. Arguments: jid."""
    return job_replies.get(q, q.find(text(args, 0, "Job(): no jid provided")), job_text)


def multiget(q: QlessState, now: int, args: Args) -> Any:
    """Return the jobs that exist. Arguments: jids."""
    return job_replies.multiget(q, args, job_text, lua.join_list)


def length(q: QlessState, now: int, args: Args) -> int:
    """Return the number of leased, ready and scheduled jobs of a queue. Arguments: queue."""
    queue = q.engine.queue(q.queue_name(text(args, 0, "Queue(): no queue name provided")))
    return 0 if queue is None else sum(queue.counts[s] for s in (LEASED, READY, SCHEDULED))


# Queues


def queues(q: QlessState, now: int, args: Args) -> Any:
    """Return the counts of all queues, or of the named queue. Arguments: none, or queue."""
    if args:
        return counts_json(q, now, q.queue_name(text(args, 0, "")))
    return list_queues(q, lambda name: counts_json(q, now, name), lua.join_list)


def list_queues(
    q: QlessState, write: Callable[[str], bytes], finish: Callable[[list[Any]], Reply]
) -> Any:
    """Return a list of all queues. A long list is written in slices."""
    return run_if_short(_many_queues(q, write, finish))


def _many_queues(
    q: QlessState, write: Callable[[str], bytes], finish: Callable[[list[Any]], Reply]
) -> Generator[None, None, Reply]:
    rows: list[Any] = []
    for name in drain((yield from queue_names(q))):
        rows.append(write(name))
        if len(rows) % QUEUE_BATCH_SIZE == 0:
            yield
    return (yield from job_replies.finish_in_slices(rows, finish))


def queue_names(q: QlessState) -> Generator[None, None, list[str]]:
    """Return the names of all queues in the engine, by the time of their first use, in slices."""
    seen, listed = q.first_seen, q.is_in_database
    queues = q.engine.tables.queues

    def row_of(name: str) -> tuple[int, str] | None:
        queue = queues.get(name)
        shown = queue is not None and queue.registered and listed(name)
        return (seen.get(name, 0), name) if shown else None

    order = yield from sort_in_slices(map(row_of, keys_to_examine(queues)))
    return (yield from replace_in_slices(order, lambda row: row[1]))


def counts_json(q: QlessState, now: int, name: str) -> bytes:
    counts = queue_counts(q, now, name)
    counts["paused"] = q.is_paused(name)
    return lua.encode({"name": q.client_name(name), **counts})


def queue_counts(q: QlessState, now: int, name: str) -> dict[str, Any]:
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


def failed(q: QlessState, now: int, args: Args) -> bytes | Generator[None, None, bytes]:
    """Return the number of failed jobs per group, or a page of the jobs of one group. Arguments:
    none, or group, start, limit.
    """
    start = int(parse_number(args, 1, 'Failed(): Arg "start" is not a number: ', 0))
    limit = int(parse_number(args, 2, 'Failed(): Arg "limit" is not a number: ', 25))
    reply: bytes | Generator[None, None, bytes] = run_if_short(_failed(q, args, start, limit))
    return reply


def _failed(q: QlessState, args: Args, start: int, limit: int) -> Generator[None, None, bytes]:
    groups = yield from failure_groups(q)
    if not args:
        return lua.encode({group: len(found) for group, found in groups.items()})
    found = groups.get(text(args, 0, ""), [])
    first, last = range_of(len(found), start, start + limit - 1)
    listed = islice(reversed(found), first, last)
    names = yield from map_in_slices(listed, lambda job: q.client_name(job.jid))
    total = len(found)
    for number, jobs in enumerate(groups.values(), 1):
        yield from free_in_slices(jobs)
        if number % SLICE_SIZE == 0:
            yield
    return b'{"total":%d,"jobs":%b}' % (total, (yield from strings_in_slices(names)))


def group_of(job: Job) -> str:
    details = existing_details(job)
    if details is not None and details.last_error is not None:
        return details.last_error.group
    return "" if job.history.failure is None else job.history.failure.group


def failure_groups(q: QlessState) -> Generator[None, None, dict[str, list[Job]]]:
    """Return the failed jobs by group, the oldest failure first, in slices."""
    groups: dict[str, list[tuple[int, int, int, Job]]] = {}
    jobs = chain(
        jobs_to_examine(q.engine.tables.dead, q.engine.tables.jobs),
        jobs_to_examine(q.engine.tables.dead_untrimmed, q.engine.tables.jobs),
    )
    for count, job in enumerate(jobs, 1):
        if job is not None and job.state == DEAD and q.is_in_database(job.queue):
            failed_at = 0 if job.history.failure is None else job.history.failure.last_at
            row = failed_at, job.position, job.seq, job
            groups.setdefault(group_of(job), []).append(row)
        if count % SLICE_SIZE == 0:
            yield
    ordered: dict[str, list[Job]] = {}
    rows = 0
    for group, found in groups.items():
        rows += len(found)
        if rows > SLICE_SIZE:
            rows = 0
            yield
        order = yield from sort_in_slices(drain(found))
        ordered[group] = yield from replace_in_slices(order, lambda row: row[3])
    return ordered


# Tracking and configuration


TrackedJobs = list[tuple[str, Job | None]]


def tracked_jobs(q: QlessState) -> Generator[None, None, TrackedJobs]:
    """Return the tracked ids of the current database, each with its job, ordered by the start of
    tracking, in slices.
    """
    known = q.engine.annotations.tracked
    order = yield from sort_in_slices((known.get(jid, 0), jid) for jid in keys_to_examine(known))
    found = yield from replace_in_slices(order, lambda row: (row[1], q.engine.find(row[1])))
    mine = yield from filter_in_slices(found, lambda row: q.lists_tracked(*row))
    return (yield from map_in_slices(mine, lambda row: (q.client_name(row[0]), row[1])))


def tracked(
    q: QlessState,
    write: job_replies.JobWriter = job_text,
    finish: Callable[[list[bytes]], bytes] = lua.join_list,
) -> Any:
    """Return the tracked jobs, and the ids of tracked jobs that no longer exist."""
    return run_if_short(_tracked(q, write, finish))


def _tracked(
    q: QlessState, write: job_replies.JobWriter, finish: Callable[[list[bytes]], bytes]
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
        if done % job_replies.JOBS_BATCH_SIZE == 0:
            yield
    return b'{"expired":%b,"jobs":%b}' % ((yield from strings_in_slices(gone)), finish(shown))


def config_of(q: QlessState) -> dict[str, str]:
    """Return the options that were set in the current database."""
    return {
        q.client_name(name): value
        for name, value in q.options.config.items()
        if q.is_in_database(name) and q.options.allows(name)
    }


def config_get(q: QlessState, now: int, args: Args) -> bytes | int | None:
    """Return all options, or the named one. A default is a number; a value that a client set is
    text. Arguments: none, or option.
    """
    if not args:
        return lua.encode({**DEFAULTS, **config_of(q)})
    option = text(args, 0, "")
    q.options.check(q.engine_name(option))
    value = q.options.config.get(q.engine_name(option))
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
