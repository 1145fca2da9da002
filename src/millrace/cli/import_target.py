"""The server that receives the jobs of an import, over one connection to its admin socket."""

import contextlib
import socket
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.admin.client import COMMAND_TIMEOUT, content, hello
from millrace.cli.control import NotAnswered, admin_errors
from millrace.cli.output import ProgressBar
from millrace.cli.remote import user_name
from millrace.records import ImportedJob, ImportJobs, ImportProgress
from millrace.server.control_socket import control_socket_path, short_address

#: Requests that are sent before the first reply is read: the command reads the next jobs while the
#: server stores these.
WINDOW: Final = 4

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ImportProgress).decode


class ImportTarget:
    def __init__(self, source: str, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._run = 0
        self._connection: socket.socket | None = None
        self._stream: Any = None
        #: The jobs of the requests that have no reply yet.
        self._sent: deque[list[ImportedJob]] = deque()

    # Jobs

    @property
    def is_full(self) -> bool:
        """Whether a reply must be received before the next request."""
        return len(self._sent) >= WINDOW

    @property
    def is_idle(self) -> bool:
        return not self._sent

    def send(self, step: Any, jobs: list[ImportedJob]) -> None:
        """Send jobs; `receive` returns the replies in the same order."""
        # A check needs only the IDs.
        given = [ImportedJob(job.jid, "", "", "", b"") for job in jobs] if step == "check" else jobs
        self._send(step, jobs=given)
        self._sent.append(jobs)

    def receive(self) -> tuple[list[ImportedJob], ImportProgress]:
        """The jobs of the oldest request, and the reply to it."""
        return self._sent.popleft(), self._receive()

    # Steps

    def begin(self) -> None:
        self._run = self._ask("begin").run

    def finish(self, settings: Any) -> None:
        with ProgressBar("Releasing") as progress:
            self._send("finish", settings=settings)
            while not (found := self._receive()).finished:
                progress(found.done, found.total)

    def complete(self) -> None:
        """Release the rest of an interrupted import."""
        self.begin()
        self.discard()

    def discard(self) -> None:
        self.close()  # the server drops the requests that it has not executed
        with contextlib.suppress(NotAnswered):  # the next import discards the run
            self._ask("discard")

    def close(self) -> None:
        self._sent.clear()
        if self._connection is not None:
            self._stream.close()
            self._connection.close()
            self._connection = None

    # Connection

    def _ask(self, step: Any) -> ImportProgress:
        self._send(step)
        return self._receive()

    def _send(self, step: Any, **arguments: Any) -> None:
        request = ImportJobs(self._source, step, self._run, by=user_name(), **arguments)
        with admin_errors(self._folder):
            if self._connection is None:
                self._open()
            assert self._connection is not None
            self._connection.sendall(_encode({"import_jobs": request}) + b"\n")

    def _receive(self) -> ImportProgress:
        with admin_errors(self._folder):
            return _decode(content(self._stream.readline()))

    def _open(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(COMMAND_TIMEOUT)
        with short_address(control_socket_path(self._folder)) as path:
            connection.connect(path)
        self._connection, self._stream = connection, connection.makefile("rb")
        connection.sendall(hello())
        content(self._stream.readline())
