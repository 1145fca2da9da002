"""Input buffers: bytes that arrive in pieces become lines, and blocks of a known size."""

from collections import deque


class ByteBuffer:
    """Input as lines, and as blocks of a known size.

    Bytes are searched once and copied a bounded number of times, however small the pieces are.
    """

    __slots__ = ("_at", "_data", "_later", "_limit", "_searched", "too_long")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = b""
        self._at = 0
        #: Input that arrived while `_data` was not consumed.
        self._later = bytearray()
        #: The first bytes of `_later`, up to here, contain no LF.
        self._searched = 0
        #: The client has sent more than `limit` without ending the line.
        self.too_long = False

    def __len__(self) -> int:
        return len(self._data) - self._at + len(self._later)

    @property
    def head(self) -> bytes:
        """The first buffered byte, which tells a TLS client."""
        return self._data[self._at : self._at + 1] or bytes(self._later[:1])

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data) and not self._later:
            self._data, self._at = data, 0
        else:
            self._later += data

    def at(self, place: int) -> int:
        """The buffered byte at this position."""
        place += self._at
        return (
            self._data[place] if place < len(self._data) else self._later[place - len(self._data)]
        )

    def line(self) -> bytes | None:
        """The next line without its LF; None if it is incomplete."""
        at = self._at
        end = self._data.find(b"\n", at)
        if end < 0:
            if at == len(self._data) and not self._later:
                self._data, self._at = b"", 0
                return None
            return self._line_of_pieces()
        if end - at > self._limit:
            self.too_long = True
            return None
        self._at = end + 1
        return self._data[at:end]

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes; None if they have not all arrived."""
        if len(self) < size:
            return None
        if len(self._data) - self._at < size:
            self._join()
        self._at += size
        return self._data[self._at - size : self._at]

    def _line_of_pieces(self) -> bytes | None:
        rest = self._data[self._at :]
        if rest:
            self._later[:0] = rest
            self._searched += len(rest)
        self._data, self._at = b"", 0
        if self._later.find(b"\n", self._searched) >= 0:
            self._join()
            return self.line()
        self._searched = len(self._later)
        self.too_long = self._searched > self._limit
        return None

    def _join(self) -> None:
        self._data = self._data[self._at :] + bytes(self._later)
        self._at = self._searched = 0
        self._later.clear()


class LineBuffer:
    """Input as lines without their LF. No line is longer than `limit`.

    A line is cut when it is taken: a client can send a hundred thousand empty lines in one piece,
    and other clients do not wait while the buffer splits them.
    """

    __slots__ = ("_at", "_partial", "limit", "pending", "size", "too_long")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._partial = bytearray()
        #: Pieces of complete lines, and the start of the next line in the first piece.
        self.pending: deque[bytes] = deque()
        self._at = 0
        #: The bytes of the pending lines.
        self.size = 0
        self.too_long = False

    def take(self) -> bytes:
        piece, at = self.pending[0], self._at
        end = piece.index(b"\n", at)
        self._at = end + 1
        self.size -= end + 1 - at
        if self._at == len(piece):
            self.pending.popleft()
            self._at = 0
        return piece[at:end]

    @property
    def held(self) -> int:
        """The buffered bytes: complete lines and an incomplete one."""
        return self.size + len(self._partial)

    @property
    def partial(self) -> bytes:
        """The first byte of the incomplete line, which tells a TLS client."""
        return bytes(self._partial[:1])

    @property
    def empty(self) -> bool:
        return not self.pending and not self._partial and not self.too_long

    def feed(self, data: bytes) -> None:
        if self.too_long:
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

    def _before_too_long(self, whole: bytes) -> bytes:
        """The lines before the first one that is too long."""
        at = 0
        while (end := whole.find(b"\n", at)) >= 0:
            if end - at > self.limit:
                self.too_long = True
                return whole[:at]
            at = end + 1
        return whole
