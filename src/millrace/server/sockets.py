"""Listening sockets, opened before the server is imported. Uses only the standard library.

Connections that arrive before the server accepts them wait in the backlog of the kernel.
"""

import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

BACKLOG: Final = 4096
#: Seconds for which a port in use is retried: a previous server may still be stopping.
BIND_TIMEOUT: Final = 5.0
BIND_RETRY_INTERVAL: Final = 0.1


class PortUnavailable(Exception):
    """A port cannot be opened."""


def open_port(
    host: str, port: int, name: str, while_in_use: Callable[[], None] = lambda: None
) -> list[socket.socket]:
    """Listen on every address of `host`, all with the same port; port 0 selects a free one.

    A port in use is retried for a few seconds. `while_in_use` may raise an exception instead.
    """
    deadline = 0.0
    while True:
        try:
            return _open(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _unavailable(host, port, name, error) from error
            while_in_use()
            now = time.monotonic()
            if not deadline:
                deadline = now + BIND_TIMEOUT
                log.warning(
                    "Port %d (%s) is in use. Retrying for %d s.", port, name, int(BIND_TIMEOUT)
                )
            elif now >= deadline:
                raise _unavailable(host, port, name, error) from error
            time.sleep(BIND_RETRY_INTERVAL)


def _open(host: str, port: int) -> list[socket.socket]:
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, _, _, _, address in dict.fromkeys(found):
            target: Any = (address[0], port, *address[2:])
            listener = socket.create_server(target, family=family, backlog=BACKLOG)
            listener.setblocking(False)
            opened.append(listener)
            port = listener.getsockname()[1]
    except BaseException:
        for listener in opened:
            listener.close()
        raise
    return opened


def is_unix(listener: socket.socket | None) -> bool:
    return listener is not None and listener.family == socket.AF_UNIX


def open_unix(path: Path, mode: int, name: str) -> socket.socket:
    """Listen on a Unix domain socket; a socket that a previous server left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    previous = os.umask(0o177)  # no other user can connect before the permissions are set
    try:
        if path.is_socket():
            _check_stale(path)
            path.unlink()
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise PortUnavailable(f"Cannot listen on {path} ({name}.socket): {reason}.") from error
    finally:
        os.umask(previous)
    return listener


def _check_stale(path: Path) -> None:
    """Raise an error if a server accepts connections on the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:  # its backlog is full
                raise
    raise OSError(errno.EADDRINUSE, "in use")


def _unavailable(host: str, port: int, name: str, error: OSError) -> PortUnavailable:
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return PortUnavailable(
        f"Cannot listen on {host}, port {port} ({name}): {reason}. Stop the process that uses the "
        f"port, or set {name}.port to another one."
        if error.errno == errno.EADDRINUSE
        else f"Cannot listen on {host}, port {port} ({name}): {reason}."
    )
