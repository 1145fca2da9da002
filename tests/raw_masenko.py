"""A Masenko connection with nothing between a test and the wire."""

import json
import socket
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"


class RawMasenko:
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

    def line(self) -> bytes:
        """The next line, without its LF."""
        while (end := self._buffer.find(b"\n")) < 0:
            data = self.socket.recv(262_144)
            if not data:
                raise ConnectionError(f"the server closed the connection after {self._buffer!r}")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def at_end(self) -> bool:
        """Whether the server has closed the connection, and said nothing more."""
        return not self._buffer and self.socket.recv(4096) == b""

    # Commands, and what their replies say

    def ask(self, line: str) -> bytes:
        self.send(line.encode() + b"\n")
        return self.line()

    def push(self, name: str = "a", **fields: Any) -> int:
        """The new task's id."""
        reply = self.ask(f"PUSH {json.dumps({'name': name, **fields})}")
        assert reply.startswith(b'OK {"id":'), reply
        task: int = json.loads(reply[3:])["id"]
        return task

    def fetch(self, *queues: str, timeout: str = "1ms") -> dict[str, Any] | None:
        """The task, or None if there is none."""
        fields = {"queues": queues or ["default"], "timeout": timeout}
        reply = self.ask(f"FETCH {json.dumps(fields)}")
        if reply == b"EMPTY {}":
            return None
        assert reply.startswith(b'OK {"id":'), reply
        task: dict[str, Any] = json.loads(reply[3:])
        return task

    def ack(self, task: int) -> bytes:
        return self.ask(f'ACK {{"id":{task}}}')

    def nack(self, task: int) -> bytes:
        return self.ask(f'NACK {{"id":{task}}}')

    def commit(self, *lines: str) -> bytes:
        """A transaction of these lines."""
        return self.ask("\n".join(("ATOMIC", *lines, "DONE")))

    def info(self) -> dict[str, Any]:
        reply = self.ask("INFO")
        assert reply.startswith(b"OK "), reply
        found: dict[str, Any] = json.loads(reply[3:])
        return found

    def queues(self) -> dict[str, tuple[int, int, int]]:
        """Every queue's tasks: ready, delayed, to be acknowledged."""
        return {q["name"]: (q["ready"], q["delayed"], q["to_ack"]) for q in self.info()["queues"]}
