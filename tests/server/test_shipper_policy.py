"""The schedule of the shipper and its failures, with a simulated child process."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millrace.journal.messages import ShipperReply, decode_request, encode
from millrace.server import journal_shipper
from millrace.server.journal_shipper import JournalShipper, ShipperSettings


class FakeOutbox:
    first_event = 1
    next_committed = 1
    next_event = 1
    max_bytes = 0
    size = 0
    dropped = 0
    has_shipped_events = False

    def mark_shipped(self, until: int) -> None:
        self.has_shipped_events = until > self.first_event


class FakeChild:
    """Records its input. The test supplies its output."""

    born: list["FakeChild"]

    def __init__(
        self,
        command: list[str],
        replies: Callable[[Any, bytes], None],
        ended: Callable[[Any, int], None],
    ) -> None:
        self.command = command
        self.orders: list[int] = []
        self.left = self.killed = False
        self._heard, self._ended = replies, ended
        self.born.append(self)

    def send(self, line: bytes) -> None:
        self.orders.append(decode_request(line).until)

    def close_input(self) -> None:
        self.left = True

    def kill(self) -> None:
        self.killed = True

    def reports(self, next_event: int = 0, **more: Any) -> None:
        self._heard(self, encode(ShipperReply("5e7", next_event, **more)))

    def ships(self, until: int) -> None:
        self.reports(until, files=1)
        self.reports(until, done=True)

    def prints(self, line: bytes) -> None:
        self._heard(self, line)

    def ends(self, code: int) -> None:
        self._ended(self, code)


class ShipperScenario:
    def __init__(self, every: float, events: int) -> None:
        self.outbox = FakeOutbox()
        self.trimmed = 0
        self.shipping = JournalShipper(
            self.outbox,
            ShipperSettings(Path("data"), "lake", every, events),
            trim=self._trim,
            on_request_done=lambda: None,
        )

    def _trim(self) -> None:
        self.trimmed += 1
        self.outbox.has_shipped_events = False

    def commits(self, events: int) -> None:
        self.outbox.next_committed += events
        self.shipping.check_pending()

    def child(self) -> FakeChild:
        return FakeChild.born[-1]


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeChild.born = []
    monkeypatch.setattr(journal_shipper, "ChildProcess", FakeChild)


def run_scenario(
    act: Callable[[ShipperScenario], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def on_a_stage() -> None:
        await act(ShipperScenario(**{"every": 3600.0, "events": 10} | settings))

    asyncio.run(on_a_stage())


async def until(wanted: Callable[[], bool]) -> None:
    for _ in range(500):
        if wanted():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition was not reached")


def test_no_shipper_is_started_without_a_batch() -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(0)
        stage.commits(9)
        assert FakeChild.born == []
        stage.commits(1)
        assert stage.child().orders == [11]
        assert stage.child().command[-4:] == ["data", "lake", "10", "1"]

    run_scenario(act)


def test_a_small_batch_waits_for_its_period() -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(1)
        stage.commits(1)
        assert FakeChild.born == []
        await until(lambda: bool(FakeChild.born))
        assert stage.child().orders == [3]

    run_scenario(act, every=0.05)


def test_later_events_are_ordered_after_the_current_order() -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(10)
        stage.commits(25)
        assert stage.child().orders == [11], "one order at a time"
        stage.child().ships(20)
        assert stage.trimmed == 1
        assert stage.child().orders == [11, 36]
        stage.child().ships(36)
        assert stage.shipping.current_status().events == 0
        assert len(FakeChild.born) == 1

    run_scenario(act)


def test_an_idle_shipper_ends_and_a_new_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_shipper, "IDLE_TIMEOUT", 0.02)

    async def act(stage: ShipperScenario) -> None:
        stage.commits(10)
        first = stage.child()
        first.ships(11)
        await until(lambda: first.left)
        stage.commits(10)
        assert stage.child() is not first
        first.reports(1, error="output after the end")
        first.ends(0)
        assert stage.shipping.current_status().failing == ""

    run_scenario(act)


def test_failures_are_retried_with_increasing_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def act(stage: ShipperScenario) -> None:
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def soon(delay: float, *more: Any) -> asyncio.TimerHandle:
            pauses.append(delay)
            return later(0, *more)

        monkeypatch.setattr(loop, "call_later", soon)
        stage.commits(10)
        for number in range(1, 9):
            stage.child().reports(error="lake: No space left on device")
            stage.child().ends(1)
            assert stage.shipping.current_status().failing == "lake: No space left on device"
            stage.commits(10)
            await asyncio.sleep(0.01)
            assert len(FakeChild.born) == number + 1
        stage.child().ships(91)
        assert stage.shipping.current_status().failing == ""

    run_scenario(act)
    assert [pause for pause in pauses if pause >= 1][:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len([line for line in caplog.messages if "No space left" in line]) == 1


def test_a_failed_request_receives_the_reason() -> None:
    async def act(stage: ShipperScenario) -> None:
        replies: list[str] = []
        stage.commits(3)
        stage.shipping.ship(replies.append)
        assert stage.child().orders == [4], "a request starts immediately"
        stage.child().ends(-9)
        assert replies == ["the shipper was killed by signal 9"]
        stage.shipping.ship(replies.append)
        stage.child().ships(4)
        assert replies[1:] == [""]
        stage.shipping.ship(replies.append)
        await until(lambda: replies[2:] == [""])
        assert len(FakeChild.born) == 2

    run_scenario(act)


def test_a_request_during_an_order_is_ordered_afterwards() -> None:
    async def act(stage: ShipperScenario) -> None:
        replies: list[str] = []
        stage.commits(3)
        stage.shipping.ship(lambda _: replies.append("first"))
        stage.commits(2)
        stage.shipping.ship(lambda _: replies.append("second"))
        stage.child().ships(4)
        assert replies == ["first"]
        assert stage.child().orders == [4, 6]
        stage.child().ships(6)
        assert replies == ["first", "second"]

    run_scenario(act)


def test_dropped_events_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(5)
        stage.outbox.dropped = 3
        stage.commits(1)
        stage.commits(1)
        assert stage.shipping.current_status().dropped == 3

    run_scenario(act)
    assert len([line for line in caplog.messages if line.startswith("3 events were deleted")]) == 1


def test_a_shipper_that_does_less_than_ordered_is_not_restarted_immediately() -> None:
    """Otherwise both processes would exchange messages endlessly."""

    async def act(stage: ShipperScenario) -> None:
        replies: list[str] = []
        stage.commits(10)
        stage.shipping.ship(replies.append)
        stage.child().reports(5, files=1)
        stage.child().reports(5, done=True)
        assert replies == ["the shipper stopped before event 11"]
        assert stage.child().left
        assert len(FakeChild.born) == 1

    run_scenario(act)


def test_other_output_of_a_shipper_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(10)
        stage.child().prints(b"Segmentation fault")
        stage.child().reports(15, files=1, missing=4)

    run_scenario(act)
    assert "Shipper: Segmentation fault" in caplog.messages
    assert "4 events were deleted before they were shipped." in caplog.messages


def test_a_shipper_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    async def act(stage: ShipperScenario) -> None:
        monkeypatch.setattr(journal_shipper, "ChildProcess", refuse)
        stage.commits(10)
        assert "Resource temporarily unavailable" in stage.shipping.current_status().failing
        monkeypatch.setattr(journal_shipper, "ChildProcess", FakeChild)
        replies: list[str] = []
        stage.shipping.ship(replies.append)
        stage.child().ships(11)
        assert replies == [""]

    run_scenario(act)


@pytest.mark.parametrize("hurried", [True, False])
def test_the_stop_waits_for_a_limited_time(hurried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_shipper, "SHIP_TIMEOUT", 60.0 if hurried else 0.01)
    monkeypatch.setattr(journal_shipper, "EXIT_TIMEOUT", 60.0 if hurried else 0.01)

    async def act(stage: ShipperScenario) -> None:
        force_stop = asyncio.Event()
        stage.commits(3)
        stopping = asyncio.create_task(stage.shipping.stop(force_stop))
        await asyncio.sleep(0)
        if hurried:
            force_stop.set()
        await stopping
        assert stage.child().orders == [4]
        assert stage.child().killed

    run_scenario(act)


def test_the_stop_ships_events_that_arrived_during_the_last_order() -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(10)
        stage.commits(2)
        stopping = asyncio.create_task(stage.shipping.stop(asyncio.Event()))
        await asyncio.sleep(0)
        child = stage.child()
        child.ships(11)
        await until(lambda: child.orders == [11, 13])
        child.ships(13)
        await until(lambda: child.left)
        child.ends(0)
        await stopping
        assert not child.killed

    run_scenario(act)


def test_a_forced_stop_starts_no_shipper() -> None:
    async def act(stage: ShipperScenario) -> None:
        force_stop = asyncio.Event()
        force_stop.set()
        stage.commits(3)
        await stage.shipping.stop(force_stop)
        assert FakeChild.born == []

    run_scenario(act)


def test_a_stopping_server_tries_to_ship_once() -> None:
    async def act(stage: ShipperScenario) -> None:
        stage.commits(3)
        stopping = asyncio.create_task(stage.shipping.stop(asyncio.Event()))
        await asyncio.sleep(0)
        stage.child().reports(error="lake: Read-only file system")
        await stopping
        assert len(FakeChild.born) == 1

    run_scenario(act)


def test_the_age_is_that_of_the_oldest_event() -> None:
    async def act(stage: ShipperScenario) -> None:
        assert stage.shipping.current_status().seconds == 0
        stage.commits(10)
        await asyncio.sleep(0.05)
        stage.commits(1)
        assert stage.shipping.current_status().seconds >= 0.05
        stage.child().ships(11)
        assert 0 <= stage.shipping.current_status().seconds < 0.05
        assert stage.shipping.current_status().events == 1

    run_scenario(act)
