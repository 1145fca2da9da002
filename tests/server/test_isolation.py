"""An error in the work for one client loses no result of another client."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from test_payload_reads import until

from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.engine.waiters import JobOutcome, Waiter
from millrace.protocols.connection import Reply
from millrace.protocols.registry import WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.server.app import clock, listeners
from millrace.server.server import Server
from millrace.server.sockets import open_port
from millrace.store import MemoryStore
from scene import unit

pytestmark = pytest.mark.sources_only("its clients are no connections")


class Client:
    """A client, its connection and its session. The work for a broken one raises an error."""

    def __init__(self, *, broken: bool) -> None:
        self.broken, self.is_aborted = broken, False
        self.results: list[str] = []
        self.session = self.transport = self
        self.pending_turn = 0

    def is_closing(self) -> bool:
        return False

    def _add(self, result: str) -> None:
        if self.broken:
            raise RuntimeError("broken")
        self.results.append(result)

    def notify(self, now: int, callback: Callable[..., None], *arguments: Any) -> None:
        callback(*arguments, now)

    def end_wait(self, waiter: Waiter, job: object, now: int) -> None:
        self._add("delivery")

    def job_ended(self, outcome: JobOutcome, now: int) -> None:
        self._add("outcome")

    def timed_out(self, now: int) -> None:
        self._add("timeout")

    def handle_alarm(self, name: str, now: int) -> None:
        self._add("alarm")

    def wake(self, now: int) -> None:
        self._add("wake")

    def flush(self) -> None:
        self._add("message")

    def write(self, replies: list[Reply]) -> None:
        self._add("reply")

    def abort_after_error(self, error: Exception) -> None:
        self.is_aborted = True


def play(scene: Callable[[Server], Awaitable[None]], store: MemoryStore | None = None) -> None:
    async def serve() -> None:
        engine = Engine(Random(1), protocol_rules())
        server = Server(
            engine, store, clock, max_connections=9, max_output=1 << 30, on_fatal_error=print
        )
        await scene(server)
        server.turns.close()

    asyncio.run(serve())


def queue_one_of_each(server: Server, client: Any) -> None:
    engine = server.engine
    waiter = Waiter((), "", WORKQ, client)
    job = engine.push(unit(), clock())
    engine.waiters.deliveries.append((waiter, job))
    engine.waiters.outcomes.append((waiter, JobOutcome(job, "completed", True, b"")))
    engine.waiters.timeouts.append(waiter)
    engine.alarms.append((client, "alarm"))
    server.connections_with_messages.add(client)


def test_an_error_of_one_client_loses_no_result_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, sound = Client(broken=True), Client(broken=False)

    async def scene(server: Server) -> None:
        for client in (broken, sound):
            queue_one_of_each(server, client)
        server.after_commands(clock())
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        play(scene)
    assert sound.results == ["delivery", "outcome", "timeout", "alarm", "message"]
    assert broken.is_aborted
    assert len(caplog.records) == 4


def test_an_error_after_a_commit_loses_no_reply() -> None:
    broken, sound = Client(broken=True), Client(broken=False)

    async def scene(server: Server) -> None:
        server.engine.push(unit(), clock())
        for client in (broken, sound):
            server.turns.hold(client, [Reply(b"", must_wait=True)])  # type: ignore[arg-type]
            server.engine.commit_waiters[client] = None
        await asyncio.wait_for(server.turns.drain(), 5)

    play(scene, MemoryStore())
    assert sound.results == ["reply", "wake"]
    assert broken.is_aborted


def test_an_unread_reply_to_a_waiting_client_counts() -> None:
    async def scene(server: Server) -> None:
        engine = server.engine
        made = [each for each in listeners(Config(), engine, clock(), 9) if each.name == "workq"]
        ports = await server.listen(made, {"workq": open_port("127.0.0.1", 0, "workq")}, None)
        engine.open_queue("q")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", ports["workq"]))
        await loop.sock_sendall(sock, b"lease q 60000\r\n")
        await until(lambda: len(engine.waiters))
        (session,) = server.sessions
        assert session.buffered == 0
        payload = b"x" * 1_000_000
        engine.push(NewJob("a" * 36, "q", payload, WORKQ, "q", 3, 60_000_000, b"0"), clock())
        server.after_commands(clock())
        assert session.buffered > len(payload) // 2
        assert server.buffers.total == session.buffered
        sock.close()
        session.transport.abort()
        await until(lambda: not server.sessions)
        assert server.buffers.total == 0

    play(scene)
