"""A raw Faktory connection: it sends lines and reads replies."""

import hashlib
import json
import socket
import ssl
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"


class RefusedError(Exception):
    """The server answered with an error; the message is its text."""


class ClosedError(ConnectionError):
    """The server closed the connection where a reply was due."""


class RawFaktory:
    def __init__(
        self,
        port: int,
        *,
        password: str | None = None,
        wid: str | None = None,
        ca: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._buffer = bytearray()
        self._socket: socket.socket = socket.create_connection((HOST, port), timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ca is not None:
                context = ssl.create_default_context(cafile=str(ca))
                self._socket = context.wrap_socket(self._socket, server_hostname=HOST)
            self._hello(password, wid)
        except BaseException:
            self._socket.close()
            raise

    def _hello(self, password: str | None, wid: str | None) -> None:
        greeting = self.reply()
        assert isinstance(greeting, str)
        assert greeting.startswith("HI "), greeting
        terms = json.loads(greeting[3:])
        hello: dict[str, Any] = {"v": 2}
        if wid is not None:
            hello |= {"hostname": "tests", "pid": 1, "labels": [], "wid": wid}
        if password is not None and "s" in terms:
            digest = (password + terms["s"]).encode()
            for _ in range(terms["i"]):
                digest = hashlib.sha256(digest).digest()
            hello["pwdhash"] = digest.hex()
        assert self.command("HELLO", hello) == "OK"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # The wire

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def reply(self) -> str | bytes | None:
        """A simple string as str, a bulk string as bytes or None; an error is raised."""
        header = self._take_line()
        kind, rest = header[:1], header[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RefusedError(rest.decode())
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._take(size)
        raise AssertionError(f"not a reply: {header!r}")

    def _take_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size + 2:
            self._receive()
        body = bytes(self._buffer[:size])
        assert self._buffer[size : size + 2] == b"\r\n", "a bulk string must end in CRLF"
        del self._buffer[: size + 2]
        return body

    def _receive(self) -> None:
        chunk = self._socket.recv(1 << 16)
        if not chunk:
            raise ClosedError("the server closed the connection")
        self._buffer += chunk

    # The commands

    def command(self, verb: str, argument: Any = None) -> str | bytes | None:
        self.send(line(verb, argument))
        return self.reply()

    def push(self, unit: dict[str, Any]) -> None:
        assert self.command("PUSH", unit) == "OK"

    def fetch(self, *queues: str) -> dict[str, Any] | None:
        body = self.command(" ".join(("FETCH", *queues)))
        if body is None:
            return None
        unit = json.loads(body)
        assert isinstance(unit, dict)
        return unit

    def ack(self, jid: str) -> None:
        assert self.command("ACK", {"jid": jid}) == "OK"

    def fail(self, jid: str, message: str = "failed by a test") -> None:
        failure = {"jid": jid, "errtype": "TestError", "message": message, "backtrace": ["here"]}
        assert self.command("FAIL", failure) == "OK"

    def mutate(self, cmd: str, target: str, *jids: str) -> None:
        operation: dict[str, Any] = {"cmd": cmd, "target": target}
        if jids:
            operation["filter"] = {"jids": list(jids)}
        assert self.command("MUTATE", operation) == "OK"

    def info(self) -> dict[str, Any]:
        body = self.command("INFO")
        assert isinstance(body, bytes)
        info = json.loads(body)
        assert isinstance(info, dict)
        return info

    def queue_size(self, queue: str) -> int:
        return int(self.info()["faktory"]["queues"].get(queue, 0))

    def set_size(self, name: str) -> int:
        return int(self.info()["faktory"]["sets"][name])


def line(verb: str, argument: Any = None) -> bytes:
    if argument is None:
        return f"{verb}\r\n".encode()
    return f"{verb} {json.dumps(argument, separators=(',', ':'))}\r\n".encode()
