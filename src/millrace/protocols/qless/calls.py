"""Translate a script call to a command, and the result of the command to the reply of the script.

Each dialect is translated to the form of dialect C: command, now, arguments. dialect_a.py contains
the differences of dialect A and of the spec, and dialect_d.py the differences of reqless.
"""

from collections.abc import Callable, Generator, Iterator
from math import ceil
from typing import Any, Final

from millrace.engine.job import Job, extra_of
from millrace.engine.why import Reason

from . import batches, dialect_a, dialect_d, edits, flush, queries, recurring, throttles, work
from . import lua_values as lua
from .arguments import Args
from .commands import Slices
from .contract import Refused, ScriptError
from .hub import QlessHub
from .job_view import part_of
from .queries import job_json
from .redis_view import RedisView
from .resp import Reply
from .script_catalog import Script
from .state import Qless

COMMANDS: Final[dict[str, Callable[[Qless, int, Args], Any]]] = {
    **work.COMMANDS,
    **queries.COMMANDS,
    **edits.COMMANDS,
    **recurring.COMMANDS,
}
#: Commands that create jobs.
PUSHING: Final = frozenset({"put", "recur"})
#: Commands that change no durable state. They are also accepted while the engine is halted.
READING: Final = (
    frozenset(queries.COMMANDS) | throttles.READING | {"peek", "recur.get", "worker.deregister"}
)
#: Commands that only read if their first argument is one of these. None: no arguments.
_READING_FORMS: Final[dict[str, set[bytes | None]]] = {
    "track": {None},
    "tag": {b"get", b"top"},
    "config": {b"get"},
    "consistencycheck": {None, b"0"},
}

#: Types of most replies. This check is cheaper than a check for a generator.
PLAIN: Final = frozenset({bytes, int, str, list, type(None)})

#: Commands that return jobs.
_JOBS: Final = frozenset({"pop", "peek"})

_SCRIPT: Final = "qless/script/"


class QlessApi:
    """The Qless commands, for clients of all dialects."""

    def __init__(self, hub: QlessHub) -> None:
        self.hub = hub
        self.engine = hub.engine
        self.qless = Qless(hub)
        self.engine.keeper = self.qless.attend
        hub.api = self
        hub.virtual = RedisView(self.qless)
        hub.scripts.update((sha.encode(), script) for sha, script in self.learned().items())
        self._learned_for = self.engine.reverts

    def call(
        self, dialect: str, command: str, keys: list[bytes], args: list[bytes], now: int
    ) -> Reply | Slices:
        qless = self.qless
        qless.refresh()
        early = dialect in {"A", "spec"}
        qless.early = early
        qless.lower_first = early and self.hub.dialect != "original"
        if early:
            # A call without a time uses the clock of the last caller.
            clock = now + self.engine.theirs
            call = dialect_a.translate(command, keys, args, clock, spec=dialect == "spec")
        elif keys:
            raise ScriptError("No Keys should be provided")
        else:
            call = _unified(dialect, command, args)
        if self.engine.halted:
            if not _only_reads(call[0], call[2]):
                raise Refused
        elif self.engine.pushes_refused and call[0] in PUSHING:
            raise Refused
        elif self._learned_for != self.engine.reverts:
            self._learn_again()
        self.hub.leased = call[0] == "pop"
        return self._answer(call, now)

    def _answer(self, call: dialect_a.Call, now: int) -> Reply | Slices:
        caller, throttles = call[1], self.qless.throttles
        self.engine.skew = self.engine.theirs = caller - now
        try:
            if throttles.pending:
                throttles.settle(caller)
            reply = call[3](self, call)
            if throttles.pending:
                throttles.settle(caller)
        finally:
            self.engine.skew = 0
        if reply.__class__ not in PLAIN and isinstance(reply, Generator):
            return self._in_slices(reply, caller, now)
        return reply

    def _in_slices(self, work: Slices, caller: int, now: int) -> Slices:
        """Run each slice of a command as the command itself runs."""
        engine, qless = self.engine, self.qless
        undone = engine.reverts
        modes = qless.early, qless.lower_first
        while True:
            qless.early, qless.lower_first = modes
            engine.skew = engine.theirs = caller - now
            try:
                next(work)
            except StopIteration as ended:
                reply: Reply = ended.value
                return reply
            finally:
                engine.skew = 0
            yield
            if engine.reverts != undone:
                raise Refused

    def do(self, command: str, now: int, args: Args) -> Any:
        return COMMANDS[command](self.qless, now, args)

    def flush(self, now: int, *, everything: bool) -> Iterator[None]:
        qless = self.qless
        qless.refresh()
        return flush.flush(qless, now, everything=everything)

    def job_tagged(self, job: Job, now: int) -> None:
        """Index the tags of a job of another protocol."""
        self.qless.refresh()
        part = part_of(job)
        self.qless.set_tags(job, part, [(tag, now) for tag in extra_of(job).tags])

    def flush_server(self, now: int) -> None:
        self.engine.flush(now)
        self.qless.flush()

    def holds_back(self, job: Job, now: int) -> list[Reason]:
        self.qless.refresh()
        found = []
        most = self.qless.setting(f"{job.queue}-max-concurrency")
        if 0 < most <= self.qless.running(job.queue, now):
            about = f"Qless's setting {job.queue}-max-concurrency"
            found.append(Reason("limit", count=int(most), about=about))
        for tid in throttles.names_of(job):
            maximum = self.qless.throttles.maximum(tid, now)
            if 0 < maximum <= len(self.qless.throttles.some_holders(tid, ceil(maximum))):
                about = f"Qless's throttle {tid}"
                found.append(Reason("limit", count=int(maximum), about=about))
        return found

    # Scripts

    def learn(self, sha: str, script: Script) -> None:
        key = _SCRIPT + sha
        value = f"{script.dialect} {script.command}".encode()
        if self.engine.notes.get(key) != value:
            self.engine.note(key, value)

    def _learn_again(self) -> None:
        """Store the scripts again, because the engine may have reverted the notes of loaded
        scripts.
        """
        self._learned_for = self.engine.reverts
        for sha, script in self.hub.scripts.items():
            self.learn(sha.decode(), script)

    def forget(self) -> None:
        for key in [key for key in self.engine.notes if key.startswith(_SCRIPT)]:
            self.engine.note(key, None)

    def learned(self) -> dict[str, Script]:
        """Return the scripts that clients have loaded, including before a restart."""
        return {
            key[len(_SCRIPT) :]: Script(*value.decode().split(" ", 1))
            for key, value in self.engine.notes.items()
            if key.startswith(_SCRIPT)
        }


def _only_reads(command: str, args: Args) -> bool:
    forms = _READING_FORMS.get(command)
    if forms is None:
        return command in READING
    return (args[0] if args else None) in forms


def _unified(dialect: str, command: str, args: Args) -> dialect_a.Call:
    """Translate a call of dialects B to D: the time, followed by the arguments."""
    if not command:
        raise ScriptError("Must provide a command")
    newer = dialect in dialect_d.DIALECTS
    if not (dialect_d.knows(command) if newer else command in COMMANDS):
        raise ScriptError(f"Unknown command {command}")
    if not args:
        raise ScriptError("bad argument #1 to 'tonumber' (value expected)")
    now = lua.tonumber(args[0])
    if now is None:
        raise ScriptError('Arg "now" missing or not a number: nil')
    rest = args[1:]
    if newer:
        return dialect_d.translate(dialect, command, lua.clock(now), rest)
    if dialect == "B" and command == "put":
        rest = [b"", *rest]
    return dialect_a.Call(command, lua.clock(now), rest, _as_it_says)


def _as_it_says(api: Any, call: dialect_a.Call) -> Any:
    """Run a command and return the reply of a script of dialect B or C."""
    command, now, args, _ = call
    if command in _JOBS:
        return batches.reply(api, call, job_json, lua.listed)
    found = COMMANDS[command](api.qless, now, args)
    reply: Reply = found
    return reply
