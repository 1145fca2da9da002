"""Follows docs/tutorial.md literally: an empty folder, a new environment, only the wheel.

    make tutorial

Each command of the page runs in the page's order, and its output must match the page. The pages of
the web interface that the tutorial links must open. Only the port numbers differ.
"""

import contextlib
import os
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import stories
from pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "tutorial.md"
#: Installing Spark and the first run of the pipeline, in seconds.
INSTALL_TIMEOUT = 900.0
_ADDRESS = re.compile(r"<(http://localhost:\d+[^>]*)>")


class TutorialReader(stories.Story):
    """Runs the page in an empty folder, and stays in the folder to which its commands change."""

    skipped = frozenset()

    def __init__(self, folder: Path, stack: contextlib.ExitStack, wheels: Path) -> None:
        super().__init__(folder, stack)
        self._outside = self._env["PATH"]
        (folder / "dist").symlink_to(wheels)  # as in the folder of the sources
        # The configuration of the machine may cause warnings of pip.
        self._env["PIP_QUIET"] = "1"
        self._opened: list[str] = []
        self._env.pop("FAKTORY_URL")
        self._env["MILLRACE_URL"] = f"tcp://127.0.0.1:{self._ports['7419']}"
        self._current = folder / "current-folder"

    def _path(self, folder: Path) -> str:
        outside = [p for p in os.environ["PATH"].split(":") if not p.startswith(str(ROOT))]
        return ":".join(outside)

    def _compare(self, block: Block, command: str, prints: list[str]) -> None:
        if block.value == "install":
            # Before the packages of the extra are there, which the pages must not need.
            self.open_pages(PAGE.read_text("utf-8").partition(command)[0])
        print("$", command, flush=True)
        if block.value == "long":
            command += " 2>/dev/null"  # the progress
        super()._compare(block, f"{command}\npwd > {self._current}", prints)
        self._folder = Path(self._current.read_text("utf-8").strip())
        self._env["PATH"] = f"{self._folder}/.venv/bin:{self._outside}"  # activated

    def open_pages(self, text: str) -> None:
        """Open every page of the web interface that the text names, once."""
        for address in _ADDRESS.findall(text):
            if address in self._opened:
                continue
            with urllib.request.urlopen(self._here(address), timeout=60) as reply:
                page = reply.read().decode()
            assert reply.status == 200
            assert "</html>" in page
            self._opened.append(address)
            print("opened", address, flush=True)


def main(wheels: Path) -> None:
    stories.TIMEOUT = INSTALL_TIMEOUT
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        newcomer = TutorialReader(Path(folder), stack, wheels.resolve())
        newcomer.tell(blocks(PAGE))
        newcomer.open_pages(PAGE.read_text("utf-8"))
    print(f"tutorial: every command printed what the page shows ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
