"""A client connection of the Qless port: it parses requests and sends replies in RESP.

This module converts requests to commands and checks permissions. The modules handshake, multi,
scripts, keys, key_values, pubsub and info implement the commands.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final

from millrace.engine.errors import QueueRefused
from millrace.engine.waiters import Waiter
from millrace.protocols.connection import LARGE_REPLY, SLICE_COST, Connection
from millrace.protocols.errors import (
    STORE_FAILED,
    ClientError,
    PartlyExecuted,
    PayloadDamaged,
    StoreUnavailable,
)
from millrace.protocols.registry import QLESS
from millrace.protocols.slices import free_in_slices
from millrace.protocols.web_clients import is_web_request

from . import handshake, info, key_values, keys, multi, pubsub, scripts
from .commands import (
    BEFORE_AUTH,
    NEVER_WAITS,
    NOT_IN_MULTI,
    PLAIN_REPLY_TYPES,
    SUBSCRIBER,
    UNQUEUED,
    Answer,
    Command,
    NoReply,
    Slices,
    clip_argument,
    unknown_command,
    wrong_count,
)
from .databases import database_prefix
from .errors import ChangeRefused, ScriptError
from .hub import QlessHub
from .multi import Multi
from .progress import CommandProgress
from .resp import (
    LONG_LIST,
    NO_LIST,
    CommittedReply,
    Error,
    Reply,
    encode,
    encode_parts,
    join_parts,
)
from .resp_requests import ProtocolError, RequestBuffer
from .scratch import scratch_prefix
from .transactions import WorkStep

#: First words of lines in an HTTP request, which any web page can make a browser send. The server
#: closes the connection without a reply.
_HTTP_WORDS: Final = frozenset({b"POST", b"HOST:"})

NO_AUTH: Final = "NOAUTH Authentication required."


class QlessConnection(Connection):
    def __init__(self, hub: QlessHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self._requests = RequestBuffer()
        #: Whether the buffered data is an incomplete request.
        self._incomplete = False
        self._input_ended = False
        #: Whether the client has authenticated or does not need to.
        self.authenticated = not hub.password
        self.limits = hub.limits if self.authenticated else hub.unauthenticated_limits
        #: RESP 2 or 3.
        self.resp_version = 2
        self.name = b""
        self.database = 0
        #: Prefixes of the names of its jobs and of its scratch keys.
        self._prefix = ""
        self.scratch_prefix = b""
        #: Its subscriptions.
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        #: Size of the messages to subscriptions that are not written yet.
        self.unsent_message_bytes = 0
        self.multi = Multi()
        #: Whether EXEC is running. A command must not block then.
        self.in_exec = False
        #: The changes of the long command.
        self._progress: CommandProgress | None = None
        #: The lists that BRPOP waits for.
        self._awaited_keys: list[bytes] = []
        hub.connection_count += 1
        self.number = hub.connection_count
        if hub.full:
            self.reply_error(Error("ERR max number of clients reached"))
            self.closing = True
        else:
            hub.connections.add(self)

    # Framing

    @property
    def unprocessed_bytes(self) -> int:
        """Count an incomplete request as one byte, so that the server reads the rest of it."""
        held = len(self._requests)
        return min(held, 1) if self._incomplete else held

    @property
    def memory_used(self) -> int:
        return len(self._requests) + self.multi.size

    def drop_input(self) -> None:
        self._requests = RequestBuffer()
        self.drop_long_command()
        self.multi.discard()

    def feed(self, data: bytes) -> None:
        self._requests.feed(data)
        self._incomplete = False

    def has_input(self) -> bool:
        return bool(self._requests)

    def run(self, now: int, max_cost: int) -> bool:
        if self.hub.transactions.exclusive is not None and self.waiter is None:
            waits = self.long_command is not None or (self.has_input() and not self._incomplete)
            return waits and not self.closing
        return super().run(now, max_cost)

    def step(self, now: int) -> int:
        try:
            request = self._requests.take(self.limits)
        except ProtocolError as problem:
            self.reply_error(Error(f"ERR Protocol error: {problem}"))
            self.closing = True
            return 0
        if request is None and self._requests.is_partly_read:
            return SLICE_COST
        if request is None:
            self._incomplete = True
            self.closing = self._input_ended
            if not self.passed_web_check and is_web_request(self._requests.head):
                self.reject_web_client(self.hub)
            return 0
        if not self.passed_web_check and request:
            if self._requests.inline and is_web_request(b" ".join(request)):
                self.reject_web_client(self.hub)
                return 0
            self.passed_web_check = True
        if request:
            self._execute(request, now)
        return 1

    def reply_value(self, reply: Reply) -> None:
        self.reply(encode(reply, self.resp_version))

    def reply_error(self, reply: Error) -> None:
        self.hub.errors += 1
        self.reply_value(reply)

    # From requests to commands

    def _execute(self, request: list[bytes], now: int) -> None:
        word = request[0]
        command = self.commands.get(word) or self.commands.get(word.upper())
        usual = (  # the usual case, which needs no further checks
            command is not None
            and command.min_args < len(request) <= command.max_args + 1
            and self.authenticated
            and not self.channels
            and not self.patterns
            and self.multi.queued is None
        )
        problem = "" if usual else self._problem(command, request)
        if command is None or problem:
            self.multi.has_invalid_command = self.multi.queued is not None
            if word.upper() in _HTTP_WORDS:
                self.closing = True
            else:
                self.reply_error(Error(problem))
            return
        if self.multi.queued is not None and not command.flags & UNQUEUED:
            multi.queue_command(self, command, request)
            return
        hub = self.hub
        hub.commands += 1
        hub.is_pop = False
        answer = self.perform(command, request[1:], now)
        if isinstance(answer, list) and len(answer) > LONG_LIST:
            answer = _as_long_command(answer)
        if answer.__class__ not in PLAIN_REPLY_TYPES and isinstance(answer, Generator):
            self._progress = CommandProgress(self.engine)
            self.begin_long_command(self._reply_in_slices(answer, self._progress))
            self.run_slice()
            return
        reply: Any = answer
        if not isinstance(reply, NoReply):
            if not (command.flags & NEVER_WAITS or hub.is_pop):
                self.caller.wait()
            self.reply(encode(reply, self.resp_version))
        self.serve_list_waiters(now)

    def serve_list_waiters(self, now: int) -> None:
        """Deliver items that were pushed to lists to the clients that wait for them."""
        if self.hub.scratch.pushed:
            for waiter, key, item in self.hub.scratch.take_deliveries(now):
                waiter.take_item(key, item, now)

    def run_slice(self) -> int:
        progress = self._progress
        if progress is None or self.in_exec:  # EXEC makes its changes as a whole
            return super().run_slice()
        progress.begin_slice()
        cost = super().run_slice()
        if not self.in_exec:
            progress.end_slice()
        return cost

    def _reply_in_slices(self, work: Slices, progress: CommandProgress) -> Iterator[None]:
        """Run a long command slice by slice, and reply after the last one."""
        step, hub = WorkStep(work), self.hub
        hub.awaits_commit = hub.is_durable = False
        with closing(work):
            while (answer := self.attempt(step)) is step:
                if hub.awaits_commit:
                    self.await_commit()
                is_durable = hub.is_durable
                yield
                hub.awaits_commit, hub.is_durable = False, is_durable
        if hub.is_durable:
            self.caller.must_wait = False
        is_durable = hub.is_durable or isinstance(answer, CommittedReply)
        turn = self.engine.turn
        if isinstance(answer, bytes) and len(answer) > LARGE_REPLY:
            yield  # its encoding copies it
        if not isinstance(answer, NoReply):
            parts = yield from encode_parts(answer, self.resp_version)
            pieces = yield from join_parts(parts)
            yield from free_in_slices(parts)
            if isinstance(answer, list):
                yield from free_in_slices(answer)
            if not is_durable:
                yield from self._await_changes(turn, progress)
                if progress.is_reverted and not isinstance(answer, Error):
                    pieces = [encode(Error(self._refusal()), self.resp_version)]
                self.caller.wait()
            self.reply_in_pieces(pieces)
        self._progress = None

    def _await_changes(self, turn: int, progress: CommandProgress) -> Iterator[None]:
        """Wait until the changes of that turn are durable, if the store could refuse only some of
        them.
        """
        if progress.must_wait_for_commit:
            while progress.is_uncommitted(turn):
                self.await_commit()
                yield
            if self.engine.durable:
                self.caller.must_wait = False

    def _problem(self, command: Command | None, request: list[bytes]) -> str:
        """Return the reason for rejecting this command, checked in the order that Redis uses."""
        if command is None:
            return unknown_command(request)
        flags = command.flags
        if not command.min_args <= len(request) - 1 <= command.max_args:
            return wrong_count(clip_argument(request[0]).lower())
        if not self.authenticated and not flags & BEFORE_AUTH:
            return NO_AUTH
        if self.resp_version == 2 and self.subscriptions and not flags & SUBSCRIBER:
            return (
                f"ERR Can't execute '{clip_argument(request[0]).lower()}': only (P|S)SUBSCRIBE / "
                "(P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            )
        if self.multi.queued is not None and flags & NOT_IN_MULTI:
            return "ERR Command not allowed inside a transaction"
        return ""

    def perform(self, command: Command, args: list[bytes], now: int) -> Answer:
        answer: Answer = self.attempt(partial(command.handler, self, args, now))
        return answer

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Run an action in the database of this connection, and return its result or its error."""
        self.hub.prefix = self._prefix
        try:
            return action()
        except ScriptError as problem:
            found = Error(f"ERR user_script:1: {problem}")
        except QueueRefused as problem:
            found = Error(f"NOPERM {problem}")
        except PayloadDamaged as problem:
            found = Error(f"ERR {problem}")
        except ClientError as problem:
            found = Error(str(problem))
        except ChangeRefused:
            found = Error(self._refusal())
        finally:
            self.hub.prefix = ""
        self.hub.errors += 1
        return found

    def unavailable_reply(self, reason: str) -> bytes:
        return encode(Error(f"MISCONF {StoreUnavailable(reason)}"), self.resp_version)

    def _refusal(self) -> str:
        engine, progress = self.engine, self._progress
        reason = engine.unavailable_reason or engine.push_refusal_reason or STORE_FAILED
        may_be_partly_committed = progress is not None and progress.may_be_partly_committed
        return (
            f"MISCONF {(PartlyExecuted if may_be_partly_committed else StoreUnavailable)(reason)}"
        )

    # The end of a connection

    def handshake_overdue(self) -> bool:
        return not self.authenticated

    def input_closed(self, now: int) -> bool:
        """The client has closed its sending side. Pending requests are answered, and a blocked
        command ends.
        """
        self._input_ended = True
        if self.waiter is not None:
            self._stop_waiting()
            self.reply_value(NO_LIST)
        return True

    def connection_lost(self, now: int) -> None:
        self.closing = True
        self.drop_long_command()
        self.hub.connections.discard(self)
        self.hub.connections_with_messages.discard(self)
        self.hub.pubsub.leave(self)
        self.engine.set_alarm((self, "resume"), None)
        self.multi.unwatch(self.hub.scratch)
        if self.waiter is not None:
            self._stop_waiting()

    # Waiting for a list

    def wait_for_item(self, keys: list[bytes], until: int) -> None:
        self._awaited_keys = keys
        self.hub.scratch.add_waiter(keys, self)
        self.waiter = Waiter((), "", QLESS, self)
        self.engine.add_waiter(self.waiter, until)

    def take_item(self, key: bytes, item: bytes, now: int) -> None:
        """End a blocked command with the item that was pushed to its list."""
        self._stop_waiting()
        self.reply_value([key.removeprefix(self.scratch_prefix), item])
        self.hub.connections_with_messages.add(self)
        if self._requests:
            self.engine.set_alarm((self, "resume"), now)

    def handle_alarm(self, name: str, now: int) -> None:
        """Do nothing: the alarm wakes the server, which then processes the requests received during
        the wait.
        """

    def timed_out(self, now: int) -> None:
        if self.waiter is not None:  # None if an earlier delivery of this turn has ended the wait
            self._stop_waiting()
            self.reply_value(NO_LIST)

    def stop_waiting(self, now: int) -> None:
        self.timed_out(now)

    def _stop_waiting(self) -> None:
        assert self.waiter is not None
        waiter, self.waiter = self.waiter, None
        self.engine.cancel_wait(waiter)
        self.hub.scratch.remove_waiter(self._awaited_keys, self)
        self._awaited_keys = []

    def use_database(self, number: int) -> None:
        self.database = number
        self._prefix = self.hub.prefix = database_prefix(number)
        self.scratch_prefix = scratch_prefix(number)

    @property
    def subscriptions(self) -> int:
        return len(self.channels) + len(self.patterns)

    def attempt_step(self, step: Callable[[], object]) -> object:
        """Run a step of a transaction outside of the commands of this connection."""
        engine = self.engine
        engine.caller = self.caller
        try:
            answer: object = self.attempt(step)
            return answer
        finally:
            engine.caller = engine.server_caller

    #: All commands, in upper case.
    commands: Final[Mapping[bytes, Command]] = {
        **handshake.COMMANDS,
        **multi.COMMANDS,
        **scripts.COMMANDS,
        **keys.COMMANDS,
        **key_values.COMMANDS,
        **pubsub.COMMANDS,
        **info.COMMANDS,
    }


def _as_long_command(answer: Reply) -> Slices:
    """An answer as a long command, so that it is encoded in slices."""
    return answer
    yield
