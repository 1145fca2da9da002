"""MULTI, EXEC and WATCH: EXEC runs the queued commands as one unit, without other commands in
between.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from millrace.protocols.errors import ClientError

from .commands import (
    ANY,
    NEVER_WAITS,
    READ_ONLY,
    UNQUEUED,
    Answer,
    Command,
    Slices,
)
from .databases import database_prefix
from .key_access import QLESS_PREFIX
from .resp import (
    NO_LIST,
    OK,
    Error,
    Reply,
    Simple,
)
from .scratch import ScratchKeys, scratch_prefix
from .transactions import QueuedCommand, QueuedCommands, WorkStep

if TYPE_CHECKING:
    from .connection import QlessConnection
    from .hub import QlessHub

#: Maximum number of commands of a transaction.
MAX_TRANSACTION_COMMANDS: Final = 10_000
TOO_MANY_COMMANDS: Final = (
    f"ERR a transaction may have at most {MAX_TRANSACTION_COMMANDS} commands "
    "and must not exceed the maximum request size"
)
#: Maximum number of keys that a client may watch. The content of the first ones is compared; any
#: change counts as a change to the others.
MAX_WATCHED_KEYS: Final = 1000
MAX_COMPARED_KEYS: Final = 50
MAX_WATCHED_NAME: Final = 1000
#: Overhead of an argument in bytes.
ARGUMENT_OVERHEAD: Final = 64


class Multi:
    """The state of a connection since MULTI and since WATCH."""

    __slots__ = ("has_invalid_command", "queued", "size", "watch_triggered", "watched")

    def __init__(self) -> None:
        #: The commands for EXEC, their size, and whether one of them was invalid.
        self.queued: list[QueuedCommand] | None = None
        self.size = 0
        self.has_invalid_command = False
        #: The watched keys, with the content of each key of Qless, and whether a key has changed.
        self.watched: dict[tuple[int, bytes], Hashable] = {}
        self.watch_triggered = False

    def discard(self) -> None:
        """Drop the commands for EXEC."""
        self.queued = None
        self.size = 0
        self.has_invalid_command = False

    def unwatch(self, scratch: ScratchKeys) -> None:
        """Stop watching all keys."""
        for database, key in self.watched:
            scratch.unwatch(scratch_prefix(database) + key, self)
        self.watched.clear()
        self.watch_triggered = False

    def has_changed(self, hub: "QlessHub") -> bool:
        """Return whether a watched key has changed."""
        if self.watch_triggered:
            return True
        for position, ((database, key), before) in enumerate(self.watched.items()):
            hub.prefix = database_prefix(database)
            if _content(hub, key, position) != before:
                return True
        return False


def _content(hub: "QlessHub", key: bytes, position: int) -> Hashable:
    """Return the version of a Qless key, or a hash of its content. Scratch keys report their
    changes themselves.
    """
    if not key.startswith(QLESS_PREFIX):
        return 0
    view = hub.redis_view
    if position >= MAX_COMPARED_KEYS:
        return view.version_of_all()
    version = view.version(key)
    if version is not None:
        return version
    key_type = view.key_type(key)
    if key_type == "zset":
        return hash(tuple(view.scores(key)))
    if key_type == "hash":
        return hash(tuple(view.fields(key)))
    if key_type == "list":
        return hash(tuple(view.items(key)))
    return hash(tuple(view.members(key))) if key_type else 0


def queue_command(connection: "QlessConnection", command: Command, words: list[bytes]) -> None:
    """Keep a command for EXEC."""
    state = connection.multi
    assert state.queued is not None
    state.size += sum(map(len, words[1:])) + ARGUMENT_OVERHEAD * (len(words) - 1)
    if len(state.queued) >= MAX_TRANSACTION_COMMANDS or state.size > connection.hub.limits.request:
        state.queued.clear()
        state.has_invalid_command = True
        connection.reply_error(Error(TOO_MANY_COMMANDS))
    else:
        state.queued.append(QueuedCommand(command, words))
        connection.reply_value(Simple("QUEUED"))


def multi(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if connection.multi.queued is not None:
        raise ClientError("ERR MULTI calls can not be nested")
    connection.multi.queued = []
    return OK


def execute(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    state, hub = connection.multi, connection.hub
    if state.queued is None:
        raise ClientError("ERR EXEC without MULTI")
    queued, size, is_invalid = state.queued, state.size, state.has_invalid_command
    has_changed = state.has_changed(hub)
    state.discard()
    state.unwatch(hub.scratch)
    if is_invalid:
        raise ClientError("EXECABORT Transaction discarded because of previous errors.")
    if has_changed:
        return NO_LIST
    state.size = size
    if all(command.flags & READ_ONLY for command, _ in queued):
        return _run_queued(connection, QueuedCommands(connection, queued, None, now).run())
    record = hub.transactions.new_record(queued, size, now)
    return _run_queued(
        connection, _carry_out(connection, QueuedCommands(connection, queued, record, now))
    )


def _run_queued(connection: "QlessConnection", work: Slices) -> Slices:
    try:
        return (yield from work)
    finally:
        connection.multi.size = 0


def _carry_out(connection: "QlessConnection", transaction: QueuedCommands) -> Slices:
    """Run a transaction with changes: this function runs the first step, and the hub runs the
    others.
    """
    step = WorkStep(transaction.run())
    answer: Any = step()
    if answer is step:
        running = connection.hub.transactions.start(step, connection)
        while not running.has_ended:
            connection.long_command_waits = True  # the end of the transaction wakes it
            yield
        answer = running.result
    reply: Reply = answer
    return reply


def discard(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if connection.multi.queued is None:
        raise ClientError("ERR DISCARD without MULTI")
    connection.multi.discard()
    connection.multi.unwatch(connection.hub.scratch)
    return OK


def watch(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    state, hub = connection.multi, connection.hub
    if state.queued is not None:
        raise ClientError("ERR WATCH inside MULTI is not allowed")
    if len(state.watched) + len(args) > MAX_WATCHED_KEYS:
        raise ClientError(f"ERR a client may watch at most {MAX_WATCHED_KEYS} keys")
    if any(len(key) > MAX_WATCHED_NAME for key in args):
        raise ClientError(
            f"ERR the name of a watched key may have at most {MAX_WATCHED_NAME} bytes"
        )
    for key in args:
        if (connection.database, key) not in state.watched:
            content = _content(hub, key, len(state.watched))
            state.watched[connection.database, key] = content
            hub.scratch.watch(connection.scratch_prefix + key, state)
    return OK


def unwatch_all(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    connection.multi.unwatch(connection.hub.scratch)
    return OK


COMMANDS: Final = {
    b"MULTI": Command(multi, 0, 0, UNQUEUED | NEVER_WAITS),
    b"EXEC": Command(execute, 0, 0, UNQUEUED),
    b"DISCARD": Command(discard, 0, 0, UNQUEUED | NEVER_WAITS),
    b"WATCH": Command(watch, 1, ANY, UNQUEUED | NEVER_WAITS),
    b"UNWATCH": Command(unwatch_all, flags=NEVER_WAITS),
}
