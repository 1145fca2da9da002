"""A server on a simulated loop for tests that control each step: with a settable clock, and with
commits that wait until the test releases them.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from simulated_loop import Schedule, SimulatedLoop, unopened
from simulated_network import Network, Wire
from steps import Steps

from millrace.config import Config
from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.server.app import listeners, recover
from millrace.server.server import Server
from millrace.store import MemoryStore


class RecordingClient:
    """A client that records its received data with times."""

    name = "ear"

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.received: list[tuple[float, bytes]] = []
        self.closed = False

    def server_sent(self, data: bytes) -> list[Any]:
        return [data]

    def receive(self, meanings: list[Any]) -> None:
        self.received += [(self._schedule.now, data) for data in meanings]

    def cut(self, reason: str) -> None:
        self.closed = True


class WaitingCommits:
    def __init__(self, machine: "Machine", after: Callable[[Exception | None], None]) -> None:
        self._machine = machine
        self._after = after

    def commit(self, store: MemoryStore) -> None:
        assert self._machine.begun is None
        self._machine.begun = store
        self._machine.after = self._after

    def close(self) -> None:
        pass


class Machine:
    def __init__(self, store: MemoryStore | None = None, *, ahead: float = 0) -> None:
        self.schedule = Schedule(Random(1))
        #: Its clock at the start.
        self.ahead = 1_700_000_000.0 + ahead
        #: A store with a waiting commit.
        self.begun: MemoryStore | None = None
        self.after: Callable[[Exception | None], None]
        self.loop = SimulatedLoop(self.schedule)
        steps = Steps(lambda: self.schedule.now, 10)
        self.network = Network(SimulatedLoop(self.schedule), Random(1), steps)
        self.engine = Engine(Random(1), protocol_rules())
        if store is not None:
            recover(self.engine, store, self.clock)
        with self.loop:
            self.server = Server(
                self.engine,
                store,
                self.clock,
                max_connections=100,
                max_output=1 << 20,
                on_fatal_error=lambda _: None,
                commits=lambda _, after: WaitingCommits(self, after),  # type: ignore[arg-type]
            )
        self.loop.create_task(self._listen())
        self.run(0.1)

    async def _listen(self) -> None:
        serving = listeners(Config(), self.engine, self.clock(), 100)
        self.network.serve(self.loop, await self.server.listen(serving, unopened(serving), None))

    def clock(self) -> int:
        return int((self.ahead + self.schedule.now) * 1_000_000)

    def run(self, seconds: float) -> None:
        until = self.schedule.now + seconds
        self.schedule.run_until(lambda: self.schedule.now >= until)

    def commit_all(self) -> None:
        while self.begun is not None:
            self.commits()

    def commits(self) -> None:
        """Complete the waiting commit; another may follow immediately."""
        store, self.begun = self.begun, None
        assert store is not None
        store.commit()
        self.loop.call_soon(self.after, None)
        self.run(0.01)

    def call(self, protocol: str) -> tuple[Wire, RecordingClient]:
        recorder = RecordingClient(self.schedule)
        wire = self.network.connect(protocol, recorder)
        self.run(1.5)  # the server has read its clocks since
        return wire, recorder

    def says(self, wire: Wire, data: bytes) -> None:
        wire.send(data)
        self.run(0.05)
