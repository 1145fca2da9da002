"""Requests in RESP, the protocol of Redis, from received bytes.

A request is an array of bulk strings or an inline command, which is one line of text. hiredis
parses arrays that were received completely. The parser then encodes the result again and compares
it with the received bytes, because hiredis also accepts data that is not a valid request. This
module parses all other data incrementally: incomplete requests, large requests, inline commands and
invalid data. The parser rejects a length that exceeds the limits, and allocates no memory for data
that it has not received.
"""

import re
from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Final, cast

from hiredis import HiredisError, Reader, pack_command

#: Maximum length of a line: an inline command or a length.
MAX_LINE: Final = 65_536
#: Maximum number of bytes that one step parses. This is enough for thousands of short requests and
#: takes 1 ms. hiredis is not faster for larger requests.
READ_BATCH_BYTES: Final = 1 << 15
#: Maximum number of arguments that are parsed one by one in a step.
READ_BATCH_ARGUMENTS: Final = 250
#: Larger arguments are moved in parts as they arrive.
LARGE_ARGUMENT: Final = 1 << 18
#: Size of the shortest argument, `$0`.
MIN_ARGUMENT_BYTES: Final = 6

_STAR: Final = 0x2A
_DOLLAR: Final = 0x24


class ProtocolError(Exception):
    """The bytes are not a request, and the start of the next one is unknown."""


class RequestLimits:
    """Size limits of a request. Unauthenticated clients have lower limits and a different error
    text.
    """

    __slots__ = (
        "error_word",
        "max_argument_bytes",
        "max_arguments",
        "max_batch_bytes",
        "max_single_bytes",
        "request",
    )

    def __init__(
        self, arguments: int, argument: int, request: int, error_word: str = "invalid"
    ) -> None:
        self.max_arguments = arguments
        self.max_argument_bytes = argument
        self.request = request
        self.error_word = error_word
        #: Maximum size of a single request with few arguments that one step parses. It cannot
        #: exceed any of the limits.
        self.max_single_bytes = min(
            LARGE_ARGUMENT, argument, request, arguments * MIN_ARGUMENT_BYTES
        )
        #: Maximum size of other data that one step parses.
        self.max_batch_bytes = min(READ_BATCH_BYTES, self.max_single_bytes)


class RequestBuffer:
    """Received bytes that no command has consumed."""

    __slots__ = (
        "_args",
        "_args_size",
        "_buffer",
        "_large",
        "_limits",
        "_may_be_complete",
        "_missing_args",
        "_parsed",
        "_piece",
        "_searched",
        "_size",
        "inline",
        "is_partly_read",
    )

    def __init__(self) -> None:
        #: Data that was received while the buffer was empty.
        self._piece = b""
        #: The buffer for incremental parsing, and the number of its bytes that contain no LF.
        self._buffer = bytearray()
        self._searched = 0
        #: Whether the buffered data may contain complete requests.
        self._may_be_complete = False
        #: Requests that were parsed at once, and the limits that they satisfy.
        self._parsed: deque[list[bytes]] = deque()
        self._limits: RequestLimits | None = None
        #: The request being parsed: number of missing arguments, arguments parsed so far, their
        #: size, and the size of the next argument if it is known.
        self._missing_args = 0
        self._args: list[bytes] = []
        self._args_size = 0
        self._size = -1
        #: The received part of a large argument. Its value is taken without a copy.
        self._large = BytesIO()
        #: Whether a request was an inline command.
        self.inline = False
        #: Whether the last step has read its maximum of arguments and the next one can continue.
        self.is_partly_read = False

    @property
    def head(self) -> bytes:
        """Return the first bytes of an incomplete request."""
        return bytes(self._buffer[:16])

    def __len__(self) -> int:
        """Return an upper bound of the number of buffered bytes."""
        whole = READ_BATCH_BYTES if self._parsed else 0
        still_coming = max(0, self._size - self._large.tell())
        return len(self._piece) + len(self._buffer) + self._args_size - still_coming + whole

    def feed(self, data: bytes) -> None:
        if self._piece or self._parsed or self._buffer or self._missing_args:
            self._buffer += data
        else:
            self._piece = data
        self._may_be_complete = True

    def take(self, limits: RequestLimits) -> list[bytes] | None:
        """Return the next request, or None if it is incomplete or `is_partly_read`. An empty
        request has no effect.
        """
        # The search for the end of an incomplete line continues at the position where it stopped.
        if (
            self._may_be_complete
            and not self._parsed
            and not self._missing_args
            and not self._searched
        ):
            piece = self._piece
            if not self._buffer and (
                len(piece) <= limits.max_batch_bytes
                or (len(piece) <= limits.max_single_bytes and _may_be_one(piece))
            ):
                args = parse_single(piece)
                if args is not None:
                    self._piece, self._may_be_complete = b"", False
                    return args
            self._parse_complete(limits)
        if self._parsed:
            args = self._parsed.popleft()
            if limits is not self._limits:
                _check_limits(args, limits)
            return args
        return self._read(limits)

    def _parse_complete(self, limits: RequestLimits) -> None:
        """Parse all complete requests at once where possible."""
        piece, self._piece = self._piece, b""
        buffer = self._buffer
        if piece and len(piece) <= limits.max_batch_bytes:
            requests, size = parse_complete(piece)
            buffer[:0] = piece[size:]
            may_be_complete = False
        else:
            buffer[:0] = piece
            piece = bytes(buffer[: limits.max_batch_bytes])
            requests, size = parse_complete(piece)
            del buffer[:size]
            may_be_complete = size > 0 and len(buffer) > len(piece) - size
        self._may_be_complete = may_be_complete
        self._parsed.extend(requests)
        self._limits = limits

    def _read(self, limits: RequestLimits) -> list[bytes] | None:
        """Parse the next request incrementally."""
        if not self._buffer:
            return None
        if not self._missing_args:
            line = self._line("inline request")
            if line is None:
                return None
            if line[:1] != b"*":
                self.inline = True
                return split_words(line.removesuffix(b"\r"))
            count = _number(line)
            if count is None or count > limits.max_arguments:
                word = "invalid" if count is None else limits.error_word
                raise ProtocolError(f"{word} multibulk length")
            self._missing_args = max(0, count)
        self.is_partly_read = False
        for _ in range(min(self._missing_args, READ_BATCH_ARGUMENTS)):
            if self._size < 0 and not self._read_size(limits):
                return None
            argument = self._block()
            if argument is None:
                return None
            self._args.append(argument)
            self._missing_args -= 1
        if self._missing_args:
            self.is_partly_read = bool(self._buffer)
            return None
        args, self._args, self._args_size = self._args, [], 0
        return args

    def _read_size(self, limits: RequestLimits) -> bool:
        """Parse the size of the next argument. Return False if the size is incomplete."""
        if self._buffer and self._buffer[0] != _DOLLAR:
            raise ProtocolError(f"expected '$', got '{chr(self._buffer[0])}'")
        line = self._line("bulk count string")
        if line is None:
            return False
        size = _number(line)
        if size is None or size < 0 or size > limits.max_argument_bytes:
            word = limits.error_word if size is not None and size > 0 else "invalid"
            raise ProtocolError(f"{word} bulk length")
        self._args_size += size
        if self._args_size > limits.request:
            raise ProtocolError("too big request")
        self._size = size
        return True

    def _line(self, what: str) -> bytes | None:
        """Return the next line without its LF."""
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
        """Return the argument of the known size, or None if it is incomplete."""
        buffer, size = self._buffer, self._size
        if size > LARGE_ARGUMENT:
            return self._large_block()
        if len(buffer) < size + 2:
            return None
        if buffer[size : size + 2] != b"\r\n":
            raise ProtocolError("expected CRLF after a bulk string")
        with memoryview(buffer) as view:
            argument = bytes(view[:size])
        del buffer[: size + 2]
        self._size = -1
        return argument

    def _large_block(self) -> bytes | None:
        """Like `_block`, but move each part when it arrives: a copy of 63 MiB takes 20 ms."""
        buffer, large = self._buffer, self._large
        missing = self._size - large.tell()
        if missing:
            with memoryview(buffer) as view:
                large.write(view[:missing])
            del buffer[:missing]
        if large.tell() < self._size or len(buffer) < 2:
            return None
        if buffer[:2] != b"\r\n":
            raise ProtocolError("expected CRLF after a bulk string")
        del buffer[:2]
        self._size, self._large = -1, BytesIO()
        return large.getvalue()


_NUMBER: Final = re.compile(rb"[*$](0|-?[1-9][0-9]{0,17})\r")


def _number(line: bytes) -> int | None:
    found = _NUMBER.fullmatch(line)
    return None if found is None else int(found[1])


def _check_limits(args: list[bytes], limits: RequestLimits) -> None:
    """Check requests that were parsed under different limits."""
    if len(args) > limits.max_arguments:
        raise ProtocolError(f"{limits.error_word} multibulk length")
    if any(len(argument) > limits.max_argument_bytes for argument in args):
        raise ProtocolError(f"{limits.error_word} bulk length")


# Complete requests

_reader = Reader()
_pack: Final = cast("Callable[[tuple[bytes, ...]], bytes]", pack_command)
#: hiredis allocates memory for these types when it reads the length, at any nesting level.
_AGGREGATES: Final = b"*%~>|"
_LARGE: Final = re.compile(rb"[*%~>|][0-9]{6}")


#: Length prefixes of short arguments.
_HEADS: Final = [b"$%d" % size for size in range(4096)]


def parse_single(data: bytes) -> list[bytes] | None:
    """Parse exactly one complete request, the usual case. Return None for other data."""
    parts = data.split(b"\r\n")
    args = parts[2:-1:2]
    if not args or parts[0] != b"*%d" % len(args) or parts[-1] or len(parts) != 2 * len(args) + 2:
        return None
    try:
        return args if parts[1:-1:2] == [_HEADS[len(arg)] for arg in args] else None
    except IndexError:
        return None


def _may_be_one(data: bytes) -> bool:
    """Return whether data probably contains one request with fewer than 100 arguments."""
    return data.find(b"\r", 0, 4) > 0 and b"\r\n*" not in data[:4096]


def parse_complete(data: bytes) -> tuple[list[list[bytes]], int]:
    """Parse the complete arrays of bulk strings at the start, and return them with their size."""
    global _reader
    if data[:1] != b"*":
        return [], 0
    is_single_array = len(data.translate(None, _AGGREGATES)) == len(data) - 1
    if data[1:7].isdigit() if is_single_array else _LARGE.search(data):
        return [], 0
    requests: list[list[bytes]] = []
    try:
        _reader.feed(data)
        while (args := _reader.gets()) is not False:
            requests.append(args)
    except (HiredisError, TypeError):
        pass  # the requests before the error are valid
    try:
        packed = b"".join([_pack(tuple(args)) for args in requests])
    except (HiredisError, TypeError):
        packed = b"?"
    if packed == data:
        return requests, len(data)
    _reader = Reader()  # the old reader may contain remaining data
    if packed and data.startswith(packed):
        return requests, len(packed)
    return [], 0


# Inline commands

_SPACES: Final = b" \t\n\r\v\f"
_ESCAPED: Final = {0x6E: b"\n", 0x72: b"\r", 0x74: b"\t", 0x62: b"\b", 0x61: b"\a"}
_HEX: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
#: Up to the next quote or space.
_PLAIN: Final = re.compile(rb"[^\"'\s]+")
_QUOTED: Final = {0x22: re.compile(rb'[^"\\]+'), 0x27: re.compile(rb"[^'\\]+")}


def split_words(line: bytes) -> list[bytes]:
    """Split an inline command into arguments. A quoted part may contain any character."""
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
    """Append a quoted part to `word`, and return the position of its end."""
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
            word.append(line[at])  # a backslash before an ordinary character
            at += 1
    raise ProtocolError("unbalanced quotes in request")
