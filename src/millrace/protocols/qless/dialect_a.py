"""Dialect A, with one script for each command, and the form of the spec: QLESS.<COMMAND>.

The order of arguments and the format of jobs differ from later dialects, and some commands reply
nil where later scripts raise an error.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

from millrace.engine.annotations import read_details
from millrace.engine.job import Job
from millrace.engine.states import DONE
from millrace.protocols.slices import run_if_short

from . import attempts, consistency, job_replies, queries, recurring
from . import lua_values as lua
from .adaptation import adapt
from .arguments import Args
from .commands import Slices
from .errors import ScriptError
from .job_view import (
    JobText,
    klass_of,
    remaining,
    shown_expiry,
    shown_priority,
    shown_worker,
    with_data,
)
from .names import decode_name, encode_name
from .options import UNLISTED_DEFAULTS
from .resp import Reply
from .state import QlessState

#: The `now` of a call without a time argument.
NO_TIME: Final = -1


class Call(NamedTuple):
    """A command in the form of dialect C, and the function that converts its reply."""

    command: str
    now: int
    args: Args
    answer: Callable[[Any, "Call"], Reply | Slices]


class _Form(NamedTuple):
    """The position of the caller's time in the arguments (None if it is absent), and the reply
    function.
    """

    command: str
    now_at: int | None
    answer: Callable[[Any, Call], Reply | Slices]


def translate(command: str, keys: Args, args: Args, *, spec: bool) -> Call:
    """Translate a call of dialect A to the form of dialect C."""
    if command in _SUBCOMMAND_TRANSLATORS:
        return _SUBCOMMAND_TRANSLATORS[command](args)
    form = _FORMS.get(command)
    if form is None:
        raise ScriptError(f"Unknown command {command}")
    args = list(args)
    caller_time = NO_TIME
    if form.now_at is not None:
        caller_time = _time(args, form.now_at)
        del args[form.now_at]
    if command == "put":
        args = [b"", *keys[:1], *args]
    elif command in {"pop", "peek"}:
        args = [*keys[:1], *args]
    elif command == "unfail":
        args = [args[1], args[0], *args[2:]] if len(args) > 1 else args[1:]
    elif command == "jobs":
        return _jobs(args, spec=spec)
    return Call(form.command, caller_time, args, form.answer)


def _time(args: Args, at: int) -> int:
    word = args[at] if at < len(args) else None
    found = lua.tonumber(word)
    if found is None:
        shown = "nil" if word is None else decode_name(word)
        raise ScriptError(f'Arg "now" missing or not a number: {shown}')
    return lua.parse_clock(found)


# Answers


def _unchanged(api: Any, call: Call) -> Reply:
    reply: Reply = api.run_command(call.command, call.now, call.args)
    return reply


def _without_result(api: Any, call: Call) -> Any:
    return adapt(partial(_unchanged, api, call), lambda _: None)


#: Parts of the errors that dialect A replaces with nil: the job does not exist, or the worker does
#: not hold it.
_NIL_ERRORS: Final = (
    "does not exist",
    "currently running",
    "another worker",
    "the depends state",
    "No recurring job",
)


def _nil_if_refused(api: Any, call: Call) -> Any:
    return adapt(partial(_unchanged, api, call), on_error=partial(_nil, api))


def _nil(api: Any, error: ScriptError) -> None:
    """Return nil if dialect A replaces this error with nil; otherwise raise the error."""
    if not any(words in str(error) for words in _NIL_ERRORS):
        raise error
    api.engine.caller.wait()


def _reply_with_jobs(api: Any, call: Call) -> Any:
    return job_replies.reply_with_jobs(api, call, partial(job_text, omit_dependencies=True), list)


def _job(api: Any, call: Call) -> Any:
    if not call.args:
        raise ScriptError("Job(): no jid provided")
    job = api.qless.find(decode_name(call.args[0]))
    return job_replies.get(api.qless, job, partial(job_text, omit_dependencies=False))


def _fail(api: Any, call: Call) -> Any:
    """Fail a job. According to the spec, any worker can fail a job in any state."""
    command = partial(attempts.fail_any, api.qless, call.now, call.args)
    return adapt(command, on_error=partial(_nil, api))


def _failed(api: Any, call: Call) -> Any:
    """Return the counts of all groups, or the jobs of one group."""
    if not call.args:
        return _unchanged(api, call)
    return adapt(
        partial(_unchanged, api, call),
        lambda reply: run_if_short(_with_failures(api.qless, reply)),
    )


def _with_failures(q: QlessState, reply: bytes) -> Generator[None, None, bytes]:
    found = lua.decode(reply)
    shown: list[bytes] = []
    for number, jid in enumerate(found["jobs"] or (), 1):
        if q.find(jid) is not None:
            shown.append(_failed_job(q, jid))
        if number % job_replies.JOBS_BATCH_SIZE == 0:
            yield
    return b'{"total":%d,"jobs":%b}' % (found["total"], lua.join_list(shown))


def _failed_job(q: QlessState, jid: str) -> bytes:
    """Return a failed job with the message and type of the failure, as in the spec."""
    job = q.find(jid)
    assert job is not None
    failure = read_details(job).last_error
    message = "" if failure is None else failure.message
    more = b'"message":%b,"type":%b' % (
        lua.encode_string(message),
        lua.encode_string(queries.group_of(job)),
    )
    return with_data(q.engine, job, job_text(q, job, omit_dependencies=True).with_members(more))


def _tracked(api: Any, call: Call) -> Any:
    """Return 1 or 0, or without arguments the tracked jobs. A job that does not exist can also be
    tracked.
    """
    qless = api.qless
    if not call.args:
        return queries.tracked(qless, partial(job_text, omit_dependencies=False))
    jid = decode_name(call.args[1]) if len(call.args) > 1 else ""
    if jid and qless.find(jid) is None and call.args[0].lower() == b"track":
        name = qless.engine_name(jid)
        new = name not in qless.tracked
        qless.engine.track(name, call.now)
        qless.publisher.publish("track", encode_name(jid))
        return int(new)
    reply = _unchanged(api, call)
    assert isinstance(reply, bytes)
    return int(reply)


def _config_get(api: Any, call: Call) -> Reply:
    """Return the effective value of an option, including defaults that lists omit."""
    reply = _unchanged(api, call)
    if reply is None and call.args:
        return UNLISTED_DEFAULTS.get(decode_name(call.args[0]))
    return reply


def _check(api: Any, call: Call) -> Slices:
    return consistency.report(api.qless, call.now, resolve=call.args[:1] not in ([], [b"0"]))


def job_text(q: QlessState, job: Job, *, omit_dependencies: bool) -> JobText:
    """Encode a job in the format of dialect A: decoded data, and history by stages. The
    lists that pop, peek and failed return omit the dependencies.
    """
    details = read_details(job)
    head = (
        b'{"jid":%b,"klass":%b,"state":"%b","queue":%b,"worker":%b,"tracked":%b,"priority":%b,'
        b'"expires":%b,"retries":%d,"remaining":%d,"data":'
    ) % (
        lua.encode_string(q.client_name(job.jid)),
        lua.encode_string(klass_of(job)),
        q.shown_state(job).encode(),
        b'""' if job.state == DONE else lua.encode_string(q.client_name(job.queue)),
        lua.encode_string(shown_worker(job)),
        b"true" if job.jid in q.tracked else b"false",
        lua.format_number(shown_priority(job, lower_first=q.lower_first)),
        shown_expiry(job),
        job.retries,
        remaining(job),
    )
    tail = b',"tags":%b,"history":%b,"failure":%b,"dependents":%b,"dependencies":%b}' % (
        lua.encode(details.tag_names()) if details.tags else lua.EMPTY_LIST,
        lua.encode(queries.stages(details.log)),
        queries.failure_json(job),
        lua.encode_strings([q.client_name(each.jid) for each in q.engine.dependents(job)]),
        lua.EMPTY_LIST if omit_dependencies else lua.encode_strings(queries.dependencies(q, job)),
    )
    return JobText(head, False, tail)


# Commands with subcommands


def _jobs(args: Args, *, spec: bool) -> Call:
    """Translate `jobs`. Arguments: complete, offset, count; or state, now, queue, offset, count.
    The spec has no paging.
    """
    args = list(args)
    caller_time = NO_TIME
    if args[:1] != [b"complete"] and len(args) > 1:
        caller_time = _time(args, 1)
        del args[1]
    unpaged_length = 1 if args[:1] == [b"complete"] else 2
    if spec and len(args) == unpaged_length:
        args += [b"0", b"1000000000"]
    return Call("jobs", caller_time, args, _unchanged)


def _tag(args: Args) -> Call:
    """Translate `tag`. Arguments: add | remove, jid, now, tags; get, tag, offset, count; or top."""
    if args[:1] in ([b"add"], [b"remove"]):
        caller_time = _time(args, 2)
        return Call("tag", caller_time, [*args[:2], *args[3:]], _nil_if_refused)
    return Call("tag", NO_TIME, args, _unchanged)


def _track(args: Args) -> Call:
    """Translate `track`. Arguments: none, or track | untrack, jid, now, tags."""
    caller_time = _time(args, 2) if len(args) > 2 else NO_TIME
    return Call("track", caller_time, args[:2], _tracked)


def _config(args: Args) -> Call:
    """Translate `config`. Arguments: get | set | unset, option, value."""
    action = decode_name(args[0]) if args else "get"
    if action not in {"get", "set", "unset"}:
        raise ScriptError(f"Config(): Unrecognized action {action}")
    return Call(
        f"config.{action}", NO_TIME, args[1:], _config_get if action == "get" else _unchanged
    )


def _setconfig(args: Args) -> Call:
    """Translate `setconfig`. Arguments: option, value. Without a value, remove the option."""
    return Call("config.set" if len(args) > 1 else "config.unset", NO_TIME, args, _unchanged)


def _recur(args: Args) -> Call:
    """Translate `recur`. The first argument is on, off, get, update, tag or untag."""
    action = decode_name(args[0]) if args else ""
    rest = args[1:]
    if action == "on":
        caller_time = _time(rest, 4)
        return Call("recur", caller_time, [*rest[:4], *rest[5:]], _unchanged)
    command = {
        "off": "unrecur",
        "get": "recur.get",
        "update": "recur.update",
        "tag": "recur.tag",
        "untag": "recur.untag",
    }.get(action)
    if command is None:
        raise ScriptError("Recur(): First argument must be one of on, off, get, update, tag, untag")
    return Call(command, NO_TIME, rest, _recurring if action == "get" else _nil_if_refused)


def _recurring(api: Any, call: Call) -> Reply:
    """Return a recurring job with decoded data."""
    return recurring.get(api.qless, call.now, call.args, decoded=True)


_SUBCOMMAND_TRANSLATORS: Final[dict[str, Callable[[Args], Call]]] = {
    "tag": _tag,
    "track": _track,
    "config": _config,
    "setconfig": _setconfig,
    "recur": _recur,
}

_FORMS: Final[dict[str, _Form]] = {
    "cancel": _Form("cancel", None, _without_result),
    "complete": _Form("complete", 3, _nil_if_refused),
    "consistencycheck": _Form("consistencycheck", None, _check),
    "depends": _Form("depends", None, _nil_if_refused),
    "deregister_workers": _Form("worker.deregister", None, _without_result),
    "fail": _Form("fail", 4, _fail),
    "failed": _Form("failed", None, _failed),
    "get": _Form("get", None, _job),
    "getconfig": _Form("config.get", None, _config_get),
    "heartbeat": _Form("heartbeat", 2, _nil_if_refused),
    "jobs": _Form("jobs", None, _unchanged),
    "pause": _Form("pause", None, _without_result),
    "peek": _Form("peek", 1, _reply_with_jobs),
    "pop": _Form("pop", 2, _reply_with_jobs),
    "priority": _Form("priority", None, _nil_if_refused),
    "put": _Form("put", 3, _unchanged),
    "queues": _Form("queues", 0, _unchanged),
    "retry": _Form("retry", 3, _nil_if_refused),
    "stats": _Form("stats", None, _unchanged),
    "unfail": _Form("unfail", 0, _unchanged),
    "unpause": _Form("unpause", None, _without_result),
    "workers": _Form("workers", 0, _unchanged),
}
