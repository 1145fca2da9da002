"""How many files the process may have open, and so how many connections it can serve."""

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

#: Kept for all that is no connection: the store, the ports, the loop, what is accepted and refused.
SPARE: Final = 64
#: Connections that have not introduced themselves may exceed the limit by so many,
STRANGERS: Final = 1000
#: but take no more than this share of the files there may be.
STRANGERS_SHARE: Final = 8


def raise_limit() -> int:
    """Let the process open as many files as it may; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def strangers(files: int) -> int:
    return STRANGERS if files < 0 else min(STRANGERS, files // STRANGERS_SHARE)


def connections(wanted: int, files: int) -> int:
    """So many connections as are wanted, if so many open files allow it.

    A server that runs out of them answers nobody who connects. One that stops before says so, in
    the words of each protocol.
    """
    if files < 0:  # no limit
        return wanted
    room = max(1, files - SPARE - strangers(files))
    if wanted > room:
        log.warning(
            "server.max_connections is %d, but the process may open only %d files: it serves %d "
            "connections. Raise the limit of open files (ulimit -n), or lower max_connections",
            wanted,
            files,
            room,
        )
    return min(wanted, room)
