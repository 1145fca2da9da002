"""A real server process that starts in milliseconds.

The fork server imports Millrace once. Each start forks it, so a test can kill and restart a server
hundreds of times. The process runs `millrace serve` without its web process.
"""

import json
import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

from millrace.config import keys

_CONTEXT = multiprocessing.get_context("forkserver")
_SETTINGS = {
    **{key.variable: "0" for key in keys().values() if key.name == "port"},
    "MILLRACE_WEB_PORT": "off",
    "MILLRACE_LAKE_SHIP_EVERY": "0",
    "MILLRACE_SERVER_LOG_LEVEL": "error",
}


def _serve(data: str, announcements: str) -> None:
    for name in [name for name in os.environ if name.startswith("MILLRACE_")]:
        del os.environ[name]
    os.environ.update(_SETTINGS)
    os.dup2(os.open(announcements, os.O_WRONLY), 1)
    sys.stdout = os.fdopen(1, "w")
    from millrace.cli.serve import serve

    sys.exit(serve({"--data": data}))


class ForkedServer:
    """One data folder, and the server process that runs on it."""

    def __init__(self, folder: Path) -> None:
        _CONTEXT.set_forkserver_preload(["millrace.cli.serve", "millrace.server.app"])
        self.data = folder / "data"
        self.ports: dict[str, int] = {}
        self._announcements = folder / "announcements"
        os.mkfifo(self._announcements)
        self._process: BaseProcess | None = None

    def start(self) -> None:
        process = _CONTEXT.Process(target=_serve, args=(str(self.data), str(self._announcements)))
        process.start()
        self._process = process
        with self._announcements.open() as announcements:
            line = announcements.readline()
        assert line, "the server ended before it listened"
        self.ports = json.loads(line)["ports"]

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
