"""A child process of the server, with its output as lines and a callback for its end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

from millrace.config import secret_variables

#: Longer lines are truncated.
MAX_LINE_BYTES: Final = 4096
#: Maximum time between the end of the output and the end of the process.
EXIT_TIMEOUT: Final = 0.2


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module and ends together with this process."""
    main = [sys.executable, "-P", "-m", "millrace.server.child_main", str(os.getpid())]
    return [*main, module, *arguments]


class ChildProcess:
    """A process in its own process group, so that Ctrl-C in a terminal reaches only the server.

    When its output ends, the process counts as ended and is killed if it is still running. It does
    not inherit variables with secrets.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[["ChildProcess", bytes], None],
        on_exit: Callable[["ChildProcess", int], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._on_line = on_line
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        secrets = secret_variables()
        self._process = subprocess.Popen(  # noqa: S603 - only commands of the server
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            env={name: text for name, text in os.environ.items() if name not in secrets},
            pass_fds=pass_fds,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._incomplete_line = b""
        self._exited = asyncio.Event()
        self._loop.add_reader(self._output, self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Write a line to its input without waiting. A process whose pipe is full is killed."""
        assert self._process.stdin is not None
        try:
            written = os.write(self._process.stdin.fileno(), line)
        except BlockingIOError:
            written = 0
        except OSError:
            return  # the process has ended; `on_exit` follows
        if written < len(line):
            self.signal(signal.SIGKILL)

    def close_input(self) -> None:
        """Ask the process to end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to its process group, unless it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def wait_or_kill(self, seconds: float) -> None:
        """Wait for the end of a process that was asked to end; kill it after `seconds`."""
        try:
            await asyncio.wait_for(self._exited.wait(), seconds)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """Kill the process; `on_exit` is not called."""
        if self._process.returncode is None:
            self.signal(signal.SIGKILL)
            self._loop.remove_reader(self._output)
            self._close()

    def _read(self) -> None:
        try:
            data = os.read(self._output, 65_536)
        except BlockingIOError:
            return
        if not data:
            self._exit()
            return
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        for line in lines:
            self._on_line(self, line[:MAX_LINE_BYTES])
        self._incomplete_line = self._incomplete_line[:MAX_LINE_BYTES]

    def _exit(self) -> None:
        self._loop.remove_reader(self._output)
        if self._incomplete_line:
            self._on_line(self, self._incomplete_line)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT)
        self.signal(signal.SIGKILL)
        self._on_exit(self, self._close())
        self._exited.set()

    def _close(self) -> int:
        self.close_input()
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            return self._process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL  # blocked in the kernel, for example on a disk that hangs
