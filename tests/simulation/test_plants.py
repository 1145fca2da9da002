"""The simulation finds mistakes: each of these, within a few seeds, and says what it was."""

import re

import pytest
from test_simulation import run

from disk.recording import missing


@pytest.mark.parametrize(
    ("mistake", "seeds", "found"),
    [
        ("a-reply-before-its-commit", "1-10", "acknowledged"),
        ("a-lost-wake-up", "1-10", "somebody waits for"),
        ("half-an-undo", "1-10", "its push was refused|contradicts itself"),
        ("whoever-has-it", "1-10", "was ended by"),
        ("a-timer-never-armed", "1-10", "is not answered|not done after"),
        ("a-commit-that-is-none", "1-10", "the server does not start"),
        ("no-sync", "1-10", "is lost, although|the server does not start"),
        ("the-last-first", "1-10", "was leased before"),
        ("an-event-too-few", "1-10", "the journal"),
    ],
)
def test_a_mistake_is_found(mistake, seeds, found):
    if mistake == "no-sync" and missing():
        pytest.skip(missing())
    result = run("--seeds", seeds, "--first", "--plant", mistake)
    assert result.returncode == 1, result.stdout + result.stderr
    failed = next(line for line in result.stdout.split("\n") if line.startswith("FAILED"))
    assert re.search(found, failed)
    assert "tests/simulation/run.py --seed" in result.stdout
