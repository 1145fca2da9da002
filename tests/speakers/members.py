"""The members of a JSON object, each with its original text."""

import re

import msgspec

_fast = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]|[^"\[\]{}]', re.DOTALL)


def members(text: bytes) -> dict[str, bytes]:
    """Also handles input that a fast decoder rejects: lone surrogates, thousands of brackets."""
    try:
        return {key: bytes(raw) for key, raw in _fast(text).items()}
    except (msgspec.MsgspecError, RecursionError):
        return _slowly(text)


def _slowly(text: bytes) -> dict[str, bytes]:
    """An object without spaces between its members and without escapes in its keys."""
    found: dict[str, bytes] = {}
    depth, start, key = 0, 1, ""
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in {b"[", b"{"}:
            depth += 1
        elif sign == b":" and depth == 1 and not key:
            key, start = text[start + 1 : token.start() - 1].decode(), token.end()
        elif depth == 1 and sign in {b",", b"}"}:
            found[key] = text[start : token.start()]
            key, start = "", token.end()
        if sign in {b"]", b"}"}:
            depth -= 1
    return found
