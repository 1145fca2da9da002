"""`millrace faktory quiet` and `terminate`: signals to Faktory workers.

The command connects to the server's Faktory port. After the handshake:

    C: WORKER QUIET 4qpc2443vpvai        (or WORKER TERMINATE; `*` means every worker)
    S: +OK                               (or -ERR unknown worker 4qpc2443vpvai)
"""

import hashlib
import os
import socket
from io import BufferedRWPair
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import typer

from millrace.cli.options import TYPER_SETTINGS, CommandGroup, ConfigFile, Json, load_config
from millrace.config import Config, is_loopback

if TYPE_CHECKING:
    import ssl

Signal = Literal["QUIET", "TERMINATE"]

MAX_LINE_BYTES = 64 * 1024
STEP_TIMEOUT = 5.0  # seconds


app = CommandGroup(help="Send signals to Faktory workers.", **TYPER_SETTINGS)

Wid = Annotated[
    str,
    typer.Argument(metavar="WID", help="ID of the worker, or `all`.", show_default=False),
]
Host = Annotated[
    str | None, typer.Option(help="Host of the server. Default: from the configuration.")
]
Port = Annotated[int | None, typer.Option(help="Faktory port of the server.", min=1, max=65535)]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS even if the configuration has none.")]


class SignalFailed(Exception):
    """The signal did not reach the server, or the server refused it."""


def signal_command(signal: Signal, effect: str, about: str) -> None:
    """Add the command of a signal; `effect` completes "Worker a1 will ..."."""

    def command(
        wid: Wid,
        config: ConfigFile = None,
        host: Host = None,
        port: Port = None,
        *,
        tls: Tls = False,
        json: Json = False,
    ) -> None:
        _send(signal, wid, config, host, port, tls=tls)
        if json:
            answer = {"worker": wid, "signal": signal.lower()}
            typer.echo(msgspec.json.encode(answer).decode())
        else:
            typer.echo(f"{'Every worker' if wid == 'all' else f'Worker {wid}'} will {effect}")

    command.__doc__ = about
    app.command(signal.lower())(command)


signal_command(
    "QUIET",
    "stop fetching at its next heartbeat, usually within 15 s.",
    """Tell a worker to stop fetching and finish its current jobs.

    A worker of the Python SDK then exits. The host, port and password of the server come from its
    configuration.

    Examples:
    - `millrace faktory quiet 4qpc2443vpvai`
    - `millrace faktory quiet all`: before a deployment

    """,
)
signal_command(
    "TERMINATE",
    "exit within 30 s of its next heartbeat. Unfinished jobs are retried.",
    """Tell a worker to exit within 30 s of its next heartbeat.

    The worker fails jobs that it cannot finish in this time; they are retried later.

    Examples:
    - `millrace faktory terminate 4qpc2443vpvai`
    - `millrace faktory terminate all --host queue.example.com --tls`

    """,
)


def _send(
    signal: Signal,
    wid: str,
    config: str | None,
    host: str | None,
    port: int | None,
    *,
    tls: bool,
) -> None:
    loaded = load_config(config)
    try:
        server = target(loaded, host=host, port=port, tls=tls)
        send_signal(server, signal, "*" if wid == "all" else wid)
    except SignalFailed as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


class Target(NamedTuple):
    """Address and credentials of the server's Faktory port."""

    host: str
    port: int
    password: str
    tls: bool
    certificate: str  # trusted in addition to the system's authorities

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def target(config: Config, *, host: str | None, port: int | None, tls: bool) -> Target:
    """The server that `config` describes; the other arguments override it."""
    if host is None:
        # A wildcard address includes the loopback address.
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound
        host = everywhere.get(config.server.host, config.server.host)
    port = config.faktory.port if port is None else port
    if not port:
        state = "off" if port is None else "0 (the server prints its port at startup)"
        raise SignalFailed(f"The configured Faktory port is {state}. Pass the port with --port.")
    cert = config.tls.cert
    return Target(host, port, config.faktory.password, tls or bool(cert), cert)


def send_signal(server: Target, signal: Signal, wid: str) -> None:
    """Send `signal` to worker `wid`, or to all workers for `*`, with its next heartbeat."""
    if not wid or not wid.isprintable():
        raise SignalFailed("A worker ID must be one line of text.")
    context = _tls_context(server) if server.tls else None
    try:
        with _connect(server, context) as connection, connection.makefile("rwb") as stream:
            _converse(stream, server, f"WORKER {signal} {wid}")
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise SignalFailed(
            f"Cannot connect to a Faktory server at {server}: {reason}. Check that it is running, "
            "or set --host, --port and --tls."
        ) from error


def _tls_context(server: Target) -> "ssl.SSLContext":
    import ssl  # noqa: PLC0415 - takes 20 ms to load

    context = ssl.create_default_context()
    if is_loopback(server.host):
        # Certificates rarely name the loopback address, and the traffic stays on this machine.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif server.certificate:
        # Trust the server's own certificate even without its authority.
        try:
            context.load_verify_locations(server.certificate)
        except OSError as error:
            raise SignalFailed(f"tls.cert: cannot load {server.certificate}: {error}") from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _connect(server: Target, context: "ssl.SSLContext | None") -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=STEP_TIMEOUT)
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
            raise SignalFailed(
                f"The server at {server} requires a password. Set faktory.password in the "
                "configuration file, or MILLRACE_FAKTORY_PASSWORD."
            )
        hello["pwdhash"] = password_hash(server.password, greeting.s, greeting.i)
    for request in (b"HELLO " + msgspec.json.encode(hello), command.encode()):
        stream.write(request + b"\r\n")
        stream.flush()
        reply = _line(stream)
        if reply != b"+OK":
            reason = _shown(reply).removeprefix("-").removeprefix("ERR ")
            raise SignalFailed(f"The server at {server} refused the signal: {reason}")
    stream.write(b"END\r\n")
    stream.flush()


class Greeting(msgspec.Struct):
    """The JSON after +HI. It has salt and rounds if the server requires a password."""

    s: str | None = None
    # Zero rounds would send the password itself; the maximum bounds the computation.
    i: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1


def _greeting(line: bytes, server: Target) -> Greeting:
    try:
        return msgspec.json.decode(line.removeprefix(b"+HI "), type=Greeting)
    except msgspec.DecodeError as error:
        raise SignalFailed(f"No Faktory server at {server}: it sent {_shown(line)}") from error


def _line(stream: BufferedRWPair) -> bytes:
    line = stream.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise ConnectionAbortedError(0, "the server closed the connection")
    return line.rstrip(b"\r\n")


def _shown(line: bytes) -> str:
    """A reply without control characters."""
    text = line[:200].decode("utf-8", "replace")
    return text if text.isprintable() else ascii(text)


def password_hash(password: str, salt: str, rounds: int) -> str:
    """SHA-256, applied `rounds` times to raw digests; the result in hex."""
    digest = (password + salt).encode()
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()
