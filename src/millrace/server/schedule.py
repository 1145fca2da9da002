"""Runs the pipeline now and then, as a process of its own: one at a time, its words in the log.

The first run comes after one interval: a server that was just started has better things to do. If a
run takes longer than the interval, the next time is left out. A server that stops ends it; the next
run goes on from wherever that was.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Final

from .child import Child
from .config import Config

log = logging.getLogger(__name__)

#: Spark removes what it has in the way, if it has the time for it.
END_WITHIN: Final = 5.0


def pipeline_command(config: Config) -> list[str]:
    """Each setting as a flag: the server may have been given its own in many ways."""
    program = [sys.executable, "-P", "-m", "millrace.cli.scheduled", "pipeline", "run"]
    flags = {
        "--data": str(config.server.data),
        "--lake": str(config.lake_path),
        "--memory": str(config.pipeline.memory),
    }
    if config.pipeline.master:
        flags["--master"] = config.pipeline.master
    return program + [word for flag in flags.items() for word in flag]


class Schedule:
    """Every so many seconds, that command. Start and stop may be called twice."""

    def __init__(self, every: float, command: Sequence[str]) -> None:
        self._every = every
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._child: Child | None = None
        self._began = 0.0
        self._over = asyncio.Event()

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._every, self._due)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._child is None:
            return
        log.info("the pipeline's run is ended: the next one goes on from there")
        self._child.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._over.wait(), END_WITHIN)
        except TimeoutError:
            if self._child is not None:
                self._child.kill()
                self._child = None

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._every, self._due)
        if self._child is not None:
            log.warning("the pipeline still runs: this time it is not started again")
            return
        self._over.clear()
        self._began = self._loop.time()
        try:
            self._child = Child(self._command, self._heard, self._ended)
        except OSError as error:
            log.error("the pipeline cannot be started: %s", error.strerror)  # noqa: TRY400 - no trace

    def _heard(self, _: Child, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            log.info("pipeline: %s", text)

    def _ended(self, _: Child, code: int) -> None:
        took = self._loop.time() - self._began
        self._child = None
        self._over.set()
        if self._timer is None:
            return  # it was told to
        if code:
            log.error("the pipeline's run failed after %.1f s, with %d", took, code)
        else:
            log.info("the pipeline ran for %.1f s", took)
