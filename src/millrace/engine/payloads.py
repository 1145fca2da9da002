"""The interface for payloads that live in the store."""

from collections.abc import Callable
from typing import Any, Final, Protocol

#: A stored payload up to this size is read where it is needed. A larger one is read before, by
#: another thread: 32 MiB take 40 ms.
MAX_DIRECT_READ: Final = 256 << 10


class PayloadReader(Protocol):
    """Reads committed payloads. The payload of a job that was removed is empty."""

    def read(self, seq: int) -> bytes: ...

    def read_large(self, seq: int) -> bytes:
        """Read as `read` does, but let other threads run meanwhile: 32 MiB take 15 ms."""
        ...

    def read_part(self, seq: int, start: int, size: int) -> bytes: ...

    def another(self) -> "PayloadReader":
        """A reader for another thread."""
        ...

    def close(self) -> None: ...


class PayloadRead:
    """A request for payloads that another thread reads."""

    __slots__ = ("error", "owner", "payloads", "seqs")

    def __init__(self, seqs: list[int], owner: Any = None) -> None:
        self.seqs = seqs
        #: The connection that continues after the read; None if its command polls for
        #: the result.
        self.owner = owner
        #: The payloads by seq after the read. After an error, some are missing.
        self.payloads: dict[int, bytes] | None = None
        self.error: Exception | None = None


#: Starts a read.
PayloadFetcher = Callable[[PayloadRead], None]
