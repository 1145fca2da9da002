"""Connections of the web process to the server: reuse, limits, timeouts, and the long actions and
streams on them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from told_room import an_overview

from millrace.admin import client as control
from millrace.admin.client import AdminClient
from millrace.admin.errors import AdminError
from millrace.records import BulkProgress, Ok
from millrace.web import long_actions
from millrace.web.live import LiveStream
from millrace.web.long_actions import BulkActions

Answering = Callable[[dict[str, Any]], AsyncIterator[bytes]]
OVER = msgspec.json.encode(BulkProgress(3, []))
GOES_ON = msgspec.json.encode(BulkProgress(1, [], finished=False))


def wrapped(answer: bytes) -> bytes:
    """The reply in the format of a server; values that are no objects stay unchanged."""
    if answer == b"?" or answer.startswith(b'{"error"'):
        return answer
    member = b"progress" if b'"finished":false' in answer else b"result"
    return b'{"%b":%b}' % (member, answer)


class Server:
    """Sends the given replies, and counts its connections."""

    def __init__(self, path: Path, answering: Answering) -> None:
        self.path = path
        self._answering = answering
        self.opened = 0
        self.callers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.callers.add(writer)
        with contextlib.suppress(ConnectionError):
            await reader.readline()
            writer.write(b'{"result":{"version":3,"server":"0"}}\n')
            while line := await reader.readline():
                async for answer in self._answering(msgspec.json.decode(line)):
                    writer.write(wrapped(answer) + b"\n")
                    await writer.drain()
        self.callers.discard(writer)
        writer.close()


def run(
    folder: Path,
    answering: Answering,
    conversation: Callable[[Server, AdminClient], Awaitable[None]],
) -> None:
    async def hold() -> None:
        server = Server(folder / "control", answering)
        listening = await asyncio.start_unix_server(server.serve, server.path)
        admin_client = AdminClient(str(server.path))
        try:
            async with asyncio.timeout(20):
                await conversation(server, admin_client)
        finally:
            admin_client.close()
            listening.close()
            for caller in server.callers:
                caller.close()

    asyncio.run(hold())


async def ok(_: dict[str, Any]) -> AsyncIterator[bytes]:
    yield b'{"ok":true}'


async def silence(_: dict[str, Any]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def endless(_: dict[str, Any]) -> AsyncIterator[bytes]:
    while True:
        yield GOES_ON
        await asyncio.sleep(0.01)


# Requests


def test_an_open_connection_is_reused_and_a_closed_one_is_not(tmp_path: Path):
    async def scenario(server: Server, admin_client: AdminClient) -> None:
        for _ in range(3):
            assert (await admin_client.ask(Ok, note={"action": "x"})).ok
        assert server.opened == 1
        for caller in list(server.callers):
            caller.close()
        await asyncio.sleep(0.05)
        assert (await admin_client.ask(Ok, note={"action": "x"})).ok
        assert server.opened == 2

    run(tmp_path, ok, scenario)


def test_a_refusal_is_an_error_with_its_code_and_keeps_the_connection(tmp_path: Path):
    async def refuse(_: dict[str, Any]) -> AsyncIterator[bytes]:
        yield b'{"error":{"detail":"there is no such job","code":"not found"}}'

    async def scenario(server: Server, admin_client: AdminClient) -> None:
        for _ in range(2):
            with pytest.raises(AdminError, match="there is no such job") as caught:
                await admin_client.raw(overview=True)
            assert caught.value.code == "not found"
        assert server.opened == 1

    run(tmp_path, refuse, scenario)


def test_a_request_times_out(tmp_path: Path):
    async def scenario(server: Server, admin_client: AdminClient) -> None:
        with pytest.raises(AdminError, match="it does not reply") as caught:
            await admin_client.raw(patience=0.05, overview=True)
        assert caught.value.code == "unavailable"
        with pytest.raises(AdminError):
            await admin_client.raw(patience=0.05, overview=True)
        assert server.opened == 2  # a late reply would belong to another request

    run(tmp_path, silence, scenario)


def test_an_unreachable_server_is_an_error(tmp_path: Path):
    async def scenario() -> None:
        for path in (tmp_path / "control", tmp_path / "nowhere" / "control"):
            with pytest.raises(AdminError, match="Cannot reach the server") as caught:
                await AdminClient(str(path)).raw(overview=True)
            assert caught.value.code == "unavailable"

    asyncio.run(scenario())


def test_a_socket_path_may_have_any_name_and_length(tmp_path: Path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)

    async def scenario() -> None:
        with control_socket(deep) as listening:
            server = Server(deep / "control", ok)
            opened = await asyncio.start_unix_server(server.serve, sock=listening)
            assert (await AdminClient(str(deep / "control")).ask(Ok, note={})).ok
            opened.close()

    asyncio.run(scenario())


@contextlib.contextmanager
def control_socket(folder: Path) -> Any:
    import os
    import socket

    listening = socket.socket(socket.AF_UNIX)
    inside = os.open(folder, os.O_PATH)
    listening.bind(f"/proc/self/fd/{inside}/control")
    os.close(inside)
    with listening:
        yield listening


def test_long_waits_do_not_block_other_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(control, "MAX_WAITING_CONNECTIONS", 3)

    async def patient(request: dict[str, Any]) -> AsyncIterator[bytes]:
        if "lease" in request:
            await asyncio.Event().wait()
        yield b'{"ok":true}'

    async def scenario(server: Server, _: AdminClient) -> None:
        admin_client = AdminClient(str(server.path))
        leases = [asyncio.create_task(admin_client.raw(patience=None, lease={})) for _ in range(10)]
        await asyncio.sleep(0.05)
        assert server.opened == 3
        answers = [admin_client.ask(Ok, note={}) for _ in range(10)]
        assert all(answer.ok for answer in await asyncio.gather(*answers))
        assert server.opened <= 5
        for lease in leases:
            lease.cancel()
        await asyncio.gather(*leases, return_exceptions=True)

    run(tmp_path, patient, scenario)


# Long actions


def test_an_action_runs_until_it_ends(tmp_path: Path):
    async def three(_: dict[str, Any]) -> AsyncIterator[bytes]:
        yield GOES_ON
        yield OVER

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        known = BulkActions(admin_client)
        task = known.begin("delete all", "chief", act_on_queue={})
        await known.wait(task, 10)
        assert (task.state, task.progress.done, task.by) == ("done", 3, "chief")
        assert known.running == []

    run(tmp_path, three, scenario)


def test_an_action_can_be_stopped_and_the_server_is_notified(tmp_path: Path):
    async def scenario(server: Server, admin_client: AdminClient) -> None:
        known = BulkActions(admin_client)
        task = known.begin("delete all", "chief", act_on_queue={})
        await known.wait(task, 0.1)
        assert task.state == "running"
        assert task.progress.done == 1
        known.stop(task)
        await known.wait(task, 10)
        assert task.state == "stopped"
        while server.callers:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)

    run(tmp_path, endless, scenario)


@pytest.mark.parametrize(
    "said", [b'{"error":{"detail":"no","code":"conflict"}}', b'{"done":"x"}', b"?"]
)
def test_a_failed_action_has_its_reason(tmp_path: Path, said: bytes):
    async def fail(_: dict[str, Any]) -> AsyncIterator[bytes]:
        yield said

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        known = BulkActions(admin_client)
        task = known.begin("delete all", "chief", act_on_queue={})
        await known.wait(task, 10)
        assert task.state == "failed"
        assert task.error

    run(tmp_path, fail, scenario)


def test_the_number_of_actions_is_limited_and_running_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(long_actions, "MAX_KEPT_ACTIONS", 5)

    async def some(request: dict[str, Any]) -> AsyncIterator[bytes]:
        while request["act_on_queue"] == "long":
            yield GOES_ON
            await asyncio.sleep(0.05)
        yield OVER

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        known = BulkActions(admin_client)
        first = known.begin("long", "chief", act_on_queue="long")
        for n in range(20):
            await known.wait(known.begin(f"short {n}", "chief", act_on_queue="short"), 10)
        assert len(known.known) <= 6
        assert first.number in known.known
        for _ in range(long_actions.MAX_RUNNING - 1):
            known.begin("long", "chief", act_on_queue="long")
        with pytest.raises(AdminError, match="Wait for one") as caught:
            known.begin("one more", "chief", act_on_queue="short")
        assert caught.value.code == "conflict"
        known.close()
        for task in list(known.known.values()):
            await known.wait(task, 10)
        assert known.running == []

    run(tmp_path, some, scenario)


# The live stream


def overview(processed: int) -> bytes:
    return msgspec.json.encode(an_overview(processed=processed))


def processed(event: bytes) -> int:
    assert event.startswith(b"event: overview\ndata: {")
    assert event.endswith(b"}\n\n")
    return msgspec.json.decode(event.split(b"data: ")[1])["processed"]


def test_the_live_stream_sends_states_and_errors(tmp_path: Path):
    full = b'{"error":{"detail":"full disk","code":"unavailable"}}'
    said = [overview(1), full, overview(2)]

    async def next_reply(_: dict[str, Any]) -> AsyncIterator[bytes]:
        yield said.pop(0) if said else overview(9)

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        live = LiveStream(admin_client)
        events = live.events()
        assert await anext(events) == b"retry: 2000\n\n"
        assert processed(await anext(events)) == 1
        assert await anext(events) == b'event: away\ndata: "full disk"\n\n'
        late = live.events()
        assert (await anext(late)).endswith(b'data: "full disk"\n\n')  # the current state
        live.close()
        for each in (events, late):
            assert [event async for event in each] == []
        assert live._asking is None

    run(tmp_path, next_reply, scenario)


def test_a_slow_listener_misses_some_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millrace.web.live.EVERY", 0.001)
    count = 0

    async def counting(_: dict[str, Any]) -> AsyncIterator[bytes]:
        nonlocal count
        count += 1
        yield overview(count)

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        live = LiveStream(admin_client)
        events = live.events()
        await anext(events)
        while count < 50:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)
        first = await anext(events)
        assert processed(first) > 40
        await events.aclose()  # type: ignore[attr-defined]

    run(tmp_path, counting, scenario)


def test_an_invalid_reply_does_not_end_the_live_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("millrace.web.live.EVERY", 0.001)
    said = [b'{"now":"soon"}', overview(1)]

    async def next_reply(_: dict[str, Any]) -> AsyncIterator[bytes]:
        yield said.pop(0) if said else overview(2)

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        events = LiveStream(admin_client).events()
        await anext(events)
        assert (await anext(events)).startswith(b"event: away\n")
        assert processed(await anext(events)) == 1
        await events.aclose()  # type: ignore[attr-defined]

    run(tmp_path, next_reply, scenario)


def test_a_stream_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millrace.web.live.LASTS", 0.05)
    monkeypatch.setattr("millrace.web.live.EVERY", 0.02)

    async def scenario(_: Server, admin_client: AdminClient) -> None:
        assert 1 <= len([event async for event in LiveStream(admin_client).events()]) < 5

    run(tmp_path, ok, scenario)
