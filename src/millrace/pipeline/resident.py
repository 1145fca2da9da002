"""A resident Spark process: a session that stays open between runs and queries.

    python -m millrace.pipeline.resident SOCKET MEMORY MASTER PARENT

A session takes ten CPU-seconds to start and to compile its code; a resident one needs three for a
small run. The server starts the process when a scheduled run finds new events. Commands of the same
data folder use it while it exists. It listens on a Unix socket that only its user can open, and
does one request at a time. It stops after IDLE_TIMEOUT seconds without a request, after
MAX_REQUESTS requests, and with the process that it belongs to.

A request is a JSON line, and a connection has one request. Replies are JSON lines: `progress`
any number of times, then `result` or `error`. A request that fails leaves the session usable.
"""

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from .errors import PipelineError
from .lake import Lake
from .progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds without a request after which the process stops.
IDLE_TIMEOUT: Final = 600.0
#: The number of requests after which the process stops: Java frees some memory only at its end.
MAX_REQUESTS: Final = 500
#: Seconds for a new process to listen.
START_TIMEOUT: Final = 30.0
#: Seconds for a client to send its request.
REQUEST_TIMEOUT: Final = 10.0
MAX_REQUEST_BYTES: Final = 1 << 20
NICENESS: Final = 10
#: Seconds between two checks of the process that this one belongs to, where the kernel cannot tell.
PARENT_CHECK_INTERVAL: Final = 0.5


class Request(msgspec.Struct, omit_defaults=True):
    """One operation on a lake. The settings must be those of the process."""

    operation: str
    lake: str
    memory: str
    master: str
    query: str = ""
    limit: int = 0


class ResidentReply(msgspec.Struct, omit_defaults=True):
    """One of the fields has a value."""

    progress: tuple[str, int, int] | None = None
    result: Any = None
    error: str | None = None
    #: The process has other settings. The client uses a session of its own.
    other_settings: bool = False


class NotResident(Exception):
    """No resident process can do the request."""


def socket_path(data: Path) -> Path:
    return data / "spark.sock"


# The client


def request(path: Path, asked: Request, progress: Progress) -> Any:
    """Return the result of a request. Raises NotResident if no process can answer it."""
    with _connected(path) as connection:
        connection.sendall(msgspec.json.encode(asked) + b"\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                reply = msgspec.json.decode(line, type=ResidentReply)
                if reply.other_settings:
                    raise NotResident
                if reply.error is not None:
                    raise PipelineError(reply.error)
                if reply.progress is None:
                    return reply.result
                progress(*reply.progress)
    raise PipelineError("The resident Spark process ended during the request. Run again.")


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection, _short(path) as address:
        try:
            connection.connect(address)
        except OSError as error:
            raise NotResident from error
        yield connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A short name for a path: the address of a socket has at most 107 bytes."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotResident from error
    try:
        yield f"/proc/self/fd/{folder}/{path.name}" if sys.platform == "linux" else str(path)
    finally:
        os.close(folder)


def ensure(path: Path, memory: str, master: str, parent: int) -> None:
    """Start the process if none listens. It ends together with the process `parent`."""
    with contextlib.suppress(NotResident), _connected(path):
        return
    command = [sys.executable, "-P", "-m", "millrace.pipeline.resident"]
    with subprocess.Popen(  # noqa: S603 - a command of ours
        [*command, str(path), memory, master, str(parent)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        if not ready or not process.stdout.readline():
            process.kill()
            raise NotResident
        process.returncode = 0  # it outlives this process


# The process


class Settings(NamedTuple):
    memory: str
    master: str


class ResidentServer:
    """Accepts requests and runs them, one after the other."""

    def __init__(
        self,
        path: Path,
        settings: Settings,
        session: "Callable[[], SparkSession]",
        idle: float = IDLE_TIMEOUT,
    ) -> None:
        self._settings, self._session, self._idle = settings, session, idle
        self._spark: SparkSession | None = None
        self._path, self._stopped = path, False
        with _short(path) as address:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            self._listener = socket.socket(socket.AF_UNIX)
            mask = os.umask(0o177)  # the socket has the mode 0600 from its first moment
            try:
                self._listener.bind(address)
            finally:
                os.umask(mask)
        self._listener.listen()

    def stop(self) -> None:
        """Let `serve` end after the request that it does. Another thread may call it."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Serve until the process has to stop."""
        try:
            for _ in range(MAX_REQUESTS):
                ready, _, _ = select.select([self._listener], [], [], self._idle)
                if not ready or self._stopped:
                    return
                connection, _ = self._listener.accept()
                with connection:
                    self._answer(connection)
                if self._spark is not None and self._is_lost(self._spark):
                    return
        finally:
            self._path.unlink(missing_ok=True)
            self._listener.close()
            if self._spark is not None:
                self._spark.stop()

    def _answer(self, connection: socket.socket) -> None:
        def send(reply: ResidentReply) -> None:
            # A client that has ended does not end the operation.
            with contextlib.suppress(OSError):
                connection.sendall(msgspec.json.encode(reply) + b"\n")

        connection.settimeout(REQUEST_TIMEOUT)
        try:
            with connection.makefile("rb") as lines:
                asked = msgspec.json.decode(lines.readline(MAX_REQUEST_BYTES), type=Request)
        except (OSError, msgspec.MsgspecError):
            return  # a connection without a request asks whether the process listens
        if Settings(asked.memory, asked.master) != self._settings:
            send(ResidentReply(other_settings=True))
            return
        try:
            result = self._perform(asked, lambda *step: send(ResidentReply(progress=step)))
        except Exception as error:
            send(ResidentReply(error=_message(error)))
        else:
            send(ResidentReply(result=result))

    def _perform(self, asked: Request, progress: Progress) -> Any:
        if self._spark is None:
            progress("start Spark", 0, 0)
            self._spark = self._session()
        if asked.operation == "sql":
            from .views import query  # noqa: PLC0415 - loads Arrow

            # A session of its own: settings and views of a query do not remain.
            return query(self._spark.newSession(), Path(asked.lake), asked.query, asked.limit)
        if asked.operation == "run":
            from .run import run  # noqa: PLC0415 - loads Arrow

            spark = self._spark
            return run(Lake(Path(asked.lake)), lambda _: spark, progress)
        raise PipelineError(f"Unknown operation {asked.operation!r}.")

    def _is_lost(self, spark: "SparkSession") -> bool:
        """Whether Java has ended, for example because it had no memory."""
        try:
            return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - no public way
        except Exception:
            return True


def _message(error: Exception) -> str:
    if isinstance(error, PipelineError):
        return str(error)
    from millrace.pipeline.session import first_line  # noqa: PLC0415

    return first_line(error)


def _end_with(process: int) -> None:
    """End this process, and Java with it, as soon as another one has ended."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(process)], [], [])
    else:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(process, 0)
                time.sleep(PARENT_CHECK_INTERVAL)
    os._exit(1)


def main() -> int:
    path, memory, master, parent = sys.argv[1:]
    os.nice(NICENESS)
    Thread(target=_end_with, args=(int(parent),), name="parent", daemon=True).start()
    from . import session  # noqa: PLC0415 - after the thread has started

    lock = Path(path).with_suffix(".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1  # another one has just started
    server = ResidentServer(
        Path(path),
        Settings(memory, master),
        lambda: session.start(master, memory=int(memory), quick=True),
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the client closes its end
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
