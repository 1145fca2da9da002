"""Commands that concern the connection itself: HELLO, AUTH, SELECT, CLIENT, RESET and similar."""

from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from millrace.engine.job import SECOND
from millrace.protocols.errors import ClientError
from millrace.protocols.logins import TooManyGuesses

from . import info
from .commands import (
    ANY,
    BEFORE_AUTH,
    NEVER_WAITS,
    NOT_IN_MULTI,
    SUBSCRIBER,
    SYNTAX,
    UNQUEUED,
    Answer,
    Command,
    check_argument_count,
    clip_argument,
    parse_integer,
    unknown_subcommand,
)
from .resp import (
    OK,
    Simple,
    Verbatim,
)

if TYPE_CHECKING:
    from .connection import QlessConnection

MAX_CLIENT_NAME: Final = 1000
DATABASE_COUNT: Final = 16
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


def hello(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    resp_version, name, rest = connection.resp_version, None, list(args[1:])
    if args:
        resp_version = parse_integer(
            args[0], "ERR Protocol version is not an integer or out of range"
        )
        if resp_version not in {2, 3}:
            raise ClientError("NOPROTO unsupported protocol version")
    authenticated = connection.authenticated
    while rest:
        option = rest.pop(0)
        if option.upper() == b"AUTH" and len(rest) >= 2:
            _check_password(connection, rest.pop(0), rest.pop(0), now)
            authenticated = True
        elif option.upper() == b"SETNAME" and rest:
            name = _checked_name(rest.pop(0))
        else:
            raise ClientError(f"ERR Syntax error in HELLO option '{clip_argument(option)}'")
    if not authenticated:
        raise ClientError(NO_AUTH_HELLO)
    _set_authenticated(connection)
    connection.resp_version = resp_version
    connection.name = connection.name if name is None else name
    return info.greeting(connection)


def auth(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if len(args) > 2:
        raise ClientError(SYNTAX)
    if len(args) == 1 and not connection.hub.password:
        raise ClientError(NO_LOGIN)
    _check_password(connection, args[0] if len(args) == 2 else b"default", args[-1], now)
    _set_authenticated(connection)
    return OK


def _check_password(connection: "QlessConnection", user: bytes, password: bytes, now: int) -> None:
    wanted, logins = connection.hub.password, connection.hub.logins
    if wanted:
        try:
            logins.check(connection.address, now / SECOND)
        except TooManyGuesses as problem:
            raise ClientError(f"WRONGPASS {problem}") from None
    right = not wanted or compare_digest(password, wanted.encode())
    if user != b"default" or not right:
        if wanted:
            guess = f"{len(user)} {user!r} {password!r}"
            logins.count_wrong_password(connection.address, guess, now / SECOND)
        raise ClientError(BAD_LOGIN)


def _set_authenticated(connection: "QlessConnection") -> None:
    connection.authenticated = True
    connection.limits = connection.hub.limits


def ping(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    if connection.resp_version == 2 and connection.subscriptions:
        return [b"pong", args[0] if args else b""]
    return args[0] if args else Simple("PONG")


def echo(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    return args[0]


def select(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Select a database. Only database 0 shares the namespace of the other protocols."""
    number = parse_integer(args[0])
    if not 0 <= number < DATABASE_COUNT:
        raise ClientError("ERR DB index is out of range")
    connection.use_database(number)
    return OK


def quit_connection(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    connection.closing = True
    return OK


def reset(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    """Reset the connection to its initial state."""
    connection.multi.discard()
    connection.multi.unwatch(connection.hub.scratch)
    connection.hub.pubsub.leave(connection)
    connection.resp_version = 2
    connection.name = b""
    connection.use_database(0)
    connection.authenticated = not connection.hub.password
    connection.limits = (
        connection.hub.limits if connection.authenticated else connection.hub.unauthenticated_limits
    )
    return Simple("RESET")


def client(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    what = args[0].upper()
    if what == b"SETNAME":
        check_argument_count(args, 2, 2, "client|setname")
        connection.name = _checked_name(args[1])
        return OK
    if what == b"GETNAME":
        check_argument_count(args, 1, 1, "client|getname")
        return connection.name or None
    if what == b"ID":
        check_argument_count(args, 1, 1, "client|id")
        return connection.number
    if what == b"SETINFO":
        check_argument_count(args, 3, 3, "client|setinfo")
        if args[1].upper() not in {b"LIB-NAME", b"LIB-VER"}:
            raise ClientError(f"ERR Unrecognized option '{clip_argument(args[1])}'")
        return OK
    if what == b"INFO":
        check_argument_count(args, 1, 1, "client|info")
        return Verbatim(_client_info(connection))
    if what in {b"NO-EVICT", b"NO-TOUCH"}:
        check_argument_count(args, 2, 2, f"client|{what.decode().lower()}")
        if args[1].upper() not in {b"ON", b"OFF"}:
            raise ClientError(SYNTAX)
        return OK
    raise unknown_subcommand("CLIENT", args[0])


def _client_info(connection: "QlessConnection") -> str:
    queued = -1 if connection.multi.queued is None else len(connection.multi.queued)
    name, channels, patterns = connection.name, connection.channels, connection.patterns
    return (
        f"id={connection.number} name={name.decode()} db={connection.database} "
        f"sub={len(channels)} psub={len(patterns)} multi={queued} user=default "
        f"resp={connection.resp_version}\n"
    )


def _checked_name(name: bytes) -> bytes:
    if any(not 0x21 <= byte <= 0x7E for byte in name) or len(name) > MAX_CLIENT_NAME:
        raise ClientError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


COMMANDS: Final = {
    b"HELLO": Command(hello, 0, ANY, BEFORE_AUTH | NOT_IN_MULTI | NEVER_WAITS),
    b"AUTH": Command(auth, 1, ANY, BEFORE_AUTH | NOT_IN_MULTI | NEVER_WAITS),
    b"PING": Command(ping, 0, 1, SUBSCRIBER | NEVER_WAITS),
    b"ECHO": Command(echo, 1, 1, NEVER_WAITS),
    b"SELECT": Command(select, 1, 1, NEVER_WAITS),
    b"QUIT": Command(quit_connection, 0, ANY, BEFORE_AUTH | SUBSCRIBER | UNQUEUED | NEVER_WAITS),
    b"RESET": Command(reset, 0, 0, BEFORE_AUTH | SUBSCRIBER | UNQUEUED | NEVER_WAITS),
    b"CLIENT": Command(client, 1, ANY, NEVER_WAITS),
}
