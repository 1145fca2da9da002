"""A connected client: moves bytes between its socket and its protocol's connection."""

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

#: With so many bytes of commands waiting, nothing more is read from the client.
MOST_BACKLOG: Final = 1 << 20
#: With so many bytes of replies that wait for the disk, nothing more is done for the client.
MOST_UNSYNCED: Final = 1 << 20
#: The kernel keeps so much for a client that does not read, twice; by itself it would go up to
#: several MiB, and all that time the client would have its commands done.
SEND_BUFFER: Final = 1 << 17
#: Most commands are shorter.
SHORT: Final = 512
#: What a queue takes that exists only because somebody waits for it: anybody can make up names.
QUEUE_COSTS: Final = 2048
#: A client that has not introduced itself, or does not read, for so long is cut.
HELLO_WITHIN: Final = 2.0
READ_TIMEOUT: Final = 60.0
#: After an error that ends the connection, the server discards input for this time and up to this
#: size: closing with unread input resets the connection, and the error may not arrive.
DRAIN_TIMEOUT: Final = 5.0
#: After a client has closed its sending side, it may be gone: the server probes it so often, in
#: seconds, and looks for a reset.
PROBE_INTERVAL: Final = 10
RESET_CHECK_INTERVAL: Final = 1.0
#: The first look whether a lease has arrived; the later ones are twice as far apart each.
ARRIVAL_CHECK_INTERVAL: Final = 0.001
MAX_DRAINED_BYTES: Final = 256 << 20


class Gone(Connection):
    """In the place of a connection that is over."""

    backlog = held = 0

    def discard(self) -> None:
        pass

    def feed(self, data: bytes) -> None:
        pass

    def run(self, now: int, most: int) -> bool:
        return False

    def refusal(self, reason: str) -> bytes:
        return b""  # nobody hears it


GONE: Final = Gone()


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
        #: Under TLS there is no connection before the handshake is done, and perhaps never one.
        self._connect = connect
        self.connection: Connection
        self.transport: asyncio.Transport
        #: The turn whose sync the last held reply waits for.
        self.pending = 0
        self.lost = False
        #: What it makes the server keep: see buffers.py.
        self.buffered = 0
        #: How many of the jobs that were handed are in replies that wait for which turn, or for an
        #: earlier one.
        self._hands_over: list[tuple[int, int]] = []
        #: The bytes of held replies.
        self._unsynced = 0
        self._reading = True
        self._choked: asyncio.TimerHandle | None = None
        #: Unread bytes at the last check of a client that does not read.
        self._unread = 0
        self._continuing = False
        self._ended = False
        #: How many bytes were discarded since the last reply, or -1 before it was written.
        self._drained = -1
        self._timer: asyncio.TimerHandle | None = None

    # What the loop calls

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
        # Any unsent byte counts as "does not read": then nothing more is done for the client.
        # Under TLS some of the handshake is unsent yet, and must not count.
        tls = transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(high=4096 if tls else 1, low=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._timer = self._server.loop.call_later(HELLO_WITHIN, self._check_introduced)
        self.flush()
        self._server.after(self._server.clock())  # it may have asked for a moment

    def data_received(self, data: bytes) -> None:
        connection, server = self.connection, self._server
        if connection.closing:
            self._discard(data)
            return
        if self._continuing or self._choked is not None or self._unsynced > MOST_UNSYNCED:
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
        # What came with a reply to it and was short leaves nothing worth counting.
        elif not replies or self.buffered or len(data) > SHORT:
            self._account()
        server.after(now)

    def eof_received(self) -> bool:
        """The client will say no more. What it asked for is still answered, if its protocol says
        so; TLS cannot be closed by halves.
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
        # The connection leads here, so nothing here may lead to it: all that it has read would
        # stay until the garbage collector's next great round, which may be hours away.
        self.connection = GONE
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
            self._has_heard()
        self._account()
        self._continue_soon()

    # What the server calls

    def told(self, now: int, tell: Callable[..., None], *what: object) -> None:
        """Tell the connection something, and go on with what it can do then."""
        try:
            tell(*what, now)
            self.advance(now)
            if self.buffered:
                self._account()
        except Exception as mistake:
            self._defect(mistake)

    def advance(self, now: int, share: int | None = None) -> None:
        """Do this client's share of commands, and send what can be sent."""
        if self._continuing or self._blocked:
            self.flush()  # its turn comes
            return
        try:
            more = self.connection.run(now, share or self._server.queue.share)
        except Exception as mistake:
            self._defect(mistake)
            return
        self.flush()
        self._pace(more)

    def go_on(self, share: int) -> None:
        """Its turn has come."""
        self._continuing = False
        if self.lost or self._blocked:
            return
        now = self._server.clock()
        self.advance(now, share)
        self._throttle()
        self._account()
        self._server.after(now)

    def flush(self) -> None:
        """Send replies, or hold them until what they announce is durable."""
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
        """Send replies whose time has come, in one piece."""
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
            self._has_heard()
        if self.pending <= self._server.turns.synced:
            if self._unsynced > MOST_UNSYNCED:
                self._continue_soon()
            self._unsynced = 0
            if (connection.closing or self._ended) and self._finished():
                self._close()

    def expel(self, reason: str) -> None:
        """All together hold too much, and this one the most of it: it has to go."""
        log.debug("cut a client that held %d bytes: %s", self.buffered, reason)
        connection = self.connection
        self._server.buffers.change(self, 0)
        connection.discard()
        if connection.waiter is not None:
            self._server.engine.unwait(connection.waiter)  # now, and not when the socket is closed
        if self._choked is not None or connection.closing:
            self.transport.abort()  # it does not read, or will not
            return
        connection.replies.append(connection.refusal(reason))
        connection.closing = True
        self.flush()

    # Within

    @property
    def _blocked(self) -> bool:
        """Must it wait until what was said to it has gone out?"""
        return self._choked is not None or self._unsynced > MOST_UNSYNCED

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
        """Count input that nobody will read, and close when it is too much."""
        if self._drained >= 0:
            self._drained += len(data)
            if self._drained > MAX_DRAINED_BYTES:
                self.transport.abort()

    def _probe_peer(self) -> None:
        """A client that has closed its sending side waits for replies, or is gone: find out."""
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
        """After a half-close: abort a connection that was reset, and learn whether leases arrived.

        The peer's system acknowledges data for a process that still reads, and answers with a reset
        for one that is gone. Leases that did not arrive are returned by `connection_lost`.
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

    def _has_heard(self) -> None:
        """What may be written was written."""
        if self._ended and self.transport.get_extra_info("socket") is not None:
            self._check_peer_in(ARRIVAL_CHECK_INTERVAL)  # it may be gone
        else:
            self._forget_handed()

    def _forget_handed(self) -> None:
        """All that may be said was said: of those jobs the client knows."""
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
            size += connection.waiter.made * QUEUE_COSTS
        if self._choked is not None:
            size += self.transport.get_write_buffer_size()
        if size != self.buffered and not self.lost:
            self._server.buffers.change(self, size)

    def _defect(self, mistake: Exception) -> None:
        """A mistake of ours: this client is cut, the others go on."""
        log.error("a command failed", exc_info=mistake)
        self.transport.abort()

    def _finished(self) -> bool:
        """Has everything been said that will be?"""
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
        """Read on, or not: a client that floods us or does not read is held back."""
        if self._drained >= 0:
            return
        want = not self._blocked and self.connection.backlog <= MOST_BACKLOG
        if want == self._reading or self.lost or self.transport.is_closing():
            return
        self._reading = want
        if want:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _check_introduced(self) -> None:
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
    """How many written bytes the peer's system has not acknowledged."""
    packed = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return int(struct.unpack("i", packed)[0])
