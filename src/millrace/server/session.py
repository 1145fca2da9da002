"""A connected client: moves bytes between its socket and its protocol connection."""

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from millrace.protocols.connection import Connection

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger(__name__)

#: Unprocessed bytes above which the server stops reading from a client.
MAX_UNPROCESSED_BYTES: Final = 1 << 20
#: Bytes of replies that wait for a commit above which the server runs no command of a client.
MAX_UNCOMMITTED_BYTES: Final = 1 << 20
#: Send buffer of the kernel (it uses twice this value). The default grows to several MiB, and the
#: server would execute commands of a client that does not read until it is full.
SEND_BUFFER: Final = 1 << 17
#: A command of this size or less is not worth accounting.
SMALL_COMMAND_BYTES: Final = 512
#: Memory of a queue that exists only for a waiting client, which chooses its name.
QUEUE_BYTES: Final = 2048
#: Time for the handshake of a protocol, and without progress of a client that does not read.
HANDSHAKE_TIMEOUT: Final = 2.0
READ_TIMEOUT: Final = 60.0
#: After an error that ends the connection, the server discards input for this time and up to this
#: size: closing with unread input resets the connection, and the error may not arrive.
DRAIN_TIMEOUT: Final = 5.0
#: Intervals of keep-alive probes and of checks for a reset, after a client has closed its sending
#: side: it can be lost.
PROBE_INTERVAL: Final = 10
RESET_CHECK_INTERVAL: Final = 1.0
#: The first check whether a lease has arrived; each later interval is twice as long.
ARRIVAL_CHECK_INTERVAL: Final = 0.001
MAX_DRAINED_BYTES: Final = 256 << 20


class ClosedConnection(Connection):
    """Replaces the connection of a closed session."""

    backlog = held = 0

    def discard(self) -> None:
        pass

    def feed(self, data: bytes) -> None:
        pass

    def run(self, now: int, most: int) -> bool:
        return False

    def refusal(self, reason: str) -> bytes:
        return b""


CLOSED: Final = ClosedConnection()


class Session(asyncio.Protocol):
    __slots__ = (
        "_choked",
        "_connect",
        "_continuing",
        "_drained",
        "_ended",
        "_hands_over",
        "_reading",
        "_server",
        "_timer",
        "_unread",
        "_unsynced",
        "buffered",
        "connection",
        "lost",
        "pending",
        "transport",
    )

    def __init__(self, server: "Server", connect: Callable[[], Connection]) -> None:
        self._server = server
        #: Under TLS there is no connection before the end of the handshake.
        self._connect = connect
        self.connection: Connection
        self.transport: asyncio.Transport
        #: The turn whose sync the last held reply waits for.
        self.pending = 0
        self.lost = False
        #: Bytes that it makes the server keep: see memory_limit.py.
        self.buffered = 0
        #: Pairs: a turn, and the number of leased jobs in replies that wait for it or an earlier
        #: turn.
        self._hands_over: list[tuple[int, int]] = []
        #: The bytes of held replies.
        self._unsynced = 0
        self._reading = True
        self._choked: asyncio.TimerHandle | None = None
        #: Unread bytes at the last check of a client that does not read.
        self._unread = 0
        self._continuing = False
        self._ended = False
        #: Bytes discarded since the last reply, or -1 before it was written.
        self._drained = -1
        self._timer: asyncio.TimerHandle | None = None

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if not self._server.admit(self):
            self.lost = True
            self.transport.abort()
            return
        self.connection = self._connect()
        self.connection.session = self
        peer = transport.get_extra_info("peername")
        self.connection.address = peer[0] if isinstance(peer, tuple) else ""
        # Any unsent byte means that the client does not read: the server runs no commands for it.
        # Under TLS, bytes of the handshake can be unsent; they must not count.
        tls = transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(high=4096 if tls else 1, low=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._timer = self._server.loop.call_later(HANDSHAKE_TIMEOUT, self._check_handshake)
        self.flush()
        self._server.after(self._server.clock())  # the connection may have set an alarm

    def data_received(self, data: bytes) -> None:
        connection, server = self.connection, self._server
        if connection.closing:
            self._discard(data)
            return
        if self._continuing or self._choked is not None or self._unsynced > MAX_UNCOMMITTED_BYTES:
            connection.feed(data)
            self._throttle()
            self._account()
            return
        now = server.clock()
        try:
            more = connection.receive(data, now, server.queue.share)
        except Exception as mistake:
            self._defect(mistake)
            return
        replies = connection.replies
        if replies:
            if connection.marks or self.pending > server.turns.synced:
                self.flush()
            else:
                connection.replies = []
                self.write(replies)
        elif connection.closing:
            self.flush()
        if more or connection.waiter is not None or not self._reading:
            self._pace(more)
            self._account()
        # A short command with a reply leaves no bytes to account.
        elif not replies or self.buffered or len(data) > SMALL_COMMAND_BYTES:
            self._account()
        server.after(now)

    def eof_received(self) -> bool:
        """The client has closed its sending side. Its commands are still answered if the protocol
        defines it so; TLS has no half-close.
        """
        now = self._server.clock()
        if self._drained >= 0:
            return False
        if self.transport.get_extra_info("ssl_object") or not self.connection.ended(now):
            return False
        self._ended = True
        self.advance(now)
        self._server.after(now)
        if self._finished() and not self.connection.handed:
            return False
        self._probe_peer()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._choked is not None:
            self._choked.cancel()
        if self.lost:
            return
        self.lost = True
        now = self._server.clock()
        self.connection.lost(now)
        self._server.buffers.change(self, 0)
        self._server.dismiss(self)
        for job, attempt in self.connection.handed:
            if job.attempt == attempt:
                self._server.give_back(job, now)
        # A reference cycle would keep all input of the connection in memory until the next full
        # garbage collection, which can be hours away.
        self.connection = CLOSED
        self._server.after(now)

    def pause_writing(self) -> None:
        self._unread = _unread_bytes(self.transport)
        self._choked = self._server.loop.call_later(READ_TIMEOUT, self._check_progress)
        self._throttle()

    def resume_writing(self) -> None:
        if self._choked is not None:
            self._choked.cancel()
            self._choked = None
        if self.connection.handed:
            self._replies_written()
        self._account()
        self._continue_soon()

    # Called by the server

    def told(self, now: int, tell: Callable[..., None], *what: object) -> None:
        """Notify the connection, then run its next commands."""
        try:
            tell(*what, now)
            self.advance(now)
            if self.buffered:
                self._account()
        except Exception as mistake:
            self._defect(mistake)

    def advance(self, now: int, share: int | None = None) -> None:
        """Run this client's share of commands, and send its replies."""
        if self._continuing or self._blocked:
            self.flush()  # the run queue continues
            return
        try:
            more = self.connection.run(now, share or self._server.queue.share)
        except Exception as mistake:
            self._defect(mistake)
            return
        self.flush()
        self._pace(more)

    def go_on(self, share: int) -> None:
        """Continue after waiting in the run queue."""
        self._continuing = False
        if self.lost or self._blocked:
            return
        now = self._server.clock()
        self.advance(now, share)
        self._throttle()
        self._account()
        self._server.after(now)

    def flush(self) -> None:
        """Send replies, or hold them until their changes are durable."""
        connection, turns = self.connection, self._server.turns
        replies = connection.replies
        if replies:
            marks = connection.marks
            connection.replies = []
            if marks:
                connection.marks = []
            if (marks or self.pending > turns.synced) and turns.durable:
                turns.hold(self, replies, marks)
                if connection.handed:
                    self._hands_over.append((self.pending, len(connection.handed)))
                self._unsynced += len(replies[0]) if len(replies) == 1 else sum(map(len, replies))
            else:
                self.write(replies)
        elif self._finished():
            self._close()

    def write(self, replies: list[bytes]) -> None:
        """Send replies in one write."""
        if self.lost:
            return
        transport = self.transport
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        transport.write(data)
        connection = self.connection
        if self._choked is not None:
            self._unread += len(data)
            if transport.get_write_buffer_size() > self._server.max_output:
                log.warning("Closed a connection that did not read its replies.")
                transport.abort()
                return
            self._account()
        elif connection.handed:
            self._replies_written()
        if self.pending <= self._server.turns.synced:
            if self._unsynced > MAX_UNCOMMITTED_BYTES:
                self._continue_soon()
            self._unsynced = 0
            if (connection.closing or self._ended) and self._finished():
                self._close()

    def expel(self, reason: str) -> None:
        """Close this session: it holds the largest share of too many buffered bytes."""
        log.debug("Closed a connection that held %d bytes: %s.", self.buffered, reason)
        connection = self.connection
        self._server.buffers.change(self, 0)
        connection.discard()
        if connection.waiter is not None:
            self._server.engine.unwait(connection.waiter)  # now, not when the socket is closed
        if self._choked is not None or connection.closing:
            self.transport.abort()  # it does not read
            return
        connection.replies.append(connection.refusal(reason))
        connection.closing = True
        self.flush()

    # Internal

    @property
    def _blocked(self) -> bool:
        """Whether it must wait until its replies are sent."""
        return self._choked is not None or self._unsynced > MAX_UNCOMMITTED_BYTES

    def _close(self) -> None:
        """Close the connection; first discard the input of a client that is still sending."""
        transport = self.transport
        if self._ended and self.connection.handed and self._timer is not None:
            return  # _check_peer closes it
        if not self.connection.drains_input or self._ended or not transport.can_write_eof():
            transport.close()
            return
        if self._drained >= 0:
            return
        self._drained = 0
        transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(DRAIN_TIMEOUT, transport.abort)

    def _discard(self, data: bytes) -> None:
        """Count discarded input, and close the connection above the limit."""
        if self._drained >= 0:
            self._drained += len(data)
            if self._drained > MAX_DRAINED_BYTES:
                self.transport.abort()

    def _probe_peer(self) -> None:
        """Check whether a client that has closed its sending side still waits for replies."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
            return
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            sock.setsockopt(socket.IPPROTO_TCP, option, PROBE_INTERVAL)
        self._check_peer_in(RESET_CHECK_INTERVAL)

    def _check_peer_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(seconds, self._check_peer, seconds)

    def _check_peer(self, waited: float) -> None:
        """After a half-close: abort a connection that was reset, and check whether leases arrived.

        The peer's system acknowledges data for a process that still reads, and answers with a reset
        for a process that has ended. Leases that did not arrive are returned by `connection_lost`.
        """
        self._timer = None
        sock = self.transport.get_extra_info("socket")
        if self.lost or sock is None:
            return
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if not self.connection.handed or self.pending > self._server.turns.synced:
            self._check_peer_in(RESET_CHECK_INTERVAL)
        elif self.transport.get_write_buffer_size() or unacknowledged_bytes(sock):
            self._check_peer_in(min(2 * waited, RESET_CHECK_INTERVAL))
        else:
            self._forget_handed()
            if self._finished():
                self._close()
            else:
                self._check_peer_in(RESET_CHECK_INTERVAL)

    def _replies_written(self) -> None:
        """All replies that may be written are written."""
        if self._ended and self.transport.get_extra_info("socket") is not None:
            self._check_peer_in(ARRIVAL_CHECK_INTERVAL)  # the client may be lost
        else:
            self._forget_handed()

    def _forget_handed(self) -> None:
        """The client has received its written leases: they are not returned with the connection."""
        handed, synced = self.connection.handed, self._server.turns.synced
        if self.pending <= synced:
            handed.clear()
            self._hands_over.clear()
            return
        heard = max((count for turn, count in self._hands_over if turn <= synced), default=0)
        del handed[:heard]
        later = [(turn, count - heard) for turn, count in self._hands_over if turn > synced]
        self._hands_over = later

    def _account(self) -> None:
        connection = self.connection
        size = 0 if connection.closing else connection.held
        if connection.waiter is not None:
            size += connection.waiter.made * QUEUE_BYTES
        if self._choked is not None:
            size += self.transport.get_write_buffer_size()
        if size != self.buffered and not self.lost:
            self._server.buffers.change(self, size)

    def _defect(self, mistake: Exception) -> None:
        """An error in the server: close this connection and continue with the other clients."""
        log.error("A command failed.", exc_info=mistake)
        self.transport.abort()

    def _finished(self) -> bool:
        """Whether all replies of the connection are written."""
        connection = self.connection
        if self.pending > self._server.turns.synced or connection.replies:
            return False
        return connection.closing or (
            self._ended
            and not connection.backlog
            and connection.waiter is None
            and not self._continuing
        )

    def _pace(self, more: bool) -> None:
        if more:
            self._continue_soon()
        else:
            self._throttle()

    def _continue_soon(self) -> None:
        if not self._continuing:
            self._continuing = True
            self._throttle()
            self._server.queue.add(self)

    def _throttle(self) -> None:
        """Pause or resume reading: a client that floods the server or does not read must wait."""
        if self._drained >= 0:
            return
        want = not self._blocked and self.connection.backlog <= MAX_UNPROCESSED_BYTES
        if want == self._reading or self.lost or self.transport.is_closing():
            return
        self._reading = want
        if want:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _check_handshake(self) -> None:
        self._timer = None
        if self.connection.overdue():
            self.transport.close()

    def _check_progress(self) -> None:
        """Close a connection that read nothing since the last check. A slow reader may continue."""
        unread = _unread_bytes(self.transport)
        if unread >= self._unread:
            log.warning("Closed a connection that did not read its replies for %g s.", READ_TIMEOUT)
            self.transport.abort()
            return
        self._unread = unread
        self._choked = self._server.loop.call_later(READ_TIMEOUT, self._check_progress)


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
