"""One client for every port of a server: it sends a request and receives one complete reply."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from millrace.admin.client import hello as admin_hello
from millrace.server.control_socket import control_socket_path
from millrace.web.app import application
from millrace.web.settings import WebSettings
from millrace.web.state import AppState

TIMEOUT = 20.0


class Conversation(Protocol):
    """Sends requests on a connection per protocol and client, and returns the replies."""

    def send(self, protocol: str, request: bytes, client: str = "main") -> bytes: ...


class SocketConversation:
    """Sends the requests to a running server over its sockets."""

    def __init__(self, ports: dict[str, int], data: Path) -> None:
        self._ports, self._data = ports, data
        self._sockets: dict[tuple[str, str], socket.socket] = {}

    def send(self, protocol: str, request: bytes, client: str = "main") -> bytes:
        if protocol == "http":
            return asyncio.run(_call_web(self._data, request))
        key = (protocol, client)
        if key not in self._sockets:
            self._sockets[key] = self._connect(protocol)
            hello = greeting(protocol, client)
            if hello:
                if protocol == "faktory":
                    _read(self._sockets[key], protocol)
                self._sockets[key].sendall(hello)
                _read(self._sockets[key], protocol)
        connection = self._sockets[key]
        connection.sendall(request)
        return reply_content(protocol, _read(connection, protocol))

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()

    def _connect(self, protocol: str) -> socket.socket:
        if protocol == "control":
            connection = socket.socket(socket.AF_UNIX)
            path = control_socket_path(self._data)
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                connection.connect(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
        else:
            connection = socket.create_connection(("127.0.0.1", self._ports[protocol]))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(TIMEOUT)
        return connection


def reply_content(protocol: str, reply: bytes) -> bytes:
    """The reply; for the admin socket the result of the last line."""
    if protocol != "control" or not reply:
        return reply
    line = reply.splitlines()[-1]
    ((member, value),) = json.loads(line).items()
    return line if member == "error" else json.dumps(value).encode() + b"\n"


def greeting(protocol: str, client: str) -> bytes:
    """The first line of a client, where the protocol has one. Faktory's server sends a line before
    it.
    """
    if protocol == "control":
        return admin_hello()
    if protocol != "faktory":
        return b""
    return b"HELLO %b\r\n" % json.dumps({"v": 2, "wid": client, "hostname": "h", "pid": 1}).encode()


def _read(connection: socket.socket, protocol: str) -> bytes:
    data = b""
    while not is_complete(protocol, data):
        more = connection.recv(1 << 20)
        if not more:
            raise ConnectionError(f"the server closed the connection after {data!r}")
        data += more
    return data


def is_complete(protocol: str, data: bytes) -> bool:
    """Whether the data is one complete reply of a protocol."""
    match protocol:
        case "faktory" | "qless":
            return _end_of_resp(data, 0) == len(data)
        case "workq":
            return _is_complete_workq(data)
        case "goqueue":
            return _is_complete_goqueue(data)
    return data.endswith(b"\n")


def _end_of_resp(data: bytes, at: int) -> int:
    """The index after the RESP value that starts at `at`, or -1 if the value is not complete."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return -1
    kind, head, end = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in {b"$", b"="} and int(head) >= 0:
        end += int(head) + 2
        return end if end <= len(data) else -1
    if kind in {b"*", b"~", b">"}:
        for _ in range(max(0, int(head))):
            end = _end_of_resp(data, end)
            if end < 0:
                return -1
    return end


def _is_complete_workq(data: bytes) -> bool:
    """A line, or a job or a result with its block, or a list of fields."""
    lines = data.split(b"\r\n")
    if not data.endswith(b"\r\n"):
        return False
    if not lines[0].startswith(b"+OK "):
        return True
    rest = lines[1:-1]
    for _ in range(int(lines[0][4:])):
        if not rest:
            return False
        words = rest.pop(0).split(b" ")
        # A name and the number of its fields, or a job or result with its block.
        more = int(words[1]) if len(words) == 2 else 1
        if len(rest) < more:
            return False
        del rest[:more]
    return True


def _is_complete_goqueue(data: bytes) -> bool:
    word, _, rest = data.partition(b"\0")
    match word:
        case b"ADDED":
            return len(rest) >= 8
        case b"ERROR":
            return rest.endswith(b"\0")
        case b"RESERVED":
            size = int.from_bytes(rest[25:29], "little")
            return len(rest) >= 29 + size
    return data.endswith(b"\0")


async def _call_web(data: Path, request: bytes) -> bytes:
    """Call the web application with a request, over the control socket of the server."""
    method, path, body = json.loads(request)
    settings = WebSettings(
        control=str(control_socket_path(data)),
        data="",
        lake="",
        host="127.0.0.1",
        password="",
        tokens=[],
        read_only=False,
        hosts=[],
        session=3600,
        cert="",
        key="",
        sockets=[],
    )
    room = AppState(settings)
    plain, _, query = path.partition("?")
    content = b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(plain),
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:7420"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 7420),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(room)(scope, receive, send)
    room.close()
    status = b"%d " % sent[0]["status"]
    return status + b"".join(message.get("body", b"") for message in sent[1:])
