"""One blocking Faktory connection for steps that are not measured."""

import json
from typing import Any

from modes import CRLF, RefusedError, connect, read_line, send_hello

WAIT_TIMEOUT = 120.0  # a batch may wait for a slow disk


class FaktoryClient:
    def __init__(self, port: int, wid: str = "") -> None:
        self.sock = connect(port)
        self.sock.settimeout(WAIT_TIMEOUT)
        self._request = b"HELLO"
        send_hello(self.sock, wid)

    def request(self, request: bytes) -> bytes:
        """The reply's text: the line after `+`, or the bytes of a bulk string."""
        self.send(request)
        return self.reply()

    def send(self, request: bytes) -> None:
        self._request = request
        self.sock.sendall(request)

    def reply(self) -> bytes:
        """The text of the reply to the last request."""
        reply = read_line(self.sock)
        if reply.startswith(b"$") and not reply.startswith(b"$-1"):
            head = reply.index(CRLF)
            end = head + 2 + int(reply[1:head])
            while len(reply) < end + 2:
                reply += read_line(self.sock)
            return reply[head + 2 : end]
        if not reply.startswith(b"+"):
            raise RefusedError(f"{self._request[:40]!r} was answered with {reply[:200]!r}")
        return reply[1:-2]

    def info(self) -> dict[str, Any]:
        """The `faktory` part of INFO."""
        counted: dict[str, Any] = json.loads(self.request(b"INFO\r\n"))["faktory"]
        return counted

    def close(self) -> None:
        self.sock.close()
