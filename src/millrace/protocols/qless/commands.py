"""The definition of a command, and the error messages of Redis for invalid commands."""

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.protocols.errors import ClientError

from .names import decode_name
from .resp import Reply

if TYPE_CHECKING:
    from .connection import QlessConnection

NOT_INTEGER: Final = "ERR value is not an integer or out of range"
SYNTAX: Final = "ERR syntax error"
WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"

#: Flags of a command: allowed before AUTH, allowed for a RESP2 subscriber, not queued by MULTI,
#: rejected within MULTI.
BEFORE_AUTH: Final = 1
SUBSCRIBER: Final = 2
UNQUEUED: Final = 4
NOT_IN_MULTI: Final = 8
#: The reply depends on no durable state.
NEVER_WAITS: Final = 16
#: The command changes nothing.
READ_ONLY: Final = 32

#: Maximum size of the reply to a command that can request the same item repeatedly.
MAX_REPLY_BYTES: Final = 64 << 20
TOO_LARGE: Final = f"ERR the reply would exceed {MAX_REPLY_BYTES} bytes"

#: No upper limit.
ANY: Final = 1 << 30


class NoReply:
    """The command has already sent its reply, or will send it later."""

    __slots__ = ()


NO_REPLY: Final = NoReply()
#: A command that runs in slices: it yields after each slice, and returns its reply.
Slices = Generator[None, None, "Reply | NoReply"]
Answer = Reply | NoReply | Slices
#: Types of most replies. A test of the type is cheaper than a test for a generator.
PLAIN_REPLY_TYPES: Final = frozenset({bytes, int, str, list, type(None)})


class Command(NamedTuple):
    handler: Callable[["QlessConnection", list[bytes], int], Answer]
    #: Minimum and maximum number of arguments, without the command name.
    min_args: int = 0
    max_args: int = 0
    flags: int = 0


# Numbers

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_FLOAT: Final = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def parse_integer(word: bytes, error: str = NOT_INTEGER) -> int:
    """Parse a signed 64-bit integer in the only notation that Redis accepts."""
    if _INTEGER.fullmatch(word) and -(1 << 63) <= (number := int(word)) < 1 << 63:
        return number
    raise ClientError(error)


def parse_decimal(word: bytes, error: str) -> float:
    if len(word) < 400 and _FLOAT.fullmatch(word) and (number := float(word)) < 1e15:
        return number
    raise ClientError(error)


# Errors


def clip_argument(word: bytes) -> str:
    """Decode a client's argument, which may be any bytes, and truncate it for an error message."""
    return decode_name(word[:128])


def unknown_command(request: list[bytes]) -> str:
    beginning, room = "", 128
    for word in request[1:]:
        if len(beginning) >= room:
            break
        beginning += f"'{clip_argument(word[: room - len(beginning)])}' "
    name = clip_argument(request[0])
    return f"ERR unknown command '{name}', with args beginning with: {beginning}"


def unknown_subcommand(command: str, word: bytes) -> ClientError:
    return ClientError(f"ERR unknown subcommand '{clip_argument(word)}'. Try {command} HELP.")


def wrong_count(name: str) -> str:
    return f"ERR wrong number of arguments for '{name}' command"


def check_argument_count(args: list[bytes], minimum: int, maximum: int, name: str) -> None:
    """Raise ClientError if a subcommand such as `client|setname` has too few or many arguments."""
    if not minimum <= len(args) <= maximum:
        raise ClientError(wrong_count(name))
