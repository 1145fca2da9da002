"""A JSON scanner with the rules and the error messages of Go's encoding/json.

The scanner reads input that a fast decoder refuses or reads differently: keys in any case, repeated
keys, lone surrogates, bytes that are not UTF-8, ten thousand nested brackets. It is slow, so
callers limit the size of the input.
"""

import re
from typing import Final

from .errors import BadJson

UNEXPECTED_END: Final = "unexpected end of JSON input"
TOO_DEEP: Final = "exceeded max depth"
MAX_DEPTH: Final = 10_000

# The expected input. Each text is the end of Go's message for any other input.
VALUE: Final = "looking for beginning of value"
KEY: Final = "looking for beginning of object key string"
COLON: Final = "after object key"
MEMBER: Final = "after object key:value pair"
ELEMENT: Final = "after array element"
END_OF_INPUT: Final = "after top-level value"

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_STRING: Final = re.compile(
    rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+', re.DOTALL
)  # up to its closing quote
_HEX: Final = re.compile(rb"[0-9a-fA-F]{0,4}")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][+-]?[0-9]++)?")
# Scalars and empty values, each with its comma, matched in one step.
_VALUE: Final = rb'(?:%b"|%b|true|false|null|\[%b\]|\{%b\})%b,%b' % (
    _STRING.pattern,
    _NUMBER.pattern,
    *(_SPACE.pattern,) * 4,
)
_ELEMENTS: Final = re.compile(b"(?:%b)*+" % _VALUE)
_MEMBERS: Final = re.compile(
    b'(?:%b"%b:%b%b)*+' % (_STRING.pattern, _SPACE.pattern, _SPACE.pattern, _VALUE)
)
_WORDS: Final = {0x74: b"true", 0x66: b"false", 0x6E: b"null"}
_KINDS: Final = {0x22: "string", 0x7B: "object", 0x5B: "array", 0x6E: "null"}
_BOOL: Final = frozenset(b"tf")
_NUMERIC: Final = frozenset(b"-0123456789")
_CLOSING: Final = {0x7B: 0x7D, 0x5B: 0x5D}

_ESCAPE: Final = re.compile(
    r"\\(?:u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u(....)|(.))", re.DOTALL
)  # the pair of surrogates first
_SHORT_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
SURROGATE: Final = re.compile(f"[{chr(0xD800)}-{chr(0xDFFF)}]")


def go_type(raw: bytes) -> str:
    """The name of this kind of value in Go."""
    first = raw[0]
    return _KINDS.get(first) or ("bool" if first in _BOOL else "number")


def top_level_values(text: bytes) -> list[bytes]:
    """The first level of a value, each piece as it was written: the keys and values of an object in
    turn, the elements of an array, or the value itself. Raise BadJson with Go's message.
    """
    found: list[bytes] = []
    brackets = bytearray()
    expected = VALUE
    opened = False  # whether the last token opened a bracket, which may be closed at once
    position = start = 0
    while True:
        position = _end(_SPACE, text, position)
        if len(brackets) > 1 and expected == (VALUE if brackets[-1] == 0x5B else KEY):
            end = _end(_ELEMENTS if expected == VALUE else _MEMBERS, text, position)
            opened = opened and end == position
            position = end
        if position == len(text):
            if expected == END_OF_INPUT:
                return found
            raise BadJson(UNEXPECTED_END)
        char = text[position]
        depth = len(brackets)
        if (
            brackets
            and char == _CLOSING[brackets[-1]]
            and (opened or expected in {MEMBER, ELEMENT})
        ):
            brackets.pop()
            position += 1
            if depth == 2:
                found.append(text[start:position])
            expected = _expected_after_value(brackets)
        elif char in _CLOSING and expected == VALUE:
            if depth == MAX_DEPTH:
                raise BadJson(TOO_DEEP)
            if depth == 1:
                start = position
            brackets.append(char)
            expected = KEY if char == 0x7B else VALUE
            opened = True
            position += 1
            continue
        elif expected == VALUE or (expected == KEY and char == 0x22):
            end = _scalar(text, position)
            if depth <= 1:
                found.append(text[position:end])
            position = end
            expected = COLON if expected == KEY else _expected_after_value(brackets)
        elif expected == COLON and char == 0x3A:
            expected = VALUE
            position += 1
        elif expected in {MEMBER, ELEMENT} and char == 0x2C:
            expected = KEY if expected == MEMBER else VALUE
            position += 1
        else:
            raise _invalid(text, position, expected)
        opened = False


def members(text: bytes) -> list[tuple[str, bytes]]:
    """Return the members of an object in order, repeated keys included. Keys are in lower case.
    Raise BadJson for any other kind of value. In Go, null is an object without members.
    """
    found = top_level_values(text)
    what = go_type(text.lstrip(b" \t\r\n"))
    if what == "null":
        return []
    if what != "object":
        raise BadJson(f"not an object but {what}")
    keys, values = found[::2], found[1::2]
    return [(fold_key(decode_string(key)), raw) for key, raw in zip(keys, values, strict=True)]


def fold_key(key: str) -> str:
    """A key for comparison: Go ignores the case, and treats a long s as an s."""
    return key.lower().replace("\u017f", "s")


def decode_string(raw: bytes) -> str:
    """The text of a string. Each byte that is not UTF-8 becomes U+FFFD."""
    text = raw[1:-1].decode("utf-8", "surrogateescape")
    if "\\" in text:
        text = _ESCAPE.sub(_unescaped, text)
    return SURROGATE.sub("\ufffd", text)


def quote_as_go(text: str) -> str:
    """The text in the form of Go's %q."""
    return '"' + "".join(map(_visible, text)) + '"'


def _expected_after_value(brackets: bytearray) -> str:
    if not brackets:
        return END_OF_INPUT
    return MEMBER if brackets[-1] == 0x7B else ELEMENT


def _scalar(text: bytes, position: int) -> int:
    """The end of the string, number or word that begins here."""
    char = text[position]
    if char == 0x22:
        return _string(text, position)
    if char in _NUMERIC:
        return _number(text, position)
    word = _WORDS.get(char)
    if word is None:
        raise _invalid(text, position, VALUE)
    for number, letter in enumerate(word):
        if text[position + number : position + number + 1] != bytes([letter]):
            where = f"in literal {word.decode()} (expecting '{chr(letter)}')"
            raise _invalid(text, position + number, where)
    return position + len(word)


def _string(text: bytes, position: int) -> int:
    position = _end(_STRING, text, position)
    if position == len(text):
        raise BadJson(UNEXPECTED_END)
    char = text[position]
    if char == 0x22:
        return position + 1
    if char != 0x5C:
        raise _invalid(text, position, "in string literal")
    if text[position + 1 : position + 2] != b"u":
        raise _invalid(text, position + 1, "in string escape code")
    raise _invalid(text, _end(_HEX, text, position + 2), "in \\u hexadecimal character escape")


def _number(text: bytes, position: int) -> int:
    match = _NUMBER.match(text, position)
    if match is None:
        raise _invalid(text, position + 1, "in numeric literal")
    fraction, exponent = match.groups()
    end = match.end()
    following = text[end : end + 1]
    if following == b"." and fraction is None and exponent is None:
        raise _invalid(text, end + 1, "after decimal point in numeric literal")
    if following in {b"e", b"E"} and exponent is None:
        sign = text[end + 1 : end + 2] in {b"+", b"-"}
        raise _invalid(text, end + 1 + sign, "in exponent of numeric literal")
    return end


def _invalid(text: bytes, position: int, where: str) -> BadJson:
    """The error for a character. At the end of the text, Go reports a space as the character."""
    char = chr(text[position]) if position < len(text) else " "
    shown = {"'": r"\'", '"': '"'}.get(char) or _visible(char)
    return BadJson(f"invalid character '{shown}' {where}")


def _end(pattern: re.Pattern[bytes], text: bytes, position: int) -> int:
    match = pattern.match(text, position)
    assert match is not None, "every pattern matches the empty text"
    return match.end()


_GO_ESCAPES: Final = {
    '"': r"\"",
    "\\": r"\\",
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
}


def _visible(char: str) -> str:
    known = _GO_ESCAPES.get(char)
    if known is not None:
        return known
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _unescaped(match: re.Match[str]) -> str:
    high, low, single, short = match.groups()
    if high is not None:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if single is not None:
        return chr(int(single, 16))
    return _SHORT_ESCAPES.get(short, short)
