"""Starts real Millrace servers for tests, and ensures that all of them are stopped."""

import atexit
import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.config import keys, use_protocol_sections
from millrace.protocols.registry import protocol_sections

use_protocol_sections(protocol_sections)

MILLRACE = Path(sys.executable).with_name("millrace")
START_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0
PR_SET_PDEATHSIG = 1
ANY_FREE_PORTS = {key.variable: "0" for key in keys().values() if key.name == "port"}

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class DidNotStartError(Exception):
    """The server exited, or printed no line, instead of announcing its ports."""


class StartedCommand(subprocess.Popen[Any]):
    """A process that is killed when its test fails; Popen would wait for its end."""

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(None, None, None)


class ServerProcess:
    """One data folder and its server, which can be killed and started again.

    Start it from the main thread: on Linux the server gets a signal when the thread that started it
    ends, so that even a killed test run leaves no server behind.
    """

    #: How `millrace` is called; empty for MILLRACE.
    command: tuple[str, ...] = ()

    def __init__(self, data: Path, **env: str | None) -> None:
        self.data = Path(data)
        self.env = env
        self.ports: dict[str, int] = {}  # by protocol, as its section is named: ports["masenko"]
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._log = tempfile.NamedTemporaryFile(prefix="millrace-stderr-", mode="ab")

    # Queries

    @property
    def port(self) -> int:
        """Faktory's."""
        return self.ports["faktory"]

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def stderr(self) -> str:
        """The complete stderr output of all servers started here."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def log_records(self) -> list[dict[str, Any]]:
        """The JSON lines in stderr."""
        records = []
        for line in self.stderr.splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
        return records

    # Start and stop

    def spawn(self, **env: str | None) -> None:
        """Start the process without waiting for its ports."""
        assert not self.alive, "this server is running already"
        self._close_stdout()
        self.ports = {}
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            [*(self.command or (MILLRACE,)), "serve", "--data", self.data],
            env=_environment({**self.env, **env}),
            cwd=self.data.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            preexec_fn=_die_with_parent,
        )

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        line = self._first_line(time.monotonic() + timeout)
        announcement = json.loads(line)
        assert announcement["ready"] is True, announcement
        self.ports = announcement["ports"]
        self.start_seconds = time.monotonic() - self._started_at

    def start(self, **env: str | None) -> None:
        self.spawn(**env)
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def restart(self, **env: str | None) -> None:
        """Kill it if it runs, and start it again on the same data. The ports are new ones."""
        self.kill()
        self.start(**env)

    def signal(self, number: int) -> None:
        """Send a signal; an exited process is not an error."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until the process has exited."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_TIMEOUT)
        self._close_stdout()

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """SIGTERM, and the exit code."""
        process = self._running()
        process.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for an exit with another cause, and return its code."""
        process = self._running()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the server was to exit within {timeout} s, but runs on; stderr:\n{self.stderr}"
            ) from None

    def close(self) -> None:
        self.kill()
        self._log.close()

    # Internals

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "this server was never started"
        return self._process

    def _close_stdout(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _first_line(self, deadline: float) -> bytes:
        stdout = self._running().stdout
        assert stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise DidNotStartError(f"no ready line on stdout; stderr:\n{self.stderr}")
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    code = self._running().wait(STOP_TIMEOUT)
                    raise DidNotStartError(f"the server exited with {code}; stderr:\n{self.stderr}")
                line += chunk
        return line


@contextlib.contextmanager
def running_server(data: Path, **env: str | None) -> Iterator[ServerProcess]:
    """A ready server on `data`, which is always stopped at the end.

    Settings have the form of the server's variables: `MILLRACE_FAKTORY_PASSWORD="secret"`. The
    server uses free ports unless MILLRACE_FAKTORY_PORT and similar variables are set; None removes
    a variable.
    """
    with server_process(data, **env) as server:
        server.start()
        yield server


@contextlib.contextmanager
def server_process(data: Path, **env: str | None) -> Iterator[ServerProcess]:
    """Like running_server, but the test starts it."""
    server = ServerProcess(data, **env)
    atexit.register(server.close)
    try:
        yield server
    finally:
        atexit.unregister(server.close)
        server.close()


def _environment(changes: dict[str, str | None]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
    wanted: dict[str, str | None] = {
        **inherited,
        **ANY_FREE_PORTS,
        "MILLRACE_SERVER_STOP_GRACE": "1s",
        # Most tests do not use the lake, and a shipper takes a second of processor time.
        "MILLRACE_LAKE_SHIP_EVERY": "0",
        **changes,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
