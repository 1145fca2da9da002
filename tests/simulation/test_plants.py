"""The simulation finds and reports each of these defects within a few seeds."""

import re

import pytest
from test_simulation import run

from disk.recording import missing


@pytest.mark.parametrize(
    ("defect", "seeds", "found"),
    [
        ("a-reply-before-its-commit", "1-10", "acknowledged"),
        ("a-lost-wake-up", "1-10", "a client waits for"),
        ("partial-undo", "1-10", "its push was refused|contradicts itself"),
        ("any-worker-ends", "1-10", "was ended by"),
        ("a-timer-never-armed", "1-10", "is not answered|not done after"),
        (
            "commit-without-write",
            "1-10",
            "the server does not start|after its end was acknowledged",
        ),
        ("no-sync", "1-10", "is lost, although|the server does not start"),
        ("newest-first", "1-10", "was leased before"),
        ("missing-event", "1-10", "the journal|a restart changed .'statistics'"),
    ],
)
def test_a_defect_is_found(defect, seeds, found):
    if defect == "no-sync" and missing():
        pytest.skip(missing())
    result = run("--seeds", seeds, "--first", "--plant", defect)
    assert result.returncode == 1, result.stdout + result.stderr
    failed = next(line for line in result.stdout.split("\n") if line.startswith("FAILED"))
    assert re.search(found, failed)
    assert "tests/simulation/run.py --seed" in result.stdout
