"""Killed anywhere, shipped exactly once: random work, random kills, small commits.

Here a kill is an exception that no code catches, at each step with a durable effect, and also
within a file. tests/server/test_journal_shipper.py kills real processes.
"""

import contextlib
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from kept import Kept, assert_exactly_once

from millrace.journal import events_table
from millrace.journal.crash_points import STEPS
from millrace.journal.identity import identity


class Killed(BaseException):
    """Not caught by handlers of errors."""


class Killer:
    """Counts down the steps, and kills at the last."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.steps: list[str] = []

    def reached(self, step: str) -> None:
        self.steps.append(step)
        self.left -= 1
        if self.left == 0:
            raise Killed(step)


def ship_and_kill(work: Kept, most: int, after: int) -> Killer:
    """Ship in files of `most` events, and kill at the given step if it is reached."""
    killer = Killer(after)
    write = events_table.write_events

    def half(path: Path, batches: object) -> None:
        write(path, batches)  # type: ignore[arg-type]
        killer.reached("file")
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        killer.reached("half a file")
        path.write_bytes(content)

    with (
        mock.patch.object(events_table, "crash_point", killer.reached),
        mock.patch.object(events_table, "write_events", half),
        contextlib.suppress(Killed),
    ):
        work.ship(most)
    return killer


ACTIONS = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("ship"), st.integers(1, 9), st.integers(0, 25)),
    st.tuples(st.just("trim"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, min_size=3, max_size=14))
def test_a_kill_at_any_step_loses_and_repeats_no_event(actions: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-") as home:
        folder, lake = Path(home) / "data", Path(home) / "lake"
        work = Kept(folder, lake)
        try:
            for action, number, after in actions:
                if action == "work":
                    work.work(number)
                elif action == "ship":
                    ship_and_kill(work, number, after)
                elif action == "trim":
                    work.trim()
                else:
                    work.stop()
                    work.start()
            work.work()
            work.ship()
            work.trim()
            assert work.store.outbox.size == 0
            assert_exactly_once(lake, identity(folder), work.rows)
        finally:
            work.stop()


def test_every_step_of_the_shipper_is_one_of_the_kills(tmp_path: Path) -> None:
    """The test above and the tests with real processes share these steps. Two are the server's."""
    work = Kept(tmp_path / "data", tmp_path / "lake")
    work.work()
    killer = ship_and_kill(work, 10, 0)
    work.stop()
    assert [step for step in killer.steps if "file" not in step] == list(STEPS[:3])
