"""The pytest fixture, in a user's test."""

import subprocess
import sys
from pathlib import Path

TEST = """
from millrace import Millrace

app = Millrace()


@app.task
def add(a: int, b: int) -> int:
    return a + b


def test_a_job(millrace_testing):
    server = millrace_testing(app)
    handle = add.push(1, 2)
    (outcome,) = server.run()
    assert outcome.failure is None
    assert handle.result() == 3


def test_jobs_that_run_at_once(millrace_testing):
    millrace_testing(app, run_immediately=True)
    assert add.push(1, 2).state() == "done"
"""


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(TEST)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "2 passed" in ran.stdout, ran.stdout
