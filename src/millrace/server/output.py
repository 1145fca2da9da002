"""The replies of a session that its client has not read yet.

Large replies are written in pieces. A client that reads nothing for a while is disconnected.
"""

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import termios
from collections import deque
from typing import Any, Final

log = logging.getLogger(__name__)

#: Replies up to MAX_JOINED_BYTES are joined into one write. Larger ones are written in pieces of
#: this size: the transport would copy everything that it cannot send immediately, and copying 32
#: MiB takes 30 ms.
PIECE_BYTES: Final = 1 << 18
PIECES_PER_SLICE: Final = 4
#: Seconds after which a client that reads no reply is disconnected.
READ_TIMEOUT: Final = 60.0


class Output:
    __slots__ = ("_loop", "_pieces", "_stall_timer", "_transport", "is_clear", "size", "unread")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        #: Large replies that the transport does not have yet, and their size. The first part of the
        #: first one may already be written.
        self._pieces: deque[Any] = deque()
        self.size = 0
        #: Set while the client does not read.
        self._stall_timer: asyncio.TimerHandle | None = None
        #: Unread bytes at the last check of a client that does not read.
        self.unread = 0
        #: Whether the transport has taken all replies so far.
        self.is_clear = True

    @property
    def is_stalled(self) -> bool:
        """Whether the client does not read. This is a property because mypy would treat the result
        of a direct comparison as constant, although a write can change it.
        """
        return self._stall_timer is not None

    @property
    def unwritten(self) -> int:
        """The bytes of replies that are not written to the socket."""
        return self.size + self._transport.get_write_buffer_size()

    # Large replies

    def add(self, pieces: list[bytes], size: int) -> bool:
        """Write large replies, or replies behind them, in pieces. Return whether another slice must
        follow.
        """
        is_first = not self.size
        self._pieces.extend(pieces)
        self.size += size
        self.is_clear = False
        return is_first and self._stall_timer is None and self.write_some()

    def write_some(self) -> bool:
        """Write pieces until the socket accepts no more, or until the slice ends. Return whether
        another slice must follow.
        """
        pieces = self._pieces
        for _ in range(PIECES_PER_SLICE):
            if not pieces or self.is_stalled:
                break
            first = pieces[0]
            if len(first) > PIECE_BYTES:
                rest = memoryview(first)
                self._transport.write(rest[:PIECE_BYTES])
                pieces[0] = rest[PIECE_BYTES:]
                self.size -= PIECE_BYTES
            else:
                pieces.popleft()
                self.size -= len(first)
                self._transport.write(first)
        self.is_clear = self._stall_timer is None and not self.size
        return self.size > 0 and self._stall_timer is None

    def write_all(self) -> None:
        """Give all replies to the transport, because the server is stopping."""
        if self.size:
            self._transport.writelines(list(self._pieces))
            self._drop_pieces()

    # Clients that do not read

    def stall(self) -> None:
        """The socket accepts no more bytes: close the connection if the client reads nothing."""
        self.is_clear = False
        self.unread = _unread_bytes(self._transport)
        self._stall_timer = self._loop.call_later(READ_TIMEOUT, self._check_progress)

    def end_stall(self) -> None:
        """The socket has accepted all bytes."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self.is_clear = not self.size

    def connection_lost(self) -> None:
        """Drop all replies."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._drop_pieces()

    def _drop_pieces(self) -> None:
        self._pieces.clear()
        self.size = 0
        self.is_clear = self._stall_timer is None

    def _check_progress(self) -> None:
        """Close a connection that read nothing since the last check. A slow reader may continue."""
        unread = _unread_bytes(self._transport)
        if unread >= self.unread:
            log.warning("Closed a connection that did not read its replies for %g s.", READ_TIMEOUT)
            self._transport.abort()
            return
        self.unread = unread
        self._stall_timer = self._loop.call_later(READ_TIMEOUT, self._check_progress)


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Unsent bytes, and those that the peer's system has not acknowledged."""
    unread = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            unread += unacknowledged_bytes(sock)
    return unread


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Written bytes that the peer's system has not acknowledged."""
    packed = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return int(struct.unpack("i", packed)[0])
