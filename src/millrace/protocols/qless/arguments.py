"""The arguments of a command, and the errors of a script for missing or invalid arguments."""

from typing import Any, Final

from . import lua_values as lua
from .errors import ScriptError
from .names import decode_name

#: Maximum number of tags of a job: a command changes all of them in one step.
MAX_TAGS: Final = 10_000

Args = list[bytes]


def argument_or_none(args: Args, at: int) -> bytes | None:
    return args[at] if at < len(args) else None


def text(args: Args, at: int, error: str) -> str:
    """Return an argument as text. Raise ScriptError with `error` if it is missing."""
    if at >= len(args):
        raise ScriptError(error)
    return decode_name(args[at])


def texts(args: Args, start: int = 0) -> list[str]:
    return [decode_name(arg) for arg in args[start:]]


def parse_number(args: Args, at: int, error: str, default: lua.Number | None = None) -> lua.Number:
    """Return a numeric argument. The error message ends with the invalid value."""
    word = argument_or_none(args, at)
    if word is None and default is not None:
        return default
    found = lua.tonumber(word)
    if found is None:
        raise ScriptError(error + describe_value(word))
    return found


def option_number(word: bytes, error: str) -> lua.Number:
    found = lua.tonumber(word)
    if found is None:
        raise ScriptError(error + describe_value(word))
    return found


def describe_value(word: bytes | None) -> str:
    return "nil" if word is None else decode_name(word)


def options(args: Args, start: int) -> dict[str, bytes]:
    """Return options from alternating names and values. The last value of a name applies."""
    if len(args) <= start:
        return {}
    rest = args[start:]
    if len(rest) % 2:
        raise ScriptError("Odd number of additional args: table: 0x0")
    names = texts(rest[::2])
    return dict(zip(names, rest[1::2], strict=True))


def check_tag_count(count: int) -> None:
    """Refuse more tags than a job may have."""
    if count > MAX_TAGS:
        raise ScriptError(f"a job may have at most {MAX_TAGS} tags")


def tags(value: bytes) -> list[Any]:
    """Decode a JSON list of tags. Raise ScriptError if a tag is neither a string nor a number."""
    found = lua.decode_list(value)
    check_tag_count(len(found))
    for tag in found:
        if isinstance(tag, bool) or not isinstance(tag, str | int | float):
            raise ScriptError('Put(): Arg "tags" must be a JSON array of strings')
    return found


def jids(value: bytes) -> list[str]:
    """Decode a JSON list of jids. Numbers become strings, as in a script; raise ScriptError for
    other items.
    """
    return [as_jid(item) for item in lua.decode_list(value)]


def as_jid(item: Any) -> str:
    """Return an item of a JSON list as a jid."""
    if isinstance(item, str):
        return item
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise ScriptError("Lua redis() command arguments must be strings or integers")
    return lua.format_number(item).decode()
