"""Orders to Faktory workers, given as one more client of the running server.

The conversation, on top of the Faktory protocol's handshake:

    C: WORKER QUIET 4qpc2443vpvai        (or WORKER TERMINATE; `*` means every worker)
    S: +OK                               (or -ERR unknown worker 4qpc2443vpvai)
"""

import hashlib
import os
import socket
from io import BufferedRWPair
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from millrace.config import Config, is_loopback

if TYPE_CHECKING:
    import ssl

Order = Literal["QUIET", "TERMINATE"]

LONGEST_LINE = 64 * 1024
PATIENCE = 5.0  # seconds for each step


class OrderFailedError(Exception):
    """The order did not reach the server, or the server refused it."""


class Target(NamedTuple):
    """Where the server's Faktory port is, and what it takes to be let in."""

    host: str
    port: int
    password: str
    tls: bool
    certificate: str  # trusted beside the system's authorities

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def target(config: Config, *, host: str | None, port: int | None, tls: bool) -> Target:
    """The server that `config` describes, unless told otherwise."""
    if host is None:
        # A server that listens everywhere listens here.
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound to it
        host = everywhere.get(config.server.host, config.server.host)
    port = config.faktory.port if port is None else port
    if not port:
        state = "off" if port is None else "any free one (the server prints it when it starts)"
        raise OrderFailedError(f"the configured Faktory port is {state}: give it with --port")
    cert = config.tls.cert
    return Target(host, port, config.faktory.password, tls or bool(cert), cert)


def give_order(server: Target, order: Order, wid: str) -> None:
    """Have the server tell worker `wid` (or `*`, all of them) at its next BEAT."""
    if not wid or not wid.isprintable():
        raise OrderFailedError("a worker id is one line of text")
    context = _tls_context(server) if server.tls else None
    try:
        with _connect(server, context) as connection, connection.makefile("rwb") as stream:
            _converse(stream, server, f"WORKER {order} {wid}")
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise OrderFailedError(
            f"cannot talk to a Faktory server at {server}: {reason}. "
            "Is it running there? --host, --port and --tls say where else to look."
        ) from error


def _tls_context(server: Target) -> "ssl.SSLContext":
    import ssl  # noqa: PLC0415 - 20 ms that most servers do not ask for

    context = ssl.create_default_context()
    if is_loopback(server.host):
        # Certificates rarely name this machine's own loopback, and nobody stands in between.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif server.certificate:
        # The server's own certificate is enough, even if its authority is not at hand.
        try:
            context.load_verify_locations(server.certificate)
        except OSError as error:
            raise OrderFailedError(f"tls.cert: cannot use {server.certificate}: {error}") from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _connect(server: Target, context: "ssl.SSLContext | None") -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE)
    if context is None:
        return connection
    try:
        return context.wrap_socket(connection, server_hostname=server.host)
    except BaseException:
        connection.close()
        raise


def _converse(stream: BufferedRWPair, server: Target, command: str) -> None:
    greeting = _greeting(_line(stream), server)
    hello: dict[str, Any] = {"v": 2, "hostname": socket.gethostname(), "pid": os.getpid()}
    if greeting.s is not None:
        if not server.password:
            raise OrderFailedError(
                f"the server at {server} wants a password: set faktory.password in the file, or "
                "MILLRACE_FAKTORY_PASSWORD"
            )
        hello["pwdhash"] = password_hash(server.password, greeting.s, greeting.i)
    for request in (b"HELLO " + msgspec.json.encode(hello), command.encode()):
        stream.write(request + b"\r\n")
        stream.flush()
        reply = _line(stream)
        if reply != b"+OK":
            told = _shown(reply).removeprefix("-").removeprefix("ERR ")
            raise OrderFailedError(f"the server at {server} answers: {told}")
    stream.write(b"END\r\n")
    stream.flush()


class Greeting(msgspec.Struct):
    """What follows +HI. Salt and rounds are there when the server has a password."""

    s: str | None = None
    # No rounds at all would send the password itself; too many would keep us here for ever.
    i: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1


def _greeting(line: bytes, server: Target) -> Greeting:
    try:
        return msgspec.json.decode(line.removeprefix(b"+HI "), type=Greeting)
    except msgspec.DecodeError as error:
        raise OrderFailedError(
            f"what listens at {server} is no Faktory server: it says {_shown(line)}"
        ) from error


def _line(stream: BufferedRWPair) -> bytes:
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionAbortedError(0, "it closed the connection")
    return line.rstrip(b"\r\n")


def _shown(line: bytes) -> str:
    """A server's words without what could play tricks on a terminal."""
    text = line[:200].decode("utf-8", "replace")
    return text if text.isprintable() else ascii(text)


def password_hash(password: str, salt: str, rounds: int) -> str:
    """SHA-256, `rounds` times, on raw digests; in hex only at the end."""
    digest = (password + salt).encode()
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()
