"""Names: bytes on the wire, text in the engine.

Redis compares jids, queue names, classes, tags and worker names byte by byte, and they need not be
UTF-8. The engine, the store, the journal and every other protocol use text that must be valid
Unicode. Therefore each byte that is not part of valid UTF-8 is mapped to one character of a private
range: the byte 0xFF is U+10FEFF. The characters of that range are themselves escaped byte by byte.
Two different names never map to the same text, and every name is returned exactly as it was sent.
"""

import re
from typing import Final

#: The code point for a byte is this number plus the byte; bytes below 0x80 are always valid.
ESCAPE_BASE: Final = 0x10FE00
_SURROGATE_BASE: Final = 0xDC00
#: First bytes of the UTF-8 form of every escaped byte.
_MARK: Final = b"\xf4\x8f"
#: A run of escaped bytes. The repetition is possessive, because other repetitions store each
#: character for backtracking.
_ESCAPED: Final = re.compile(rb"(?:\xf4\x8f[\xba\xbb][\x80-\xbf])++")
_ORIGINALS: Final = {
    chr(ESCAPE_BASE + byte).encode(): bytes((byte,)) for byte in range(0x80, 0x100)
}


def _escape_bytes(word: bytes) -> str:
    return "".join(chr(ESCAPE_BASE + byte) for byte in word)


_ESCAPES: Final[dict[int, str]] = {
    **{_SURROGATE_BASE + byte: chr(ESCAPE_BASE + byte) for byte in range(0x80, 0x100)},
    **{
        ESCAPE_BASE + byte: _escape_bytes(chr(ESCAPE_BASE + byte).encode())
        for byte in range(0x80, 0x100)
    },
}


def decode_name(word: bytes) -> str:
    """Return the text of a name. `encode_name` returns the same bytes."""
    try:
        text = word.decode()
    except UnicodeDecodeError:
        return word.decode("utf-8", "surrogateescape").translate(_ESCAPES)
    return text if text.isascii() or _MARK not in word else text.translate(_ESCAPES)


def encode_name(text: str) -> bytes:
    """Return the bytes of a name as a client sent them."""
    return restore_bytes(text.encode())


def restore_bytes(data: bytes) -> bytes:
    """Replace every escaped byte in UTF-8 text by the original byte."""
    return data if data.isascii() or _MARK not in data else _ESCAPED.sub(_restore, data)


def _restore(match: re.Match[bytes]) -> bytes:
    run = match[0]
    # The byte is the lowest byte of its code point.
    return _ORIGINALS.get(run) or run.decode().encode("utf-32-le")[::4]


# Names inside JSON

_BACKSLASH_OR_ESCAPE: Final = re.compile(
    rb"\\\\|\\u[dD][bB][fF]{2}\\u[dD][eE][89a-fA-F][0-9a-fA-F]"
)


def escape_json(data: bytes) -> bytes:
    """Convert JSON that contains names as sent by clients to UTF-8 JSON with the decoded names."""
    if not data.isascii() and (_MARK in data or not _is_utf8(data)):
        data = decode_name(data).encode()
    if data.find(b"\\u") >= 0:
        data = _BACKSLASH_OR_ESCAPE.sub(_escape_pair, data)
    return data


def _escape_pair(match: re.Match[bytes]) -> bytes:
    r"""Escape a character of the private range that is written as `\udbff\ude80`."""
    word = match[0]
    if len(word) == 2:
        return word
    code = 0x10FC00 + (int(word[8:], 16) & 0x3FF)
    return _ESCAPES[code].encode()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
