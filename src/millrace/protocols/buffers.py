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

    __slots__ = ("_later", "_limit", "_searched", "data", "start", "too_long")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Input in one piece, which is consumed up to `start`.
        self.data = b""
        self.start = 0
        #: Input that arrived while `data` was not consumed.
        self._later = bytearray()
        #: The number of bytes at the start of `_later` that contain no LF.
        self._searched = 0
        #: Whether a line, complete or not, is longer than `limit`.
        self.too_long = False

    def __len__(self) -> int:
        return len(self.data) - self.start + len(self._later)

    @property
    def memory_used(self) -> int:
        """Number of bytes in memory, including consumed bytes of the current piece."""
        return len(self.data) + len(self._later)

    @property
    def head(self) -> bytes:
        """The first buffered byte, which identifies a TLS client."""
        return self.data[self.start : self.start + 1] or bytes(self._later[:1])

    def feed(self, data: bytes) -> None:
        if self.start == len(self.data) and not self._later:
            self.data, self.start = data, 0
        else:
            self._later += data

    def at(self, position: int) -> int:
        """The buffered byte at this position."""
        at = position + self.start
        return self.data[at] if at < len(self.data) else self._later[at - len(self.data)]

    def line(self) -> bytes | None:
        """Consume and return the next line without its LF; None if it is incomplete or too long."""
        at = self.start
        end = self.data.find(b"\n", at)
        if end < 0:
            if at == len(self.data) and not self._later:
                self.data, self.start = b"", 0
                return None
            return self._line_of_pieces()
        if end - at > self._limit:
            self.too_long = True
            return None
        self.start = end + 1
        return self.data[at:end]

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes; None if they have not all arrived."""
        if len(self) < size:
            return None
        if len(self.data) - self.start < size:
            self._join()
        self.start += size
        return self.data[self.start - size : self.start]

    def _line_of_pieces(self) -> bytes | None:
        rest = self.data[self.start :]
        if rest:
            self._later[:0] = rest
            self._searched += len(rest)
        self.data, self.start = b"", 0
        if self._later.find(b"\n", self._searched) >= 0:
            self._join()
            return self.line()
        self._searched = len(self._later)
        self.too_long = self._searched > self._limit
        return None

    def consume(self, end: int) -> None:
        """Consume `data` up to this position."""
        if end == len(self.data):
            self.data, self.start = b"", 0
        else:
            self.start = end

    def join(self) -> bool:
        """Move all unconsumed input to `data`. Return False if `data` has not changed."""
        if not self.start and not self._later:
            return False
        self._join()
        return True

    def _join(self) -> None:
        self.data = self.data[self.start :] + bytes(self._later)
        self.start = self._searched = 0
        self._later.clear()


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

    def take(self) -> bytes:
        piece, at = self.pending[0], self._at
        end = piece.find(b"\n", at)
        if end < 0:
            self.pending.popleft()
            self.size -= len(piece)
            return piece
        self._at = end + 1
        self.size -= end + 1 - at
        if self._at == len(piece):
            self.pending.popleft()
            self._at = 0
        return piece[at:end]

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
            whole = data[:end]
            if self._partial:
                self._partial += whole
                whole = bytes(self._partial)
                self._partial.clear()
            if len(whole) > self.limit:
                whole = self._before_too_long(whole)
            if whole:
                self.pending.append(whole)
                self.size += len(whole)
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

    def _before_too_long(self, whole: bytes) -> bytes:
        """Return the lines before the first line that is too long, and set `too_long` if there is
        one.
        """
        at = 0
        while (end := whole.find(b"\n", at)) >= 0:
            if end - at > self.limit:
                self.too_long = True
                return whole[:at]
            at = end + 1
        return whole
