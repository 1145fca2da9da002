"""Dialect D, reqless: the commands of C under different names, plus throttles and patterns for
queue names.

Dialect T is reqless before it introduced these names, as in its releases on PyPI: C with throttles.
Builds from the period in between accept both sets of names, so each of the two dialects also
accepts the names of the other one.
"""

from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from . import dialect_d_replies as answers
from . import queue_patterns
from .adaptation import adapt
from .arguments import Args
from .dialect_a import Call
from .dialect_d_replies import SHAPE_D, SHAPE_T, Answer, ReplyShape
from .errors import ScriptError
from .names import decode_name

DIALECTS: Final = frozenset({"D", "T"})


class _Translation(NamedTuple):
    """The command of dialect C, the reply function, and an argument that C requires in addition."""

    command: str
    answer: Answer
    extra_argument: bytes = b""
    at: int = 0


def knows(command: str) -> bool:
    return command in _COMMANDS or command in _T_COMMANDS


def translate(dialect: str, command: str, now: int, args: Args) -> Call:
    first, second = (_COMMANDS, _T_COMMANDS) if dialect == "D" else (_T_COMMANDS, _COMMANDS)
    form = first.get(command) or second[command]
    args = list(args)
    if form.extra_argument and len(args) >= form.at:
        args.insert(form.at, form.extra_argument)
    return Call(
        form.command, now, args, partial(_with_reworded_errors, form.answer, dialect == "D")
    )


# Errors

_WITHOUT_JID: Final = ("Complete", "Fail", "Heartbeat", "Retry")
_COMMANDS_WITH_LIMIT: Final = ("Pop(", "Peek(", "Jobs(", "Tag(")


def _with_reworded_errors(answer: Answer, new: bool, api: Any, call: Call) -> Any:
    """Adapt an error: it does not name the job, and some arguments have different names."""

    def refuse(error: ScriptError) -> NoReturn:
        raise ScriptError(_reword(str(error), call, new=new)) from None

    return adapt(partial(answer, api, call), on_error=refuse)


def _reword(words: str, call: Call, *, new: bool) -> str:
    jid = decode_name(call.args[0]) if call.args else ""
    for command in _WITHOUT_JID:
        if words.startswith(f"{command}(): Job {jid}"):
            words = f"{command}(): Job " + words[len(f"{command}(): Job {jid}") :].lstrip()
        words = words.replace(f'{command}(): Arg "queue" ', f'{command}(): Arg "queue_name" ')
    if new:
        words = words.replace("RecurringJob On()", "Recur()")
        if words == 'Recur(): Arg "spec" missing':
            words = "bad argument #1 to 'decode' (string expected, got nil)"
        if words.startswith(_COMMANDS_WITH_LIMIT):
            words = words.replace('Arg "count"', 'Arg "limit"')
    return words


# Names


def _shared(shape: ReplyShape, names: dict[str, str]) -> dict[str, _Translation]:
    """Return the commands that D and T share except for the format of jobs."""
    forms = {
        "get": _Translation("get", partial(answers.get, shape)),
        "multiget": _Translation("multiget", partial(answers.multiget, shape)),
        "pop": _Translation("pop", partial(answers.pop, shape)),
        "peek": _Translation("peek", partial(answers.peek, shape)),
        "put": _Translation("put", answers.put),
        "requeue": _Translation("requeue", answers.put),
        "queues": _Translation("queues", partial(answers.counts, shape)),
        "track": _Translation("track", partial(answers.tracked, shape)),
        "length": _Translation("length", answers.length),
        "recur.get": _Translation("recur.get", answers.recurring),
    }
    return {names.get(name, name): form for name, form in forms.items()}


_COMMON_COMMANDS: Final[dict[str, _Translation]] = {
    "throttle.delete": _Translation("throttle.delete", answers.throttle),
    "throttle.get": _Translation("throttle.get", answers.throttle),
    "throttle.release": _Translation("throttle.release", answers.throttle),
    "throttle.set": _Translation("throttle.set", answers.throttle),
    "throttle.ttl": _Translation("throttle.ttl", answers.throttle),
    "queue.throttle.get": _Translation(
        "throttle.get", partial(answers.apply_to_queue_throttle, answers.throttle)
    ),
    "queue.throttle.set": _Translation("throttle.set", answers.set_queue_throttle),
    "queue.forget": _Translation("queue.forget", answers.unchanged),
    "config.set": _Translation("config.set", answers.unchanged),
    "config.unset": _Translation("config.unset", answers.unchanged),
}

#: Commands of dialect T, including the commands that behave as in C.
_T_COMMANDS: Final[dict[str, _Translation]] = {
    **{
        name: _Translation(name, answers.unchanged)
        for name in (
            "cancel",
            "complete",
            "config.get",
            "depends",
            "fail",
            "failed",
            "heartbeat",
            "log",
            "pause",
            "priority",
            "recur.tag",
            "recur.untag",
            "recur.update",
            "retry",
            "stats",
            "tag",
            "timeout",
            "unfail",
            "unpause",
            "unrecur",
            "worker.deregister",
            "workers",
        )
    },
    **_shared(SHAPE_T, {}),
    **_COMMON_COMMANDS,
    "jobs": _Translation("jobs", answers.by_state),
    "recur": _Translation("recur", answers.recur),
    "throttle.get": _Translation("throttle.get", answers.throttle_without_ttl),
    "queue.throttle.get": _Translation(
        "throttle.get", partial(answers.apply_to_queue_throttle, answers.throttle_without_ttl)
    ),
    "throttle.locks": _Translation("throttle.locks", answers.throttle),
    "throttle.pending": _Translation("throttle.pending", answers.throttle),
}

_COMMANDS: Final[dict[str, _Translation]] = {
    **_shared(
        SHAPE_D,
        {
            "get": "job.get",
            "multiget": "job.getMulti",
            "pop": "queue.pop",
            "peek": "queue.peek",
            "put": "queue.put",
            "requeue": "job.requeue",
            "queues": "queues.counts",
            "track": "jobs.tracked",
            "length": "queue.length",
            "recur.get": "recurringJob.get",
        },
    ),
    **_COMMON_COMMANDS,
    "config.get": _Translation("config.get", answers.option),
    "config.getAll": _Translation("config.get", answers.option),
    "failureGroups.counts": _Translation(
        "failed", lambda api, call: api.run_command("failed", call.now, [])
    ),
    "job.addDependency": _Translation("depends", answers.unchanged, b"on", 1),
    "job.addTag": _Translation("tag", answers.list_reply, b"add"),
    "job.cancel": _Translation("cancel", answers.unchanged),
    "job.complete": _Translation("complete", answers.unchanged),
    "job.completeAndRequeue": _Translation("complete", answers.complete),
    "job.fail": _Translation("fail", answers.unchanged),
    "job.heartbeat": _Translation("heartbeat", answers.unchanged),
    "job.log": _Translation("log", answers.unchanged),
    "job.removeDependency": _Translation("depends", answers.unchanged, b"off", 1),
    "job.removeTag": _Translation("tag", answers.list_reply, b"remove"),
    "job.retry": _Translation("retry", answers.retry),
    "job.setPriority": _Translation("priority", answers.unchanged),
    "job.timeout": _Translation("timeout", answers.timeout),
    "job.track": _Translation("track", answers.unchanged, b"track"),
    "job.untrack": _Translation("track", answers.unchanged, b"untrack"),
    "jobs.completed": _Translation("jobs", answers.json_reply, b"complete"),
    "jobs.failedByGroup": _Translation("failed", answers.unchanged),
    "jobs.tagged": _Translation("tag", answers.unchanged, b"get"),
    "queue.counts": _Translation("queues", partial(answers.counts, SHAPE_D)),
    "queue.jobsByState": _Translation("jobs", answers.by_state_encoded),
    "queue.pause": _Translation("pause", answers.unchanged),
    "queue.recurAtInterval": _Translation("recur", answers.recur, b"interval", 4),
    "queue.stats": _Translation("stats", answers.stats),
    "queue.unfail": _Translation("unfail", answers.unfail),
    "queue.unpause": _Translation("unpause", answers.unchanged),
    "queueIdentifierPatterns.getAll": _Translation("get", queue_patterns.get_identifiers),
    "queueIdentifierPatterns.setAll": _Translation("config.set", queue_patterns.set_identifiers),
    "queuePriorityPatterns.getAll": _Translation("get", queue_patterns.get_priorities),
    "queuePriorityPatterns.setAll": _Translation("config.set", queue_patterns.set_priorities),
    "queues.names": _Translation("queues", answers.names),
    "recurringJob.addTag": _Translation("recur.tag", answers.list_reply),
    "recurringJob.cancel": _Translation("unrecur", answers.unchanged),
    "recurringJob.removeTag": _Translation("recur.untag", answers.list_reply),
    "recurringJob.update": _Translation("recur.update", answers.unchanged),
    "tags.top": _Translation("tag", answers.list_reply, b"top"),
    "throttle.locks": _Translation("throttle.locks", answers.throttle_encoded),
    "throttle.pending": _Translation("throttle.pending", answers.throttle_encoded),
    "worker.forget": _Translation("worker.deregister", answers.unchanged),
    "worker.jobs": _Translation("workers", answers.unchanged),
    "workers.counts": _Translation("workers", answers.list_reply),
}
#: Names that were used temporarily.
_TEMPORARY_NAMES: Final = {
    "job.depends": _Translation("depends", answers.unchanged),
    "job.priority": _COMMANDS["job.setPriority"],
    "job.tag": _COMMANDS["job.addTag"],
    "job.untag": _COMMANDS["job.removeTag"],
    "jobs.failed": _COMMANDS["jobs.failedByGroup"],
    "queue.recur": _Translation("recur", answers.recur),
    "queues.list": _COMMANDS["queues.counts"],
    "recurringJob.tag": _COMMANDS["recurringJob.addTag"],
    "recurringJob.unrecur": _COMMANDS["recurringJob.cancel"],
    "recurringJob.untag": _COMMANDS["recurringJob.removeTag"],
    "worker.counts": _COMMANDS["worker.jobs"],
    "worker.unregister": _COMMANDS["worker.forget"],
    "workers.list": _COMMANDS["workers.counts"],
}
_COMMANDS.update(_TEMPORARY_NAMES)
#: In builds that accept both sets of names, the old names are aliases of the new commands.
_COMMANDS.update(
    {
        "get": _COMMANDS["job.get"],
        "jobs": _COMMANDS["queue.jobsByState"],
        "multiget": _COMMANDS["job.getMulti"],
        "peek": _COMMANDS["queue.peek"],
        "pop": _COMMANDS["queue.pop"],
        "queues": _COMMANDS["queues.counts"],
        "recur.tag": _COMMANDS["recurringJob.addTag"],
        "recur.untag": _COMMANDS["recurringJob.removeTag"],
        "retry": _COMMANDS["job.retry"],
        "stats": _COMMANDS["queue.stats"],
        "tag": _Translation("tag", answers.list_reply),
        "timeout": _COMMANDS["job.timeout"],
        "track": _COMMANDS["jobs.tracked"],
        "unfail": _COMMANDS["queue.unfail"],
        "workers": _COMMANDS["workers.counts"],
    }
)
