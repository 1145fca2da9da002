"""The limit on open files, and the number of connections that follows from it."""

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

#: Files for the store, the ports, the loop, and connections that are accepted only to be refused.
RESERVED_FILES: Final = 64
#: Connections that have not completed their handshake may exceed the limit by this number.
MAX_UNAUTHENTICATED: Final = 1000
#: These connections may use at most the limit on open files divided by this number.
UNAUTHENTICATED_DIVISOR: Final = 8


def raise_limit() -> int:
    """Raise the soft limit on open files to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_unauthenticated_connections(max_files: int) -> int:
    """Maximum number of connections above the limit that have not finished their handshake."""
    return (
        MAX_UNAUTHENTICATED
        if max_files < 0
        else min(MAX_UNAUTHENTICATED, max_files // UNAUTHENTICATED_DIVISOR)
    )


def usable_connections(wanted: int, max_files: int) -> int:
    """The number of connections that the limit on open files allows, at most `wanted`.

    Without a free file descriptor the server cannot even accept a connection to refuse it. While
    one is free, it refuses a connection with the error of the protocol.
    """
    if max_files < 0:  # no limit
        return wanted
    room = max(1, max_files - RESERVED_FILES - max_unauthenticated_connections(max_files))
    if wanted > room:
        log.warning(
            "server.max_connections is %d, but the process may open only %d files. It serves %d "
            "connections. Raise the limit on open files (ulimit -n), or lower max_connections.",
            wanted,
            max_files,
            room,
        )
    return min(wanted, room)
