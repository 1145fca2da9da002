"""Translate a script call to a command, and the result of the command to the reply of the script.

Each dialect is translated to the form of dialect C: command, now, arguments. dialect_a.py contains
the differences of dialect A and of the spec, and dialect_d.py the differences of reqless.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, Final

from . import (
    attempts,
    cancellation,
    dialect_a,
    dialect_d,
    edits,
    flush,
    job_replies,
    listings,
    locks,
    puts,
    queries,
    recurring,
    throttles,
)
from . import lua_values as lua
from .arguments import Args
from .commands import PLAIN_REPLY_TYPES, Slices
from .errors import ChangeRefused, ScriptError
from .hub import QlessHub
from .queries import job_text
from .redis_view import RedisView
from .resp import Reply
from .script_catalog import Script
from .state import QlessState

COMMANDS: Final[dict[str, Callable[[QlessState, int, Args], Any]]] = {
    **puts.COMMANDS,
    **locks.COMMANDS,
    **attempts.COMMANDS,
    **cancellation.COMMANDS,
    **queries.COMMANDS,
    **listings.COMMANDS,
    **edits.COMMANDS,
    **recurring.COMMANDS,
}
#: Commands that create jobs.
PUSH_COMMANDS: Final = frozenset({"put", "recur"})
#: Commands that are accepted while the store is not writable: they change no jobs. They may remove
#: workers from the list.
READ_COMMANDS: Final = (
    queries.COMMANDS.keys()
    | listings.COMMANDS.keys()
    | throttles.READ_COMMANDS
    | {"peek", "recur.get"}
)
#: Commands that only read if their first argument is one of these. None: no arguments.
_READING_FORMS: Final[dict[str, set[bytes | None]]] = {
    "track": {None},
    "tag": {b"get", b"top"},
    "consistencycheck": {None, b"0"},
}

#: Commands that return jobs.
_JOB_COMMANDS: Final = frozenset({"pop", "peek"})

#: Commands without a reply that apply to each argument separately.
_LIST_COMMANDS: Final = frozenset({"pause", "unpause", "queue.forget", "worker.deregister"})

_SCRIPT: Final = "qless/script/"


class QlessApi:
    """The Qless commands, for clients of all dialects."""

    def __init__(self, hub: QlessHub) -> None:
        self.hub = hub
        self.engine = hub.engine
        self.qless = QlessState(hub)
        hub.api = self
        hub.redis_view = RedisView(self.qless)
        hub.scripts.update((sha.encode(), script) for sha, script in self.loaded_scripts().items())
        self._scripts_revert_count = self.engine.revert_count

    def call(
        self, dialect: str, command: str, keys: list[bytes], args: list[bytes], now: int
    ) -> Reply | Slices:
        """Run a command as a script would, and return the result of the script.

        `dialect` is A, B, C, D or T, or "spec" for QLESS.<COMMAND>. `now` is the server's time;
        `args` contains the caller's time. Raises ScriptError, or ChangeRefused if the command would
        change state while the store fails.
        """
        qless = self.qless
        qless.refresh()
        is_dialect_a = dialect in {"A", "spec"}
        qless.publisher.is_dialect_a = is_dialect_a
        qless.lower_first = is_dialect_a and self.hub.dialect != "original"
        if is_dialect_a:
            call = dialect_a.translate(command, keys, args, spec=dialect == "spec")
        elif keys:
            raise ScriptError("No Keys should be provided")
        else:
            call = _translate_unified(dialect, command, args)
        if self.engine.unavailable_reason:
            if not _only_reads(call[0], call[2]):
                raise ChangeRefused
        elif self.engine.push_refusal_reason and call[0] in PUSH_COMMANDS:
            raise ChangeRefused
        elif self._scripts_revert_count != self.engine.revert_count:
            self._reload_scripts()
        self.hub.is_pop = call[0] == "pop"
        return self._answer(call, now)

    def _answer(self, call: dialect_a.Call, now: int) -> Reply | Slices:
        time, limits, caller = call[1], self.engine.limits, self.engine.caller
        if time == dialect_a.NO_TIME:
            # The clock of the client's last call applies. If there was none, each job uses the
            # clock that set its times.
            time = now + caller.clock_offset
            call = call._replace(now=time)
            caller.own_clock = caller.clock_offset != 0
        else:
            caller.use_own_clock(time, now)
        own_clock = caller.own_clock
        try:
            if limits.in_use:
                limits.unpark_by_client_clock(time)
            reply = call[3](self, call)
            if limits.in_use:
                limits.unpark_by_client_clock(time)
        finally:
            caller.own_clock = False
        if reply.__class__ not in PLAIN_REPLY_TYPES and isinstance(reply, Generator):
            return self._in_slices(reply, time, own_clock=own_clock, is_pop=self.hub.is_pop)
        return reply

    def _in_slices(self, work: Slices, time: int, *, own_clock: bool, is_pop: bool) -> Slices:
        """Run the slices of a command, each with the clock and the dialect of the command. If the
        store refuses a commit, the command ends. A pop then returns the jobs that it keeps.
        """
        engine, qless = self.engine, self.qless
        reverts = engine.revert_count
        modes = qless.publisher.is_dialect_a, qless.lower_first
        with closing(work):
            while True:
                qless.publisher.is_dialect_a, qless.lower_first = modes
                caller = engine.caller
                caller.own_clock = own_clock
                try:
                    next(work)
                except StopIteration as ended:
                    reply: Reply = ended.value
                    return reply
                finally:
                    if engine.limits.in_use:
                        engine.limits.unpark_freed(time)
                    caller.own_clock = False
                yield
                if engine.revert_count != reverts and not is_pop:
                    raise ChangeRefused

    def run_command(self, command: str, now: int, args: Args) -> Any:
        """Run a command. With many arguments, some commands return a generator."""
        if len(args) > job_replies.ARGUMENTS_BATCH_SIZE:
            if command in _LIST_COMMANDS:
                return job_replies.change_in_slices(
                    self.qless,
                    now,
                    args,
                    COMMANDS[command],
                    of_queues=command != "worker.deregister",
                )
            if command == "cancel":
                return cancellation.cancel_in_slices(self.qless, now, args)
        return COMMANDS[command](self.qless, now, args)

    def flush(self, now: int, *, all_databases: bool) -> Iterator[None]:
        """Remove all jobs of the database in use, or of all databases, in slices."""
        qless = self.qless
        qless.refresh()
        return flush.flush(qless, now, all_databases=all_databases)

    def forget_queue(self, name: str) -> None:
        """Remove the recorded time of the first put into a queue that the engine has removed."""
        self.qless.refresh()
        self.qless.forget_queue(name)

    def flush_server(self, now: int) -> None:
        """Remove all jobs of all protocols."""
        self.engine.flush(now)
        self.qless.flush()

    # Scripts

    def load_script(self, sha: str, script: Script) -> None:
        """Store durably which script has this SHA1. hub.scripts contains it after the next start.

        The call has no effect if the script is already stored. It stores the script again if the
        engine has reverted an earlier call.
        """
        key = _SCRIPT + sha
        value = f"{script.dialect} {script.command}".encode()
        if self.engine.settings.get(key) != value:
            self.engine.set_setting(key, value)

    def _reload_scripts(self) -> None:
        """Store the scripts again, because the engine may have reverted their settings."""
        self._scripts_revert_count = self.engine.revert_count
        for sha, script in self.hub.scripts.items():
            self.load_script(sha.decode(), script)

    def flush_scripts(self) -> None:
        """Remove all stored scripts, for SCRIPT FLUSH."""
        for key in [key for key in self.engine.settings if key.startswith(_SCRIPT)]:
            self.engine.set_setting(key, None)

    def loaded_scripts(self) -> dict[str, Script]:
        """Return the scripts that clients have loaded, including before a restart."""
        return {
            key[len(_SCRIPT) :]: Script(*value.decode().split(" ", 1))
            for key, value in self.engine.settings.items()
            if key.startswith(_SCRIPT)
        }


def _only_reads(command: str, args: Args) -> bool:
    forms = _READING_FORMS.get(command)
    if forms is None:
        return command in READ_COMMANDS
    return (args[0] if args else None) in forms


def _translate_unified(dialect: str, command: str, args: Args) -> dialect_a.Call:
    """Translate a call of dialects B, C, D and T: the time, followed by the arguments."""
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
        return dialect_d.translate(dialect, command, lua.parse_clock(now), rest)
    if dialect == "B" and command == "put":
        rest = [b"", *rest]
    return dialect_a.Call(command, lua.parse_clock(now), rest, _reply_unchanged)


def _reply_unchanged(api: Any, call: dialect_a.Call) -> Any:
    """Run a command and return the reply of a script of dialect B or C."""
    command, now, args, _ = call
    if command in _JOB_COMMANDS:
        return job_replies.reply_with_jobs(api, call, job_text, lua.join_list)
    return api.run_command(command, now, args)
