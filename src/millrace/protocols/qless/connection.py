"""A client connection of the Qless port: it parses requests and sends replies in RESP.

This module implements the connection itself: conversion of requests to commands, permission checks,
the handshake and transactions. The modules scripts, keys, pubsub and info implement the commands.
"""

from collections.abc import Callable, Generator, Mapping
from functools import partial
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from millrace.engine.job import QLESS
from millrace.engine.policy import SECOND
from millrace.engine.waiters import Waiter
from millrace.protocols.connection import Connection
from millrace.protocols.errors import ClientError
from millrace.protocols.logins import TooManyGuesses
from millrace.protocols.web_clients import is_web_request

from . import info, keys, pubsub, scripts
from .commands import (
    ALONE,
    ANY,
    MAX_REPLY_BYTES,
    NEVER_WAITS,
    STRANGER,
    SUBSCRIBER,
    SYNTAX,
    TOO_LARGE,
    UNQUEUED,
    Answer,
    Command,
    Nothing,
    Slices,
    expect,
    integer,
    shown,
    unknown_command,
    unknown_subcommand,
    wrong_count,
)
from .contract import Refused, ScriptError
from .hub import QlessHub
from .pubsub import Message
from .resp import (
    NO_LIST,
    OK,
    Error,
    ProtocolError,
    Reply,
    Requests,
    Simple,
    Verbatim,
    encode,
    size_of,
)
from .scratch import scratch_prefix
from .state import database_prefix

#: After a reply of this size, the next command waits for the next turn so that the reply is sent.
LARGE_REPLY: Final = 65_536
#: Cost of a slice of a long command, in commands, in addition to the command itself.
SLICE_COST: Final = 15
#: Maximum number of commands of a transaction, and of slices of its long commands.
MAX_TRANSACTION_COMMANDS: Final = 10_000
MAX_TRANSACTION_SLICES: Final = 400
TOO_MANY_COMMANDS: Final = (
    f"ERR a transaction may have {MAX_TRANSACTION_COMMANDS} commands, and not too large"
)
TOO_MUCH_WORK: Final = "ERR the commands of this transaction examine too much: run them one by one"
#: Maximum number of keys that a client may watch.
MAX_WATCHED_KEYS: Final = 1000
MAX_WATCHED_NAME: Final = 1000
#: Overhead of an argument in bytes.
ARGUMENT_COSTS: Final = 64
MAX_CLIENT_NAME: Final = 1000
DATABASES: Final = 16
#: First arguments of HTTP requests that a browser sends for a foreign web page. The server does not
#: reply.
_NOT_FOR_US: Final = frozenset({b"POST", b"HOST:"})

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


class _Step:
    """One slice of a long command. Calling it returns the reply, or itself if there is more."""

    __slots__ = ("_work",)

    def __init__(self, work: Slices) -> None:
        self._work = work

    def __call__(self) -> object:
        try:
            next(self._work)
        except StopIteration as ended:
            return ended.value
        return self


class Queued(NamedTuple):
    command: Command
    args: list[bytes]


class QlessConnection(Connection):
    def __init__(self, hub: QlessHub) -> None:
        super().__init__()
        self.hub = hub
        self.engine = hub.engine
        self._requests = Requests()
        #: Whether the buffered data is an incomplete request.
        self._incomplete = False
        self._ended = False
        #: Whether the client has authenticated or does not need to.
        self._known = not hub.password
        self._limits = hub.limits if self._known else hub.strangers
        #: RESP 2 or 3.
        self.protocol = 2
        self._name = b""
        self._database = 0
        #: Prefixes of the names of its jobs and of its scratch keys.
        self._prefix = ""
        self.scratch_prefix = b""
        #: Its subscriptions.
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        #: Size of the messages sent to it since all its replies were last written.
        self.told = 0
        #: State since MULTI: the commands for EXEC, their size, and whether one of them was
        #: invalid.
        self._queued: list[Queued] | None = None
        self._queued_size = 0
        self._spoilt = False
        self._slices_left = 0
        #: Whether EXEC is running. A command must not block then.
        self.transacting = False
        #: A command that runs in slices, and whether it has changed anything.
        self._work: Slices | None = None
        self._work_changed = False
        #: State since WATCH: the watched keys, with the content of keys of Qless, and whether a key
        #: has changed.
        self._watched: dict[tuple[int, bytes], int] = {}
        self.disturbed = False
        #: The lists that BRPOP waits for.
        self._awaited: list[bytes] = []
        hub.received += 1
        self.number = hub.received
        if hub.full:
            self._complain(Error("ERR max number of clients reached"))
            self.closing = True
        else:
            hub.connections.add(self)

    # Framing

    @property
    def backlog(self) -> int:
        """Count an incomplete request as one byte, so that the server reads the rest of it."""
        held = len(self._requests)
        return min(held, 1) if self._incomplete else held

    @property
    def held(self) -> int:
        return len(self._requests) + self._queued_size

    def discard(self) -> None:
        self._requests = Requests()
        self._work = None
        self._discard_queue()

    def feed(self, data: bytes) -> None:
        self._requests.feed(data)
        self._incomplete = False

    def receive(self, data: bytes, now: int, most: int) -> bool:
        self._requests.feed(data)
        self._incomplete = False
        return self.run(now, most)

    def run(self, now: int, most: int) -> bool:
        while self.waiter is None and not self.closing:
            if most <= 0:
                return bool(self._requests) or self._work is not None
            most -= 1
            if self._work is not None:
                most -= SLICE_COST
                self._continue_work(now)
                continue
            try:
                request = self._requests.take(self._limits)
            except ProtocolError as problem:
                self._complain(Error(f"ERR Protocol error: {problem}"))
                self.closing = True
                return False
            if request is None:
                self._incomplete = True
                self.closing = self._ended
                if not self.is_native and is_web_request(self._requests.head):
                    self.reject_web_client(self.hub)
                return False
            if not self.is_native and request:
                if self._requests.inline and is_web_request(b" ".join(request)):
                    self.reject_web_client(self.hub)
                    return False
                self.is_native = True
            if request:
                self._execute(request, now)
                if self.replies and len(self.replies[-1]) > LARGE_REPLY:
                    most = 0
        return False

    def say(self, reply: Reply) -> None:
        self.replies.append(encode(reply, self.protocol))

    def _complain(self, reply: Error) -> None:
        self.hub.errors += 1
        self.say(reply)

    # From requests to commands

    def _execute(self, request: list[bytes], now: int) -> None:
        word = request[0]
        command = self.commands.get(word) or self.commands.get(word.upper())
        usual = (  # the usual case, which needs no further checks
            command is not None
            and command.least < len(request) <= command.most + 1
            and self._known
            and not self.channels
            and not self.patterns
            and self._queued is None
        )
        problem = "" if usual else self._problem(command, request)
        if command is None or problem:
            self._spoilt = self._queued is not None
            if word.upper() in _NOT_FOR_US:
                self.closing = True
            else:
                self._complain(Error(problem))
            return
        if self._queued is not None and not command.rights & UNQUEUED:
            self._queue(command, request[1:])
            return
        engine, hub, replies = self.engine, self.hub, self.replies
        before, said = engine.changes, len(replies)
        hub.commands += 1
        hub.leased = False
        answer = self._perform(command, request[1:], now)
        if answer.__class__ not in PLAIN_REPLIES and isinstance(answer, Generator):
            self._work, self._work_changed = answer, engine.changes != before
            self._continue_work(now)
            return
        reply: Any = answer
        if not isinstance(reply, Nothing):
            replies.append(encode(reply, self.protocol))
        if len(replies) > said and (
            engine.changes != before
            or (not (command.rights & NEVER_WAITS or hub.leased) and engine.has_uncommitted)
        ):
            self.marks.append(len(replies) - 1)
        if hub.scratch.pushed:
            for waiter, key, item in hub.scratch.served(now):
                waiter.take_item(key, item, now)

    def _continue_work(self, now: int) -> None:
        """Run the next slice of the current command, and send its reply after the last slice."""
        assert self._work is not None
        before = self.engine.changes
        answer = self._attempt(_Step(self._work))
        self._work_changed |= self.engine.changes != before
        if isinstance(answer, _Step):
            return
        self._work = None
        if not isinstance(answer, Nothing):
            if self._work_changed or self.engine.has_uncommitted:
                self.marks.append(len(self.replies))
            self.replies.append(encode(answer, self.protocol))

    def _problem(self, command: Command | None, request: list[bytes]) -> str:
        """Return the reason for rejecting this command, checked in the order that Redis uses."""
        if command is None:
            return unknown_command(request)
        rights = command.rights
        if not command.least <= len(request) - 1 <= command.most:
            return wrong_count(shown(request[0]).lower())
        if not self._known and not rights & STRANGER:
            return NO_AUTH
        if self.protocol == 2 and self.subscriptions and not rights & SUBSCRIBER:
            return (
                f"ERR Can't execute '{shown(request[0]).lower()}': only (P|S)SUBSCRIBE / "
                "(P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            )
        if self._queued is not None and rights & ALONE:
            return "ERR Command not allowed inside a transaction"
        return ""

    def _perform(self, command: Command, args: list[bytes], now: int) -> Answer:
        answer: Answer = self._attempt(partial(command.do, self, args, now))
        return answer

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Run an action in the database of this connection, and return its result or its error."""
        self.hub.prefix = self._prefix
        try:
            return action()
        except ScriptError as problem:
            found = Error(f"ERR user_script:1: {problem}")
        except ClientError as problem:
            found = Error(str(problem))
        except Refused:
            found = Error(_refusal(self.engine.halted or self.engine.pushes_refused))
        finally:
            self.hub.prefix = ""
        self.hub.errors += 1
        return found

    def refusal(self, reason: str) -> bytes:
        return encode(Error(_refusal(reason)), self.protocol)

    def refused(self, reply: bytes, reason: str) -> bytes:
        """Return the reply after its change was refused. A pushed message is dropped without a
        reply.
        """
        return b"" if isinstance(reply, Message) else self.refusal(reason)

    # The end of a connection

    def overdue(self) -> bool:
        return not self._known

    def ended(self, now: int) -> bool:
        """The client has closed its side. Pending requests are answered, and a blocked command
        ends.
        """
        self._ended = True
        if self.waiter is not None:
            self._stop_waiting()
            self.say(NO_LIST)
        return True

    def lost(self, now: int) -> None:
        self.closing = True
        self._work = None
        self.hub.connections.discard(self)
        self.hub.touched.discard(self)
        self.hub.pubsub.leave(self)
        self.engine.unalarm((self, "goes on"))
        self._unwatch()
        if self.waiter is not None:
            self._stop_waiting()

    # Waiting for a list

    def wait_for_item(self, keys: list[bytes], until: int) -> None:
        self._awaited = keys
        self.hub.scratch.wait(keys, self)
        self.waiter = Waiter((), "", QLESS, self)
        self.engine.wait(self.waiter, until)

    def take_item(self, key: bytes, item: bytes, now: int) -> None:
        """End a blocked command with the item that was pushed to its list."""
        self._stop_waiting()
        self.say([key.removeprefix(self.scratch_prefix), item])
        self.hub.touched.add(self)
        if self._requests:
            self.engine.alarm((self, "goes on"), now)

    def alarm(self, what: str, now: int) -> None:
        """Wake the server after a blocked command, so that it processes the requests received
        since.
        """

    def timed_out(self, now: int) -> None:
        if self.waiter is not None:  # or an earlier delivery of this turn has ended the wait
            self._stop_waiting()
            self.say(NO_LIST)

    def _stop_waiting(self) -> None:
        assert self.waiter is not None
        waiter, self.waiter = self.waiter, None
        self.engine.unwait(waiter)
        self.hub.scratch.unwait(self._awaited, self)
        self._awaited = []

    # The handshake

    def _hello(self, args: list[bytes], now: int) -> Answer:
        protocol, name, rest = self.protocol, None, list(args[1:])
        if args:
            protocol = integer(args[0], "ERR Protocol version is not an integer or out of range")
            if protocol not in {2, 3}:
                raise ClientError("NOPROTO unsupported protocol version")
        known = self._known
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
        self._become_known()
        self.protocol = protocol
        self._name = self._name if name is None else name
        return info.greeting(self)

    def _auth(self, args: list[bytes], now: int) -> Answer:
        if len(args) > 2:
            raise ClientError(SYNTAX)
        if len(args) == 1 and not self.hub.password:
            raise ClientError(NO_LOGIN)
        self._check_password(args[0] if len(args) == 2 else b"default", args[-1], now)
        self._become_known()
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

    def _become_known(self) -> None:
        self._known = True
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
        self._use_database(number)
        return OK

    def _use_database(self, number: int) -> None:
        self._database = number
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
        self._use_database(0)
        self._known = not self.hub.password
        self._limits = self.hub.limits if self._known else self.hub.strangers
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
            return Verbatim(self._described())
        if what in {b"NO-EVICT", b"NO-TOUCH"}:
            expect(args, 2, 2, f"client|{what.decode().lower()}")
            if args[1].upper() not in {b"ON", b"OFF"}:
                raise ClientError(SYNTAX)
            return OK
        raise unknown_subcommand("CLIENT", args[0])

    def _described(self) -> str:
        queued = -1 if self._queued is None else len(self._queued)
        return (
            f"id={self.number} name={self._name.decode()} db={self._database} "
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

    def _queue(self, command: Command, args: list[bytes]) -> None:
        assert self._queued is not None
        self._queued_size += sum(map(len, args)) + ARGUMENT_COSTS * len(args)
        if (
            len(self._queued) >= MAX_TRANSACTION_COMMANDS
            or self._queued_size > self.hub.limits.request
        ):
            self._queued.clear()
            self._spoilt = True
            self._complain(Error(TOO_MANY_COMMANDS))
        else:
            self._queued.append(Queued(command, args))
            self.say(Simple("QUEUED"))

    def _exec(self, args: list[bytes], now: int) -> Answer:
        if self._queued is None:
            raise ClientError("ERR EXEC without MULTI")
        queued, spoilt, disturbed = self._queued, self._spoilt, self._is_disturbed()
        self._discard_queue()
        self._unwatch()
        if spoilt:
            raise ClientError("EXECABORT Transaction discarded because of previous errors.")
        if disturbed:
            return NO_LIST
        self.transacting = True
        self._slices_left = MAX_TRANSACTION_SLICES
        try:
            return self._perform_all(queued, now)
        finally:
            self.transacting = False
            self.hub.leased = False

    def _perform_all(self, queued: list[Queued], now: int) -> list[Reply]:
        """Run all commands. The maximum size of one reply limits the total size."""
        answers: list[Reply] = []
        room = MAX_REPLY_BYTES
        for command, words in queued:
            answer = self._perform_queued(command, words, now)
            size = size_of(answer)
            if size > room:
                answer = Error(TOO_LARGE)
            else:
                room -= size
            answers.append(answer)
        return answers

    def _perform_queued(self, command: Command, args: list[bytes], now: int) -> Reply:
        answer = self._perform(command, args, now)
        if isinstance(answer, Generator):
            answer = self._attempt(partial(self._finish, answer))
        assert not isinstance(answer, Nothing), "a command in a transaction has an answer"
        return answer

    def _finish(self, work: Slices) -> Reply:
        """Run all slices of a command without a break, up to the slice limit of the transaction."""
        while self._slices_left > 0:
            self._slices_left -= 1
            try:
                next(work)
            except StopIteration as ended:
                reply: Reply = ended.value
                return reply
        work.close()
        raise ClientError(TOO_MUCH_WORK)

    def _discard(self, args: list[bytes], now: int) -> Answer:
        if self._queued is None:
            raise ClientError("ERR DISCARD without MULTI")
        self._discard_queue()
        self._unwatch()
        return OK

    def _discard_queue(self) -> None:
        self._queued = None
        self._queued_size = 0
        self._spoilt = False

    def _watch(self, args: list[bytes], now: int) -> Answer:
        if self._queued is not None:
            raise ClientError("ERR WATCH inside MULTI is not allowed")
        if len(self._watched) + len(args) > MAX_WATCHED_KEYS:
            raise ClientError(f"ERR a client may watch {MAX_WATCHED_KEYS} keys")
        if any(len(key) > MAX_WATCHED_NAME for key in args):
            raise ClientError(f"ERR the name of a watched key may have {MAX_WATCHED_NAME} bytes")
        for key in args:
            if (self._database, key) not in self._watched:
                self._watched[self._database, key] = self._content(key)
                self.hub.scratch.watch(self.scratch_prefix + key, self)
        return OK

    def _unwatch_all(self, args: list[bytes], now: int) -> Answer:
        self._unwatch()
        return OK

    def _unwatch(self) -> None:
        for database, key in self._watched:
            self.hub.scratch.unwatch(scratch_prefix(database) + key, self)
        self._watched.clear()
        self.disturbed = False

    def _is_disturbed(self) -> bool:
        if self.disturbed:
            return True
        for (database, key), before in self._watched.items():
            self.hub.prefix = database_prefix(database)
            if self._content(key) != before:
                return True
        return False

    def _content(self, key: bytes) -> int:
        """Return a hash of the content of a Qless key. Scratch keys report their changes
        themselves.
        """
        if not key.startswith(keys.OURS):
            return 0
        virtual = self.hub.virtual
        kind = virtual.kind(key)
        if kind == "zset":
            return hash(tuple(virtual.scores(key)))
        if kind == "hash":
            return hash(tuple(virtual.fields(key)))
        if kind == "list":
            return hash(tuple(virtual.items(key)))
        return hash(tuple(virtual.members(key))) if kind else 0

    #: All commands, in upper case.
    commands: Final[Mapping[bytes, Command]] = {
        b"HELLO": Command(_hello, 0, ANY, STRANGER | ALONE | NEVER_WAITS),
        b"AUTH": Command(_auth, 1, ANY, STRANGER | ALONE | NEVER_WAITS),
        b"PING": Command(_ping, 0, 1, SUBSCRIBER | NEVER_WAITS),
        b"ECHO": Command(_echo, 1, 1, NEVER_WAITS),
        b"SELECT": Command(_select, 1, 1, NEVER_WAITS),
        b"QUIT": Command(_quit, 0, ANY, STRANGER | SUBSCRIBER | UNQUEUED | NEVER_WAITS),
        b"RESET": Command(_reset, 0, 0, STRANGER | SUBSCRIBER | UNQUEUED | NEVER_WAITS),
        b"CLIENT": Command(_client, 1, ANY, NEVER_WAITS),
        b"MULTI": Command(_multi, 0, 0, UNQUEUED | NEVER_WAITS),
        b"EXEC": Command(_exec, 0, 0, UNQUEUED),
        b"DISCARD": Command(_discard, 0, 0, UNQUEUED | NEVER_WAITS),
        b"WATCH": Command(_watch, 1, ANY, UNQUEUED | NEVER_WAITS),
        b"UNWATCH": Command(_unwatch_all, rights=NEVER_WAITS),
        **scripts.COMMANDS,
        **keys.COMMANDS,
        **pubsub.COMMANDS,
        **info.COMMANDS,
    }


def _checked_name(name: bytes) -> bytes:
    if any(not 0x21 <= byte <= 0x7E for byte in name) or len(name) > MAX_CLIENT_NAME:
        raise ClientError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


def _refusal(reason: str) -> str:
    return f"MISCONF {reason}: nothing was changed, try again later"
