"""Slow clients, excess clients, and TLS."""

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
from asgi_client import AppClient, web_settings

from certificates import Certificates
from millrace.web import server as serving
from millrace.web.app import application
from millrace.web.live import MAX_LISTENERS

SOON = 0.3
PROGRESS_TIMEOUT = 1.0
HEALTHY = b"GET /static/base.css HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_TIMEOUT", "BODY_TIMEOUT", "WRITE_TIMEOUT", "TLS_HANDSHAKE_TIMEOUT"):
        monkeypatch.setattr(serving, name, SOON)


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """The status of the next response, which is read to its end."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        lines = head.lower().split(b"\r\n")
        length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def is_cut(self) -> bool:
        """Whether the server closes the connection within seconds."""
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
    def __init__(self, port: int, web_app: AppClient, served: serving.WebServer) -> None:
        self.port, self.web_app, self.served = port, web_app, served

    async def call(self, **more: Any) -> Caller:
        return Caller(*await asyncio.open_connection("127.0.0.1", self.port, **more))

    @property
    def count(self) -> int:
        return len(self.served.server_state.connections)


@contextlib.asynccontextmanager
async def place(**settings: Any) -> AsyncIterator[Place]:
    web_app = AppClient(web_settings(password="", tokens=[], **settings))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        served = serving.server(application(web_app.room), web_app.room.settings)
        await served.startup([opened])
        await served.on_tick(0)
        try:
            yield Place(opened.getsockname()[1], web_app, served)
        finally:
            for server in served.servers:
                server.close()
            for connection in list(served.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            web_app.room.close()
            await asyncio.sleep(0.05)


async def until(true: Callable[[], bool]) -> None:
    """Poll until a connection is closed."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition was not reached")


def run(conversation: Callable[[Place], Awaitable[None]], **settings: Any) -> None:
    async def hold() -> None:
        async with place(**settings) as target_server:
            await conversation(target_server)

    uvloop.run(hold())


@pytest.mark.parametrize(
    "sent_bytes", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n"]
)
def test_an_incomplete_request_is_closed(sent_bytes: bytes):
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.send(sent_bytes)
        assert await caller.is_cut()

    run(scenario)


def test_single_bytes_do_not_extend_the_timeout():
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        cut = asyncio.ensure_future(caller.is_cut())
        caller.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        began = asyncio.get_running_loop().time()
        while not cut.done():
            caller.send(b"x")
            await asyncio.sleep(SOON / 10)
        assert await cut
        assert asyncio.get_running_loop().time() - began < 10 * SOON

    run(scenario)


def test_the_timeout_applies_to_the_second_request():
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        for _ in range(2):
            caller.send(HEALTHY)
            assert await caller.status() == 200
            await asyncio.sleep(2 * SOON)  # a connection may be idle between two requests
        caller.send(HEALTHY[:-2])
        assert await caller.is_cut()

    run(scenario)


def test_pipelined_requests_are_answered_in_order():
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.send(HEALTHY * 5 + HEALTHY[:-2])
        assert [await caller.status() for _ in range(5)] == [200] * 5
        assert await caller.is_cut()

    run(scenario)


def test_an_incomplete_body_times_out():
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.send(
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\npassword="
        )
        assert await caller.is_cut()

    run(scenario)


def test_an_unused_body_is_read_up_to_a_limit():
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.send(
            b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
        )
        assert await caller.status() == 404
        # uvloop raises a RuntimeError for a transport that is closed already.
        with contextlib.suppress(ConnectionError, RuntimeError):
            for _ in range(100):
                caller.send(b"x" * 65_536)
                await caller.writer.drain()
                await asyncio.sleep(SOON / 20)
            raise AssertionError("it was taken")

    run(scenario)


def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 60)

    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(HEALTHY.replace(b"base.css", b"plotly.js") * 10)
        # Not the number of connections: the only one can end between two polls.
        await until(lambda: target_server.served.server_state.total_requests > 0)
        await until(lambda: target_server.count == 0)

    run(scenario)


@pytest.mark.parametrize(
    "sent_bytes",
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
def test_an_invalid_request_is_refused_immediately(sent_bytes: bytes):
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.send(sent_bytes)
        assert await caller.status() == 400
        assert await caller.is_cut()

    run(scenario)


def test_an_endless_header_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 60)

    async def scenario(target_server: Place) -> None:
        for first in (b"GET /", b"GET / HTTP/1.1\r\nX: "):
            caller = await target_server.call()
            caller.send(first + b"x" * 1_000_000)
            assert await caller.is_cut()

    run(scenario)


def test_silent_connections_give_way_to_requests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 60)

    async def scenario(target_server: Place) -> None:
        silent = [await target_server.call() for _ in range(100)]
        for _ in range(10):
            caller = await target_server.call()
            caller.send(HEALTHY)
            assert await caller.status() == 200
            caller.close()
        assert target_server.count <= 20
        for each in silent:
            each.close()

    run(scenario)


def test_unfinished_requests_do_not_block_the_port(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(serving, "BODY_TIMEOUT", 60)
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 60)
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"

    async def scenario(target_server: Place) -> None:
        unfinished = [await target_server.call() for _ in range(20)]
        for each in unfinished:
            each.send(head)
        await until(
            lambda: (
                sum(each.is_sending for each in target_server.served.server_state.connections) == 20
            )  # type: ignore[union-attr]
        )
        for _ in range(5):
            caller = await target_server.call()
            caller.send(HEALTHY)
            assert await caller.status() == 200
            caller.close()
            await until(lambda: target_server.count < 20)
        assert target_server.count < 20
        for each in unfinished:
            each.close()

    run(scenario)


def test_a_slow_reader_is_not_closed(monkeypatch: pytest.MonkeyPatch):
    """The client needs several times the timeout for the response, and reads a little continuously."""
    # Long enough that a busy machine does not pause the reader for the whole timeout.
    monkeypatch.setattr(serving, "WRITE_TIMEOUT", PROGRESS_TIMEOUT)

    async def scenario(target_server: Place) -> None:
        caller = await target_server.call(limit=4096)
        caller.send(HEALTHY.replace(b"base.css", b"plotly.js"))
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
            await asyncio.sleep(PROGRESS_TIMEOUT / 15)
        assert loop.time() - began > 3 * PROGRESS_TIMEOUT

    run(scenario)


def test_new_requests_are_refused_while_all_connections_are_active(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 20)
    # The connections are silent until all are open, which takes long on a busy machine.
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 60)

    async def scenario(target_server: Place) -> None:
        listeners = [await target_server.call() for _ in range(20)]
        for each in listeners:
            each.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await each.status() == 200
        late = await target_server.call()
        late.send(HEALTHY)
        assert await late.is_cut()
        listeners.pop().close()
        await until(lambda: target_server.count < 20)
        late = await target_server.call()
        late.send(HEALTHY)
        assert await late.status() == 200

    run(scenario)


def test_the_number_of_listeners_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "HEADER_TIMEOUT", 60)

    async def scenario(target_server: Place) -> None:
        callers = []
        for _ in range(MAX_LISTENERS):
            caller = await target_server.call()
            caller.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            callers.append(caller)
        for caller in callers:
            assert await caller.status() == 200
        late = await target_server.call()
        late.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await late.status() == 503
        live = target_server.web_app.room.live
        assert len(live._listeners) == MAX_LISTENERS
        for caller in callers:
            caller.close()
        await until(lambda: not live._listeners)
        assert live._asking is None
        # One request for all listeners, not one for each.
        assert len(target_server.web_app.control.asked) < 100

    run(scenario)


def test_a_reload_ends_every_stream():
    async def scenario(target_server: Place) -> None:
        caller = await target_server.call()
        caller.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await caller.status() == 200
        target_server.web_app.room.reload(web_settings())
        await asyncio.wait_for(caller.reader.readuntil(b"\r\n0\r\n\r\n"), 10)
        caller.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await caller.status() == 401

    run(scenario)


# TLS


def tls(certificates: Certificates) -> dict[str, str]:
    return {"cert": str(certificates.cert), "key": str(certificates.key)}


def test_with_a_certificate_only_tls_is_served(certificates: Certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))

    async def scenario(target_server: Place) -> None:
        caller = await target_server.call(ssl=context, server_hostname="localhost")
        assert caller.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        caller.send(HEALTHY)
        assert await caller.status() == 200
        plain = await target_server.call()
        plain.send(HEALTHY)
        assert b"HTTP" not in await asyncio.wait_for(plain.reader.read(), 10)

    run(scenario, **tls(certificates))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_refused(certificates: Certificates):
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1

    async def scenario(target_server: Place) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await target_server.call(ssl=context, server_hostname="localhost")

    run(scenario, **tls(certificates))


def test_an_unfinished_handshake_is_closed(certificates: Certificates):
    async def scenario(target_server: Place) -> None:
        assert await (await target_server.call()).is_cut()

    run(scenario, **tls(certificates))


def test_uvicorn_has_an_upper_bound() -> None:
    """LimitedProtocol uses internals of uvicorn, which any release may change."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (bound,) = [each for each in project["dependencies"] if each.startswith("uvicorn")]
    assert "<" in bound
