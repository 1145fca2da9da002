"""Somebody sets the clock of a machine on which a server runs: spans stay what they were."""

from random import Random
from typing import Any

import pytest
from simulated_loop import Schedule, SimulatedLoop
from simulated_network import Network, Wire
from steps import Steps

from millrace.engine.engine import Engine
from millrace.server.app import listeners
from millrace.server.config import Config
from millrace.server.listeners import Server

HOUR = 3600.0


class Ear:
    """A client that writes down what it hears, and when."""

    name = "ear"

    def __init__(self, scene: "Machine") -> None:
        self._scene = scene
        self.heard: list[tuple[float, bytes]] = []
        self.closed = False

    def said(self, data: bytes) -> list[Any]:
        return [data]

    def hears(self, meanings: list[Any]) -> None:
        self.heard += [(self._scene.schedule.now, data) for data in meanings]

    def cut(self, reason: str) -> None:
        self.closed = True


class Machine:
    """A server without a disk, and its clock."""

    def __init__(self) -> None:
        self.schedule = Schedule(Random(1))
        self.ahead = 1_700_000_000.0
        loop = SimulatedLoop(self.schedule)
        steps = Steps(lambda: self.schedule.now, 10)
        self.network = Network(SimulatedLoop(self.schedule), Random(1), steps)
        self.engine = Engine(Random(1))
        with loop:
            self.server = Server(
                self.engine,
                None,
                self.clock,
                max_connections=100,
                max_output=1 << 20,
                ended=lambda _: None,
            )

        async def listen() -> None:
            serving = listeners(Config(), self.engine, self.clock(), 100)
            self.network.serve(loop, await self.server.listen("", serving, None))

        loop.create_task(listen())
        self.run(0.1)

    def clock(self) -> int:
        return int((self.ahead + self.schedule.now) * 1_000_000)

    def run(self, seconds: float) -> None:
        until = self.schedule.now + seconds
        self.schedule.run_until(lambda: self.schedule.now >= until)

    def call(self, protocol: str) -> tuple[Wire, Ear]:
        ear = Ear(self)
        wire = self.network.connect(protocol, ear)
        self.run(1.5)  # the server has looked at its clocks since
        return wire, ear


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_whoever_waits_waits_as_long_as_it_asked_for(machine, jump):
    wire, ear = machine.call("workq")
    asked_at = machine.schedule.now
    wire.send(b"lease queue 10000\r\n")
    machine.run(2)
    machine.ahead += jump
    machine.run(20)
    assert [data for _, data in ear.heard] == [b"-TIMEOUT\r\n"]
    assert 9 < ear.heard[0][0] - asked_at < 12


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_masenko_client_has_its_heartbeat_to_speak_again(machine, jump):
    wire, ear = machine.call("masenko")
    wire.send(b"PING\n")
    machine.run(30)
    machine.ahead += jump
    machine.run(14)
    assert not ear.closed
    wire.send(b"PING\n")
    machine.run(40)
    assert not ear.closed
    machine.run(10)
    assert ear.closed
