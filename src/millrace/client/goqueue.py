"""A client for the Go Job Queue protocol: add jobs, reserve them, delete completed jobs."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from .errors import AlreadyDeleted, BadReply, ConnectionLost, NotConnected, RequestRefused, TimedOut

#: Priority, ttp, length of the data.
_ADD: Final = Struct("<III")
_ID: Final = Struct("<Q")
_NUMBER: Final = Struct("<I")
#: Id, priority, ttp.
_RESERVED: Final = Struct("<QII")

MAX_NUMBER: Final = (1 << 32) - 1
MAX_ID: Final = (1 << 64) - 1
MAX_NAME_BYTES: Final = 255
#: Longest status or error text that the client accepts.
MAX_STRING_BYTES: Final = 65_536


class ReservedJob(NamedTuple):
    """A job that this worker holds for `ttp` seconds."""

    id: int
    priority: int
    ttp: int
    status: str
    data: bytes


class GoJobQueue:
    """One connection, for one thread at a time.

    `timeout` is the maximum time without data from the server, in seconds; `reserve` adds its
    waiting time. With `tls`, the connection is encrypted.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 11223,
        *,
        timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.timeout = timeout
        self.tls = tls
        self._wire: _Wire | None = None

    # The connection

    def connect(self) -> Self:
        """Connect, or reconnect, and check that the server answers."""
        self.close()
        try:
            self._wire = _Wire(self._open(), self.timeout)
        except TimeoutError:
            raise TimedOut(f"no connection to {self.host}:{self.port}: timed out") from None
        except OSError as error:
            raise ConnectionLost(f"no connection to {self.host}:{self.port}: {error}") from error
        try:
            with self._asking(b"CONNECT\0", self.timeout) as wire:
                wire.expect(b"OK")
        except RequestRefused:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the connection, if it is open. Jobs stay reserved until their ttp expires."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    @property
    def connected(self) -> bool:
        """Whether the connection is open. Only the next command detects a vanished server."""
        return self._wire is not None

    def __enter__(self) -> Self:
        return self if self.connected else self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.close()

    # Commands

    def add(self, queue: str, data: bytes, *, priority: int = 0, ttp: int = 60) -> int:
        """Add a job and return its id once the job is on the server's disk.

        Jobs with a lower priority are reserved first. A worker has `ttp` seconds to process the
        job, then the job is ready again; 0 means 1.
        """
        fields = _ADD.pack(
            _within(priority, "priority"), _within(ttp, "ttp"), _within(len(data), "len(data)")
        )
        request = b"ADD\0" + _string(queue, "queue") + fields + data
        with self._asking(request, self.timeout) as wire:
            wire.expect(b"ADDED")
            (job,) = wire.fields(_ID)
        return int(job)

    def reserve(self, queue: str, wait: int | None = None) -> ReservedJob | None:
        """Reserve a job. None if no job is ready within `wait` whole seconds; without `wait`, the
        call waits without a limit.
        """
        if wait == 0:
            raise ValueError("wait must be at least 1; in the protocol, 0 means no limit")
        request = b"RESERVE\0" + _string(queue, "queue") + _NUMBER.pack(_within(wait or 0, "wait"))
        with self._asking(request, None if wait is None else wait + self.timeout) as wire:
            if wire.expect(b"RESERVED", b"TIMEOUT") == b"TIMEOUT":
                return None
            job, priority, ttp = wire.fields(_RESERVED)
            status = wire.string().decode("utf-8", "replace")
            (size,) = wire.fields(_NUMBER)
            return ReservedJob(job, priority, ttp, status, wire.take(size))

    def delete(self, job: ReservedJob | int) -> None:
        """Delete a job, as a worker does after it has processed the job.

        AlreadyDeleted means that the job does not exist. If a worker receives it for a job that it
        has just processed, the work took longer than the ttp, and another worker deleted the job.
        """
        number = _within(job.id if isinstance(job, ReservedJob) else job, "id", MAX_ID)
        try:
            with self._asking(b"DELETE\0" + _ID.pack(number), self.timeout) as wire:
                wire.expect(b"OK")
        except RequestRefused as refused:
            if str(refused) == f"Job {number} already deleted":
                raise AlreadyDeleted(str(refused)) from None
            raise

    # Internal

    def _open(self) -> socket.socket:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Ends a wait without a limit if the machine of the server vanishes.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.tls is None:
            return plain
        try:
            return self.tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise

    @contextmanager
    def _asking(self, request: bytes, patience: float | None) -> Iterator["_Wire"]:
        """Send a request and let the caller read the reply. After any error except a refusal, the
        start of the next reply is unknown, so the client closes the connection.
        """
        wire = self._wire
        if wire is None:
            raise NotConnected("The client is not connected. Call connect() first.")
        try:
            wire.ask(request, patience)
            yield wire
        except RequestRefused:
            raise
        except TimeoutError:
            self.close()
            raise TimedOut(f"{self.host}:{self.port} did not answer in time") from None
        except OSError as error:
            self.close()
            if isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(f"the connection to {self.host} is lost: {error}") from error
        except BaseException:
            self.close()
            raise


class _Wire:
    """A socket and its received bytes that the client has not read yet."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self._socket = sock
        self._timeout = timeout
        self._received = bytearray()

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes, patience: float | None) -> None:
        """Send a request; the first byte of its reply may take `patience` seconds."""
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(request)
        except ConnectionError:
            # A server that refuses a large request may close the connection before it has read
            # the whole request.
            with suppress(OSError):
                self.expect()
            raise
        self._socket.settimeout(patience)

    def expect(self, *words: bytes) -> bytes:
        """The first string of a reply: one of these, or a refusal."""
        word = self.string()
        if word == b"ERROR":
            raise RequestRefused(self.string().decode("utf-8", "replace"))
        if word not in words:
            raise BadReply(f"The server sent an unexpected reply: {word[:40]!r}")
        return word

    def string(self) -> bytes:
        while (end := self._received.find(0)) < 0:
            if len(self._received) > MAX_STRING_BYTES:
                raise BadReply(f"The server sent a string of more than {MAX_STRING_BYTES} bytes")
            self._fill()
        return self.take(end + 1)[:-1]

    def fields(self, form: Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def take(self, size: int) -> bytes:
        while len(self._received) < size:
            self._fill()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _fill(self) -> None:
        piece = self._socket.recv(262_144)
        if not piece:
            raise ConnectionLost("The server closed the connection.")
        self._received += piece
        self._socket.settimeout(self._timeout)


def _string(text: str, name: str) -> bytes:
    string = text.encode()
    if not string or len(string) > MAX_NAME_BYTES or 0 in string:
        raise ValueError(f"{name} must be 1 to {MAX_NAME_BYTES} bytes of UTF-8 without NUL")
    return string + b"\0"


def _within(number: int, name: str, maximum: int = MAX_NUMBER) -> int:
    if not 0 <= number <= maximum:
        raise ValueError(f"{name} must be from 0 to {maximum}, not {number}")
    return number
