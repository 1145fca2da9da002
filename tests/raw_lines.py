"""A raw connection with a line protocol."""

import socket
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class RawLines:
    def __init__(self, port: int, timeout: float = 30.0) -> None:
        self.socket = socket.create_connection((HOST, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def at_end(self) -> bool:
        """Whether the server has closed the connection without further data."""
        return not self._buffer and self.socket.recv(4096) == b""

    def _until(self, end: bytes) -> bytes:
        """The data before `end`, which is skipped."""
        while (at := self._buffer.find(end)) < 0:
            self._fill()
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return found

    def _fill(self) -> None:
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionError(f"the server closed the connection after {bytes(self._buffer)!r}")
        self._buffer += data
