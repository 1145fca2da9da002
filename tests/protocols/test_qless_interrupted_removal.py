"""FLUSHDB and a long `cancel` that end in the middle: no job is left blocked without a blocker."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from test_queue_rules import NOW, connect, exchange, resp

from millrace.engine.engine import Engine
from millrace.engine.states import BLOCKED, READY
from millrace.protocols.connection import Connection
from millrace.protocols.qless.cancellation import CANCEL_BATCH_SIZE
from millrace.protocols.qless.flush import FLUSH_BATCH_SIZE
from millrace.protocols.spec import protocol_rules
from millrace.store import MemoryStore
from scene import commit, recover, undo, unit

TIME = "1700000000"
COUNT = 300
JIDS = [f"job-{number}" for number in range(COUNT)]
COMMANDS = {"FLUSHDB": resp("FLUSHDB"), "cancel": resp("QLESS.CANCEL", "0", *JIDS)}
SLICES = {"FLUSHDB": COUNT // FLUSH_BATCH_SIZE, "cancel": 2 * COUNT // CANCEL_BATCH_SIZE}
#: Slices after which each command is interrupted: in the middle of every phase.
POINTS = [(name, slices) for name in COMMANDS for slices in range(1, SLICES[name] - 1)]


class House:
    """A job `base`, and jobs that wait for it. The shape of the other dependencies varies."""

    def __init__(self, shape: str = "star") -> None:
        self.engine, self.store = Engine(Random(1), protocol_rules()), MemoryStore()
        self.client = connect("qless", self.engine)
        self.put("base")
        before = ["base"]
        for jid in JIDS:
            self.put(jid, "depends", str(before).replace("'", '"'))
            if shape == "chain":
                before = ["base", jid]
        for first, second in pairwise(JIDS):
            if shape == "backwards":
                self.send("QLESS.DEPENDS", "0", first, "on", second)
        if shape == "cycle":
            self.send("QLESS.DEPENDS", "0", JIDS[0], "on", JIDS[-1])
            self.send("QLESS.DEPENDS", "0", JIDS[-1], "on", JIDS[0])
        commit(self.engine, self.store)

    def put(self, jid: str, *options: str) -> None:
        self.send("QLESS.PUT", "1", "q", jid, "k", "{}", TIME, "0", *options)

    def send(self, *words: str) -> None:
        assert not exchange(self.client, resp(*words)).startswith(b"-")

    def begin(self, command: str, slices: int) -> Connection:
        self.client.receive(COMMANDS[command], NOW, 1)
        for _ in range(slices - 1):
            self.client.run(NOW, 1)
        assert self.client.long_command is not None
        return self.client


def blocked(engine: Engine) -> Iterator[str]:
    return (job.jid for job in engine.jobs.values() if job.state == BLOCKED)


def assert_no_job_is_stuck(engine: Engine) -> None:
    """The remaining jobs start when `base` ends."""
    assert [problem for part in engine.components for problem in part.problems() if problem] == []
    base = engine.find("base")
    if base is not None:
        engine.cancel(base, NOW)
    for _ in range(COUNT):
        engine.tick(NOW)
    assert list(blocked(engine)) == []


@pytest.mark.parametrize(("command", "slices"), POINTS)
def test_after_a_disconnect(command: str, slices: int) -> None:
    house = House()
    house.begin(command, slices).connection_lost(NOW)
    commit(house.engine, house.store)
    assert_no_job_is_stuck(recover(house.store))
    assert_no_job_is_stuck(house.engine)


@pytest.mark.parametrize(("command", "slices"), POINTS)
def test_after_a_refused_commit(command: str, slices: int) -> None:
    house = House()
    client = house.begin(command, slices)
    house.engine.push(unit("other", "other"), NOW)
    undo(house.engine, house.store, [house.engine.take_changes()], "disk full")
    house.engine.resume(NOW)
    while client.run(NOW, 10_000):
        pass
    assert client.replies[-1].data.startswith(b"-MISCONF")
    assert_no_job_is_stuck(house.engine)


@pytest.mark.parametrize(("command", "slices"), POINTS)
def test_after_a_crash(command: str, slices: int) -> None:
    house = House()
    house.begin(command, slices)
    commit(house.engine, house.store)
    assert_no_job_is_stuck(recover(house.store))


@pytest.mark.parametrize("shape", ["star", "chain", "backwards", "cycle"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_job_becomes_ready_before_its_removal(command: str, shape: str) -> None:
    house = House(shape)
    house.client.receive(COMMANDS[command], NOW, 1)
    while house.client.long_command is not None:
        ready = [job.jid for job in house.engine.jobs.values() if job.state == READY]
        assert ready in (["base"], [])
        house.client.run(NOW, 1)
    assert not house.client.replies[-1].data.startswith(b"-")
    assert [job.jid for job in house.engine.jobs.values()] == (
        ["base"] if command == "cancel" else []
    )
    assert [event[1] for event in house.engine.change_set.events].count("unblocked") == 0


def test_a_repeated_or_unknown_jid_does_not_change_the_result() -> None:
    house = House()
    reply = exchange(house.client, resp("QLESS.CANCEL", "0", *JIDS, JIDS[0], "unknown"))
    assert not reply.startswith(b"-")
    assert [job.jid for job in house.engine.jobs.values()] == ["base"]
