"""Checks whether a client that has closed its sending side still exists and has its leases.

The peer's system acknowledges data for a process that still reads, and answers with a reset for a
process that has ended. Leases that did not arrive are returned by `Session.connection_lost`.
"""

import socket
from typing import TYPE_CHECKING, Final

from .output import unacknowledged_bytes

if TYPE_CHECKING:
    from .session import Session

#: Intervals of keep-alive probes and of checks for a reset, after a client has closed its sending
#: side: it may have disconnected.
PROBE_INTERVAL: Final = 10
RESET_CHECK_INTERVAL: Final = 1.0
#: The first check whether a lease has arrived; each later interval is twice as long.
ARRIVAL_CHECK_INTERVAL: Final = 0.001


def begin(session: "Session") -> None:
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
    if not session.leases or session.awaits_commit:
        _check_in(session, RESET_CHECK_INTERVAL)
    elif session.output.unwritten or unacknowledged_bytes(sock):
        _check_in(session, min(2 * waited, RESET_CHECK_INTERVAL))
    elif not session.leases_arrived():
        _check_in(session, RESET_CHECK_INTERVAL)
