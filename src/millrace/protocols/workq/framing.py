"""Bytes in any pieces to lines, and to blocks whose size a line has told."""


class Inbox:
    """What a client has sent and nobody has taken yet.

    Bytes are searched once and copied a bounded number of times, in however small pieces they come.
    """

    __slots__ = ("_at", "_data", "_later", "_limit", "_searched", "too_long")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = b""
        self._at = 0
        #: What came while `_data` was not all taken.
        self._later = bytearray()
        #: So much of `_later` has no LF.
        self._searched = 0
        #: The client has sent more than `limit` without ending the line.
        self.too_long = False

    def __len__(self) -> int:
        return len(self._data) - self._at + len(self._later)

    @property
    def head(self) -> bytes:
        """The first bytes of what is held."""
        return self._data[self._at : self._at + 16] or bytes(self._later[:16])

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data) and not self._later:
            self._data, self._at = data, 0
        else:
            self._later += data

    def at(self, place: int) -> int:
        """The byte at this place, which has come."""
        place += self._at
        return (
            self._data[place] if place < len(self._data) else self._later[place - len(self._data)]
        )

    def line(self) -> bytes | None:
        """The next line, without its LF; None if it is not all there."""
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
        """The next `size` bytes, whatever they are; None if they are not all there."""
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
