"""Runs the pipeline now and then, as a process of its own: one at a time, its words in the log.

The first run comes after one interval: a server that was just started has better things to do. If a
run takes longer than the interval, the next time is left out. A server that stops ends it; the next
run goes on from wherever that was. Somebody may also want a run now, whether there is an interval
or not.
"""

import asyncio
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from millrace.config import Config
from millrace.extras import install_command, is_installed
from millrace.records import PipelineRun

from .child_process import ChildProcess

log = logging.getLogger(__name__)

#: Spark removes what it has in the way, if it has the time for it.
END_WITHIN: Final = 5.0
#: Of what a run says so many lines are remembered.
LAST_WORDS: Final = 20
NEEDS: Final = f"The pipeline requires Spark. Install it with: {install_command('pyspark')}"
NO_LAKE: Final = (
    'there is nothing to run the pipeline on: with durability = "memory" the server keeps no '
    'journal. Start it with "fsync" or "os"'
)


def pipeline_command(config: Config) -> list[str]:
    """Each setting as a flag: the server may have been given its own in many ways."""
    program = [sys.executable, "-P", "-m", "millrace.cli.background", "pipeline", "run"]
    flags = {
        "--data": str(config.server.data),
        "--lake": str(config.lake_path),
        "--memory": str(config.pipeline.memory),
    }
    if config.pipeline.master:
        flags["--master"] = config.pipeline.master
    return program + [word for flag in flags.items() for word in flag]


class PipelineRunner:
    """Every so many seconds, that command; 0: only when somebody wants it. `unable` says why it can
    never be. Start and stop may be called twice.
    """

    def __init__(self, every: float, command: Sequence[str], *, unable: str = "") -> None:
        self._every = every
        self._command = command
        self._unable = unable
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._child: ChildProcess | None = None
        self._stopping = False
        self._began = 0.0
        #: Of the last run: when it began and ended, its exit code, its last words.
        self._began_at = self._ended_at = 0
        self._code = -1
        self._lines: deque[str] = deque(maxlen=LAST_WORDS)

    def start(self) -> None:
        if self._timer is None and self._every:
            self._timer = self._loop.call_later(self._every, self._due)

    async def stop(self) -> None:
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._child is None:
            return
        log.info("the pipeline's run is ended: the next one goes on from there")
        self._child.signal(signal.SIGTERM)
        await self._child.wait_or_kill(END_WITHIN)
        self._child = None

    def run_now(self) -> str:
        """Start a run; why it cannot be, or nothing."""
        if reason := self._reason():
            return reason
        if self._child is not None:
            return "the pipeline runs already: wait until it has ended"
        if self._stopping:
            return "the server is about to stop"
        return self._begin()

    def status(self) -> PipelineRun:
        return PipelineRun(
            able=not self._reason(),
            running=self._child is not None,
            began_at=self._began_at,
            ended_at=0 if self._child is not None else self._ended_at,
            code=self._code,
            lines=list(self._lines) or [line for line in [self._reason()] if line],
            every=self._every,
        )

    def _reason(self) -> str:
        """Why there can be no run."""
        if not self._unable and not is_installed("pyspark"):
            self._unable = NEEDS
        return self._unable

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._every, self._due)
        if self._child is not None:
            log.warning("the pipeline still runs: this time it is not started again")
            return
        self._begin()

    def _begin(self) -> str:
        self._began, began_at = self._loop.time(), _now()
        try:
            self._child = ChildProcess(self._command, self._heard, self._ended)
        except OSError as error:
            reason = f"the pipeline cannot be started: {error.strerror}"
            log.error("%s", reason)  # noqa: TRY400 - no trace
            return reason
        self._began_at = began_at
        self._lines.clear()
        return ""

    def _heard(self, _: ChildProcess, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._lines.append(text)
            log.info("pipeline: %s", text)

    def _ended(self, _: ChildProcess, code: int) -> None:
        took = self._loop.time() - self._began
        self._child = None
        self._code, self._ended_at = code, _now()
        if self._stopping:
            return  # it was told to
        if code:
            log.error("the pipeline's run failed after %.1f s, with %d", took, code)
        else:
            log.info("the pipeline ran for %.1f s", took)


def _now() -> int:
    return time.time_ns() // 1000
