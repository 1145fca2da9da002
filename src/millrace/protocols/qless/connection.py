"""A client connection of the Qless port: it parses requests and sends replies in RESP.

This module implements the connection itself: conversion of requests to commands, permission checks,
the handshake and transactions. The modules scripts, keys, pubsub and info implement the commands.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from functools import partial
from hmac import compare_digest
from typing import Any, Final

from millrace.engine.errors import QueueRefused
from millrace.engine.job import SECOND
from millrace.engine.waiters import Waiter
from millrace.protocols import connection
from millrace.protocols.connection import LARGE_REPLY, SLICE_COST, Connection
from millrace.protocols.errors import ClientError, StoreUnavailable
from millrace.protocols.logins import TooManyGuesses
from millrace.protocols.registry import QLESS
from millrace.protocols.web_clients import is_web_request

from . import info, keys, pubsub, scripts
from .commands import (
    ANY,
    BEFORE_AUTH,
    NEVER_WAITS,
    NOT_IN_MULTI,
    READS,
    SUBSCRIBER,
    SYNTAX,
    UNQUEUED,
    Answer,
    Command,
    NoReply,
    Slices,
    expect,
    integer,
    shown,
    unknown_command,
    unknown_subcommand,
    wrong_count,
)
from .databases import database_prefix
from .errors import QlessRefused, ScriptError
from .hub import QlessHub
from .resp import (
    LONG_LIST,
    NO_LIST,
    OK,
    Committed,
    Error,
    ProtocolError,
    Reply,
    Requests,
    Simple,
    Verbatim,
    encode,
    encode_parts,
    join_parts,
)
from .scratch import scratch_prefix
from .transactions import Queued, QueuedCommands, WorkStep

#: Maximum number of commands of a transaction.
MAX_TRANSACTION_COMMANDS: Final = 10_000
TOO_MANY_COMMANDS: Final = (
    f"ERR a transaction may have at most {MAX_TRANSACTION_COMMANDS} commands "
    "and must not exceed the maximum request size"
)
#: Maximum number of keys that a client may watch. The content of the first ones is compared; any
#: change counts as a change of the others.
MAX_WATCHED_KEYS: Final = 1000
MAX_COMPARED_KEYS: Final = 50
MAX_WATCHED_NAME: Final = 1000
#: Overhead of an argument in bytes.
ARGUMENT_OVERHEAD: Final = 64
MAX_CLIENT_NAME: Final = 1000
DATABASES: Final = 16
#: First words of lines in an HTTP request, which any web page can make a browser send. The server
#: closes the connection without a reply.
_HTTP_WORDS: Final = frozenset({b"POST", b"HOST:"})

NO_AUTH: Final = "NOAUTH Authentication required."
NO_AUTH_HELLO: Final = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
    "<proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP "
    "protocol version at the same time"
)
BAD_LOGIN: Final = "WRONGPASS invalid username-password pair or user is disabled."
NO_LOGIN: Final = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure "
    "your configuration is correct?"
)


#: Types of most replies. This check is cheaper than a check for a generator.
PLAIN_REPLIES: Final = frozenset({bytes, int, str, list, type(None)})


class QlessConnection(Connection):
    def __init__(self, hub: QlessHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self._requests = Requests()
        #: Whether the buffered data is an incomplete request.
        self._incomplete = False
        self._input_ended = False
        #: Whether the client has authenticated or does not need to.
        self._authenticated = not hub.password
        self._limits = hub.limits if self._authenticated else hub.unauthenticated_limits
        #: RESP 2 or 3.
        self.protocol = 2
        self._name = b""
        self.database = 0
        #: Prefixes of the names of its jobs and of its scratch keys.
        self._prefix = ""
        self.scratch_prefix = b""
        #: Its subscriptions.
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        #: Size of the messages to subscriptions that are not written yet.
        self.unsent_message_bytes = 0
        #: State since MULTI: the commands for EXEC, their size, and whether one of them was
        #: invalid.
        self._queued: list[Queued] | None = None
        self._queued_size = 0
        self._has_invalid_command = False
        #: Whether EXEC is running. A command must not block then.
        self.transacting = False
        #: State since WATCH: the watched keys, with the content of each key of Qless, and whether a
        #: key has changed.
        self._watched: dict[tuple[int, bytes], Hashable] = {}
        self.watch_triggered = False
        #: The lists that BRPOP waits for.
        self._awaited_keys: list[bytes] = []
        hub.connection_count += 1
        self.number = hub.connection_count
        if hub.full:
            self._reply_error(Error("ERR max number of clients reached"))
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
        return len(self._requests) + self._queued_size

    def drop_input(self) -> None:
        self._requests = Requests()
        self.drop_work()
        self._discard_queue()

    def feed(self, data: bytes) -> None:
        self._requests.feed(data)
        self._incomplete = False

    def has_input(self) -> bool:
        return bool(self._requests)

    def run(self, now: int, max_cost: int) -> bool:
        if self.hub.transactions.exclusive is not None and self.waiter is None:
            waits = self.work is not None or (self.has_input() and not self._incomplete)
            return waits and not self.closing
        return super().run(now, max_cost)

    def step(self, now: int) -> int:
        try:
            request = self._requests.take(self._limits)
        except ProtocolError as problem:
            self._reply_error(Error(f"ERR Protocol error: {problem}"))
            self.closing = True
            return 0
        if request is None and self._requests.is_partly_read:
            return SLICE_COST
        if request is None:
            self._incomplete = True
            self.closing = self._input_ended
            if not self.is_native and is_web_request(self._requests.head):
                self.reject_web_client(self.hub)
            return 0
        if not self.is_native and request:
            if self._requests.inline and is_web_request(b" ".join(request)):
                self.reject_web_client(self.hub)
                return 0
            self.is_native = True
        if request:
            self._execute(request, now)
        return 1

    def reply_value(self, reply: Reply) -> None:
        self.reply(encode(reply, self.protocol))

    def _reply_error(self, reply: Error) -> None:
        self.hub.errors += 1
        self.reply_value(reply)

    # From requests to commands

    def _execute(self, request: list[bytes], now: int) -> None:
        word = request[0]
        command = self.commands.get(word) or self.commands.get(word.upper())
        usual = (  # the usual case, which needs no further checks
            command is not None
            and command.min_args < len(request) <= command.max_args + 1
            and self._authenticated
            and not self.channels
            and not self.patterns
            and self._queued is None
        )
        problem = "" if usual else self._problem(command, request)
        if command is None or problem:
            self._has_invalid_command = self._queued is not None
            if word.upper() in _HTTP_WORDS:
                self.closing = True
            else:
                self._reply_error(Error(problem))
            return
        if self._queued is not None and not command.flags & UNQUEUED:
            self._queue(command, request)
            return
        hub = self.hub
        hub.commands += 1
        hub.leased = False
        answer = self.perform(command, request[1:], now)
        if isinstance(answer, list) and len(answer) > LONG_LIST:
            answer = _returned(answer)
        if answer.__class__ not in PLAIN_REPLIES and isinstance(answer, Generator):
            self.begin_work(self._reply_in_slices(answer))
            self.work_slice()
            return
        reply: Any = answer
        if not isinstance(reply, NoReply):
            if not (command.flags & NEVER_WAITS or hub.leased):
                self.caller.wait()
            self.reply(encode(reply, self.protocol))
        self.serve_lists(now)

    def serve_lists(self, now: int) -> None:
        """Deliver items that were pushed to lists to the clients that wait for them."""
        if self.hub.scratch.pushed:
            for waiter, key, item in self.hub.scratch.served(now):
                waiter.take_item(key, item, now)

    def _reply_in_slices(self, work: Slices) -> Iterator[None]:
        """Run a long command slice by slice, and reply after the last one."""
        step = WorkStep(work)
        while (answer := self.attempt(step)) is step:
            yield
        if isinstance(answer, bytes) and len(answer) > LARGE_REPLY:
            yield  # its encoding copies it
        if not isinstance(answer, NoReply):
            parts = yield from encode_parts(answer, self.protocol)
            if not isinstance(answer, Committed):
                self.caller.wait()
            pieces = yield from join_parts(parts)
            self.reply(pieces[0])
            must_wait = self.caller.must_wait
            # If the commit is refused, one error replaces all of them.
            self.replies += [
                connection.Reply(piece, must_wait, optional=True) for piece in pieces[1:]
            ]

    def _problem(self, command: Command | None, request: list[bytes]) -> str:
        """Return the reason for rejecting this command, checked in the order that Redis uses."""
        if command is None:
            return unknown_command(request)
        flags = command.flags
        if not command.min_args <= len(request) - 1 <= command.max_args:
            return wrong_count(shown(request[0]).lower())
        if not self._authenticated and not flags & BEFORE_AUTH:
            return NO_AUTH
        if self.protocol == 2 and self.subscriptions and not flags & SUBSCRIBER:
            return (
                f"ERR Can't execute '{shown(request[0]).lower()}': only (P|S)SUBSCRIBE / "
                "(P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            )
        if self._queued is not None and flags & NOT_IN_MULTI:
            return "ERR Command not allowed inside a transaction"
        return ""

    def perform(self, command: Command, args: list[bytes], now: int) -> Answer:
        answer: Answer = self.attempt(partial(command.do, self, args, now))
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
        except ClientError as problem:
            found = Error(str(problem))
        except QlessRefused:
            found = Error(_refusal(self.engine.unavailable or self.engine.pushes_refused))
        finally:
            self.hub.prefix = ""
        self.hub.errors += 1
        return found

    def unavailable_reply(self, reason: str) -> bytes:
        return encode(Error(_refusal(reason)), self.protocol)

    # The end of a connection

    def handshake_overdue(self) -> bool:
        return not self._authenticated

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
        self.drop_work()
        self.hub.connections.discard(self)
        self.hub.with_messages.discard(self)
        self.hub.pubsub.leave(self)
        self.engine.set_alarm((self, "resume"), None)
        self._unwatch()
        if self.waiter is not None:
            self._stop_waiting()

    # Waiting for a list

    def wait_for_item(self, keys: list[bytes], until: int) -> None:
        self._awaited_keys = keys
        self.hub.scratch.wait(keys, self)
        self.waiter = Waiter((), "", QLESS, self)
        self.engine.wait(self.waiter, until)

    def take_item(self, key: bytes, item: bytes, now: int) -> None:
        """End a blocked command with the item that was pushed to its list."""
        self._stop_waiting()
        self.reply_value([key.removeprefix(self.scratch_prefix), item])
        self.hub.with_messages.add(self)
        if self._requests:
            self.engine.set_alarm((self, "resume"), now)

    def alarm(self, what: str, now: int) -> None:
        """Wake the server after a blocked command, so that it processes the requests received
        since.
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
        self.hub.scratch.unwait(self._awaited_keys, self)
        self._awaited_keys = []

    # The handshake

    def _hello(self, args: list[bytes], now: int) -> Answer:
        protocol, name, rest = self.protocol, None, list(args[1:])
        if args:
            protocol = integer(args[0], "ERR Protocol version is not an integer or out of range")
            if protocol not in {2, 3}:
                raise ClientError("NOPROTO unsupported protocol version")
        known = self._authenticated
        while rest:
            option = rest.pop(0)
            if option.upper() == b"AUTH" and len(rest) >= 2:
                self._check_password(rest.pop(0), rest.pop(0), now)
                known = True
            elif option.upper() == b"SETNAME" and rest:
                name = _checked_name(rest.pop(0))
            else:
                raise ClientError(f"ERR Syntax error in HELLO option '{shown(option)}'")
        if not known:
            raise ClientError(NO_AUTH_HELLO)
        self._set_authenticated()
        self.protocol = protocol
        self._name = self._name if name is None else name
        return info.greeting(self)

    def _auth(self, args: list[bytes], now: int) -> Answer:
        if len(args) > 2:
            raise ClientError(SYNTAX)
        if len(args) == 1 and not self.hub.password:
            raise ClientError(NO_LOGIN)
        self._check_password(args[0] if len(args) == 2 else b"default", args[-1], now)
        self._set_authenticated()
        return OK

    def _check_password(self, user: bytes, password: bytes, now: int) -> None:
        wanted, logins = self.hub.password, self.hub.logins
        if wanted:
            try:
                logins.check(self.address, now / SECOND)
            except TooManyGuesses as problem:
                raise ClientError(f"WRONGPASS {problem}") from None
        right = not wanted or compare_digest(password, wanted.encode())
        if user != b"default" or not right:
            if wanted:
                guess = f"{len(user)} {user!r} {password!r}"
                logins.add(self.address, guess, now / SECOND)
            raise ClientError(BAD_LOGIN)

    def _set_authenticated(self) -> None:
        self._authenticated = True
        self._limits = self.hub.limits

    def _ping(self, args: list[bytes], now: int) -> Answer:
        if self.protocol == 2 and self.subscriptions:
            return [b"pong", args[0] if args else b""]
        return args[0] if args else Simple("PONG")

    def _echo(self, args: list[bytes], now: int) -> Answer:
        return args[0]

    def _select(self, args: list[bytes], now: int) -> Answer:
        """Select a database. Only database 0 shares the namespace of the other protocols."""
        number = integer(args[0])
        if not 0 <= number < DATABASES:
            raise ClientError("ERR DB index is out of range")
        self.use_database(number)
        return OK

    def use_database(self, number: int) -> None:
        self.database = number
        self._prefix = self.hub.prefix = database_prefix(number)
        self.scratch_prefix = scratch_prefix(number)

    def _quit(self, args: list[bytes], now: int) -> Answer:
        self.closing = True
        return OK

    def _reset(self, args: list[bytes], now: int) -> Answer:
        """Reset the connection to its initial state."""
        self._discard_queue()
        self._unwatch()
        self.hub.pubsub.leave(self)
        self.protocol = 2
        self._name = b""
        self.use_database(0)
        self._authenticated = not self.hub.password
        self._limits = self.hub.limits if self._authenticated else self.hub.unauthenticated_limits
        return Simple("RESET")

    def _client(self, args: list[bytes], now: int) -> Answer:
        what = args[0].upper()
        if what == b"SETNAME":
            expect(args, 2, 2, "client|setname")
            self._name = _checked_name(args[1])
            return OK
        if what == b"GETNAME":
            expect(args, 1, 1, "client|getname")
            return self._name or None
        if what == b"ID":
            expect(args, 1, 1, "client|id")
            return self.number
        if what == b"SETINFO":
            expect(args, 3, 3, "client|setinfo")
            if args[1].upper() not in {b"LIB-NAME", b"LIB-VER"}:
                raise ClientError(f"ERR Unrecognized option '{shown(args[1])}'")
            return OK
        if what == b"INFO":
            expect(args, 1, 1, "client|info")
            return Verbatim(self._client_info())
        if what in {b"NO-EVICT", b"NO-TOUCH"}:
            expect(args, 2, 2, f"client|{what.decode().lower()}")
            if args[1].upper() not in {b"ON", b"OFF"}:
                raise ClientError(SYNTAX)
            return OK
        raise unknown_subcommand("CLIENT", args[0])

    def _client_info(self) -> str:
        queued = -1 if self._queued is None else len(self._queued)
        return (
            f"id={self.number} name={self._name.decode()} db={self.database} "
            f"sub={len(self.channels)} psub={len(self.patterns)} multi={queued} user=default "
            f"resp={self.protocol}\n"
        )

    @property
    def subscriptions(self) -> int:
        return len(self.channels) + len(self.patterns)

    # Transactions: EXEC runs the queued commands as one unit, without other commands in between

    def _multi(self, args: list[bytes], now: int) -> Answer:
        if self._queued is not None:
            raise ClientError("ERR MULTI calls can not be nested")
        self._queued = []
        return OK

    def _queue(self, command: Command, words: list[bytes]) -> None:
        assert self._queued is not None
        self._queued_size += sum(map(len, words[1:])) + ARGUMENT_OVERHEAD * (len(words) - 1)
        if (
            len(self._queued) >= MAX_TRANSACTION_COMMANDS
            or self._queued_size > self.hub.limits.request
        ):
            self._queued.clear()
            self._has_invalid_command = True
            self._reply_error(Error(TOO_MANY_COMMANDS))
        else:
            self._queued.append(Queued(command, words))
            self.reply_value(Simple("QUEUED"))

    def _exec(self, args: list[bytes], now: int) -> Answer:
        if self._queued is None:
            raise ClientError("ERR EXEC without MULTI")
        queued, is_invalid, watch_triggered = (
            self._queued,
            self._has_invalid_command,
            self._is_watch_triggered(),
        )
        size = self._queued_size
        self._discard_queue()
        self._unwatch()
        if is_invalid:
            raise ClientError("EXECABORT Transaction discarded because of previous errors.")
        if watch_triggered:
            return NO_LIST
        self._queued_size = size
        if all(command.flags & READS for command, _ in queued):
            return self._run_queued(QueuedCommands(self, queued, None, now).run())
        record = self.hub.transactions.new_record(queued, size, now)
        return self._run_queued(self._carry_out(QueuedCommands(self, queued, record, now)))

    def _run_queued(self, work: Slices) -> Slices:
        try:
            return (yield from work)
        finally:
            self._queued_size = 0

    def _carry_out(self, transaction: QueuedCommands) -> Slices:
        """Run a transaction with changes: its first step here, the others by the hub."""
        step = WorkStep(transaction.run())
        answer: Any = step()
        if answer is step:
            running = self.hub.transactions.start(step, self)
            while not running.has_ended:
                self.work_waits = True  # the end of the transaction wakes it
                yield
            answer = running.result
        reply: Reply = answer
        return reply

    def attempt_step(self, step: Callable[[], object]) -> object:
        """Run a step of a transaction outside of the commands of this connection."""
        engine = self.engine
        engine.caller = self.caller
        try:
            answer: object = self.attempt(step)
            return answer
        finally:
            engine.caller = engine.server_caller

    def _discard(self, args: list[bytes], now: int) -> Answer:
        if self._queued is None:
            raise ClientError("ERR DISCARD without MULTI")
        self._discard_queue()
        self._unwatch()
        return OK

    def _discard_queue(self) -> None:
        self._queued = None
        self._queued_size = 0
        self._has_invalid_command = False

    def _watch(self, args: list[bytes], now: int) -> Answer:
        if self._queued is not None:
            raise ClientError("ERR WATCH inside MULTI is not allowed")
        if len(self._watched) + len(args) > MAX_WATCHED_KEYS:
            raise ClientError(f"ERR a client may watch at most {MAX_WATCHED_KEYS} keys")
        if any(len(key) > MAX_WATCHED_NAME for key in args):
            raise ClientError(
                f"ERR the name of a watched key may have at most {MAX_WATCHED_NAME} bytes"
            )
        for key in args:
            if (self.database, key) not in self._watched:
                position = len(self._watched)
                self._watched[self.database, key] = self._content(key, position)
                self.hub.scratch.watch(self.scratch_prefix + key, self)
        return OK

    def _unwatch_all(self, args: list[bytes], now: int) -> Answer:
        self._unwatch()
        return OK

    def _unwatch(self) -> None:
        for database, key in self._watched:
            self.hub.scratch.unwatch(scratch_prefix(database) + key, self)
        self._watched.clear()
        self.watch_triggered = False

    def _is_watch_triggered(self) -> bool:
        if self.watch_triggered:
            return True
        for position, ((database, key), before) in enumerate(self._watched.items()):
            self.hub.prefix = database_prefix(database)
            if self._content(key, position) != before:
                return True
        return False

    def _content(self, key: bytes, position: int) -> Hashable:
        """Return the version of a Qless key, or a hash of its content. Scratch keys report their
        changes themselves.
        """
        if not key.startswith(keys.QLESS_PREFIX):
            return 0
        view = self.hub.redis_view
        if position >= MAX_COMPARED_KEYS:
            return view.version_of_all()
        version = view.version(key)
        if version is not None:
            return version
        kind = view.kind(key)
        if kind == "zset":
            return hash(tuple(view.scores(key)))
        if kind == "hash":
            return hash(tuple(view.fields(key)))
        if kind == "list":
            return hash(tuple(view.items(key)))
        return hash(tuple(view.members(key))) if kind else 0

    #: All commands, in upper case.
    commands: Final[Mapping[bytes, Command]] = {
        b"HELLO": Command(_hello, 0, ANY, BEFORE_AUTH | NOT_IN_MULTI | NEVER_WAITS),
        b"AUTH": Command(_auth, 1, ANY, BEFORE_AUTH | NOT_IN_MULTI | NEVER_WAITS),
        b"PING": Command(_ping, 0, 1, SUBSCRIBER | NEVER_WAITS),
        b"ECHO": Command(_echo, 1, 1, NEVER_WAITS),
        b"SELECT": Command(_select, 1, 1, NEVER_WAITS),
        b"QUIT": Command(_quit, 0, ANY, BEFORE_AUTH | SUBSCRIBER | UNQUEUED | NEVER_WAITS),
        b"RESET": Command(_reset, 0, 0, BEFORE_AUTH | SUBSCRIBER | UNQUEUED | NEVER_WAITS),
        b"CLIENT": Command(_client, 1, ANY, NEVER_WAITS),
        b"MULTI": Command(_multi, 0, 0, UNQUEUED | NEVER_WAITS),
        b"EXEC": Command(_exec, 0, 0, UNQUEUED),
        b"DISCARD": Command(_discard, 0, 0, UNQUEUED | NEVER_WAITS),
        b"WATCH": Command(_watch, 1, ANY, UNQUEUED | NEVER_WAITS),
        b"UNWATCH": Command(_unwatch_all, flags=NEVER_WAITS),
        **scripts.COMMANDS,
        **keys.COMMANDS,
        **pubsub.COMMANDS,
        **info.COMMANDS,
    }


def _returned(answer: Reply) -> Slices:
    """An answer as a long command, so that it is encoded in slices."""
    return answer
    yield


def _checked_name(name: bytes) -> bytes:
    if any(not 0x21 <= byte <= 0x7E for byte in name) or len(name) > MAX_CLIENT_NAME:
        raise ClientError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


def _refusal(reason: str) -> str:
    return f"MISCONF {StoreUnavailable(reason)}"
