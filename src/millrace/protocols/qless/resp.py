"""RESP, the protocol of Redis: bytes in any pieces to requests, values to replies.

A request is an array of bulk strings, or a line of words. Arrays that came whole are read by
hiredis; what it read is packed again and must be the very bytes that came, because hiredis also
takes what is no request. Everything else is read here, step by step: what is still on its way, what
is large, lines of words, and what is wrong. No length that a client claims is believed beyond the
limits, and no memory is taken for what has not come.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from hiredis import HiredisError, Reader, pack_command

from .names import restore_bytes

#: The longest line, of words or of a length.
MAX_LINE: Final = 65_536
#: So much is read at once; in larger requests hiredis gains nothing.
READ_BATCH_BYTES: Final = 1 << 18
#: Size of the shortest argument, `$0`.
MIN_ARGUMENT_BYTES: Final = 6
#: An error says at most so much: it may quote what the client sent.
MAX_ERROR_LENGTH: Final = 2000

_STAR: Final = 0x2A
_DOLLAR: Final = 0x24


class ProtocolError(Exception):
    """The bytes are not a request, and the start of the next one is unknown."""


# Requests


class Limits:
    """How large a request may be. Strangers get less, and another word for it."""

    __slots__ = ("argument", "arguments", "at_once", "request", "word")

    def __init__(self, arguments: int, argument: int, request: int, word: str = "invalid") -> None:
        self.arguments = arguments
        self.argument = argument
        self.request = request
        self.word = word
        #: No request in a piece of this size can exceed any of them.
        self.at_once = min(READ_BATCH_BYTES, argument, request, arguments * MIN_ARGUMENT_BYTES)


class Requests:
    """Bytes of a client that no command has used yet."""

    __slots__ = (
        "_args",
        "_buffer",
        "_fresh",
        "_held",
        "_limits",
        "_piece",
        "_searched",
        "_size",
        "_wanted",
        "_whole",
        "inline",
    )

    def __init__(self) -> None:
        #: A piece that came when there was nothing else.
        self._piece = b""
        #: What is read step by step; so much of it has no LF.
        self._buffer = bytearray()
        self._searched = 0
        #: There may be whole requests in what is held.
        self._fresh = False
        #: Requests that were read at once, and the limits they are known to keep.
        self._whole: deque[list[bytes]] = deque()
        self._limits: Limits | None = None
        #: The request being read: how many arguments are missing, those that are there, what they
        #: take, and the size of the next one if that is known.
        self._wanted = 0
        self._args: list[bytes] = []
        self._held = 0
        self._size = -1
        #: A request came as a line of words.
        self.inline = False

    @property
    def head(self) -> bytes:
        """The first bytes of a request that is not complete."""
        return bytes(self._buffer[:16])

    def __len__(self) -> int:
        """How many bytes are held, at most."""
        whole = READ_BATCH_BYTES if self._whole else 0
        still_coming = max(0, self._size)
        return len(self._piece) + len(self._buffer) + self._held - still_coming + whole

    def feed(self, data: bytes) -> None:
        if self._piece or self._whole or self._buffer or self._wanted:
            self._buffer += data
        else:
            self._piece = data
        self._fresh = True

    def take(self, limits: Limits) -> list[bytes] | None:
        """The next request; None if it is not all there. An empty one asks for nothing."""
        # A line that was not all there when last looked at is gone on with where that ended.
        if self._fresh and not self._whole and not self._wanted and not self._searched:
            if not self._buffer and len(self._piece) <= limits.at_once:
                args = read_alone(self._piece)
                if args is not None:
                    self._piece, self._fresh = b"", False
                    return args
            self._read_whole(limits)
        if self._whole:
            args = self._whole.popleft()
            if limits is not self._limits:
                _check(args, limits)
            return args
        return self._read(limits)

    def _read_whole(self, limits: Limits) -> None:
        """Read at once what can be."""
        piece, self._piece = self._piece, b""
        buffer = self._buffer
        if piece and len(piece) <= limits.at_once:
            requests, size = read_whole(piece)
            buffer[:0] = piece[size:]
            later = False
        else:
            buffer[:0] = piece
            piece = bytes(buffer[: limits.at_once])
            requests, size = read_whole(piece)
            del buffer[:size]
            later = size > 0 and len(buffer) > len(piece) - size
        self._fresh = later
        self._whole.extend(requests)
        self._limits = limits

    def _read(self, limits: Limits) -> list[bytes] | None:
        """The next request, step by step."""
        if not self._buffer:
            return None
        if not self._wanted:
            line = self._line("inline request")
            if line is None:
                return None
            if line[:1] != b"*":
                self.inline = True
                return split_words(line.removesuffix(b"\r"))
            count = _number(line)
            if count is None or count > limits.arguments:
                word = "invalid" if count is None else limits.word
                raise ProtocolError(f"{word} multibulk length")
            self._wanted = max(0, count)
        while self._wanted:
            if self._size < 0 and not self._read_size(limits):
                return None
            argument = self._block()
            if argument is None:
                return None
            self._args.append(argument)
            self._wanted -= 1
        args, self._args, self._held = self._args, [], 0
        return args

    def _read_size(self, limits: Limits) -> bool:
        """How long is the next argument? False if that has not come."""
        if self._buffer and self._buffer[0] != _DOLLAR:
            raise ProtocolError(f"expected '$', got '{chr(self._buffer[0])}'")
        line = self._line("bulk count string")
        if line is None:
            return False
        size = _number(line)
        if size is None or size < 0 or size > limits.argument:
            word = limits.word if size is not None and size > 0 else "invalid"
            raise ProtocolError(f"{word} bulk length")
        self._held += size
        if self._held > limits.request:
            raise ProtocolError("too big request")
        self._size = size
        return True

    def _line(self, what: str) -> bytes | None:
        """The next line without its LF."""
        buffer = self._buffer
        end = buffer.find(b"\n", self._searched)
        if (end if end >= 0 else len(buffer)) > MAX_LINE:
            raise ProtocolError(f"too big {'mbulk count string' if buffer[0] == _STAR else what}")
        if end < 0:
            self._searched = len(buffer)
            return None
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        self._searched = 0
        return line

    def _block(self) -> bytes | None:
        """The argument whose size is known."""
        buffer, size = self._buffer, self._size
        if len(buffer) < size + 2:
            return None
        if buffer[size : size + 2] != b"\r\n":
            raise ProtocolError("expected CRLF after a bulk string")
        with memoryview(buffer) as view:
            argument = bytes(view[:size])
        del buffer[: size + 2]
        self._size = -1
        return argument


_NUMBER: Final = re.compile(rb"[*$](0|-?[1-9][0-9]{0,17})\r")


def _number(line: bytes) -> int | None:
    found = _NUMBER.fullmatch(line)
    return None if found is None else int(found[1])


def _check(args: list[bytes], limits: Limits) -> None:
    """These were read when other limits held."""
    if len(args) > limits.arguments:
        raise ProtocolError(f"{limits.word} multibulk length")
    if any(len(argument) > limits.argument for argument in args):
        raise ProtocolError(f"{limits.word} bulk length")


# Requests that came whole

_reader = Reader()
_pack: Final = cast("Callable[[tuple[bytes, ...]], bytes]", pack_command)
#: hiredis makes room for one of these as soon as it sees the length, wherever it stands.
_AGGREGATES: Final = b"*%~>|"
_LARGE: Final = re.compile(rb"[*%~>|][0-9]{6}")


#: How short arguments are announced.
_HEADS: Final = [b"$%d" % size for size in range(4096)]


def read_alone(data: bytes) -> list[bytes] | None:
    """One request that came whole and alone, as most do; None if it is not that, or unusual."""
    parts = data.split(b"\r\n")
    args = parts[2:-1:2]
    if not args or parts[0] != b"*%d" % len(args) or parts[-1] or len(parts) != 2 * len(args) + 2:
        return None
    try:
        return args if parts[1:-1:2] == [_HEADS[len(arg)] for arg in args] else None
    except IndexError:
        return None


def read_whole(data: bytes) -> tuple[list[list[bytes]], int]:
    """The requests at the beginning that are whole arrays of bulk strings, and what they take."""
    global _reader
    if data[:1] != b"*":
        return [], 0
    alone = len(data.translate(None, _AGGREGATES)) == len(data) - 1
    if data[1:7].isdigit() if alone else _LARGE.search(data):
        return [], 0
    requests: list[list[bytes]] = []
    try:
        _reader.feed(data)
        while (args := _reader.gets()) is not False:
            requests.append(args)
    except (HiredisError, TypeError):
        pass  # but what came before it is good
    try:
        packed = b"".join([_pack(tuple(args)) for args in requests])
    except (HiredisError, TypeError):
        packed = b"?"
    if packed == data:
        return requests, len(data)
    _reader = Reader()  # the old one may hold a rest
    if packed and data.startswith(packed):
        return requests, len(packed)
    return [], 0


# Lines of words

_SPACES: Final = b" \t\n\r\v\f"
_ESCAPED: Final = {0x6E: b"\n", 0x72: b"\r", 0x74: b"\t", 0x62: b"\b", 0x61: b"\a"}
_HEX: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
#: Up to the next quote, backslash or space.
_PLAIN: Final = re.compile(rb"[^\"'\s]+")
_QUOTED: Final = {0x22: re.compile(rb'[^"\\]+'), 0x27: re.compile(rb"[^'\\]+")}


def split_words(line: bytes) -> list[bytes]:
    """The words of a line; a part in quotes is one word whatever is in it."""
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at] in _SPACES:
            at += 1
        if at == end:
            return words
        word = bytearray()
        while at < end and line[at] not in _SPACES:
            quote = line[at]
            if quote in _QUOTED:
                at = _unquote(line, at, word)
                if at < end and line[at] not in _SPACES:
                    raise ProtocolError("unbalanced quotes in request")
            else:
                plain = _PLAIN.match(line, at)
                assert plain is not None
                word += plain[0]
                at = plain.end()
        words.append(bytes(word))


def _unquote(line: bytes, at: int, word: bytearray) -> int:
    """Read a quoted part into `word`; where it ends."""
    quote = line[at]
    at += 1
    while at < len(line):
        if line[at] == quote:
            return at + 1
        plain = _QUOTED[quote].match(line, at)
        if plain is not None:
            word += plain[0]
            at = plain.end()
        elif quote == 0x22 and (digits := _HEX.match(line, at)):
            word.append(int(digits[1], 16))
            at = digits.end()
        elif quote == 0x22 and at + 1 < len(line):
            word += _ESCAPED.get(line[at + 1], line[at + 1 : at + 2])
            at += 2
        elif quote == 0x27 and line[at + 1 : at + 2] == b"'":
            word += b"'"
            at += 2
        else:
            word.append(line[at])  # a backslash that escapes nothing
            at += 1
    raise ProtocolError("unbalanced quotes in request")


# Replies


class Simple(str):
    """A reply of one word: OK, PONG, QUEUED."""

    __slots__ = ()


class Error(str):
    """An error, its code first: `ERR syntax error`."""

    __slots__ = ()


class Verbatim(str):
    """Text for people; a bulk string in RESP2."""

    __slots__ = ()


class Map(list[tuple["Reply", "Reply"]]):
    """Pairs; a flat list in RESP2."""

    __slots__ = ()


class Set(list["Reply"]):
    """Members in no order; a list in RESP2."""

    __slots__ = ()


class Push(list["Reply"]):
    """A message without a request, as pub/sub sends it; a list in RESP2."""

    __slots__ = ()


class NoList:
    """Where there might have been a list there is nothing."""

    __slots__ = ()


Reply = None | bool | int | float | bytes | str | NoList | Map | list["Reply"]

OK: Final = Simple("OK")
NO_LIST: Final = NoList()
_SIGNS: Final[dict[type, bytes]] = {Set: b"~", Push: b">"}
_ONE_LINE: Final = {0x0A: " ", 0x0D: " "}


def encode(value: Reply, protocol: int) -> bytes:
    """A reply as it is written in RESP2 or RESP3."""
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if value is None:
        return b"$-1\r\n" if protocol == 2 else b"_\r\n"
    if isinstance(value, bool):
        if protocol == 2:
            return b":%d\r\n" % value
        return b"#t\r\n" if value else b"#f\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, str):
        return _encode_text(value, protocol)
    if isinstance(value, list):
        return _encode_list(value, protocol)
    if isinstance(value, float):
        text = number_text(value)
        return encode(text, 2) if protocol == 2 else b",%b\r\n" % text
    return b"*-1\r\n" if protocol == 2 else b"_\r\n"


def _encode_text(value: str, protocol: int) -> bytes:
    if isinstance(value, Error):
        value = Error(value[:MAX_ERROR_LENGTH].translate(_ONE_LINE))
        return b"-%b\r\n" % _bytes_of(value)
    text = _bytes_of(value)
    if isinstance(value, Simple):
        return b"+%b\r\n" % text
    if isinstance(value, Verbatim) and protocol == 3:
        return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _bytes_of(text: str) -> bytes:
    """Names come out as they came in; what can be no UTF-8 becomes a question mark."""
    return restore_bytes(text.encode("utf-8", "replace"))


def _encode_list(value: list[Any], protocol: int) -> bytes:
    if isinstance(value, Map):
        sign = b"*%d\r\n" % (2 * len(value)) if protocol == 2 else b"%%%d\r\n" % len(value)
        return sign + b"".join([encode(part, protocol) for pair in value for part in pair])
    sign = b"*" if protocol == 2 else _SIGNS.get(type(value), b"*")
    parts = [encode(part, protocol) for part in value]
    return b"%b%d\r\n%b" % (sign, len(value), b"".join(parts))


def size_of(value: Reply) -> int:
    """What a reply takes when it is written, and more than that."""
    if isinstance(value, bytes | str):
        return len(value) * (1 if isinstance(value, bytes) else 4) + 32
    if isinstance(value, Map):
        return 32 + sum(size_of(part) for pair in value for part in pair)
    parts: list[Any] = value if isinstance(value, list) else []
    return 32 + sum(map(size_of, parts))


def number_text(value: float) -> bytes:
    """A score: `12`, `1.5`, `inf`."""
    if value.is_integer() and abs(value) < 1 << 63:
        return b"%d" % value
    return repr(value).encode()
