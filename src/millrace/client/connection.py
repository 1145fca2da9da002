"""One connection to the server, blocking or asyncio.

`ConnectionOperations` contains the handshake, requests, timeouts and errors as operations. Its two
subclasses add the socket.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final

from . import wire
from .address import Address
from .errors import ConnectionLost, NotConnected, RequestRefused, TimedOut
from .exchange import Operation, run, run_async
from .wire import Reply

READ_SIZE: Final = 1 << 16


@dataclass(frozen=True)
class Identity:
    """The fields that identify a worker in HELLO. Producers have no identity."""

    wid: str
    labels: tuple[str, ...] = ()
    hostname: str = field(default_factory=socket.gethostname)

    def as_hello(self) -> dict[str, Any]:
        return {
            "hostname": self.hostname,
            "wid": self.wid,
            "pid": os.getpid(),
            "labels": list(self.labels),
        }


@dataclass(frozen=True)
class ConnectionOptions:
    """The options that are necessary to open a connection."""

    address: Address
    timeout: float = 30.0
    tls: ssl.SSLContext | None = None
    identity: Identity | None = None

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        if self.tls is None and self.address.tls:
            return ssl.create_default_context()
        return self.tls

    def hello(self, greeting: Reply) -> bytes:
        client = {} if self.identity is None else self.identity.as_hello()
        return wire.hello(greeting, self.address.password, client)


@contextmanager
def translated(what: str, timed_out: str) -> Iterator[None]:
    """Raise errors of the system as errors of the SDK."""
    try:
        yield
    except TimeoutError:
        raise TimedOut(timed_out) from None
    except OSError as error:
        raise ConnectionLost(f"{what}: {error}") from error


def _check_hello(answer: Reply) -> None:
    if isinstance(answer, RequestRefused):
        raise answer
    if answer != "OK":
        raise ConnectionLost(f"The server did not accept the connection: {answer!r}")


LOST: Final = "The connection was lost"


class ConnectionOperations:
    """The operations of a connection. A subclass provides the calls that they yield: blocking ones,
    or coroutine functions.
    """

    _connect: Callable[[], Any]
    _write: Callable[[bytes], Any]
    #: Reads available bytes, with a timeout in seconds.
    _read: Callable[[float], Any]

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._buffer = wire.ReplyBuffer()
        self._replies: deque[Reply] = deque()

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """Close the socket. Replies that arrive later would belong to other requests."""
        self._buffer = wire.ReplyBuffer()
        self._replies.clear()

    def opening(self) -> Operation[None]:
        """Connect, and complete the HELLO handshake."""
        options = self._options
        address = options.address
        self.close()
        try:
            with translated(f"Cannot connect to {address}", f"Connecting to {address} timed out."):
                yield self._connect
            greeting = yield from self.receiving(options.timeout)
            yield from self.sending(options.hello(greeting))
            _check_hello((yield from self.receiving(options.timeout)))
        except BaseException:
            self.close()
            raise

    def requesting(self, commands: Sequence[bytes]) -> Operation[list[Reply]]:
        """Send commands together and return their replies. A refusal is returned, not raised."""
        yield from self.sending(b"".join(commands))
        timeout = self._options.timeout
        while len(self._replies) < len(commands):
            yield from self._reading(monotonic() + timeout, timeout)
        return [self._replies.popleft() for _ in commands]

    def sending(self, data: bytes) -> Operation[None]:
        self._require_open()
        try:
            with translated(LOST, "Sending to the server timed out."):
                yield partial(self._write, data)
        except BaseException:
            self.close()
            raise

    def receiving(self, timeout: float) -> Operation[Reply]:
        """Return the next reply to the sent commands."""
        deadline = monotonic() + timeout
        while not self._replies:
            yield from self._reading(deadline, timeout)
        return self._replies.popleft()

    def _reading(self, deadline: float, timeout: float) -> Operation[None]:
        """Read the bytes that arrive next, which may complete any number of replies. `timeout` is
        the time that the request allowed.
        """
        self._require_open()
        try:
            with translated(LOST, f"The server did not answer within {timeout:g} s."):
                data = yield partial(self._read, max(0.001, deadline - monotonic()))
            self._feed(data)
        except BaseException:
            self.close()
            raise

    def _feed(self, data: bytes) -> None:
        if not data:
            raise ConnectionLost("The server closed the connection.")
        self._buffer.feed(data)
        self._replies += self._buffer.take()

    def _require_open(self) -> None:
        if not self.is_open:
            raise NotConnected("The client is not connected.")


class Connection(ConnectionOperations):
    """A blocking connection, for one thread at a time."""

    _socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        super().close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def open(self) -> None:
        """Connect, and complete the HELLO handshake."""
        run(self.opening())

    def request(self, command: bytes, timeout: float | None = None) -> str | bytes | None:
        """Send a command and return its reply."""
        self.send(command)
        reply = self.receive(self._options.timeout if timeout is None else timeout)
        if isinstance(reply, RequestRefused):
            raise reply
        return reply

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        """Send commands together and return their replies. A refusal is returned, not raised."""
        return run(self.requesting(commands))

    def send(self, data: bytes) -> None:
        run(self.sending(data))

    def receive(self, timeout: float) -> Reply:
        """The next reply to the sent commands."""
        return run(self.receiving(timeout))

    def _connect(self) -> None:
        address, context = self._options.address, self._options.ssl_context
        self._socket = socket.create_connection(address[:2], timeout=self._options.timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=address.host)

    def _write(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.settimeout(self._options.timeout)
        self._socket.sendall(data)

    def _read(self, timeout: float) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(timeout)
        return self._socket.recv(READ_SIZE)


class AsyncConnection(ConnectionOperations):
    """An asyncio connection, for one task at a time."""

    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def is_open(self) -> bool:
        return self._streams is not None

    def close(self) -> None:
        super().close()
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def open(self) -> None:
        """Connect, and complete the HELLO handshake."""
        await run_async(self.opening())

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        """Send commands together and return their replies. A refusal is returned, not raised."""
        return await run_async(self.requesting(commands))

    async def _connect(self) -> None:
        address, context = self._options.address, self._options.ssl_context
        name = address.host if context is not None else None
        async with asyncio.timeout(self._options.timeout):
            self._streams = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=name
            )

    async def _write(self, data: bytes) -> None:
        assert self._streams is not None
        self._streams[1].write(data)
        async with asyncio.timeout(self._options.timeout):
            await self._streams[1].drain()

    async def _read(self, timeout: float) -> bytes:  # noqa: ASYNC109 - the deadline of a request
        assert self._streams is not None
        async with asyncio.timeout(timeout):
            return await self._streams[0].read(READ_SIZE)
