"""An in-process server without sockets that lets a test hold back commits.

Everything between the bytes of a client and the store is the server's own code: sessions, turns,
hubs and connections. Only the transport and the thread that waits for the disk are replaced.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from raw_conversation import greeting, reply_content

from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.server.app import clock, listeners, recover
from millrace.server.commit_thread import CommitThread
from millrace.server.server import Server
from millrace.server.session import Session
from millrace.store import SqliteStore, Store, StoreWriteFailed

MAX_CONNECTIONS = 10_000
#: Passes of the loop after which a reply that does not wait has been written.
PASSES = 60


class HeldCommits(CommitThread):
    """Commits on the loop's thread, or keeps the commit until it is released."""

    held: ClassVar[bool] = False
    waiting: ClassVar[list[Callable[[], None]]] = []

    def __init__(self, loop: asyncio.AbstractEventLoop, after: Any) -> None:
        self._loop, self._after = loop, after

    def commit(self, store: Store) -> None:
        def finish() -> None:
            outcome: Exception | None = None
            try:
                store.commit()
            except StoreWriteFailed as error:
                outcome = error
            self._loop.call_soon(self._after, outcome)

        if HeldCommits.held:
            HeldCommits.waiting.append(finish)
        else:
            finish()

    def close(self) -> None:
        """No thread to join."""


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self.closed = False

    @property
    def written(self) -> bytes:
        """All data since it was set."""
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @written.setter
    def written(self, data: bytes) -> None:
        self._pieces = [data]

    def write(self, data: Any) -> None:
        self._pieces.append(bytes(data))  # a write costs no copy of earlier ones

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The transport never buffers."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """All requests of these tests are small."""

    resume_reading = pause_reading


class HeldServer:
    """A Conversation with an in-process server."""

    def __init__(self, folder: Path, store: type[SqliteStore] = SqliteStore) -> None:
        self._store_type = store
        self._loop = asyncio.new_event_loop()
        self._sessions: dict[tuple[str, str], tuple[Session, _Transport]] = {}
        HeldCommits.held, HeldCommits.waiting = False, []
        self._loop.run_until_complete(self._open(folder))

    async def _open(self, folder: Path) -> None:
        self.engine = Engine(Random(1), protocol_rules())
        self.store = self._store_type(folder / "data", sync=False)
        recover(self.engine, self.store, clock)
        self.server = Server(
            self.engine,
            self.store,
            clock,
            max_connections=MAX_CONNECTIONS,
            max_output=1 << 30,
            on_fatal_error=_fail,
            commits=HeldCommits,
        )
        made = listeners(Config(), self.engine, clock(), MAX_CONNECTIONS)
        self._connect = {each.name: each.connect for each in made}
        admin = AdminService(self.engine, MAX_CONNECTIONS)
        self._connect["control"] = lambda: AdminConnection(admin)
        for hub in (*(each.hub for each in made), admin):
            self.server.hubs.append(hub)
            hub.hubs, hub.connections_with_messages = (
                self.server.hubs,
                self.server.connections_with_messages,
            )
        admin.begin(clock())

    def close(self) -> None:
        self.release()
        for _, transport in self._sessions.values():
            transport.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        self.store.close()

    def hold(self) -> None:
        """Hold back all commits from now on."""
        assert self.engine.committing is None
        HeldCommits.held = True

    def release(self) -> None:
        """Finish the held commit and the following ones."""
        HeldCommits.held = False
        waiting, HeldCommits.waiting = HeldCommits.waiting, []
        for finish in waiting:
            finish()
        self._spin()

    def end_commit(self, protocol: str, request: bytes, client: str) -> None:
        """Finish the held commit one pass of the loop before a request arrives. The next commit is
        held back.
        """
        session, transport = self._session(protocol, client)
        transport.written = b""
        (finish,), HeldCommits.waiting = HeldCommits.waiting, []
        finish()
        self._loop.call_soon(self._loop.call_soon, session.data_received, request)
        self._spin()

    def send(self, protocol: str, request: bytes, client: str = "main") -> bytes:
        """Send a request. Returns the reply, or an empty value if the reply waits."""
        session, transport = self._session(protocol, client)
        transport.written = b""
        session.data_received(request)
        self._spin()
        return reply_content(protocol, transport.written)

    def written(self, protocol: str, client: str) -> bytes:
        """The data that the client has received since its last request."""
        return reply_content(protocol, self._sessions[protocol, client][1].written)

    def sleep(self, seconds: float) -> None:
        """Run the loop for this time."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def drain(self) -> None:
        """Write all changes, as a server that stops."""
        self._loop.run_until_complete(self.server.turns.drain())

    def advance_timers(self, now: int) -> None:
        self.engine.tick(now)
        self.server.after_commands(clock())
        self._spin()

    def _session(self, protocol: str, client: str) -> tuple[Session, _Transport]:
        key = (protocol, client)
        if key in self._sessions and not self._sessions[key][1].closed:
            return self._sessions[key]
        transport = _Transport()

        async def connect() -> None:
            session = Session(self.server, self._connect[protocol])
            session.connection_made(transport)
            self._sessions[key] = session, transport

        self._loop.run_until_complete(connect())
        hello = greeting(protocol, client)
        if hello:
            self._sessions[key][0].data_received(hello)
            self._spin()
        return self._sessions[key]

    def _spin(self) -> None:
        async def passes() -> None:
            for _ in range(PASSES):
                await asyncio.sleep(0)

        self._loop.run_until_complete(passes())


def _fail(reason: str) -> None:
    raise AssertionError(reason)
