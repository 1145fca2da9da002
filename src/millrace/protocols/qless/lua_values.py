"""Numbers and JSON as the scripts of Qless read and write them."""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from .errors import ScriptError
from .names import escape_json, restore_bytes
from .resp import BulkStringParts

Number = int | float

_DECIMAL: Final = re.compile(rb"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*")
_HEX: Final = re.compile(rb"\s*([+-]?)0[xX]([0-9a-fA-F]{1,16})\s*")

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder().decode
_check = msgspec.json.Decoder(msgspec.Raw).decode

#: The reply of the original for an empty list.
EMPTY_LIST: Final = b"{}"


def tonumber(word: bytes | None) -> Number | None:
    """Convert an argument to a finite number, or None: `5`, ` 5 `, `2.0`, `1e3`, `0x10`."""
    if word is None:
        return None
    if word.isdigit() and len(word) < 16:
        return int(word)
    if len(word) < 20 and not word.strip(b"0123456789."):  # the usual form of a time
        try:
            value = float(word)
        except ValueError:
            return None
        return int(value) if value.is_integer() and value < 1e15 else value
    if _DECIMAL.fullmatch(word) and len(word) < 400:
        value = float(word)
        if math.isinf(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    match = _HEX.fullmatch(word)
    if match is None:
        return None
    found = -int(match[2], 16) if match[1] == b"-" else int(match[2], 16)
    return found if abs(found) < 10**15 else float(found)


def format_number(value: Number) -> bytes:
    """Format a number with `%.14g`, which leaves four decimals for a time."""
    if isinstance(value, int):
        return b"%d" % value if -(10**14) < value < 10**14 else b"%.14g" % value
    return b"%.14g" % value


def to_int64(value: Number) -> int:
    """Truncate a number to an integer, limited to 64 bits."""
    return max(-(1 << 63), min(int(value), (1 << 63) - 1))


def format_seconds(microseconds: int) -> bytes:
    whole, rest = divmod(microseconds, 1_000_000)
    return b"%d" % whole if not rest else format_number(microseconds / 1_000_000)


def to_microseconds(value: Number) -> int:
    """Convert seconds from a caller to microseconds, limited to the range that can be stored."""
    if -1e11 < value < 1e11:
        return round(value * 1_000_000)
    return 10**17 if value > 0 else -(10**17)


def parse_clock(value: Number) -> int:
    """Convert the time of a caller from seconds to microseconds. A time before 1970 becomes 0."""
    return round(value * 1_000_000) if 0 <= value < 1e11 else max(0, to_microseconds(value))


def encode(value: Any) -> bytes:
    """Encode JSON, with names as clients sent them."""
    return restore_bytes(_encode(value))


def encode_event(fields: dict[str, Any]) -> bytes:
    """Encode the payload of an event, in the given order, with `/` escaped as in cjson."""
    return encode(fields).replace(b"/", b"\\/")


def encode_string(text: str) -> bytes:
    return encode(text)


def encode_strings(texts: list[str]) -> bytes:
    """Return a JSON list of strings. An empty list is `{}`."""
    return encode(texts) if texts else EMPTY_LIST


def join_list(items: list[Any]) -> Any:
    """Return a JSON list of items that are already JSON, `BulkStringParts` if one of them is in
    parts. An empty list is `{}`.
    """
    if not items:
        return EMPTY_LIST
    if BulkStringParts in map(type, items):
        return _join_list_parts(items)
    return b"[%b]" % b",".join(items)


def _join_list_parts(items: list[Any]) -> BulkStringParts:
    parts: list[bytes] = []
    small: list[bytes] = [b"["]
    for number, item in enumerate(items):
        if number:
            small.append(b",")
        if isinstance(item, BulkStringParts):
            parts += (b"".join(small), *item.parts)
            small = []
        else:
            small.append(item)
    return BulkStringParts([*parts, b"".join([*small, b"]"])])


def decode(data: bytes | None) -> Any:
    """Decode JSON, or raise the error of cjson. The result can be encoded again and stored."""
    if data is None:
        raise ScriptError("bad argument #1 to 'decode' (string expected, got nil)")
    data = escape_json(data)
    _check_depth(data)
    try:
        value = _decode(data)
        return _decode(_BIG.sub(_as_float, data)) if _MAY_HAVE_BIG_NUMBER.search(data) else value
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ScriptError(_error_message(data, error)) from None


#: Maximum nesting depth. Deeper data might be readable but not writable, because a reply adds a few
#: levels.
MAX_DEPTH: Final = 500
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def _check_depth(data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(data):
        token = match[0]
        if token in {b"[", b"{"}:
            depth += 1
            if depth > MAX_DEPTH:
                raise ScriptError(f"Found too many nested data structures ({depth})")
        elif token in {b"]", b"}"}:
            depth -= 1


_MAY_HAVE_BIG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_BIG: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+', re.DOTALL
)


def _as_float(match: re.Match[bytes]) -> bytes:
    """Mark a number of more than 64 bits as a float. In Lua every number is a float."""
    word = match[0]
    if len(word) < 19 or not word.removeprefix(b"-").isdigit():
        return word
    fits = len(word) <= 20 and -(1 << 63) <= int(word) < 1 << 64
    return word if fits else word + b"e0"


def check_json(data: bytes | None) -> bytes:
    """Check that the bytes are JSON, and return them unchanged."""
    if data is None:
        raise ScriptError("bad argument #1 to 'decode' (string expected, got nil)")
    try:
        _check(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ScriptError(_error_message(data, error)) from None
    return data


def decode_list(data: bytes) -> list[Any]:
    """Decode a list. An object is an empty list to a script; any other value is an error."""
    value = decode(data)
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return []
    raise ScriptError(f"bad argument #1 to 'ipairs' (table expected, got {_lua_type(value)})")


#: Some strings and numbers of a list, each with its comma.
_ITEMS: Final = re.compile(
    rb'(?:[ \t\r\n]*+(?:"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.eE+-]*+)[ \t\r\n]*+,){1,400}+', re.DOTALL
)
_LIST_START: Final = re.compile(rb"[ \t\r\n]*+\[")
_LIST_END: Final = re.compile(rb"[ \t\r\n]*+\]")


def pieces_of_list(data: bytes) -> Iterator[list[Any]]:
    """Decode a list like `decode_list`, in pieces. The rest after the last string or number that
    has a comma is one piece.
    """
    start = _LIST_START.match(data)
    at = start.end() if start else 0
    try:
        while start and (match := _ITEMS.match(data, at)):
            at = match.end()
            yield decode_list(b"[%b]" % match[0][:-1])
        is_rest = start is not None and at > start.end() and not _LIST_END.match(data, at)
        yield decode_list(b"[" + data[at:] if is_rest else data)
    except ScriptError:
        decode_list(data)  # raises the error with the position in the whole list
        raise


def _lua_type(value: Any) -> str:
    if value is None:
        return "userdata"
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


# Error messages of cjson for invalid JSON: the expected token, the token found, and its position

#: For longer text, the error contains only the position, to limit the cost.
MAX_EXPLAINED_BYTES: Final = 10_000
_AT: Final = re.compile(r"\(byte (\d+)\)")
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_PUNCTUATION: Final = {
    b"{": "T_OBJ_BEGIN",
    b"}": "T_OBJ_END",
    b"[": "T_ARR_BEGIN",
    b"]": "T_ARR_END",
    b",": "T_COMMA",
    b":": "T_COLON",
    b"": "T_END",
}
_WORDS: Final = (
    ("T_STRING", re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)),
    ("T_NUMBER", re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")),
    ("T_BOOLEAN", re.compile(rb"true|false")),
    ("T_NULL", re.compile(rb"null")),
)
#: Tokens that start a value.
_VALUE: Final = {"T_STRING", "T_NUMBER", "T_BOOLEAN", "T_NULL", "T_OBJ_BEGIN", "T_ARR_BEGIN"}


def _error_message(data: bytes, error: Exception) -> str:
    open_brackets: list[str] = []
    wanted, allowed, at = "value", _VALUE, 0
    while len(data) <= MAX_EXPLAINED_BYTES:
        found, at, end = _token(data, at)
        if found not in allowed:
            return f"Expected {wanted} but found {found} at character {at + 1}"
        if found == "T_END":
            break  # cjson would have accepted it
        if found in {"T_OBJ_BEGIN", "T_ARR_BEGIN"}:
            open_brackets.append(found)
        elif found in {"T_OBJ_END", "T_ARR_END"}:
            open_brackets.pop()
        wanted, allowed = _next(found, open_brackets, wanted)
        at = end
    place = _AT.search(str(error))
    where = int(place[1]) if place else len(data)
    return f"Expected value but found invalid token at character {where + 1}"


def _next(found: str, open_brackets: list[str], wanted: str) -> tuple[str, set[str]]:
    """Return the tokens that may follow a valid token."""
    if found == "T_OBJ_BEGIN":
        return "object key string", {"T_STRING", "T_OBJ_END"}
    if found == "T_ARR_BEGIN":
        return "value", _VALUE | {"T_ARR_END"}
    if wanted == "object key string" and found == "T_STRING":
        return "colon", {"T_COLON"}
    if found == "T_COLON":
        return "value", _VALUE
    if found == "T_COMMA" and open_brackets[-1] == "T_OBJ_BEGIN":
        return "object key string", {"T_STRING"}
    if found == "T_COMMA":
        return "value", _VALUE
    if not open_brackets:
        return "the end", {"T_END"}
    if open_brackets[-1] == "T_OBJ_BEGIN":
        return "comma or object end", {"T_COMMA", "T_OBJ_END"}
    return "comma or array end", {"T_COMMA", "T_ARR_END"}


def _token(data: bytes, at: int) -> tuple[str, int, int]:
    """Return the next token, its start and its end."""
    space = _SPACE.match(data, at)
    start = space.end() if space else at
    token = data[start : start + 1]
    if token in _PUNCTUATION:
        return _PUNCTUATION[token], start, start + 1
    for name, pattern in _WORDS:
        word = pattern.match(data, start)
        if word is not None:
            return name, start, word.end()
    if token == b'"':
        return "unexpected end of string", len(data), len(data)
    return "invalid token", start, start + 1
