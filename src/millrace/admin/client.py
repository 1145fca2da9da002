"""The client of the admin socket, for asyncio and for commands."""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from millrace import __version__
from millrace.records import PROTOCOL_VERSION, ErrorDetail, Hello

from .errors import AdminError

T = TypeVar("T")

#: Maximum idle connections in the pool.
MAX_IDLE: Final = 8
#: Open connections at a time; further requests wait for one.
MAX_CONNECTIONS: Final = 64
#: Further connections for requests that may take long, such as waiting for a job.
MAX_WAITING_CONNECTIONS: Final = 256
#: A reply may contain a large payload in base64.
MAX_LINE_BYTES: Final = 64 << 20
#: The server replies within milliseconds, unless it has a problem.
REPLY_TIMEOUT: Final = 15.0
#: Shipping all pending events may take a while.
SHIP_TIMEOUT: Final = 120.0
COMMAND_TIMEOUT: Final = 30.0

_encode = msgspec.json.Encoder().encode


class _Line(msgspec.Struct):
    """A reply. A server of version 1 has `error` as text, or none of these members."""

    result: Raw | UnsetType = UNSET
    progress: Raw | UnsetType = UNSET
    error: ErrorDetail | str | UnsetType = UNSET


_decode = msgspec.json.Decoder(_Line).decode


def hello(queues: Sequence[str] = ()) -> bytes:
    """The first line of a connection that may use these queues; without patterns, all."""
    first = Hello(PROTOCOL_VERSION, f"millrace {__version__}", list(queues))
    return _encode({"hello": first}) + b"\n"


def content(line: bytes) -> Raw:
    """The result or progress of a reply; an error is raised."""
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the server closed the connection")
    reply = _decode(line)
    if isinstance(reply.error, ErrorDetail):
        raise AdminError(reply.error.detail, reply.error.code)
    found = reply.result if reply.result is not UNSET else reply.progress
    if found is UNSET:
        raise AdminError(
            "The server uses another version of the admin protocol. Restart it with Millrace "
            f"{__version__}.",
            "unavailable",
        )
    assert isinstance(found, Raw)
    return found


class ClientConnection:
    """One connection to the server."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, queues: Sequence[str] = ()
    ) -> None:
        self.reader, self.writer = reader, writer
        self._queues = queues
        self._greeted = False

    async def send(self, request: dict[str, Any]) -> None:
        if not self._greeted:
            self.writer.write(hello(self._queues))
        self.writer.write(_encode(request) + b"\n")
        await self.writer.drain()
        if not self._greeted:
            content(await self._line())
            self._greeted = True

    async def receive(self) -> Raw:
        return content(await self._line())

    async def _line(self) -> bytes:
        return await self.reader.readline()

    def close(self) -> None:
        self.writer.close()


class AdminClient:
    """A pool of connections."""

    def __init__(self, path: str, queues: Sequence[str] = ()) -> None:
        #: Patterns of the queues that its requests may use; empty: all.
        self._queues = queues
        self._folder, self._name = os.path.split(path)
        self._idle: deque[ClientConnection] = deque()
        self._short = asyncio.Semaphore(MAX_CONNECTIONS)
        self._long = asyncio.Semaphore(MAX_WAITING_CONNECTIONS)

    async def ask(
        self, type_: type[T], *, patience: float | None = REPLY_TIMEOUT, **request: Any
    ) -> T:
        """The result of an operation: `await client.ask(QueuePage, queues=ListQueues("mail"))`."""
        return msgspec.json.decode(await self.raw(patience=patience, **request), type=type_)

    async def raw(self, *, patience: float | None = REPLY_TIMEOUT, **request: Any) -> bytes:
        """The result as a line of JSON."""
        is_long = patience is None or patience > REPLY_TIMEOUT
        async with self._connection(self._long if is_long else self._short) as connection:
            async with asyncio.timeout(patience):
                await connection.send(request)
                return bytes(await connection.receive()) + b"\n"

    async def follow(self, type_: type[T], **request: Any) -> AsyncIterator[T]:
        """All replies of a long operation. Closing the iterator stops the operation."""
        connection = await self._open()
        try:
            await connection.send(request)
            while True:
                yield msgspec.json.decode(await connection.receive(), type=type_)
        except (OSError, EOFError) as error:
            raise _unavailable(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.popleft().close()

    @contextlib.asynccontextmanager
    async def _connection(self, limit: asyncio.Semaphore) -> AsyncIterator[ClientConnection]:
        async with limit:
            connection = None
            while self._idle and connection is None:
                connection = self._idle.pop()
                if connection.reader.at_eof() or connection.writer.is_closing():
                    connection = None
            if connection is None:
                connection = await self._open()
            clean = False
            try:
                yield connection
                clean = True
            except AdminError:
                clean = True
                raise
            except (OSError, EOFError, TimeoutError) as error:
                raise _unavailable(error) from error
            finally:
                if clean and len(self._idle) < MAX_IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()  # a reply may still arrive

    async def _open(self) -> ClientConnection:
        try:
            # The path of a Unix socket must be short, however deep the folder is.
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                path = f"/proc/self/fd/{folder}/{self._name}"
                opened = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
                return ClientConnection(*opened, self._queues)
            finally:
                os.close(folder)
        except OSError as error:
            raise _unavailable(error) from error


def _unavailable(error: BaseException) -> AdminError:
    reason = "it does not reply" if isinstance(error, TimeoutError) else str(error)
    return AdminError(f"Cannot reach the server: {reason}", "unavailable")


# For commands


def request(
    path: Path | str, operation: dict[str, Any], timeout: float = COMMAND_TIMEOUT
) -> Iterator[Raw]:
    """The replies to one operation, over a connection of its own.

    Raises AdminError for an error reply, and OSError if the connection fails.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(hello() + _encode(operation) + b"\n")
        with connection.makefile("rb") as stream:
            content(stream.readline())
            for line in stream:
                yield content(line)
                if not line.startswith(b'{"progress"'):
                    return
