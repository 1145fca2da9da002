"""One connection to the server, blocking or asyncio. Both speak the protocol of wire.py."""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from . import wire
from .address import Address
from .errors import ConnectionLost, NotConnected, RequestRefused, TimedOut
from .wire import Reply

READ_SIZE: Final = 1 << 16


@dataclass(frozen=True)
class Identity:
    """How a worker introduces itself. Producers have none."""

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
    """Everything a connection needs to be opened."""

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


class Connection:
    """A blocking connection, for one thread at a time."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._socket: socket.socket | None = None
        self._buffer = wire.ReplyBuffer()
        self._replies: deque[Reply] = deque()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self) -> None:
        """Connect and say hello."""
        options = self._options
        address = options.address
        self.close()
        try:
            self._socket = socket.create_connection(address[:2], timeout=options.timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = options.ssl_context
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        except TimeoutError:
            self.close()
            raise TimedOut(f"Connecting to {address} timed out.") from None
        except OSError as error:
            self.close()
            raise ConnectionLost(f"Cannot connect to {address}: {error}") from error
        try:
            greeting = self._receive(options.timeout)
            answer = self.request(options.hello(greeting))
        except BaseException:
            self.close()
            raise
        if answer != "OK":
            self.close()
            raise ConnectionLost(f"The server did not accept the connection: {answer!r}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._buffer = wire.ReplyBuffer()
        self._replies.clear()

    def request(self, command: bytes, timeout: float | None = None) -> str | bytes | None:
        """Send a command and return its reply."""
        self.send(command)
        reply = self._receive(self._options.timeout if timeout is None else timeout)
        if isinstance(reply, RequestRefused):
            raise reply
        return reply

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        """Send commands together and return their replies; a refusal is one of them."""
        self.send(b"".join(commands))
        return [self._receive(self._options.timeout) for _ in commands]

    def send(self, data: bytes) -> None:
        if self._socket is None:
            raise NotConnected("The client is not connected.")
        try:
            self._socket.settimeout(self._options.timeout)
            self._socket.sendall(data)
        except TimeoutError:
            self.close()
            raise TimedOut("Sending to the server timed out.") from None
        except OSError as error:
            self.close()
            raise ConnectionLost(f"The connection was lost: {error}") from error

    def receive(self, timeout: float) -> Reply:
        """The next reply of the commands that were sent."""
        return self._receive(timeout)

    def _receive(self, timeout: float) -> Reply:
        deadline = monotonic() + timeout
        while not self._replies:
            if self._socket is None:
                raise NotConnected("The client is not connected.")
            try:
                self._socket.settimeout(max(0.001, deadline - monotonic()))
                data = self._socket.recv(READ_SIZE)
            except TimeoutError:
                self.close()
                raise TimedOut(f"The server did not answer within {timeout:g} s.") from None
            except OSError as error:
                self.close()
                raise ConnectionLost(f"The connection was lost: {error}") from error
            if not data:
                self.close()
                raise ConnectionLost("The server closed the connection.")
            self._buffer.feed(data)
            try:
                self._replies += self._buffer.take()
            except BaseException:
                self.close()
                raise
        return self._replies.popleft()


class AsyncConnection:
    """An asyncio connection, for one task at a time."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._buffer = wire.ReplyBuffer()
        self._replies: deque[Reply] = deque()

    @property
    def is_open(self) -> bool:
        return self._streams is not None

    async def open(self) -> None:
        """Connect and say hello."""
        options = self._options
        address = options.address
        context = options.ssl_context
        name = address.host if context is not None else None
        self.close()
        try:
            self._streams = await asyncio.wait_for(
                asyncio.open_connection(
                    address.host, address.port, ssl=context, server_hostname=name
                ),
                options.timeout,
            )
        except TimeoutError:
            raise TimedOut(f"Connecting to {address} timed out.") from None
        except OSError as error:
            raise ConnectionLost(f"Cannot connect to {address}: {error}") from error
        try:
            (greeting,) = await self._receive(1)
            answer = await self.request(options.hello(greeting))
        except BaseException:
            self.close()
            raise
        if answer != "OK":
            self.close()
            raise ConnectionLost(f"The server did not accept the connection: {answer!r}")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        self._buffer = wire.ReplyBuffer()
        self._replies.clear()

    async def request(self, command: bytes) -> str | bytes | None:
        """Send a command and return its reply."""
        (reply,) = await self.request_many([command])
        if isinstance(reply, RequestRefused):
            raise reply
        return reply

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        """Send commands together and return their replies; a refusal is one of them."""
        if self._streams is None:
            raise NotConnected("The client is not connected.")
        try:
            self._streams[1].write(b"".join(commands))
            await self._streams[1].drain()
        except OSError as error:
            self.close()
            raise ConnectionLost(f"The connection was lost: {error}") from error
        return await self._receive(len(commands))

    async def _receive(self, count: int) -> list[Reply]:
        timeout = self._options.timeout
        while len(self._replies) < count:
            if self._streams is None:
                raise NotConnected("The client is not connected.")
            try:
                data = await asyncio.wait_for(self._streams[0].read(READ_SIZE), timeout)
            except TimeoutError:
                self.close()
                raise TimedOut(f"The server did not answer within {timeout:g} s.") from None
            except OSError as error:
                self.close()
                raise ConnectionLost(f"The connection was lost: {error}") from error
            except BaseException:
                self.close()  # a reply that arrives later would belong to another request
                raise
            if not data:
                self.close()
                raise ConnectionLost("The server closed the connection.")
            self._buffer.feed(data)
            try:
                self._replies += self._buffer.take()
            except BaseException:
                self.close()
                raise
        return [self._replies.popleft() for _ in range(count)]
