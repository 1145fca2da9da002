"""Connections that many threads or tasks share, and that reconnect.

Every command sent through a pool may be sent twice: if the connection is lost before the reply
arrives, the pool sends the command again on a new connection. Pushes carry an id, so the server
recognizes a repeated push.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from .backoff import Backoff
from .connection import AsyncConnection, Connection, ConnectionOptions
from .errors import BadReply, ConnectionLost, TimedOut
from .wire import Reply

MAX_IDLE_CONNECTIONS: Final = 16
#: Errors after which the command is sent again.
RETRIED: Final = (ConnectionLost, TimedOut)


class Transport(Protocol):
    """Sends commands and returns their replies; a refusal is a reply."""

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]: ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """The same for asyncio."""

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]: ...

    async def close(self) -> None: ...


class ConnectionPool:
    """Blocking connections. A pool may be used by any number of threads, and after a fork."""

    def __init__(self, options: ConnectionOptions, retry_for: float) -> None:
        self._options = options
        self._retry_for = retry_for
        self._idle: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        backoff = Backoff()
        give_up_at = time.monotonic() + self._retry_for
        while True:
            connection = self._take()
            try:
                if not connection.is_open:
                    connection.open()
                replies = connection.request_many(commands)
            except RETRIED:
                delay = backoff.next_delay()
                if time.monotonic() + delay > give_up_at:
                    raise
                time.sleep(delay)
                continue
            except BaseException:
                connection.close()
                raise
            self._put_back(connection)
            return replies

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _take(self) -> Connection:
        with self._lock:
            if self._pid != os.getpid():  # the parent process still uses its connections
                self._idle.clear()
                self._pid = os.getpid()
            return self._idle.pop() if self._idle else Connection(self._options)

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()


class AsyncConnectionPool:
    """Asyncio connections of one event loop."""

    def __init__(self, options: ConnectionOptions, retry_for: float) -> None:
        self._options = options
        self._retry_for = retry_for
        self._idle: deque[AsyncConnection] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        backoff = Backoff()
        give_up_at = time.monotonic() + self._retry_for
        while True:
            connection = self._take()
            try:
                if not connection.is_open:
                    await connection.open()
                replies = await connection.request_many(commands)
            except RETRIED:
                delay = backoff.next_delay()
                if time.monotonic() + delay > give_up_at:
                    raise
                await asyncio.sleep(delay)
                continue
            except BaseException:
                connection.close()
                raise
            if len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()
            return replies

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the event loop that opened them
            self._idle.clear()
            self._loop = loop
        return self._idle.pop() if self._idle else AsyncConnection(self._options)


def require_body(reply: Reply) -> bytes:
    """The body of a bulk reply; a refusal is raised."""
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, bytes):
        raise BadReply(f"Expected a bulk reply, got {reply!r}.")
    return reply
