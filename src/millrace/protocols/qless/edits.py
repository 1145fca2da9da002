"""Changes to jobs and queues: dependencies, priorities, tags, tracking, pauses, options."""

from collections.abc import Generator
from typing import Any, Final

from millrace.engine.annotations import ensure_details, tags_of
from millrace.engine.job import Job
from millrace.engine.leases import clear_holder
from millrace.engine.states import BLOCKED, DEAD
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import SLICE_SIZE, run_if_short

from . import listings, queries
from . import lua_values as lua
from .arguments import Args, argument_or_none, check_tag_count, parse_number, text, texts
from .dependencies import StagedJobs
from .errors import ScriptError
from .names import decode_name, encode_name
from .state import QlessState

#: Jobs that one slice of `unfail` moves.
UNFAIL_BATCH_SIZE: Final = 50


class MovedJobs:
    """The number of jobs that an `unfail` has moved, including its slices before a crash or a
    refused commit.
    """

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count


# Jobs


def depends(q: QlessState, now: int, args: Args) -> int | Generator[None, None, int]:
    """Change the dependencies of a blocked job, and return 1. Arguments: jid, on | off, jids or
    `all`.
    """
    reply: int | Generator[None, None, int] = run_if_short(_depends(q, now, args))
    return reply


def _depends(q: QlessState, now: int, args: Args) -> Generator[None, None, int]:
    """Find the jobs in slices, then change all dependencies in one step: with only some of them,
    the job could start.
    """
    jid = text(args, 0, "Job(): no jid provided")
    command = text(args, 1, 'Depends(): Arg "command" missing')
    job = _blocked_job(q, jid)
    if command not in {"on", "off"}:
        raise ScriptError('Depends(): Argument "command" must be "on" or "off"')
    if len(args) > SLICE_SIZE and command == "on":
        return (yield from _add_dependencies(q, jid, args[2:]))
    seqs = yield from _seqs(q, args[2:])
    if len(args) > SLICE_SIZE:
        job = _blocked_job(q, jid)  # another client may have changed it meanwhile
    assert job.extra is not None
    if command == "on":
        q.engine.block(job, list(seqs))
    else:
        if args[2:3] == [b"all"]:
            seqs = dict.fromkeys(job.extra.blockers)
            if len(seqs) > SLICE_SIZE:
                yield
                job = _blocked_job(q, jid)
        q.engine.unblock(job, seqs, now)
    return 1


def _seqs(q: QlessState, names: Args) -> Generator[None, None, dict[int, None]]:
    """Find existing jobs in slices."""
    seqs: dict[int, None] = {}
    for count, name in enumerate(names, 1):
        if (found := q.find(decode_name(name))) is not None:
            seqs[found.seq] = None
        if count % SLICE_SIZE == 0:
            yield
    return seqs


def _add_dependencies(q: QlessState, jid: str, names: Args) -> Generator[None, None, int]:
    job = _blocked_job(q, jid)
    staged = StagedJobs(q, jid, job.origin)
    try:
        yield from staged.find(map(decode_name, names))
        job = _blocked_job(q, jid)  # another client may have changed it meanwhile
        if staged.first(job.seq):
            staged.block(job)
    finally:
        staged.end()
    return 1


def _blocked_job(q: QlessState, jid: str) -> Job:
    job = q.find(jid)
    if job is None or job.state != BLOCKED:
        state = "false" if job is None else q.shown_state(job)
        raise ScriptError(f"Depends(): Job {jid} not in the depends state: {state}")
    return job


def priority(q: QlessState, now: int, args: Args) -> int:
    """Set the priority of a job, and return it as an integer. Arguments: jid, priority."""
    jid = text(args, 0, "Job(): no jid provided")
    value = parse_number(args, 1, 'Priority(): Arg "priority" missing or not a number: ')
    job = q.find(jid)
    if job is None:
        raise ScriptError(f"Priority(): Job {jid} does not exist")
    q.promote_if_due(job, now)
    details = ensure_details(job)
    details.priority, details.lower_first = value, q.lower_first
    q.engine.set_rank(job, job.rank if details.front else details.rank, 0)
    return lua.to_int64(value)


def tag(q: QlessState, now: int, args: Args) -> Any:
    """Change the tags of a job and return them, or return tagged jobs or the most used tags.
    Arguments: add | remove, jid, tags; get, tag, offset, count; or top, offset, count.
    """
    wanted = 'Tag(): Arg "command" must be "add", "remove", "get" or "top"'
    command = text(args, 0, wanted)
    if command == "get":
        return listings.tags_get(q, args[1:])
    if command == "top":
        return listings.tags_top(q, args[1:])
    if command not in {"add", "remove"}:
        raise ScriptError('Tag(): First argument must be "add", "remove" or "get"')
    jid = text(args, 1, 'Tag(): Arg "jid" missing')
    job = q.find(jid)
    if job is None:
        raise ScriptError(f"Tag(): Job {jid} does not exist")
    tags, names = tags_of(job), texts(args, 2)
    if command == "add":
        known = {tag for tag, _ in tags}
        added = [name for name in dict.fromkeys(names) if name not in known]
        check_tag_count(len(tags) + len(added))
        tags = [*tags, *((name, now) for name in added)]
    else:
        gone = set(names)
        tags = [each for each in tags if str(each[0]) not in gone]
    q.engine.set_tags(job, tags)
    return lua.encode([tag for tag, _ in tags]) if tags else lua.EMPTY_LIST


def track(q: QlessState, now: int, args: Args) -> Any:
    """Return the tracked jobs, or change the tracking of a job and return whether it changed.
    Arguments: none, or track | untrack, jid.
    """
    if not args:
        return queries.tracked(q)
    command = text(args, 0, "")
    jid = text(args, 1, 'Track(): Arg "jid" missing')
    job = q.find(jid)
    action = command.lower()
    if action not in {"track", "untrack"}:
        raise ScriptError(f'Track(): Unknown action "{command}"')
    if job is None and action == "untrack" and not q.engine.is_tracked(q.engine_name(jid)):
        q.engine.caller.wait()
        return b"0"
    if job is None and action == "track":
        raise ScriptError("Track(): Job does not exist")
    name = q.engine_name(jid) if job is None else job.jid
    before = name in q.tracked
    q.engine.track(name, now if action == "track" else None)
    q.publisher.publish(action, encode_name(jid))
    return b"%d" % (before != (action == "track"))


def log(q: QlessState, now: int, args: Args) -> None:
    """Add a message to the history of a job. Arguments: jid, message, data."""
    jid = text(args, 0, "Log(): Argument 'jid' missing")
    message = text(args, 1, "Log(): Argument 'message' missing")
    data = argument_or_none(args, 2)
    more = None if data is None else lua.decode(data)
    job = q.find(jid)
    if job is None:
        raise ScriptError(f"Log(): Job {jid} does not exist")
    fields = more if isinstance(more, dict) else None
    q.engine.log(job, message, now, q.options.max_history, fields)


def unfail(q: QlessState, now: int, args: Args) -> int | Generator[None, None, int]:
    """Put failed jobs of a group into a queue, and return their number. Arguments: queue, group,
    count.
    """
    queue = text(args, 0, "Queue(): no queue name provided")
    group = text(args, 1, 'Unfail(): Arg "group" missing')
    count = int(parse_number(args, 2, 'Unfail(): Arg "count" not a number: ', 25))
    work: int | Generator[None, None, int]
    moved = q.hub.moved or MovedJobs()
    work = run_if_short(_unfail(q, now, queue, group, max(0, count), moved))
    return work


def _unfail(
    q: QlessState, now: int, queue: str, group: str, count: int, moved: MovedJobs
) -> Generator[None, None, int]:
    groups = yield from queries.failure_groups(q)
    found = groups.get(group, [])[: count - moved.count]
    if found:
        q.register_queue(q.queue_name(queue), now)
    for done, job in enumerate(found, 1):
        if job.state == DEAD and q.engine.job(job.seq) is job:
            ensure_details(job).add_entry("put", now, q.options.max_history, {"q": queue})
            clear_holder(job)
            q.engine.move(job, q.queue_name(queue), now, QLESS)
            moved.count += 1
        if done % UNFAIL_BATCH_SIZE == 0:
            yield
    return moved.count


# Queues and workers


def pause(q: QlessState, now: int, args: Args) -> None:
    """Pause queues. Arguments: queues."""
    _pause(q, now, args, paused=True)


def unpause(q: QlessState, now: int, args: Args) -> None:
    """Unpause queues. Arguments: queues."""
    _pause(q, now, args, paused=False)


def _pause(q: QlessState, now: int, args: Args, *, paused: bool) -> None:
    names = list(map(q.queue_name, _required_names(args)))  # the port may refuse one of them
    with q.engine.hold_queues(now):
        for name in names:
            q.pause(name, now, paused=paused)
            q.engine.caller.wait()


def forget_queue(q: QlessState, now: int, args: Args) -> None:
    """Remove the names of queues, but keep their jobs and pauses. Arguments: queues."""
    for name in list(map(q.queue_name, _required_names(args))):
        paused = q.is_paused(name)
        q.engine.forget_queue(name)
        q.forget_queue(name, by_client=True)
        q.pause(name, now, paused=paused)


def deregister(q: QlessState, now: int, args: Args) -> None:
    """Remove workers from the list of workers. Arguments: workers."""
    for name in _required_names(args):
        q.workers.forget(q.engine_name(name))


def _required_names(args: Args) -> list[str]:
    """Return the names. At least one is required."""
    if not args:
        raise ScriptError("Wrong number of args calling Redis command from script")
    return texts(args)


# Options


def config_set(q: QlessState, now: int, args: Args) -> None:
    """Set an option. Arguments: option, value."""
    option = text(args, 0, 'config.set(): Arg "option" missing')
    value = text(args, 1, 'config.set(): Arg "value" missing')
    q.options.check_change(q.engine_name(option))
    q.publisher.log({"option": option, "event": "config_set", "value": value})
    q.options.set(q.engine_name(option), value)


def config_unset(q: QlessState, now: int, args: Args) -> None:
    """Remove the value that was set for an option. Arguments: option."""
    option = text(args, 0, 'config.unset(): Arg "option" missing')
    q.options.check_change(q.engine_name(option))
    q.publisher.log({"event": "config_unset", "option": option})
    q.options.set(q.engine_name(option), None)


COMMANDS: Final = {
    "depends": depends,
    "priority": priority,
    "tag": tag,
    "track": track,
    "log": log,
    "unfail": unfail,
    "pause": pause,
    "unpause": unpause,
    "queue.forget": forget_queue,
    "worker.deregister": deregister,
    "config.set": config_set,
    "config.unset": config_unset,
}
