"""A client for the part of the Faktory protocol that bulk transfers of jobs need.

This module uses only the standard library, so that tasks need no other packages.
"""

import json
import socket
import ssl
from hashlib import sha256
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

PORT: Final = 7419
PLAIN: Final = "tcp"
TLS: Final = "tcp+tls"
#: Accepted numbers of hash rounds. 0 would send the password itself; more would take too long.
_ROUNDS: Final = range(1, 100_001)
#: Maximum length of a greeting or an error.
_MAX_LINE: Final = 65_536


class Refused(Exception):
    """The server replied with an error; the message is the server's."""


class ServerLost(ConnectionError):
    """The server closed the connection before it replied."""


class ServerAddress(NamedTuple):
    host: str
    port: int
    password: str
    #: Whether to use TLS. `ca` is the file of trusted certificates; empty: the system's.
    tls: bool
    ca: str
    #: Timeout for a reply, in seconds.
    timeout: int

    def __repr__(self) -> str:
        """Omit the password, because logs may include this text."""
        return f"{TLS if self.tls else PLAIN}://{self.host}:{self.port}"


def parse(url: str, password: str = "", ca: str = "", timeout: int = 60) -> ServerAddress:
    """Parse `tcp://:password@host:7419`, or `tcp+tls://` for TLS."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in {PLAIN, TLS} or not parts.hostname:
        raise ValueError(f"The URL must be {PLAIN}://[:password@]host[:port], or {TLS}://...")
    secret = password or unquote(parts.password or "")
    return ServerAddress(parts.hostname, port, secret, parts.scheme == TLS, ca, timeout)


class ServerConnection:
    """A connection after the HELLO handshake. It supports pipelining of commands."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._received = bytearray()
        self._socket = socket.create_connection((address.host, address.port), address.timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                self._socket = _tls_context(address).wrap_socket(
                    self._socket, server_hostname=address.host
                )
            self._hello(address.password)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a MILLRACE command and return the reply."""
        self.send(b"MILLRACE %b\r\n" % json.dumps(request, separators=(",", ":")).encode())
        return self.receive()

    def send(self, line: bytes) -> None:
        self._socket.sendall(line)

    def receive(self) -> dict[str, Any]:
        """Return the reply to the oldest command without a reply."""
        head = self._line()
        if head[:1] != b"$":
            raise Refused(f"not a reply to MILLRACE: {head[:100]!r}")
        reply: dict[str, Any] = json.loads(self._take(int(head[1:])))
        return reply

    def _hello(self, password: str) -> None:
        greeting = self._line()
        if not greeting.startswith(b"+HI "):
            raise Refused(f"{self._address!r} does not speak the Faktory protocol")
        terms = json.loads(greeting[4:])
        hello: dict[str, Any] = {"v": 2}
        if "s" in terms:
            if not password:
                raise Refused(f"{self._address!r} requires a password: tcp://:password@host:port")
            if terms.get("i", 1) not in _ROUNDS:
                raise Refused(f"{self._address!r} requires an unsafe number of hash rounds")
            hello["pwdhash"] = _hashed(password, terms["s"], terms.get("i", 1))
        self.send(b"HELLO %b\r\n" % json.dumps(hello).encode())
        if self._line() != b"+OK":
            raise Refused(f"{self._address!r} rejects the connection")

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            if len(self._received) > _MAX_LINE:
                raise Refused(f"{self._address!r} does not speak the Faktory protocol")
            self._fill()
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        if line[:1] == b"-":
            raise Refused(line[1:].decode("utf-8", "replace").removeprefix("ERR "))
        return line

    def _take(self, size: int) -> bytes:
        while len(self._received) < size + 2:
            self._fill()
        body = bytes(self._received[:size])
        del self._received[: size + 2]
        return body

    def _fill(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ServerLost(f"{self._address!r} closed the connection")
        self._received += data


def _tls_context(address: ServerAddress) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=address.ca or None)
    if address.ca:
        # Trust the server's own certificate even if the certificate of its issuer is not available.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    elif _is_loopback(address.host):
        # Certificates rarely include loopback addresses, and no third party can intercept loopback.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _hashed(password: str, salt: str, rounds: int) -> str:
    digest = (password + salt).encode()
    for _ in range(rounds):
        digest = sha256(digest).digest()
    return digest.hex()
