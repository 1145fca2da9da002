"""A process that the server has started: it is heard line by line, and so is its end."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from millrace.config import secret_variables

#: A longer line is cut.
MOST_LINE: Final = 4096
#: Between the last word and the end are moments, or something is wrong with it.
AT_THE_END: Final = 0.2


class ChildProcess:
    """It has a group of its own, so that a terminal's Ctrl-C is the server's alone to hear. When it
    says no more it has ended, or is ended. It inherits no secrets: if it needs one it is told.
    """

    def __init__(
        self,
        command: Sequence[str],
        heard: Callable[["ChildProcess", bytes], None],
        ended: Callable[["ChildProcess", int], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._heard = heard
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        secrets = secret_variables()
        self._process = subprocess.Popen(  # noqa: S603 - commands of ours
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
        self._rest = b""
        self._over = asyncio.Event()
        self._loop.add_reader(self._output, self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: bytes) -> None:
        """Nobody waits until it is heard: one that has not heard what was said before is ended."""
        assert self._process.stdin is not None
        try:
            heard = os.write(self._process.stdin.fileno(), line)
        except BlockingIOError:
            heard = 0
        except OSError:
            return  # it has ended, as will be heard
        if heard < len(line):
            self.signal(signal.SIGKILL)

    def leave(self) -> None:
        """Nothing more will be said to it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def signal(self, number: int) -> None:
        """To all of its group, if it has not ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def finish(self, within: float) -> None:
        """It was told to end: give it so many seconds, then end it."""
        try:
            await asyncio.wait_for(self._over.wait(), within)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """Now. Its end is not heard any more."""
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
            self._end()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._heard(self, line[:MOST_LINE])
        self._rest = self._rest[:MOST_LINE]

    def _end(self) -> None:
        self._loop.remove_reader(self._output)
        if self._rest:
            self._heard(self, self._rest)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(AT_THE_END)
        self.signal(signal.SIGKILL)
        self._ended(self, self._close())
        self._over.set()

    def _close(self) -> int:
        self.leave()
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            return self._process.wait(AT_THE_END)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL  # it hangs in the kernel, as on a disk that does not answer
