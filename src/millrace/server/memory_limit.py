"""The limit on buffered bytes across all connections, in addition to the limit on each connection.

It counts incomplete and waiting commands and unread replies. Above the limit, the server closes the
connection with the largest share until the rest fits. Clients with small commands are not affected.
"""

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

#: Seconds between two log lines about closed connections.
LOG_INTERVAL = 10.0


class BufferLimit:
    def __init__(self, limit: int, sessions: Iterable["Session"]) -> None:
        self.limit = limit
        self.total = 0
        self._sessions = sessions
        self._evicting = False
        self._evicted = 0
        self._logged_at = -LOG_INTERVAL

    def change(self, session: "Session", size: int) -> None:
        """Set the number of bytes that a session holds."""
        self.total += size - session.buffered
        session.buffered = size
        if self.total > self.limit and not self._evicting:
            self._make_room()

    def _make_room(self) -> None:
        self._evicting = True  # a closed session calls `change` too
        try:
            while self.total > self.limit:
                biggest = max(self._sessions, key=lambda each: each.buffered)
                self._log(biggest.buffered)
                biggest.evict("too many bytes of unfinished commands and unread replies")
        finally:
            self._evicting = False

    def _log(self, size: int) -> None:
        self._evicted += 1
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL:
            return
        self._logged_at = now
        log.warning(
            "Closed %d connections: unfinished commands and unread replies exceeded "
            "server.max_buffered (%d bytes). The largest share was %d bytes.",
            self._evicted,
            self.limit,
            size,
        )
        self._evicted = 0
