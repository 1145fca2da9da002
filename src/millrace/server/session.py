"""A connected client: moves bytes between its socket and its protocol connection."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from millrace.protocols.connection import MAX_JOINED_BYTES, Connection, Reply

from . import delivery
from .delivery import UndeliveredLeases
from .output import Output

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger(__name__)

#: Unprocessed bytes above which the server stops reading from a client.
MAX_UNPROCESSED_BYTES: Final = 1 << 20
#: While more than this many bytes of replies to a client wait for a commit, the server runs none of
#: that client's commands.
MAX_UNCOMMITTED_BYTES: Final = 1 << 20
#: Send buffer of the kernel (it uses twice this value). By default the buffer grows to several MiB.
#: Until it is full, the server would execute commands of a client that reads no replies.
SEND_BUFFER: Final = 1 << 17
#: The memory of commands up to this size is not counted.
SMALL_COMMAND_BYTES: Final = 512
#: Memory of a queue that exists only for a waiting client, which chooses its name.
QUEUE_BYTES: Final = 2048
#: Seconds for the handshake of a protocol.
HANDSHAKE_TIMEOUT: Final = 2.0
#: After an error that ends the connection, the server discards input for this time and up to
#: MAX_DRAINED_BYTES: closing with unread input resets the connection, and the error may not arrive.
DRAIN_TIMEOUT: Final = 5.0
MAX_DRAINED_BYTES: Final = 256 << 20


class Session:
    """An asyncio protocol. It has no base class: a compiled class that extends a library
    class has slow attributes.
    """

    __slots__ = (
        "_connect",
        "_continuing",
        "_drained",
        "_held_bytes",
        "_input_closed",
        "_is_plain",
        "_reading",
        "_server",
        "_sleeping",
        "buffered",
        "connection",
        "is_lost",
        "leases",
        "output",
        "pending_turn",
        "timer",
        "transport",
    )

    def __init__(self, server: "Server", connect: Callable[[], Connection]) -> None:
        self._server = server
        #: Under TLS there is no connection before the end of the handshake.
        self._connect = connect
        self.connection: Connection
        self.transport: asyncio.Transport
        self.output: Output
        #: The turn of the last held reply, which waits for the sync of this turn.
        self.pending_turn = 0
        self.is_lost = False
        #: Bytes that the server keeps in memory for this client: see memory_limit.py.
        self.buffered = 0
        self.leases = UndeliveredLeases(server)
        #: The bytes of held replies.
        self._held_bytes = 0
        self._reading = True
        #: The commands of the client continue in the run queue, or after `wake`.
        self._continuing = False
        self._sleeping = False
        self._input_closed = False
        #: Bytes discarded since the last reply, or -1 before it was written.
        self._drained = -1
        #: Ends the handshake or the discarding of input, or continues the checks of the peer.
        self.timer: asyncio.TimerHandle | None = None
        #: The session was in no special state when this was last computed (see `_is_ordinary`), and
        #: has not entered one since: replies take the short path. Code that enters a special state
        #: clears this flag.
        self._is_plain = False

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.output = Output(self._server.loop, self.transport)
        if not self._server.add(self):
            self.is_lost = True
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
        self.set_timer(HANDSHAKE_TIMEOUT, self._check_handshake)
        self.flush()
        self._server.after_commands(self._server.clock())  # the connection may have set an alarm

    def data_received(self, data: bytes) -> None:
        connection, server = self.connection, self._server
        if connection.closing:
            self._discard(data)
            return
        if not self._is_plain:
            if self._continuing or self._blocked:
                connection.feed(data)
                self._throttle()
                self._update_buffered()
                return
            self._is_plain = self._is_ordinary
        now = server.clock()
        try:
            more = connection.receive(data, now, server.queue.commands_per_read)
        except Exception as error:
            self.abort_after_error(error)
            return
        replies = connection.replies
        if replies or connection.closing:
            self.flush()
        if more or connection.waiter is not None or not self._reading:
            self._continue_or_throttle(more)
            self._update_buffered()
        # A short command with a reply leaves no bytes to account for.
        elif not replies or self.buffered or len(data) > SMALL_COMMAND_BYTES:
            self._update_buffered()
        server.after_commands(now)

    @property
    def awaits_commit(self) -> bool:
        """Whether a reply waits for the commit of its turn."""
        return self.pending_turn > self._server.turns.synced

    def eof_received(self) -> bool:
        """The client has closed its sending side. Its commands are still answered if the protocol
        requires it; TLS has no half-close.
        """
        now = self._server.clock()
        if self._drained >= 0:
            return False
        if self.transport.get_extra_info("ssl_object"):
            return False
        is_answered = self.connection.input_closed(now)
        if not is_answered and self.connection.lease_read is None:
            return False
        self._input_closed = True
        self._is_plain = False
        self.run_commands(now)
        self._server.after_commands(now)
        if self._finished() and not self.leases.entries:
            return False
        delivery.begin_checks(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.output.connection_lost()
        if self.is_lost:
            return
        self.is_lost = True
        self._is_plain = False
        connection, server = self.connection, self._server
        now = server.clock()
        if connection.waiter is not None:  # It must not receive the leases that are released below.
            server.engine.cancel_wait(connection.waiter)
        self.cancel_lease_read(now)
        self._track(connection.replies, 0)
        self.leases.release_all(now)
        connection.connection_lost(now)
        server.buffers.change(self, 0)
        server.remove(self)
        # A reference cycle would keep all input of the connection in memory until the next full
        # garbage collection, which can be hours away.
        self.connection = server.closed_connection
        server.after_commands(now)

    def pause_writing(self) -> None:
        self._is_plain = False
        self.output.stall()
        self._throttle()
        self._update_buffered()

    def resume_writing(self) -> None:
        self.output.end_stall()
        if self.output.size:
            self._write_pieces()
        else:
            if self.leases.entries:
                self._replies_written()
            self._update_buffered()
            self._continue_soon()

    # Called by the server

    def notify(self, now: int, callback: Callable[..., None], *arguments: object) -> None:
        """Notify the connection, then run its next commands."""
        try:
            self.connection.notify(now, callback, *arguments)
            self.run_commands(now)
            if self.buffered:
                self._update_buffered()
        except Exception as error:
            self.abort_after_error(error)

    def run_commands(self, now: int, share: int | None = None) -> None:
        """Run this client's share of commands, and send its replies."""
        if self._continuing or self._blocked:
            self.flush()  # the run queue continues
            return
        try:
            more = self.connection.run(now, share or self._server.queue.commands_per_read)
        except Exception as error:
            self.abort_after_error(error)
            return
        self.flush()
        self._continue_or_throttle(more)

    def resume(self, share: int) -> None:
        """Continue after waiting in the run queue."""
        self._continuing = False
        if self.is_lost or self._blocked:
            return
        now = self._server.clock()
        self.run_commands(now, share)
        self._throttle()
        self._update_buffered()
        self._server.after_commands(now)

    @property
    def is_working(self) -> bool:
        """Whether a long command is not finished."""
        return self._continuing and self.connection.long_command is not None

    def wake(self) -> None:
        """Continue the long command of the connection: the event that it waits for has happened."""
        if self._sleeping:
            self._sleeping = False
            if not self.is_lost:
                self._server.queue.add(self)

    def flush(self) -> None:
        """Send replies, or hold them until their changes are durable."""
        connection, turns = self.connection, self._server.turns
        replies = connection.replies
        if not replies:
            if self._finished():
                self._close()
            return
        connection.replies = []
        first = replies[0]
        is_single = len(replies) == 1
        if turns.durable and (
            first.must_wait
            or self.pending_turn > turns.synced
            or (not is_single and _must_wait(replies))
        ):
            self._is_plain = False
            turns.hold(self, replies)
            if is_single:
                self._held_bytes += len(first.data)
            else:
                self._held_bytes += sum([len(reply.data) for reply in replies])
            if not is_single or first.leases:
                self._track(replies, self.pending_turn)
        elif (
            is_single
            and self._is_plain
            and not connection.closing
            and len(first.data) <= MAX_JOINED_BYTES
        ):
            self.transport.write(first.data)
            if first.leases and not self.output.is_clear:
                self._track(replies, 0)
        else:
            can_send = self.output.is_clear and not self._input_closed
            if not can_send:
                self._track(replies, 0)
            self.write(replies)
            if can_send and not self.output.is_clear:  # a part of this write is not sent
                self._track(replies, 0)

    def write(self, replies: list[Reply]) -> None:
        """Send replies in one write."""
        if self.is_lost:
            return
        if len(replies) == 1:
            data = replies[0].data
            size = len(data)
            if size > MAX_JOINED_BYTES or self.output.size:
                self._write_later([data], size)
                size = 0
            else:
                self.transport.write(data)
        else:
            pieces = [reply.data for reply in replies]
            size = sum([len(piece) for piece in pieces])
            if size > MAX_JOINED_BYTES or self.output.size:
                self._write_later(pieces, size)
                size = 0
            else:
                self.transport.write(b"".join(pieces))
        if (
            not self.output.is_clear
            or self.leases.entries
            or self._held_bytes > MAX_UNCOMMITTED_BYTES
            or self._input_closed
            or self.connection.closing
        ):
            self._after_write(size)
        elif self._held_bytes and self.pending_turn <= self._server.turns.synced:
            self._held_bytes = 0

    def _after_write(self, size: int) -> None:
        """Continue after a write if the client does not read or has closed its sending side, or if
        other replies wait. `size` is the number of bytes that the transport was given.
        """
        output, connection = self.output, self.connection
        if not output.is_clear:
            output.unread += size
            if output.unwritten > self._server.max_output:
                log.warning("Closed a connection that did not read its replies.")
                self.transport.abort()
                return
            self._update_buffered()
        elif self.leases.entries:
            self._replies_written()
        if self.pending_turn <= self._server.turns.synced:
            if self._held_bytes > MAX_UNCOMMITTED_BYTES:
                self._continue_soon()
            self._held_bytes = 0
            if (connection.closing or self._input_closed) and self._finished():
                self._close()

    def forget_delivered_leases(self) -> bool:
        """Forget the leases in sent replies. Return whether the connection is closed now."""
        self.leases.forget_delivered(self.pending_turn)
        is_finished = self._finished()
        if is_finished:
            self._close()
        return is_finished

    def set_timer(self, seconds: float, callback: Callable[..., None], *arguments: object) -> None:
        """Start the timer of this session again."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self._server.loop.call_later(seconds, callback, *arguments)

    def close(self) -> None:
        """Close the connection after all of its replies, because the server is stopping."""
        self.output.write_all()
        self.transport.close()

    def abort_after_error(self, error: Exception) -> None:
        """Close this connection after an error in the server; the other clients continue."""
        log.error("A command failed.", exc_info=error)
        self.transport.abort()

    def cancel_lease_read(self, now: int) -> None:
        """Release the leases whose payloads are still being read."""
        lease_read, self.connection.lease_read = self.connection.lease_read, None
        if lease_read is not None:
            self.leases.release(lease_read.leases, now)

    def evict(self, reason: str) -> None:
        """Close this session, because it holds the most bytes while the limit on buffered bytes is
        exceeded.
        """
        log.debug("Closed a connection that held %d bytes: %s.", self.buffered, reason)
        connection = self.connection
        self._server.buffers.change(self, 0)
        self.cancel_lease_read(self._server.clock())
        connection.drop_input()
        if connection.waiter is not None:
            self._server.engine.cancel_wait(connection.waiter)  # now, not when the socket is closed
        if not self.output.is_clear or connection.closing:
            self.transport.abort()  # it does not read
            return
        connection.replies.append(Reply(connection.unavailable_reply(reason), must_wait=False))
        connection.closing = True
        self.flush()

    # Internal

    @property
    def _blocked(self) -> bool:
        """Whether the commands of this client must wait until its replies are sent."""
        return not self.output.is_clear or self._held_bytes > MAX_UNCOMMITTED_BYTES

    @property
    def _is_ordinary(self) -> bool:
        """Whether no reply is held or unsent, no command waits, and both sides may still send."""
        return not (
            self._continuing
            or self._blocked
            or self._held_bytes
            or self.leases.entries
            or self._input_closed
            or self.is_lost
        )

    def _write_later(self, pieces: list[bytes], size: int) -> None:
        """Write large replies, or replies behind them, in pieces."""
        self._is_plain = False
        if self.output.add(pieces, size):
            self._server.loop.call_soon(self._write_pieces)

    def _write_pieces(self) -> None:
        """Write more: the socket accepts it, or the next slice begins."""
        output = self.output
        if self.is_lost or output.is_stalled or not output.size:
            return
        if output.write_some():
            self._server.loop.call_soon(self._write_pieces)
        self._update_buffered()
        if output.size:
            return
        if self.leases.entries and not output.is_stalled:
            self._replies_written()
        if (self.connection.closing or self._input_closed) and self._finished():
            self._close()
        elif not output.is_stalled:
            self._continue_soon()

    def _close(self) -> None:
        """Close the connection; first discard the input of a client that is still sending."""
        transport = self.transport
        if self._input_closed and self.leases.entries and self.timer is not None:
            return  # a check of the peer closes it
        if not self.connection.drains_input or self._input_closed or not transport.can_write_eof():
            transport.close()
            return
        if self._drained >= 0:
            return
        self._drained = 0
        transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        self.set_timer(DRAIN_TIMEOUT, transport.abort)

    def _discard(self, data: bytes) -> None:
        """Count discarded input, and close the connection above the limit."""
        if self._drained >= 0:
            self._drained += len(data)
            if self._drained > MAX_DRAINED_BYTES:
                self.transport.abort()

    def _replies_written(self) -> None:
        """Forget the leases in written replies, or check whether they have arrived."""
        if self._input_closed and self.transport.get_extra_info("socket") is not None:
            delivery.check_arrival(self)  # the client may have disconnected
        else:
            self.leases.forget_delivered(self.pending_turn)

    def _track(self, replies: list[Reply], turn: int) -> None:
        """Remember the leases in replies that are not written, or that wait for a turn."""
        self._is_plain = False
        self.leases.track(replies, turn)

    def _update_buffered(self) -> None:
        connection = self.connection
        size = 0 if connection.closing else connection.memory_used
        if connection.waiter is not None:
            size += connection.waiter.new_queue_count * QUEUE_BYTES
        if not self.output.is_clear:
            size += self.output.unwritten
        if size != self.buffered and not self.is_lost:
            self._server.buffers.change(self, size)

    def _finished(self) -> bool:
        """Whether the session can be closed: all replies are written, and no command can follow
        because the protocol or the client has ended the connection.
        """
        connection = self.connection
        if self.awaits_commit or connection.replies or self.output.size:
            return False
        return connection.closing or (
            self._input_closed
            and not connection.unprocessed_bytes
            and connection.waiter is None
            and connection.long_command is None
            and not self._continuing
        )

    def _continue_or_throttle(self, more: bool) -> None:
        if self.connection.waiter is not None:
            self._server.wait_began()
        if more:
            self._continue_soon()
        else:
            self._throttle()

    def _continue_soon(self) -> None:
        if not self._continuing:
            self._continuing = True
            self._is_plain = False
            self._throttle()
            if self.connection.long_command_waits:
                self._sleeping = True
            else:
                self._server.queue.add(self)

    def _throttle(self) -> None:
        """Pause or resume reading: a client that floods the server or does not read must wait."""
        if self._drained >= 0:
            return
        want = not self._blocked and self.connection.unprocessed_bytes <= MAX_UNPROCESSED_BYTES
        if want == self._reading or self.is_lost or self.transport.is_closing():
            return
        self._reading = want
        if want:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _check_handshake(self) -> None:
        self.timer = None
        if self.connection.handshake_overdue():
            self.transport.close()


def _must_wait(replies: list[Reply]) -> bool:
    """Whether one of the replies must wait for the commit."""
    return any(reply.must_wait for reply in replies)
