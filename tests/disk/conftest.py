"""Runs code in a process with recorded file operations."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from disk.recording import missing, preloaded

TESTS = Path(__file__).parents[1]
#: Variables for the code: the recorder, the recorded folder, and the log.
PRELUDE = """
import errno, os, sqlite3, sys
from pathlib import Path
from disk.recording import OPENS, REPORTS, SYNCS, WRITES, Recorder
recorder, folder, log = Recorder(), Path(sys.argv[1]), Path(sys.argv[2])
"""


@pytest.fixture
def run_preloaded(tmp_path: Path) -> Callable[[str], Path]:
    """Run code in a recorded process. Returns the path of its log."""
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "folder").mkdir()

    def run(code: str) -> Path:
        subprocess.run(
            [
                sys.executable,
                "-c",
                PRELUDE + textwrap.dedent(code),
                tmp_path / "folder",
                tmp_path / "log",
            ],
            env=preloaded({**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])}),
            check=True,
            timeout=60,
        )
        return tmp_path / "log"

    return run
