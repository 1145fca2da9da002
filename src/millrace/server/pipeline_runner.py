"""Scheduled runs of the pipeline in a child process, one at a time; its output goes to the log.

The first run starts one interval after the server starts. If a run takes longer than the interval,
the next one is skipped. A stopping server ends the run, and the next run resumes at that point. An
operator can also start a run, with or without an interval.
"""

import asyncio
import logging
import os
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

#: Time for Spark to remove its temporary files.
STOP_TIMEOUT: Final = 5.0
#: Lines of output in the status of a run.
MAX_OUTPUT_LINES: Final = 20
MISSING_SPARK_TEXT: Final = (
    f"The pipeline requires Spark. Install it with: {install_command('pyspark')}"
)
NO_LAKE: Final = (
    'there is nothing to run the pipeline on: with durability = "memory" the server keeps no '
    'journal. Start it with "fsync" or "os"'
)


def pipeline_command(config: Config) -> list[str]:
    """The command with every setting as a flag, because settings have several sources."""
    program = [sys.executable, "-P", "-m", "millrace.cli.background", "pipeline", "run"]
    flags = {
        "--data": str(config.server.data),
        "--lake": config.lake_uri,
        "--memory": str(config.pipeline.memory),
        # The resident Spark process ends together with this server.
        "--resident": str(os.getpid()),
    }
    if config.pipeline.master:
        flags["--master"] = config.pipeline.master
    return program + [word for flag in flags.items() for word in flag]


class PipelineRunner:
    """Runs `command` every `every` seconds, or only on request if that is 0. `unavailable_reason`
    is the reason why it cannot run. `start` and `stop` are idempotent.
    """

    def __init__(
        self, every: float, command: Sequence[str], *, unavailable_reason: str = ""
    ) -> None:
        self._every = every
        self._command = command
        self._unavailable_reason = unavailable_reason
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._child: ChildProcess | None = None
        self._stopping = False
        self._started = 0.0
        #: Start, end, exit status and last output of the last run.
        self._started_at = self._ended_at = 0
        self._code = -1
        self._lines: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)

    def start(self) -> None:
        if self._timer is None and self._every:
            self._timer = self._loop.call_later(self._every, self._on_timer)

    async def stop(self) -> None:
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._child is None:
            return
        log.info("Ending the pipeline run. The next run resumes at this point.")
        self._child.signal(signal.SIGTERM)
        await self._child.wait_or_kill(STOP_TIMEOUT)
        self._child = None

    def run_now(self) -> str:
        """Start a run; return the reason if that is not possible, otherwise an empty string."""
        if reason := self._reason():
            return reason
        if self._child is not None:
            return "The pipeline is already running. Wait until the run has finished."
        if self._stopping:
            return "The server is stopping."
        return self._start_run()

    def status(self) -> PipelineRun:
        return PipelineRun(
            available=not self._reason(),
            running=self._child is not None,
            started_at=self._started_at,
            ended_at=0 if self._child is not None else self._ended_at,
            code=self._code,
            lines=list(self._lines) or [line for line in [self._reason()] if line],
            every_seconds=self._every,
        )

    def _reason(self) -> str:
        """The reason why no run is possible."""
        if not self._unavailable_reason and not is_installed("pyspark"):
            self._unavailable_reason = MISSING_SPARK_TEXT
        return self._unavailable_reason

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(self._every, self._on_timer)
        if self._child is not None:
            log.warning("Skipped a scheduled pipeline run: the previous run has not finished.")
            return
        self._start_run()

    def _start_run(self) -> str:
        self._started, started_at = self._loop.time(), _now()
        try:
            self._child = ChildProcess(self._command, self._on_line, self._on_exit)
        except OSError as error:
            reason = f"Cannot start the pipeline: {error.strerror}."
            log.error("%s", reason)  # noqa: TRY400 - no trace
            return reason
        self._started_at = started_at
        self._lines.clear()
        return ""

    def _on_line(self, _: ChildProcess, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self._lines.append(text)
            log.info("pipeline: %s", text)

    def _on_exit(self, _: ChildProcess, code: int) -> None:
        took = self._loop.time() - self._started
        self._child = None
        self._code, self._ended_at = code, _now()
        if self._stopping:
            return  # the server ended it
        if code:
            log.error("The pipeline run failed after %.1f s with status %d.", took, code)
        else:
            log.info("The pipeline run finished after %.1f s.", took)


def _now() -> int:
    return time.time_ns() // 1000
