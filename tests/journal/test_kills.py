"""Killed anywhere, shipped exactly once: random works, random kills, small files.

Here a kill is an exception that nobody catches, at each step that leaves something behind, and also
between the bytes of a file. tests/server/test_shipping.py kills real processes.
"""

import contextlib
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from kept import Kept, assert_exactly_once

from millrace.journal import sealing, shipment
from millrace.journal.crash_points import STEPS
from millrace.journal.identity import identity


class Killed(BaseException):
    """Not to be caught by anything that catches errors."""


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
    """Ship in files of `most` events, and be killed at the given step, if it comes to that."""
    killer = Killer(after)
    write = sealing.pq.write_table

    def half(table: object, where: Path, **options: object) -> None:
        write(table, where, **options)
        killer.reached("written")
        whole = where.read_bytes()
        where.write_bytes(whole[: len(whole) // 2])
        killer.reached("half written")
        where.write_bytes(whole)

    with (
        mock.patch.object(sealing, "crash_point", killer.reached),
        mock.patch.object(shipment, "crash_point", killer.reached),
        mock.patch.object(sealing.pq, "write_table", half),
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


@settings(max_examples=60)
@given(st.lists(ACTIONS, min_size=3, max_size=14))
def test_whatever_is_killed_when(actions: list[tuple[str, int, int]]) -> None:
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
            assert work.store.outbox_bytes == 0
            assert_exactly_once(lake, identity(folder), work.rows)
            assert not list((lake / "landing").glob(".ev-*"))
        finally:
            work.stop()


def test_every_step_of_the_shipper_is_one_of_the_kills(tmp_path: Path) -> None:
    """What is killed above at random is where a test can kill a process: two are the server's."""
    work = Kept(tmp_path / "data", tmp_path / "lake")
    work.work()
    killer = ship_and_kill(work, 10, 0)
    work.stop()
    assert [step for step in killer.steps if "written" not in step] == list(STEPS[:3])
