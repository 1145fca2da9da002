"""Input buffers: bytes that arrive in pieces become lines, and blocks of a known size."""

from collections import deque
from io import BytesIO
from typing import Final

#: Bytes as numbers: `CR in data` is ten times as fast as `b"\r" in data`.
TAB: Final = 0x09
LF: Final = 0x0A
CR: Final = 0x0D
SPACE: Final = 0x20
#: A line above this size is never copied as a whole.
LARGE_LINE: Final = 1 << 20


class ByteBuffer:
    """Input as lines, and as blocks of a known size. A protocol whose commands have no such
    structure parses `data` from `start` on, and calls `join` if a command continues in later input.

    Bytes are searched once and copied a bounded number of times, regardless of the size of the
    pieces.
    """

    __slots__ = ("_later_input", "_limit", "_searched_bytes", "data", "start", "too_long")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Input in one piece, which is consumed up to `start`.
        self.data = b""
        self.start = 0
        #: Input that arrived while `data` was not consumed.
        self._later_input = bytearray()
        #: The number of bytes at the start of `_later_input` that contain no LF.
        self._searched_bytes = 0
        #: Whether a line, complete or not, is longer than `limit`.
        self.too_long = False

    def __len__(self) -> int:
        return len(self.data) - self.start + len(self._later_input)

    @property
    def memory_used(self) -> int:
        """Number of bytes in memory, including consumed bytes of the current piece."""
        return len(self.data) + len(self._later_input)

    @property
    def first_byte(self) -> bytes:
        """The first buffered byte, which identifies a TLS client."""
        return self.data[self.start : self.start + 1] or bytes(self._later_input[:1])

    def feed(self, data: bytes) -> None:
        if self.start == len(self.data) and not self._later_input:
            self.data, self.start = data, 0
        else:
            self._later_input += data

    def byte_at(self, position: int) -> int:
        """The buffered byte at this position."""
        index = position + self.start
        if index < len(self.data):
            return self.data[index]
        return self._later_input[index - len(self.data)]

    def take_line(self) -> bytes | None:
        """Consume and return the next line without its LF; None if it is incomplete or too long."""
        start = self.start
        end = self.data.find(b"\n", start)
        if end < 0:
            if start == len(self.data) and not self._later_input:
                self.data, self.start = b"", 0
                return None
            return self._line_from_pieces()
        if end - start > self._limit:
            self.too_long = True
            return None
        self.start = end + 1
        return self.data[start:end]

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes; None if they have not all arrived."""
        if len(self) < size:
            return None
        if len(self.data) - self.start < size:
            self._join()
        self.start += size
        return self.data[self.start - size : self.start]

    def _line_from_pieces(self) -> bytes | None:
        rest = self.data[self.start :]
        if rest:
            self._later_input[:0] = rest
            self._searched_bytes += len(rest)
        self.data, self.start = b"", 0
        if self._later_input.find(b"\n", self._searched_bytes) >= 0:
            self._join()
            return self.take_line()
        self._searched_bytes = len(self._later_input)
        self.too_long = self._searched_bytes > self._limit
        return None

    def consume(self, end: int) -> None:
        """Consume `data` up to this position."""
        if end == len(self.data):
            self.data, self.start = b"", 0
        else:
            self.start = end

    def join(self) -> bool:
        """Move all unconsumed input to `data`. Return False if `data` has not changed."""
        if not self.start and not self._later_input:
            return False
        self._join()
        return True

    def _join(self) -> None:
        self.data = self.data[self.start :] + bytes(self._later_input)
        self.start = self._searched_bytes = 0
        self._later_input.clear()


class LineBuffer:
    """Input as lines without their LF. No line is longer than `limit`.

    A line is split off when it is taken: a client can send a hundred thousand empty lines in one
    piece, and other clients do not wait while the buffer splits them.
    """

    __slots__ = ("_at", "_large", "_large_size", "_partial", "limit", "pending", "size", "too_long")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._partial = bytearray()
        #: The incomplete line and its size, once it is large. BytesIO returns it without a copy.
        self._large: BytesIO | None = None
        self._large_size = 0
        #: Pieces of complete lines. A piece without LF is one large line.
        self.pending: deque[bytes] = deque()
        #: The position of the next line in the first piece.
        self._at = 0
        #: The bytes of the pending lines.
        self.size = 0
        self.too_long = False

    def take_line(self) -> bytes:
        """Consume and return the next complete line. There is one if `pending` is not empty."""
        piece, start = self.pending[0], self._at
        end = piece.find(b"\n", start)
        if end < 0:
            self.pending.popleft()
            self.size -= len(piece)
            return piece
        self._at = end + 1
        self.size -= end + 1 - start
        if self._at == len(piece):
            self.pending.popleft()
            self._at = 0
        return piece[start:end]

    @property
    def memory_used(self) -> int:
        """The buffered bytes: complete lines and an incomplete one."""
        return self.size + len(self._partial) + self._large_size

    @property
    def partial_head(self) -> bytes:
        """The first byte of the incomplete line, which identifies a TLS client."""
        return bytes(self._partial[:1] if self._large is None else self._large.getbuffer()[:1])

    @property
    def empty(self) -> bool:
        return not (self.pending or self._partial or self._large_size or self.too_long)

    def feed(self, data: bytes) -> None:
        if self.too_long:
            return
        if self._large is not None:
            data = self._feed_large(self._large, data)
            if not data:
                return
        end = data.rfind(b"\n") + 1
        if end:
            complete_lines = data[:end]
            if self._partial:
                self._partial += complete_lines
                complete_lines = bytes(self._partial)
                self._partial.clear()
            if len(complete_lines) > self.limit:
                complete_lines = self._lines_before_overlong_line(complete_lines)
            if complete_lines:
                self.pending.append(complete_lines)
                self.size += len(complete_lines)
            if self.too_long:
                return
            data = data[end:]
        if data:
            self._partial += data
            self.too_long = len(self._partial) > self.limit
            if len(self._partial) > LARGE_LINE:
                self._large, self._large_size = BytesIO(), len(self._partial)
                self._large.write(self._partial)
                self._partial = bytearray()

    def _feed_large(self, large: BytesIO, data: bytes) -> bytes:
        """Add input to the large line, and return the input after its end."""
        end = data.find(b"\n")
        large.write(data if end < 0 else data[:end])
        self._large_size += len(data) if end < 0 else end
        self.too_long = self._large_size > self.limit
        if self.too_long:
            return b""
        if end < 0:
            return b""
        self.pending.append(large.getvalue())
        self.size += self._large_size
        self._large, self._large_size = None, 0
        return data[end + 1 :]

    def _lines_before_overlong_line(self, complete_lines: bytes) -> bytes:
        """Return the lines before the first line that is too long, and set `too_long` if there is
        one.
        """
        start = 0
        while (end := complete_lines.find(b"\n", start)) >= 0:
            if end - start > self.limit:
                self.too_long = True
                return complete_lines[:start]
            start = end + 1
        return complete_lines
