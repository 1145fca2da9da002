"""JSON objects as Go's decoder reads them: keys in any case, the last one wins, null is absent."""

import json
import re
from typing import Any, Final

import msgspec

from .errors import BadJson

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_decode_strings = msgspec.json.Decoder(list[str]).decode
_NUMERIC: Final = frozenset(b"%c" % digit for digit in b"-0123456789")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def check_text(line: bytes) -> None:
    """Refuse what is no UTF-8: everything inside is text, and text it must come out again."""
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise BadJson(f"invalid UTF-8 at byte {error.start}") from None


def mend(line: bytes) -> bytes:
    r"""Replace lone surrogates (`\ud800`) by U+FFFD: no text, but JavaScript sends them."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match.group(1) else match.group(), line)


def members(line: bytes) -> dict[str, bytes]:
    """The members of a JSON object, each as it was written."""
    try:
        found = _decode_raw(line)
    except msgspec.MsgspecError as error:
        mended = mend(line)
        if mended == line:
            raise BadJson(plain(error)) from None
        return members(mended)
    except RecursionError:
        raise BadJson("nested too deeply") from None
    except UnicodeDecodeError:
        raise BadJson("invalid UTF-8") from None
    return {key: bytes(raw) for key, raw in found.items()}


def folded(line: bytes, known: frozenset[str]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The members by lower-case key, without nulls, and beside them those that are not `known`."""
    mine: dict[str, bytes] = {}
    others: dict[str, bytes] = {}
    for key, raw in members(line).items():
        name = key.lower()
        if name not in known:
            others[key] = raw
        elif raw != b"null":
            mine[name] = raw
    return mine, others


def string(raw: bytes | None, name: str) -> str:
    """A member that must be a string; absent is empty."""
    if raw is None:
        return ""
    if raw[:1] != b'"':  # and whatever it is, it need not be read
        raise BadJson(f"{name} must be a string")
    text: str = _value(raw, name)
    return text


def integer(
    raw: bytes | None, name: str, least: int = -(1 << 63), most: int = (1 << 63) - 1
) -> int | None:
    """A member that must be an integer literal within these bounds."""
    if raw is None:
        return None
    value = _value(raw, name) if raw[:1] in _NUMERIC else None
    if not isinstance(value, int):
        raise BadJson(f"{name} must be an integer")
    if not least <= value <= most:
        raise BadJson(f"{name} is out of range")
    return value


def strings(raw: bytes | None, name: str) -> list[str]:
    """A member that must be an array of strings; absent is empty."""
    if raw is None:
        return []
    try:
        return _decode_strings(raw)
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


def plain(error: Exception) -> str:
    """A decoder's complaint, for a client."""
    text = str(error)
    if "truncated" in text:
        return "unexpected end of JSON input"
    return text.replace("JSON is malformed: ", "").replace("`", "")
