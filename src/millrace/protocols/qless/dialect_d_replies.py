"""Replies of reqless: jobs include their throttles, throttled jobs are separate from waiting jobs,
and an empty list is encoded as a list.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

from millrace.engine.annotations import read_details
from millrace.engine.discarded import drain
from millrace.engine.job import Job
from millrace.engine.leases import clear_holder
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.states import DEAD, READY
from millrace.protocols.slices import replace_in_slices, run_if_short

from . import job_replies, listings, locks, queries, throttles
from . import lua_values as lua
from . import recurring as recurring_jobs
from .adaptation import adapt
from .arguments import Args, parse_number, text, texts
from .dialect_a import Call
from .errors import ScriptError
from .job_view import JobText
from .names import decode_name, encode_name
from .resp import Reply
from .state import QlessState

DEFAULTS: Final = {
    "application": "reqless",
    "grace-period": "10",
    "heartbeat": "60",
    "jobs-history": "604800",
    "jobs-history-count": "50000",
    "max-job-history": "100",
    "max-pop-retry": "1",
    "max-worker-age": "86400",
}


class ReplyShape(NamedTuple):
    """The key of a queue in a history, and the encoding of an empty list as a complete reply."""

    queue: str
    empty_list: bytes


SHAPE_T: Final = ReplyShape("q", b"{}")
SHAPE_D: Final = ReplyShape("queue", b"[]")

Answer = Callable[[Any, Call], Reply]


# Commands of C


def unchanged(api: Any, call: Call) -> Reply:
    reply: Reply = api.run_command(call.command, call.now, call.args)
    return reply


def list_reply(api: Any, call: Call) -> Any:
    """Run the command, and return `[]` for an empty list, where C returns `{}`."""
    return adapt(
        partial(unchanged, api, call), lambda reply: b"[]" if reply == lua.EMPTY_LIST else reply
    )


def json_reply(api: Any, call: Call) -> Any:
    """Return JSON for a list that C returns as an array."""
    return adapt(partial(unchanged, api, call), _as_json)


def _as_json(names: list[str]) -> Any:
    return run_if_short(listings.strings_in_slices(names)) if names else b"[]"


def job_text(shape: ReplyShape, q: QlessState, job: Job) -> JobText:
    names = lua.encode([q.client_throttle_name(tid) for tid in throttles.names_of(job)])
    return queries.job_text(q, job, shape.queue).with_members(b'"throttles":%b' % names)


def _list_of(shape: ReplyShape, rows: list[Any]) -> Any:
    return lua.join_list(rows) if rows else shape.empty_list


def get(shape: ReplyShape, api: Any, call: Call) -> Any:
    job = api.qless.find(text(call.args, 0, "Job(): no jid provided"))
    return job_replies.get(api.qless, job, partial(job_text, shape))


def multiget(shape: ReplyShape, api: Any, call: Call) -> Any:
    write, finish = partial(job_text, shape), partial(_list_of, shape)
    return job_replies.multiget(api.qless, call.args, write, finish)


def pop(shape: ReplyShape, api: Any, call: Call) -> Any:
    return job_replies.reply_with_jobs(
        api, call, partial(job_text, shape), partial(_list_of, shape)
    )


def peek(shape: ReplyShape, api: Any, call: Call) -> Any:
    """Return the jobs that the next pops would get, as JSON. Arguments: queue, offset, count."""
    text(call.args, 0, "Queue(): no queue name provided")
    offset = int(parse_number(call.args, 1, 'Peek(): Arg "offset" missing or not a number: '))
    count = parse_number(call.args, 2, 'Peek(): Arg "count" missing or not a number: ')
    if count <= 0:
        return shape.empty_list
    args = [call.args[0], call.args[2]]
    return run_if_short(_peek(shape, api, call.now, args, max(0, offset)))


def _peek(
    shape: ReplyShape, api: Any, now: int, args: Args, offset: int
) -> Generator[None, None, Reply]:
    found = yield from locks.peek_in_slices(api.qless, now, args, offset)
    jobs = (None if _is_throttled(job) else job for job in drain(found))
    write, finish = partial(job_text, shape), partial(_list_of, shape)
    return (yield from job_replies.encode_jobs_in_slices(api.qless, jobs, write, finish))


def _is_throttled(job: Job) -> bool:
    return job.state == READY and read_details(job).parked is not None


def put(api: Any, call: Call) -> Reply:
    """Put a job. Without `throttles`, it has only the throttle of its queue. If a throttle is full,
    the job waits.
    """
    q: QlessState = api.qless
    if len(call.args) < 6:
        return unchanged(api, call)
    job = q.find(text(call.args, 2, ""))
    queues = [text(call.args, 1, "")] + ([q.client_name(job.queue)] if job is not None else [])
    args = _with_throttles(call.args, 6, queues)

    def park(jid: bytes) -> Reply:
        if q.throttles:
            job = q.find(decode_name(jid))
            assert job is not None
            q.throttles.park_if_full(job, call.now)
        return jid

    reply: Reply = adapt(lambda: api.run_command(call.command, call.now, args), park)
    return reply


def _with_throttles(args: Args, start: int, queues: list[str]) -> Args:
    """Return the arguments with the specified throttles, except the throttles of these queues."""
    given = dict(zip(args[start::2], args[start + 1 :: 2], strict=False)).get(b"throttles", b"[]")
    queue_throttles = {QUEUE_KEY_PREFIX + queue for queue in queues}
    names = dict.fromkeys(str(name) for name in lua.decode_list(given))
    return [
        *args,
        b"throttles",
        lua.encode([name for name in names if name not in queue_throttles]),
    ]


def complete(api: Any, call: Call) -> Reply:
    """Complete a job. Arguments: jid, worker, queue, data, next queue, options. Some clients send
    `next` before that queue.
    """
    args, rest = call.args[:4], call.args[4:]
    if rest and not (rest[0] == b"next" and len(rest) % 2 == 0):
        rest = [b"next", *rest]
    reply: Reply = api.run_command("complete", call.now, [*args, *rest])
    return reply


def retry(api: Any, call: Call) -> Reply:
    """Retry a job. The history distinguishes a failure after the last retry from other failures."""
    reply = unchanged(api, call)
    job = api.qless.find(text(call.args, 0, ""))
    if job is not None and job.state == DEAD:
        history = read_details(job).log
        when, what, more = history[-1]
        history[-1] = (when, "failed-retries" if what == "failed" else what, more)
    return reply


def timeout(api: Any, call: Call) -> Reply:
    """Remove the locks of jobs. A job without a lock has no worker."""
    api.run_command("timeout", call.now, call.args)
    for job in filter(None, map(api.qless.find, texts(call.args))):
        if job.state == READY:
            clear_holder(job)
    return None


def tracked(shape: ReplyShape, api: Any, call: Call) -> Any:
    if call.args:
        return unchanged(api, call)
    write = partial(job_text, SHAPE_T._replace(queue=shape.queue))
    return queries.tracked(api.qless, write)


def by_state(api: Any, call: Call) -> Any:
    """Return a page of the jids of jobs in a state. Arguments: state, queue, offset, count."""
    if call.args[:1] != [b"throttled"]:
        return unchanged(api, call)
    return listings.throttled(api.qless, call.args[1:])


def by_state_encoded(api: Any, call: Call) -> Any:
    return adapt(partial(by_state, api, call), _as_json)


def length(api: Any, call: Call) -> Reply:
    """Return the length of a queue, excluding throttled jobs."""
    queue = api.qless.queue_name(text(call.args, 0, "Queue(): no queue name provided"))
    length: int = api.run_command("length", call.now, call.args)
    throttled: int = api.qless.throttles.count(queue)
    return length - throttled


def counts(shape: ReplyShape, api: Any, call: Call) -> Any:
    q: QlessState = api.qless
    if call.args:
        return _counts_json(q, call.now, q.queue_name(text(call.args, 0, "")))

    def write(name: str) -> bytes:
        return _counts_json(q, call.now, name)

    return queries.list_queues(
        q, write, lambda rows: lua.join_list(rows) if rows else shape.empty_list
    )


def _counts_json(q: QlessState, now: int, name: str) -> bytes:
    counts = queries.queue_counts(q, now, name)
    throttled = q.throttles.count(name)
    counts["waiting"] -= throttled
    counts["throttled"] = throttled
    counts["paused"] = q.is_paused(name)
    return lua.encode({"name": q.client_name(name), **counts})


def names(api: Any, call: Call) -> Any:
    return adapt(lambda: run_if_short(_names(api.qless)), _as_json)


def _names(q: QlessState) -> Generator[None, None, list[str]]:
    return (yield from replace_in_slices((yield from queries.queue_names(q)), q.client_name))


def stats(api: Any, call: Call) -> Any:
    """Return statistics without the fields that A to C take from the spec."""
    return adapt(partial(unchanged, api, call), _without_totals)


def _without_totals(stats: bytes) -> bytes:
    found = lua.decode(stats)
    for spread in (found["run"], found["wait"]):
        del spread["total"], spread["variance"]
    return lua.encode(found)


def unfail(api: Any, call: Call) -> Reply:
    """Retry failed jobs, and return their number. Arguments: queue, group, count."""
    text(call.args, 0, 'queue.unfail(): Arg "queue" missing')
    if parse_number(call.args, 2, 'Unfail(): Arg "count" not a number: ', 25) <= 0:
        raise ScriptError('Unfail(): Arg "count" must be greater than zero')
    return unchanged(api, call)


def recur(api: Any, call: Call) -> Reply:
    """Create a recurring job with throttles. The throttle of its queue is not stored."""
    if len(call.args) < 7:
        return unchanged(api, call)
    q: QlessState = api.qless
    known = q.recurring.get(q.engine_name(text(call.args, 1, "")))
    queues = [text(call.args, 0, "")] + ([] if known is None else [q.client_name(known.queue)])
    reply: Reply = api.run_command("recur", call.now, _with_throttles(call.args, 7, queues))
    return reply


def recurring(api: Any, call: Call) -> Reply:
    q: QlessState = api.qless
    found = q.recurring.get(q.engine_name(text(call.args, 0, "Recurring(): no jid provided")))
    if found is None:
        return None
    queue_throttle = QUEUE_KEY_PREFIX + found.queue
    names = [name for name in found.limits if name != queue_throttle or not found.has_queue_limit]
    names += [queue_throttle] if found.has_queue_limit else []
    shown = lua.encode([q.client_throttle_name(name) for name in names])
    return recurring_jobs.recurring_json(q, found)[:-1] + b',"throttles":%b}' % shown


def option(api: Any, call: Call) -> Reply:
    """Return the named option, or all options if no name is given, as in builds before
    `config.getAll`.
    """
    chosen = {**DEFAULTS, **queries.config_of(api.qless)}
    if not call.args:
        return lua.encode(chosen)
    name = text(call.args, 0, "")
    api.qless.options.check(api.qless.engine_name(name))
    return chosen.get(name)


# Throttles


def apply_to_queue_throttle(answer: Answer, api: Any, call: Call) -> Reply:
    """Apply a throttle command to the throttle of a queue."""
    queue = text(call.args, 0, "Queue(): no queue name provided")
    return answer(api, call._replace(args=[encode_name(QUEUE_KEY_PREFIX + queue), *call.args[1:]]))


def throttle(api: Any, call: Call) -> Reply:
    reply: Reply = throttles.COMMANDS[call.command](api.qless, call.now, call.args)
    return reply


def throttle_without_ttl(api: Any, call: Call) -> Reply:
    """Return a throttle without its time to live, which early versions did not include."""
    found = lua.decode(throttles.get(api.qless, call.now, call.args))
    del found["ttl"]
    return lua.encode(found)


def throttle_encoded(api: Any, call: Call) -> Reply:
    return lua.encode(throttle(api, call))


def set_queue_throttle(api: Any, call: Call) -> Reply:
    """Set the maximum of the throttle of a queue. Arguments: queue, maximum."""
    return apply_to_queue_throttle(throttle, api, call._replace(args=call.args[:2]))
