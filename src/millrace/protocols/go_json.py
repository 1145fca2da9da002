"""JSON objects as Go's decoder reads them: keys in any case, the last one wins, null is absent."""

import json
import re
from typing import Any, Final

import msgspec

from . import go_scanner
from .errors import BadJson

#: Longer JSON is not read step by step, because that is slow.
MAX_SLOW_PARSE_BYTES: Final = 80 << 10

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_decode_strings = msgspec.json.Decoder(list[str | None]).decode
_encode = msgspec.json.Encoder().encode
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[ \t\r\n]++', re.DOTALL)
_HTML: Final = re.compile(rb"[<>&]|\xe2\x80[\xa8\xa9]")
_ESCAPABLE: Final = re.compile(rb"[<>&\\]|\xe2\x80[\xa8\xa9]")
_NUMERIC: Final = frozenset(b"%c" % digit for digit in b"-0123456789")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def repair_text(line: bytes) -> bytes:
    """The line with each byte that is not UTF-8 replaced by U+FFFD."""
    if line.isascii():
        return line
    try:
        line.decode()
    except UnicodeDecodeError:
        return go_scanner.SURROGATE.sub("\ufffd", line.decode("utf-8", "surrogateescape")).encode()
    return line


def to_go_json(line: bytes) -> bytes:
    """JSON as Go's encoder writes it: no white space, text as UTF-8, `<`, `>` and `&` escaped."""
    return _TOKEN.sub(_canonical_token, line)


def _canonical_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if token[:1] != b'"':
        return b""
    if _ESCAPABLE.search(token) is None:
        return token
    text = _encode(go_scanner.decode_string(token))
    return _HTML.sub(lambda found: b"\\u%04x" % ord(found.group().decode()), text)


def replace_surrogates(line: bytes) -> bytes:
    r"""Replace lone surrogates (`\ud800`), which JavaScript clients send, with U+FFFD."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match.group(1) else match.group(), line)


def members(line: bytes) -> dict[str, bytes]:
    """The members of a JSON object, each as it was written."""
    try:
        found = _decode_raw(line)
    except msgspec.MsgspecError as error:
        if line.strip() == b"null":
            return {}
        repaired = replace_surrogates(line)
        if repaired == line:
            raise BadJson(error_text(error)) from None
        return members(repaired)
    except RecursionError:
        return _deep_members(line)
    except UnicodeDecodeError:
        raise BadJson("invalid UTF-8") from None
    return {key: bytes(raw) for key, raw in found.items()}


def _deep_members(line: bytes) -> dict[str, bytes]:
    """The members of an object that is nested more deeply than the decoder can read."""
    if go_scanner.go_type(line.lstrip() or b" ") != "object":
        raise BadJson("not an object")
    found = deep_pieces(line)
    return {
        go_scanner.decode_string(key): raw for key, raw in zip(found[::2], found[1::2], strict=True)
    }


def deep_elements(line: bytes) -> list[bytes]:
    """The elements of an array that is nested more deeply than the decoder can read."""
    if go_scanner.go_type(line.lstrip() or b" ") != "array":
        raise BadJson("not an array")
    return deep_pieces(line)


def deep_pieces(line: bytes) -> list[bytes]:
    """Return the members or elements, nested up to 10,000 levels as in Go. Raise BadJson for long
    lines, because the scanner is slow.
    """
    if len(line) > MAX_SLOW_PARSE_BYTES:
        raise BadJson("nested too deeply")
    return go_scanner.top_level_values(line)


def split_members(line: bytes, known: frozenset[str]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The `known` members by lower-case key, without nulls, and the other members."""
    matching: dict[str, bytes] = {}
    others: dict[str, bytes] = {}
    for key, raw in members(line).items():
        name = key.lower()
        if name not in known:
            others[key] = raw
        elif raw != b"null":
            matching[name] = raw
    return matching, others


def read_string(raw: bytes | None, name: str) -> str:
    """A member that must be a string; empty if it is absent."""
    if raw is None:
        return ""
    if raw[:1] != b'"':  # any other value is refused without decoding it
        raise BadJson(f"{name} must be a string")
    text: str = _value(raw, name)
    return text


def read_integer(
    raw: bytes | None, name: str, minimum: int = -(1 << 63), maximum: int = (1 << 63) - 1
) -> int | None:
    """A member that must be an integer literal within these bounds."""
    if raw is None:
        return None
    value = _value(raw, name) if raw[:1] in _NUMERIC else None
    if not isinstance(value, int):
        raise BadJson(f"{name} must be an integer")
    if not minimum <= value <= maximum:
        raise BadJson(f"{name} is out of range")
    return value


def read_strings(raw: bytes | None, name: str) -> list[str]:
    """A member that must be an array of strings; empty if it is absent. As in Go, a null in the
    array is an empty string.
    """
    if raw is None:
        return []
    try:
        return [text or "" for text in _decode_strings(raw)]
    except msgspec.ValidationError:
        raise BadJson(f"{name} must be an array of strings") from None
    except (msgspec.MsgspecError, RecursionError):
        raise BadJson(f"{name} cannot be read") from None


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _value(raw: bytes, name: str) -> Any:
    try:
        return _decode_any(raw)
    except (msgspec.MsgspecError, RecursionError):
        raise BadJson(f"{name} cannot be read") from None


def error_text(error: Exception) -> str:
    """The error message of a decoder, for a client."""
    text = str(error)
    if "truncated" in text:
        return "unexpected end of JSON input"
    return text.replace("JSON is malformed: ", "").replace("`", "")
