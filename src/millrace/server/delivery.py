"""Whether the leases in replies have reached their client.

A lease that did not arrive is released when the connection ends. After a client has closed its
sending side, the server checks whether it still exists: the peer's system acknowledges data for a
process that still reads, and answers with a reset for a process that has ended.
"""

import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millrace.engine.job import Job
from millrace.protocols.connection import Reply

from .output import unacknowledged_bytes

if TYPE_CHECKING:
    from .server import Server
    from .session import Session

#: Intervals of keep-alive probes and of checks for a reset, after a client has closed its sending
#: side: it may have disconnected.
PROBE_INTERVAL: Final = 10
RESET_CHECK_INTERVAL: Final = 1.0
#: Delay before the first check of whether a lease has arrived; each later interval is twice as
#: long.
ARRIVAL_CHECK_INTERVAL: Final = 0.001


class UndeliveredLeases:
    """The leases in replies that may not have reached the client of a session."""

    __slots__ = ("_server", "entries")

    def __init__(self, server: "Server") -> None:
        self._server = server
        #: The turn that the reply waits for, job and attempt.
        self.entries: list[tuple[int, Job, int]] = []

    def track(self, replies: list[Reply], turn: int) -> None:
        for reply in replies:
            for job, attempt in reply.leases:
                self.entries.append((turn, job, attempt))

    def forget_delivered(self, pending_turn: int) -> None:
        """Forget the leases that the client has received. Leases of turns after the last durable
        one are in held replies; `pending_turn` is the last turn with such a reply.
        """
        synced = self._server.turns.synced
        if pending_turn <= synced:
            self.entries.clear()
        else:
            self.entries = [entry for entry in self.entries if entry[0] > synced]

    def release_all(self, now: int) -> None:
        self.release([(job, attempt) for _, job, attempt in self.entries], now)

    def release(self, leases: Iterable[tuple[Job, int]], now: int) -> None:
        """Release the leases that are still in the same attempt."""
        for job, attempt in leases:
            if job.attempt == attempt:
                self._server.release_undelivered(job, now)


# Clients that have closed their sending side


def begin_checks(session: "Session") -> None:
    """Check from now on whether the client still waits for replies."""
    sock = session.transport.get_extra_info("socket")
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        sock.setsockopt(socket.IPPROTO_TCP, option, PROBE_INTERVAL)
    _check_in(session, RESET_CHECK_INTERVAL)


def check_arrival(session: "Session") -> None:
    """Check soon whether the leases in written replies have arrived."""
    _check_in(session, ARRIVAL_CHECK_INTERVAL)


def _check_in(session: "Session", seconds: float) -> None:
    session.set_timer(seconds, check, session, seconds)


def check(session: "Session", waited: float) -> None:
    """Abort a connection that was reset, and check whether leases have arrived."""
    session.timer = None
    transport = session.transport
    sock = transport.get_extra_info("socket")
    if session.is_lost or sock is None or transport.is_closing():
        return  # a failed write has read the error of the socket; `connection_lost` follows
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        transport.abort()
        return
    if not session.leases.entries or session.awaits_commit:
        _check_in(session, RESET_CHECK_INTERVAL)
    elif session.output.unwritten or unacknowledged_bytes(sock):
        _check_in(session, min(2 * waited, RESET_CHECK_INTERVAL))
    elif not session.forget_delivered_leases():
        _check_in(session, RESET_CHECK_INTERVAL)
