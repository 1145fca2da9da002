"""Replies in RESP, the protocol of Redis: their types and their encoding."""

from collections.abc import Generator
from typing import Any, Final

from millrace.protocols.connection import MAX_JOINED_BYTES

from .names import restore_bytes

#: Maximum length of an error message. A message may quote data from the client.
MAX_ERROR_LENGTH: Final = 2000
#: A longer list is encoded in slices of this number of elements.
LONG_LIST: Final = 500
#: Parts that one slice joins.
JOINED_PARTS: Final = 2000
#: Larger parts are not copied, and end a slice.
LARGE_PART: Final = 1 << 18


class Simple(str):
    """A simple string reply: OK, PONG, QUEUED."""

    __slots__ = ()


class Error(str):
    """An error, its code first: `ERR syntax error`."""

    __slots__ = ()


class Verbatim(str):
    """A verbatim string; a bulk string in RESP2."""

    __slots__ = ()


class Map(list[tuple["Reply", "Reply"]]):
    """Pairs; a flat list in RESP2."""

    __slots__ = ()


class Set(list["Reply"]):
    """Unordered members; a list in RESP2."""

    __slots__ = ()


class Push(list["Reply"]):
    """A message without a request, as pub/sub sends it; a list in RESP2."""

    __slots__ = ()


class EncodedReply(bytes):
    """A complete encoded reply."""

    __slots__ = ()


class CommittedReply(EncodedReply):
    """A complete encoded reply to changes that are durable."""

    __slots__ = ()


class BulkStringParts:
    """A large bulk string in parts, which are sent without a copy."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size


class NoList:
    """A null reply in place of a list."""

    __slots__ = ()


Reply = None | bool | int | float | bytes | str | BulkStringParts | NoList | Map | list["Reply"]

OK: Final = Simple("OK")
NO_LIST: Final = NoList()
_TYPE_PREFIXES: Final[dict[type, bytes]] = {Set: b"~", Push: b">"}
_ONE_LINE: Final = {0x0A: " ", 0x0D: " "}


def encode(value: Reply, resp_version: int) -> bytes:
    """Encode a reply in RESP2 or RESP3."""
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if value is None:
        return b"$-1\r\n" if resp_version == 2 else b"_\r\n"
    if isinstance(value, bool):
        if resp_version == 2:
            return b":%d\r\n" % value
        return b"#t\r\n" if value else b"#f\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, str):
        return _encode_text(value, resp_version)
    if isinstance(value, list):
        return _encode_list(value, resp_version)
    if isinstance(value, float):
        text = number_text(value)
        return encode(text, 2) if resp_version == 2 else b",%b\r\n" % text
    if isinstance(value, BulkStringParts):
        return b"".join(_bulk_parts(value))
    return b"*-1\r\n" if resp_version == 2 else b"_\r\n"


def _encode_text(value: str, resp_version: int) -> bytes:
    if isinstance(value, Error):
        value = Error(value[:MAX_ERROR_LENGTH].translate(_ONE_LINE))
        return b"-%b\r\n" % _bytes_of(value)
    text = _bytes_of(value)
    if isinstance(value, Simple):
        return b"+%b\r\n" % text
    if isinstance(value, Verbatim) and resp_version == 3:
        return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _bytes_of(text: str) -> bytes:
    """Encode names as the client sent them. A character that UTF-8 cannot encode becomes `?`."""
    return restore_bytes(text.encode("utf-8", "replace"))


def _encode_list(value: list[Any], resp_version: int) -> bytes:
    if isinstance(value, Map):
        prefix = b"*%d\r\n" % (2 * len(value)) if resp_version == 2 else b"%%%d\r\n" % len(value)
        return prefix + b"".join([encode(part, resp_version) for pair in value for part in pair])
    prefix = b"*" if resp_version == 2 else _TYPE_PREFIXES.get(type(value), b"*")
    parts = [encode(part, resp_version) for part in value]
    return b"%b%d\r\n%b" % (prefix, len(value), b"".join(parts))


def encode_in_slices(value: Reply, resp_version: int) -> Generator[None, None, bytes]:
    """Encode a reply as `encode` does, a long list in slices."""
    return b"".join((yield from encode_parts(value, resp_version)))


def encode_parts(value: Reply, resp_version: int) -> Generator[None, None, list[bytes]]:
    """Encode a reply as `encode` does, a long list in slices. Return its parts."""
    if isinstance(value, EncodedReply):
        return [value]
    if isinstance(value, BulkStringParts):
        return _bulk_parts(value)
    if not isinstance(value, list):
        return [encode(value, resp_version)]
    if isinstance(value, Map):
        parts = [b"*%d\r\n" % (2 * len(value)) if resp_version == 2 else b"%%%d\r\n" % len(value)]
        for number, (field, content) in enumerate(value, 1):
            parts += (encode(field, resp_version), encode(content, resp_version))
            if number % LONG_LIST == 0:
                yield
        return parts
    prefix = b"*" if resp_version == 2 else _TYPE_PREFIXES.get(type(value), b"*")
    parts = [b"%b%d\r\n" % (prefix, len(value))]
    for number, part in enumerate(value, 1):
        parts += yield from encode_parts(part, resp_version)
        if number % LONG_LIST == 0 or len(parts[-1]) > LARGE_PART:
            yield
    return parts


def join_parts(parts: list[bytes]) -> Generator[None, None, list[bytes]]:
    """Join the parts of a reply, in slices: into one piece, or for a large reply into pieces of
    about `LARGE_PART` bytes. Large parts are not copied.
    """
    pieces: list[bytes] = []
    start = size = total = 0
    for number, part in enumerate(parts):
        size += len(part)
        total += len(part)
        if len(part) > LARGE_PART:
            if start < number:
                pieces.append(b"".join(parts[start:number]))
            pieces.append(part)
            start, size = number + 1, 0
        elif size > LARGE_PART:
            pieces.append(b"".join(parts[start : number + 1]))
            start, size = number + 1, 0
            yield
        if (number + 1) % JOINED_PARTS == 0:
            yield
    if start < len(parts):
        pieces.append(b"".join(parts[start:]))
    return pieces if total > MAX_JOINED_BYTES else [b"".join(pieces)]


def _bulk_parts(value: BulkStringParts) -> list[bytes]:
    return [b"$%d\r\n" % len(value), *value.parts, b"\r\n"]


def size_of(value: Reply) -> int:
    """Return an upper bound of the encoded size of a reply."""
    if isinstance(value, BulkStringParts):
        return len(value) + 32
    if isinstance(value, bytes | str):
        return len(value) * (1 if isinstance(value, bytes) else 4) + 32
    if isinstance(value, Map):
        return 32 + sum(size_of(part) for pair in value for part in pair)
    parts: list[Any] = value if isinstance(value, list) else []
    return 32 + sum(map(size_of, parts))


def number_text(value: float) -> bytes:
    """Format a score: `12`, `1.5`, `inf`."""
    if value.is_integer() and abs(value) < 1 << 63:
        return b"%d" % value
    return repr(value).encode()
