"""A server in the process of the test, whose store has the payloads of its jobs."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.engine.job import Job, NewJob
from millrace.engine.payloads import MAX_DIRECT_READ, PayloadRead
from millrace.protocols.registry import PROTOCOLS
from millrace.protocols.spec import protocol_rules
from millrace.server.app import clock, listeners
from millrace.server.server import Server
from millrace.server.sockets import open_port
from millrace.store import SqliteStore
from scene import commit
from speakers import SPEAKERS

CODES = {row.name: row.code for row in PROTOCOLS}
LARGE = b'["' + b"0123456789abcdef" * (MAX_DIRECT_READ // 16) + b'"]'
SMALL = b'["small"]'
JID = str(UUID(int=1))


class Served:
    """A server in this process. Its reads of large payloads wait for `read_all`."""

    def __init__(self, server: Server, engine: Engine, store: SqliteStore, ports: dict[str, int]):
        self.server, self.engine, self.store, self.ports = server, engine, store, ports
        self.reads: list[PayloadRead] = []
        assert engine.payloads.fetcher is not None
        self._fetch = engine.payloads.fetcher
        engine.payloads.fetcher = self.reads.append

    def push(self, payload: bytes, origin: str = "faktory", jid: str = JID) -> Job:
        push = NewJob(jid, "kind", payload, CODES[origin], "q", 3, 60_000_000, b"\n\n\n")
        if origin == "workq":
            push.wire_fields = b"0"
        job = self.engine.push(push, clock())
        commit(self.engine, self.store)
        return job

    async def read_all(self) -> None:
        await until(lambda: self.reads)
        for read in self.reads:
            self._fetch(read)
        self.reads.clear()

    async def connect(self, protocol: str) -> "SpeakerConnection":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[protocol])
        client = SpeakerConnection(protocol, reader, writer)
        if protocol == "faktory":
            client.speaker.receive(await reader.readuntil(b"\n"))
        if hello := client.speaker.hello():
            writer.write(hello)
            await client.answer()
        return client


class SpeakerConnection:
    def __init__(
        self, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.speaker = SPEAKERS[protocol]("worker")
        self.reader, self.writer = reader, writer

    def lease(self) -> None:
        self.writer.write(self.speaker.lease("q", clock()))

    async def answer(self) -> object:
        while True:
            received = await asyncio.wait_for(self.reader.read(1 << 20), 20)
            assert received, "the server has closed the connection"
            if answers := self.speaker.receive(received):
                return answers[-1]

    async def read_until(self, end: bytes) -> bytes:
        heard = b""
        while end not in heard:
            received = await asyncio.wait_for(self.reader.read(1 << 20), 20)
            assert received, "the server has closed the connection"
            heard += received
        return heard

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def serve(folder: Path, play: Callable[[Served], Awaitable[None]]) -> None:
    """Play a scene with a server in this process."""

    async def run() -> None:
        store = SqliteStore(folder)
        engine = Engine(Random(1), protocol_rules())
        store.load().fill(engine)
        server = Server(
            engine,
            store,
            clock,
            max_connections=100,
            max_output=1 << 30,
            on_fatal_error=pytest.fail,
        )
        serving = listeners(Config(), engine, clock(), 100)
        sockets = {each.name: open_port("127.0.0.1", 0, each.name) for each in serving}
        served = Served(server, engine, store, await server.listen(serving, sockets, None))
        try:
            await play(served)
        finally:
            await server.stop(0, asyncio.Event())
            store.close()

    asyncio.run(run())
