"""Dialect D, reqless: the commands of C under other names, and what it has besides: throttles, and
patterns for the names of queues.

Dialect T is reqless before it got those names, as its releases on PyPI have it: C with throttles.
Builds from the time between know both sets of names, so each of the two takes the other's as well.
"""

from functools import partial
from typing import Any, Final, NamedTuple

from . import dialect_d_replies as answers
from . import queue_patterns
from .arguments import Args
from .contract import ScriptError
from .dialect_a import Call
from .dialect_d_replies import NEW, OLD, Answer, Shape
from .names import decode_name
from .resp import Reply

DIALECTS: Final = frozenset({"D", "T"})


class _Form(NamedTuple):
    """The command of dialect C, the answer, and a word that C wants among the arguments."""

    command: str
    answer: Answer
    word: bytes = b""
    at: int = 0


def knows(command: str) -> bool:
    return command in _COMMANDS or command in _EARLY


def translate(dialect: str, command: str, now: int, args: Args) -> Call:
    first, second = (_COMMANDS, _EARLY) if dialect == "D" else (_EARLY, _COMMANDS)
    form = first.get(command) or second[command]
    args = list(args)
    if form.word and len(args) >= form.at:
        args.insert(form.at, form.word)
    return Call(form.command, now, args, partial(_reworded, form.answer, dialect == "D"))


# Errors

_WITHOUT_JID: Final = ("Complete", "Fail", "Heartbeat", "Retry")
_LIMITED: Final = ("Pop(", "Peek(", "Jobs(", "Tag(")


def _reworded(answer: Answer, new: bool, api: Any, call: Call) -> Reply:
    """Errors do not name the job, and some arguments have other names."""
    try:
        return answer(api, call)
    except ScriptError as error:
        raise ScriptError(_words(str(error), call, new=new)) from None


def _words(words: str, call: Call, *, new: bool) -> str:
    jid = decode_name(call.args[0]) if call.args else ""
    for who in _WITHOUT_JID:
        if words.startswith(f"{who}(): Job {jid}"):
            words = f"{who}(): Job " + words[len(f"{who}(): Job {jid}") :].lstrip()
        words = words.replace(f'{who}(): Arg "queue" ', f'{who}(): Arg "queue_name" ')
    if new:
        words = words.replace("RecurringJob On()", "Recur()")
        if words == 'Recur(): Arg "spec" missing':
            words = "bad argument #1 to 'decode' (string expected, got nil)"
        if words.startswith(_LIMITED):
            words = words.replace('Arg "count"', 'Arg "limit"')
    return words


# Names


def _shared(shape: Shape, names: dict[str, str]) -> dict[str, _Form]:
    """Commands that are the same in both but for the shape of jobs."""
    forms = {
        "get": _Form("get", partial(answers.get, shape)),
        "multiget": _Form("multiget", partial(answers.multiget, shape)),
        "pop": _Form("pop", partial(answers.pop, shape)),
        "peek": _Form("peek", partial(answers.peek, shape)),
        "put": _Form("put", answers.put),
        "requeue": _Form("requeue", answers.put),
        "queues": _Form("queues", partial(answers.counts, shape)),
        "track": _Form("track", partial(answers.tracked, shape)),
        "length": _Form("length", answers.length),
        "recur.get": _Form("recur.get", answers.recurring),
    }
    return {names.get(name, name): form for name, form in forms.items()}


_BOTH: Final[dict[str, _Form]] = {
    "throttle.delete": _Form("throttle.delete", answers.throttle),
    "throttle.get": _Form("throttle.get", answers.throttle),
    "throttle.release": _Form("throttle.release", answers.throttle),
    "throttle.set": _Form("throttle.set", answers.throttle),
    "throttle.ttl": _Form("throttle.ttl", answers.throttle),
    "queue.throttle.get": _Form("throttle.get", partial(answers.of_queue, answers.throttle)),
    "queue.throttle.set": _Form("throttle.set", answers.set_queue_throttle),
    "queue.forget": _Form("queue.forget", answers.as_it_is),
    "config.set": _Form("config.set", answers.as_it_is),
    "config.unset": _Form("config.unset", answers.as_it_is),
}

#: Dialect T, and what it has as C does.
_EARLY: Final[dict[str, _Form]] = {
    **{
        name: _Form(name, answers.as_it_is)
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
    **_shared(OLD, {}),
    **_BOTH,
    "jobs": _Form("jobs", answers.by_state),
    "recur": _Form("recur", answers.recur),
    "throttle.get": _Form("throttle.get", answers.limit),
    "queue.throttle.get": _Form("throttle.get", partial(answers.of_queue, answers.limit)),
    "throttle.locks": _Form("throttle.locks", answers.throttle),
    "throttle.pending": _Form("throttle.pending", answers.throttle),
}

_COMMANDS: Final[dict[str, _Form]] = {
    **_shared(
        NEW,
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
    **_BOTH,
    "config.get": _Form("config.get", answers.option),
    "config.getAll": _Form("config.get", answers.option),
    "failureGroups.counts": _Form("failed", lambda api, call: api.do("failed", call.now, [])),
    "job.addDependency": _Form("depends", answers.as_it_is, b"on", 1),
    "job.addTag": _Form("tag", answers.listed, b"add"),
    "job.cancel": _Form("cancel", answers.as_it_is),
    "job.complete": _Form("complete", answers.as_it_is),
    "job.completeAndRequeue": _Form("complete", answers.complete),
    "job.fail": _Form("fail", answers.as_it_is),
    "job.heartbeat": _Form("heartbeat", answers.as_it_is),
    "job.log": _Form("log", answers.as_it_is),
    "job.removeDependency": _Form("depends", answers.as_it_is, b"off", 1),
    "job.removeTag": _Form("tag", answers.listed, b"remove"),
    "job.retry": _Form("retry", answers.retry),
    "job.setPriority": _Form("priority", answers.as_it_is),
    "job.timeout": _Form("timeout", answers.timeout),
    "job.track": _Form("track", answers.as_it_is, b"track"),
    "job.untrack": _Form("track", answers.as_it_is, b"untrack"),
    "jobs.completed": _Form("jobs", answers.encoded, b"complete"),
    "jobs.failedByGroup": _Form("failed", answers.as_it_is),
    "jobs.tagged": _Form("tag", answers.as_it_is, b"get"),
    "queue.counts": _Form("queues", partial(answers.counts, NEW)),
    "queue.jobsByState": _Form("jobs", answers.by_state_encoded),
    "queue.pause": _Form("pause", answers.as_it_is),
    "queue.recurAtInterval": _Form("recur", answers.recur, b"interval", 4),
    "queue.stats": _Form("stats", answers.stats),
    "queue.unfail": _Form("unfail", answers.unfail),
    "queue.unpause": _Form("unpause", answers.as_it_is),
    "queueIdentifierPatterns.getAll": _Form("get", queue_patterns.get_identifiers),
    "queueIdentifierPatterns.setAll": _Form("config.set", queue_patterns.set_identifiers),
    "queuePriorityPatterns.getAll": _Form("get", queue_patterns.get_priorities),
    "queuePriorityPatterns.setAll": _Form("config.set", queue_patterns.set_priorities),
    "queues.names": _Form("queues", answers.names),
    "recurringJob.addTag": _Form("recur.tag", answers.listed),
    "recurringJob.cancel": _Form("unrecur", answers.as_it_is),
    "recurringJob.removeTag": _Form("recur.untag", answers.listed),
    "recurringJob.update": _Form("recur.update", answers.as_it_is),
    "tags.top": _Form("tag", answers.listed, b"top"),
    "throttle.locks": _Form("throttle.locks", answers.throttle_encoded),
    "throttle.pending": _Form("throttle.pending", answers.throttle_encoded),
    "worker.forget": _Form("worker.deregister", answers.as_it_is),
    "worker.jobs": _Form("workers", answers.as_it_is),
    "workers.counts": _Form("workers", answers.listed),
}
#: What they were called for a while.
_FOR_A_WHILE: Final = {
    "job.depends": _Form("depends", answers.as_it_is),
    "job.priority": _COMMANDS["job.setPriority"],
    "job.tag": _COMMANDS["job.addTag"],
    "job.untag": _COMMANDS["job.removeTag"],
    "jobs.failed": _COMMANDS["jobs.failedByGroup"],
    "queue.recur": _Form("recur", answers.recur),
    "queues.list": _COMMANDS["queues.counts"],
    "recurringJob.tag": _COMMANDS["recurringJob.addTag"],
    "recurringJob.unrecur": _COMMANDS["recurringJob.cancel"],
    "recurringJob.untag": _COMMANDS["recurringJob.removeTag"],
    "worker.counts": _COMMANDS["worker.jobs"],
    "worker.unregister": _COMMANDS["worker.forget"],
    "workers.list": _COMMANDS["workers.counts"],
}
_COMMANDS.update(_FOR_A_WHILE)
#: In builds that know both, the old names are the new commands, and answer as those do.
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
        "tag": _Form("tag", answers.listed),
        "timeout": _COMMANDS["job.timeout"],
        "track": _COMMANDS["jobs.tracked"],
        "unfail": _COMMANDS["queue.unfail"],
        "workers": _COMMANDS["workers.counts"],
    }
)
