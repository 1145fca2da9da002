"""Connection pools for threads and asyncio tasks. A pool reconnects automatically.

A pool may send a command twice: if the connection is lost before the reply arrives, the pool sends
the command again on a new connection. Pushes carry an id, so the server recognizes a repeated push.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from .backoff import Backoff
from .connection import AsyncConnection, Connection, ConnectionOptions
from .errors import BadReply, ConnectionLost, TimedOut
from .exchange import Operation, run, run_async
from .wire import Reply

C = TypeVar("C", Connection, AsyncConnection)

MAX_IDLE_CONNECTIONS: Final = 16
#: Errors after which the command is sent again.
RETRIED: Final = (ConnectionLost, TimedOut)


class _Pool(Generic[C]):
    """Idle connections, and the operation that uses them."""

    def __init__(
        self,
        make: Callable[[ConnectionOptions], C],
        sleep: Callable[[float], Any],
        options: ConnectionOptions,
        retry_for: float,
    ) -> None:
        self._make: Callable[[ConnectionOptions], C] = make
        self._sleep = sleep
        self._options = options
        self._retry_for = retry_for
        self._idle: deque[C] = deque()
        self._lock = threading.Lock()
        self._owner: object = self._current_owner()

    def _current_owner(self) -> object:
        """The process or event loop whose connections these are."""
        raise NotImplementedError

    def requesting(self, commands: Sequence[bytes]) -> Operation[list[Reply]]:
        backoff = Backoff()
        ends_at = time.monotonic() + self._retry_for
        while True:
            connection = self._take()
            try:
                if not connection.is_open:
                    yield connection.open
                replies: list[Reply] = yield partial(connection.request_many, commands)
            except RETRIED:
                delay = backoff.next_delay()
                if time.monotonic() + delay > ends_at:
                    raise
                self._close_idle()  # a server that restarts has closed these too
                yield partial(self._sleep, delay)
            except BaseException:
                connection.close()
                raise
            else:
                self._put_back(connection)
                return replies

    def _take(self) -> C:
        owner = self._current_owner()
        with self._lock:
            if owner != self._owner:  # the former owner may still use its connections
                self._idle.clear()
                self._owner = owner
            return self._idle.pop() if self._idle else self._make(self._options)

    def _put_back(self, connection: C) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()


class ConnectionPool(_Pool[Connection]):
    """Blocking connections. Any number of threads may use a pool, also after a fork."""

    def __init__(self, options: ConnectionOptions, retry_for: float) -> None:
        super().__init__(Connection, time.sleep, options, retry_for)

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        return run(self.requesting(commands))

    def close(self) -> None:
        self._close_idle()

    def _current_owner(self) -> object:
        return os.getpid()


class AsyncConnectionPool(_Pool[AsyncConnection]):
    """Asyncio connections of one event loop."""

    def __init__(self, options: ConnectionOptions, retry_for: float) -> None:
        super().__init__(AsyncConnection, asyncio.sleep, options, retry_for)

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        return await run_async(self.requesting(commands))

    async def close(self) -> None:
        self._close_idle()

    def _current_owner(self) -> object:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            return None  # the pool was created outside of an event loop


def require_body(reply: Reply) -> bytes:
    """Return the body of a bulk reply, or raise the refusal."""
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, bytes):
        raise BadReply(f"Expected a bulk reply, got {reply!r}.")
    return reply
