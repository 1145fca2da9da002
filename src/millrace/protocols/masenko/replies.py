"""Replies: a verb, a space, JSON as Go's encoder writes it, LF."""

import re
from typing import Final

import msgspec

OK: Final = b"OK {}\n"
EMPTY: Final = b"EMPTY {}\n"
PONG: Final = b"PONG {}\n"
#: Above this size, one search per special character is faster than one search for all of them.
LARGE_JSON: Final = 65_536
#: The maximum length of client text in an error.
MAX_ECHO: Final = 4000

_encode = msgspec.json.Encoder().encode
_UNSAFE: Final = re.compile(rb"[<>&]|\xe2\x80[\xa8\xa9]")
_ESCAPES: Final = {
    b"<": rb"\u003c",
    b">": rb"\u003e",
    b"&": rb"\u0026",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}
#: The characters by which `surrogateescape` represents bytes that are not UTF-8.
_INVALID_BYTES: Final = re.compile(f"[{chr(0xDC80)}-{chr(0xDCFF)}]")


def error_reply(text: str) -> bytes:
    if len(text) > MAX_ECHO:
        text = text[:MAX_ECHO] + "..."
    return b'ERR {"msg":%b}\n' % encode_string(text)


def encode_string(text: str) -> bytes:
    """A JSON string, safe inside HTML."""
    parts = _INVALID_BYTES.split(text)
    if len(parts) == 1:
        return escape_html(_encode(text))
    return b'"%b"' % rb"\ufffd".join(escape_html(_encode(part)[1:-1]) for part in parts)


def escape_html(json: bytes) -> bytes:
    """JSON with the special characters of HTML and JavaScript escaped; only strings have them."""
    if len(json) > LARGE_JSON:
        return _escape_large_html(json)
    if _UNSAFE.search(json) is None:
        return json
    return _UNSAFE.sub(lambda match: _ESCAPES[match.group()], json)


def _escape_large_html(json: bytes) -> bytes:
    """Do what `escape_html` does, faster for large JSON: 32 MiB without special characters take
    5 ms instead of 0.2 s.
    """
    for special, escape in _ESCAPES.items():
        if special[:1] in json and special in json:  # the search for one byte is faster
            json = json.replace(special, escape)
    return json
