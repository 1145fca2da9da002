"""The web process: pages, HTTP API and metrics.

It is a separate process, so that the cost of a page does not delay the queues; it queries the
server over the control socket. The server opens the port and starts the process on the first
connection, so an unused web interface costs nothing. If the process ends, the next connection
starts another one. If it ends repeatedly, the server refuses connections until the next start.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec

from .child_process import ChildProcess, python_module

log = logging.getLogger(__name__)

#: Time for requests in progress when the server stops.
STOP_TIMEOUT: Final = 3.0
#: Pause before a restart; doubled after each early exit.
MIN_RESTART_PAUSE: Final = 0.5
MAX_RESTART_PAUSE: Final = 30.0
#: A process that ran at least this long resets the pause.
STABLE_AFTER: Final = 60.0
#: Maximum pause during which connections wait for the restart. During a longer pause they are
#: refused.
MAX_WAIT: Final = 1.0
#: Time for a refused client to read its reply; closing earlier can discard the reply.
LINGER: Final = 0.5
#: Maximum number of refused connections that are open at the same time; further ones are closed
#: without a reply.
MAX_REFUSED: Final = 100

_TEXT: Final = b"The web interface is not available. See the log of the server.\n"
UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nRetry-After: %d\r\nConnection: close\r\n\r\n%b"
) % (len(_TEXT), MAX_RESTART_PAUSE, _TEXT)


def web_command() -> list[str]:
    return python_module("millrace.web")


class WebProcess:
    """Listening sockets and the process that serves them. `start` and `stop` are idempotent."""

    def __init__(
        self, sockets: list[socket.socket], settings: Callable[[], dict[str, Any]]
    ) -> None:
        self._sockets = sockets
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._child: ChildProcess | None = None
        self._started_at = 0.0
        self._pause = MIN_RESTART_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._refused: set[socket.socket] = set()

    def start(self) -> None:
        """Wait for the first connection."""
        for listener in self._sockets:
            self._loop.add_reader(listener, self._connected)

    def reload(self) -> None:
        """Send the current settings to a running process."""
        if self._child is not None:
            self._child.send(self._settings_line())

    async def stop(self) -> None:
        self._ignore_connections()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()
        for connection in list(self._refused):
            self._close(connection)
        if self._child is None:
            return
        self._child.close_input()
        await self._child.wait_or_kill(STOP_TIMEOUT)
        self._child = None

    def _ignore_connections(self) -> None:
        for listener in self._sockets:
            self._loop.remove_reader(listener)

    def _connected(self) -> None:
        """A connection waits in the backlog: start the process that accepts it."""
        self._ignore_connections()
        self._started_at = self._loop.time()
        numbers = [listener.fileno() for listener in self._sockets]
        try:
            self._child = ChildProcess(web_command(), self._log_line, self._exited, numbers)
        except OSError as error:
            log.error("Cannot start the web process: %s.", error.strerror)  # noqa: TRY400 - no trace
            self._restart_later()
            return
        self._child.send(self._settings_line())

    def _settings_line(self) -> bytes:
        numbers = [listener.fileno() for listener in self._sockets]
        return msgspec.json.encode(self._settings() | {"sockets": numbers}) + b"\n"

    def _log_line(self, _: ChildProcess, line: bytes) -> None:
        level, _sep, text = line.decode(errors="replace").partition(" ")
        number = logging.getLevelNamesMapping().get(level)
        if number is None:
            log.warning("web: %s %s", level, text)
        else:
            log.log(number, "web: %s", text)

    def _exited(self, child: ChildProcess, code: int) -> None:
        if child is self._child:
            self._child = None
        if not self._sockets:
            return  # the server is stopping
        if self._loop.time() - self._started_at > STABLE_AFTER:
            self._pause = MIN_RESTART_PAUSE
        if self._pause <= MAX_WAIT:
            log.error(
                "Web process exited with status %d; it restarts on the next connection.", code
            )
        else:
            log.error(
                "Web process exited with status %d again; requests get status 503 for %g s.",
                code,
                self._pause,
            )
        self._restart_later()

    def _restart_later(self) -> None:
        if self._pause > MAX_WAIT:
            for listener in self._sockets:
                self._loop.add_reader(listener, self._refuse, listener)
        self._timer = self._loop.call_later(self._pause, self.start)
        self._pause = min(MAX_RESTART_PAUSE, 2 * self._pause)

    def _refuse(self, listener: socket.socket) -> None:
        """Reply 503 to a connection, even before its request arrives. With TLS, only close it."""
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has disconnected
        except OSError:
            self._ignore_connections()  # no descriptors are left
            return
        if len(self._refused) >= MAX_REFUSED or self._settings().get("cert"):
            connection.close()
            return
        self._refused.add(connection)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(UNAVAILABLE)
            connection.shutdown(socket.SHUT_WR)
        self._loop.call_later(LINGER, self._close, connection)

    def _close(self, connection: socket.socket) -> None:
        self._refused.discard(connection)
        connection.close()
