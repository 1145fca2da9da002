"""Callers who take their time, or all the places there are; and TLS."""

import asyncio
import contextlib
import socket
import ssl
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from knocking import House, told

from certificates import Certificates
from millrace.web import server as serving
from millrace.web.app import application
from millrace.web.live import MOST_LISTENERS

SOON = 0.3
HEALTHY = b"GET /static/base.css HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_WITHIN", "SEND_WITHIN", "READ_WITHIN", "GREET_WITHIN"):
        monkeypatch.setattr(serving, name, SOON)


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Of the answer that comes, which is read to its end."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        lines = head.lower().split(b"\r\n")
        length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def is_cut(self) -> bool:
        """Within seconds, whatever else is said."""
        try:
            await asyncio.wait_for(self.reader.read(), 10)
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.writer.close()


class Place:
    def __init__(self, port: int, house: House, served: serving.Server) -> None:
        self.port, self.house, self.served = port, house, served

    async def call(self, **more: Any) -> Caller:
        return Caller(*await asyncio.open_connection("127.0.0.1", self.port, **more))

    @property
    def count(self) -> int:
        return len(self.served.server_state.connections)


@contextlib.asynccontextmanager
async def place(**settings: Any) -> AsyncIterator[Place]:
    house = House(told(password="", tokens=[], **settings))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        served = serving.server(application(house.room), house.room.settings)
        await served.startup([opened])
        await served.on_tick(0)
        try:
            yield Place(opened.getsockname()[1], house, served)
        finally:
            for server in served.servers:
                server.close()
            for connection in list(served.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            house.room.close()
            await asyncio.sleep(0.05)


async def until(true: Callable[[], bool]) -> None:
    """Nobody tells when a connection is forgotten."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("that does not come true")


def run(conversation: Callable[[Place], Awaitable[None]], **settings: Any) -> None:
    async def hold() -> None:
        async with place(**settings) as there:
            await conversation(there)

    uvloop.run(hold())


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
def test_whoever_does_not_say_what_they_want_is_cut(said: bytes):
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.say(said)
        assert await caller.is_cut()

    run(talk)


def test_a_byte_now_and_then_does_not_help():
    async def talk(there: Place) -> None:
        caller = await there.call()
        cut = asyncio.ensure_future(caller.is_cut())
        caller.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        began = asyncio.get_running_loop().time()
        while not cut.done():
            caller.say(b"x")
            await asyncio.sleep(SOON / 10)
        assert await cut
        assert asyncio.get_running_loop().time() - began < 10 * SOON

    run(talk)


def test_the_second_request_has_its_time_too():
    async def talk(there: Place) -> None:
        caller = await there.call()
        for _ in range(2):
            caller.say(HEALTHY)
            assert await caller.status() == 200
            await asyncio.sleep(2 * SOON)  # between two requests one may rest
        caller.say(HEALTHY[:-2])
        assert await caller.is_cut()

    run(talk)


def test_requests_that_were_sent_together_are_answered_one_by_one():
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.say(HEALTHY * 5 + HEALTHY[:-2])
        assert [await caller.status() for _ in range(5)] == [200] * 5
        assert await caller.is_cut()

    run(talk)


def test_a_body_that_does_not_come_is_not_waited_for():
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.say(
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\npassword="
        )
        assert await caller.is_cut()

    run(talk)


def test_a_body_that_nobody_wants_is_not_taken_for_ever():
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.say(
            b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
        )
        assert await caller.status() == 404
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                caller.say(b"x" * 65_536)
                await caller.writer.drain()
                await asyncio.sleep(SOON / 20)
            raise AssertionError("it was taken")

    run(talk)


def test_whoever_does_not_read_is_cut():
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.say(HEALTHY.replace(b"base.css", b"plotly.js") * 10)
        await until(lambda: there.count == 1)
        await until(lambda: there.count == 0)

    run(talk)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Script-Name: /a\r\n b\r\nX: \x00\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"x" * 200,
        b"HELO mail.example\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_at_once(said: bytes):
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.say(said)
        assert await caller.status() == 400
        assert await caller.is_cut()

    run(talk)


def test_a_head_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "ASK_WITHIN", 60)

    async def talk(there: Place) -> None:
        for first in (b"GET /", b"GET / HTTP/1.1\r\nX: "):
            caller = await there.call()
            caller.say(first + b"x" * 1_000_000)
            assert await caller.is_cut()

    run(talk)


def test_whoever_takes_all_places_loses_them_to_those_who_ask(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MOST_CALLERS", 20)
    monkeypatch.setattr(serving, "ASK_WITHIN", 60)

    async def talk(there: Place) -> None:
        silent = [await there.call() for _ in range(100)]
        for _ in range(10):
            caller = await there.call()
            caller.say(HEALTHY)
            assert await caller.status() == 200
            caller.close()
        assert there.count <= 20
        for each in silent:
            each.close()

    run(talk)


def test_unfinished_requests_do_not_block_the_port(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MOST_CALLERS", 20)
    monkeypatch.setattr(serving, "SEND_WITHIN", 60)
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"

    async def talk(there: Place) -> None:
        unfinished = [await there.call() for _ in range(20)]
        for each in unfinished:
            each.say(head)
        await until(
            lambda: sum(each.is_sending for each in there.served.server_state.connections) == 20  # type: ignore[union-attr]
        )
        for _ in range(5):
            caller = await there.call()
            caller.say(HEALTHY)
            assert await caller.status() == 200
            caller.close()
            await until(lambda: there.count < 20)
        assert there.count < 20
        for each in unfinished:
            each.close()

    run(talk)


def test_a_slow_reader_is_not_cut():
    """It needs several times the timeout for the reply, and reads a little all the time."""

    async def talk(there: Place) -> None:
        caller = await there.call(limit=4096)
        caller.say(HEALTHY.replace(b"base.css", b"plotly.js"))
        head = await caller.reader.readuntil(b"\r\n\r\n")
        (length,) = [
            int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")
        ]
        loop = asyncio.get_running_loop()
        began, left = loop.time(), length
        while left:
            data = await caller.reader.read(min(left, length // 50))
            assert data, "cut"
            left -= len(data)
            await asyncio.sleep(SOON / 10)
        assert loop.time() - began > 3 * SOON

    run(talk)


def test_while_all_are_being_answered_nobody_else_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MOST_CALLERS", 20)

    async def talk(there: Place) -> None:
        listeners = [await there.call() for _ in range(20)]
        for each in listeners:
            each.say(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await each.status() == 200
        late = await there.call()
        late.say(HEALTHY)
        assert await late.is_cut()
        listeners.pop().close()
        await until(lambda: there.count < 20)
        late = await there.call()
        late.say(HEALTHY)
        assert await late.status() == 200

    run(talk)


def test_so_many_listen_and_the_next_is_told():
    async def talk(there: Place) -> None:
        callers = []
        for _ in range(MOST_LISTENERS):
            caller = await there.call()
            caller.say(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            callers.append(caller)
        for caller in callers:
            assert await caller.status() == 200
        late = await there.call()
        late.say(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await late.status() == 503
        live = there.house.room.live
        assert len(live._listeners) == MOST_LISTENERS
        for caller in callers:
            caller.close()
        await until(lambda: not live._listeners)
        assert live._asking is None
        # One question for all of them, not one for each.
        assert len(there.house.control.asked) < 100

    run(talk)


def test_a_reload_ends_every_stream():
    async def talk(there: Place) -> None:
        caller = await there.call()
        caller.say(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await caller.status() == 200
        there.house.room.reload(told())
        await asyncio.wait_for(caller.reader.readuntil(b"\r\n0\r\n\r\n"), 10)
        caller.say(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await caller.status() == 401

    run(talk)


# TLS


def tls(certificates: Certificates) -> dict[str, str]:
    return {"cert": str(certificates.cert), "key": str(certificates.key)}


def test_with_a_certificate_it_is_tls_alone(certificates: Certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))

    async def talk(there: Place) -> None:
        caller = await there.call(ssl=context, server_hostname="localhost")
        assert caller.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        caller.say(HEALTHY)
        assert await caller.status() == 200
        plain = await there.call()
        plain.say(HEALTHY)
        assert b"HTTP" not in await asyncio.wait_for(plain.reader.read(), 10)

    run(talk, **tls(certificates))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_refused(certificates: Certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1

    async def talk(there: Place) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await there.call(ssl=context, server_hostname="localhost")

    run(talk, **tls(certificates))


def test_whoever_does_not_shake_hands_is_cut(certificates: Certificates):
    async def talk(there: Place) -> None:
        assert await (await there.call()).is_cut()

    run(talk, **tls(certificates))


def test_uvicorn_has_an_upper_bound() -> None:
    """LimitedProtocol uses internals of uvicorn, which any release may change."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (bound,) = [each for each in project["dependencies"] if each.startswith("uvicorn")]
    assert "<" in bound
