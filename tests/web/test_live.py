"""The live stream: the overview in the form of the HTTP API, once per second."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from told_room import Told, an_overview, go, world

from millrace.admin.errors import AdminError
from millrace.web import live
from millrace.web.live import LiveStream

AWAY = AdminError("Cannot reach the server: it does not reply", "unavailable")


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY", 0.001)


def decoded(event: bytes) -> tuple[str, Any]:
    name, data, *end = event.decode().split("\n")
    assert end == ["", ""]
    return name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


async def events(stream: LiveStream, number: int) -> list[tuple[str, Any]]:
    """The first events of a listener."""
    async with aclosing(stream.events()) as listener:  # type: ignore[type-var]
        start, retry, known = (await anext(listener)).partition(b"retry: 2000\n\n")
        assert retry
        assert not start
        found = [decoded(known)] if known else []
        return found + [decoded(await anext(listener)) for _ in range(number - len(found))]


def listen(told: Told, number: int) -> list[tuple[str, Any]]:
    return asyncio.run(events(LiveStream(told), number))  # type: ignore[arg-type]


def test_the_first_event_is_the_overview_of_the_api():
    ((name, sent),) = listen(world(), 1)
    assert name == "overview"
    assert sent == msgspec.json.decode(go(world(), "/api/v1/overview").text)
    assert sent["jobs"]["ready"] == 50
    assert len(sent["samples"]) == 10


def test_later_events_have_the_newest_sample_and_the_current_day():
    (_, first), (name, second), (_, third) = listen(world(), 3)
    assert name == "overview"
    assert second == third
    assert second["samples"] == first["samples"][-1:]
    assert second["days"] == first["days"][-1:]
    assert {**second, "samples": first["samples"], "days": first["days"]} == first


def test_a_second_listener_receives_all_samples():
    async def scenario() -> None:
        stream = LiveStream(world())  # type: ignore[arg-type]
        async with aclosing(stream.events()) as listener:  # type: ignore[type-var]
            for _ in range(3):
                await anext(listener)
            ((_, sent),) = await events(stream, 1)
            assert len(sent["samples"]) == 10
            assert len(decoded(await anext(listener))[1]["samples"]) == 1

    asyncio.run(scenario())


def test_a_server_that_does_not_reply_is_reported_and_does_not_count_as_the_first_overview():
    replies = iter([AWAY, AWAY, an_overview(), AWAY, an_overview()])
    told = Told(overview=lambda _: next(replies, an_overview()))
    found = listen(told, 5)
    assert [name for name, _ in found] == ["away", "away", "overview", "away", "overview"]
    assert found[0][1] == str(AWAY)
    assert [len(sent["samples"]) for name, sent in found if name == "overview"] == [10, 1]
