"""The web room's process: pages, HTTP API and metrics.

It is a process of its own, so that whatever a page costs is not paid by the queues; what it knows
it asks over the control socket. The server opens the port, and starts the process when somebody
calls for the first time: a server that nobody looks at does not pay for templates. If the process
ends, the next caller starts another one.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from .child_process import ChildProcess

log = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-P", "-m", "millrace.web")
BACKLOG: Final = 1024
#: Requests that are being answered are given so long when the server stops.
END_WITHIN: Final = 3.0
#: After so many seconds another one is started; twice as many if that ends soon, too.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
#: One that lived so long was well.
WELL: Final = 60.0


class WebProcess:
    """A port, and the process behind it. Start and stop may be called twice."""

    def __init__(self, host: str, port: int, settings: Callable[[], dict[str, Any]]) -> None:
        self._host, self._port = host, port
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._child: ChildProcess | None = None
        self._began = 0.0
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> int:
        """Open the port, and say which it is."""
        if not self._sockets:
            self._open()
            self._watch()
        port: int = self._sockets[0].getsockname()[1]
        return port

    def reload(self) -> None:
        """The settings have changed."""
        if self._child is not None:
            self._child.say(self._line())

    async def stop(self) -> None:
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for opened in self._sockets:
            opened.close()
        self._sockets.clear()
        if self._child is None:
            return
        self._child.leave()
        await self._child.finish(END_WITHIN)
        self._child = None

    def _open(self) -> None:
        port = self._port
        found = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        for family, _, _, _, address in dict.fromkeys(found):
            there: Any = (address[0], port, *address[2:])
            opened = socket.create_server(there, family=family, backlog=BACKLOG)
            opened.setblocking(False)
            self._sockets.append(opened)
            port = opened.getsockname()[1]

    def _watch(self) -> None:
        for opened in self._sockets:
            self._loop.add_reader(opened, self._called)

    def _unwatch(self) -> None:
        for opened in self._sockets:
            self._loop.remove_reader(opened)

    def _called(self) -> None:
        """Somebody is at the door: whoever opens it is to be started first."""
        self._unwatch()
        self._began = self._loop.time()
        numbers = [opened.fileno() for opened in self._sockets]
        try:
            self._child = ChildProcess(COMMAND, self._heard, self._ended, numbers)
        except OSError as error:
            log.error("the web pages cannot be served: %s", error.strerror)  # noqa: TRY400 - no trace
            self._try_later()
            return
        self._child.say(self._line())

    def _line(self) -> bytes:
        numbers = [opened.fileno() for opened in self._sockets]
        return msgspec.json.encode(self._settings() | {"sockets": numbers}) + b"\n"

    def _heard(self, _: ChildProcess, line: bytes) -> None:
        level, _sep, text = line.decode(errors="replace").partition(" ")
        number = logging.getLevelNamesMapping().get(level)
        if number is None:
            log.warning("web: %s %s", level, text)
        else:
            log.log(number, "web: %s", text)

    def _ended(self, child: ChildProcess, code: int) -> None:
        if child is self._child:
            self._child = None
        if not self._sockets:
            return  # it was told to
        log.error("the process of the web pages ended with %d", code)
        if self._loop.time() - self._began > WELL:
            self._pause = FIRST_PAUSE
        self._try_later()

    def _try_later(self) -> None:
        self._timer = self._loop.call_later(self._pause, self._watch)
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
