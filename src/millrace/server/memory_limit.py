"""What all connections together make the server keep: a bound for the sum, beside each one's own.

Counted are commands that are not all there or not done yet, and replies that are not read. When
they are too much, whoever has the most goes, and again until the rest fits: so it is those who
take the memory that pay for it, and a client with small commands never hears of it.
"""

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

#: A crowd may be cut at once; so often it is told, in seconds.
TELL_EVERY = 10.0


class MemoryLimit:
    def __init__(self, most: int, sessions: Iterable["Session"]) -> None:
        self.most = most
        self.total = 0
        self._sessions = sessions
        self._cutting = False
        self._cut = 0
        self._told_at = -TELL_EVERY

    def change(self, session: "Session", size: int) -> None:
        """A session holds so much now."""
        self.total += size - session.buffered
        session.buffered = size
        if self.total > self.most and not self._cutting:
            self._make_room()

    def _make_room(self) -> None:
        self._cutting = True  # whoever goes holds less, and says so in the midst of it
        try:
            while self.total > self.most:
                biggest = max(self._sessions, key=lambda each: each.buffered)
                self._tell(biggest.buffered)
                biggest.expel("too much of unfinished commands and unread replies")
        finally:
            self._cutting = False

    def _tell(self, size: int) -> None:
        self._cut += 1
        now = time.monotonic()
        if now - self._told_at < TELL_EVERY:
            return
        self._told_at = now
        log.warning(
            "connections cut: %d. All together held more than server.max_buffered (%d bytes) of "
            "unfinished commands and unread replies, the largest of them %d bytes",
            self._cut,
            self.most,
            size,
        )
        self._cut = 0
