"""The reported size of each connection is the counted size: see server/buffers.py."""

from collections import OrderedDict
from collections.abc import Iterator

import commands
import pytest

from house import House
from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from wires import Wire

BEGUN = {**commands.BEGUN, "control": b'{"why": "'}
MORE = b"x" * 10_000


def connection(protocol: str):
    house = House()
    if protocol == "control":
        return AdminConnection(AdminService(house.engine, 100))
    return house.client(protocol).wire.connection


@pytest.mark.parametrize("protocol", BEGUN)
def test_an_unfinished_command_is_held_until_it_is_discarded(protocol):
    client = connection(protocol)
    assert client.memory_used == 0
    client.receive(BEGUN[protocol] + MORE, 1, 64)
    client.receive(MORE, 2, 64)
    assert 20_000 <= client.memory_used < 21_000
    assert client.unprocessed_bytes <= 1, "the rest of it must be let in"
    client.drop_input()
    assert client.memory_used == 0


@pytest.mark.parametrize("protocol", [p for p in BEGUN if p != "control"])
def test_commands_behind_a_wait_are_held(protocol):
    house = House()
    client = house.client(protocol)
    if protocol == "qless":
        client.wire.connection.receive(b"BRPOP nothing 100\r\n", house.now, 64)
    else:
        client.says(client.speaker.lease("nothing", house.now, 100))
    assert client.wire.waits
    client.wire.connection.receive(commands.push(protocol, 1, MORE) * 10, house.now, 64)
    assert client.wire.connection.memory_used > 100_000


def test_an_unfinished_transaction_is_held():
    for protocol, begin in (("masenko", b"ATOMIC\n"), ("qless", b"MULTI\r\n")):
        house = House()
        wire: Wire = house.client(protocol).wire
        wire.receive(begin)
        before = wire.connection.memory_used
        for number in range(10):
            wire.receive(commands.push(protocol, number, MORE))
        assert wire.connection.memory_used - before > 100_000, protocol
        wire.connection.drop_input()
        assert wire.connection.memory_used == 0


def test_jobs_of_a_bulk_push_are_held_while_they_are_pushed():
    house = House()
    connection = house.client("faktory").wire.connection
    unit = commands.push("faktory", 1, MORE).removeprefix(b"PUSH ").rstrip()
    line = b"PUSHB [" + b",".join([unit] * 1000) + b"]\r\n"
    assert connection.receive(line, house.now, 64)
    assert connection.memory_used > 10_000_000
    while connection.run(house.now, 64):
        pass
    assert connection.memory_used == 0


def test_a_workq_lease_creates_queues_only_up_to_the_limit():
    house = House()
    wire = house.client("workq").wire
    for first in range(0, 120_000, 10_000):
        names = b" ".join(b"q%d" % number for number in range(first, first + 10_000))
        wire.receive(b"lease %b 0\r\n" % names)
    assert len(house.engine.queues) == 100_000
    assert wire.heard == b"-TIMEOUT\r\n" * 12
    wire.receive(b"lease %b 0\r\n" % b" ".join([b"q"] * 10_001))
    assert wire.heard.endswith(b"-CLIENT-ERROR Invalid command args\r\n")
    wire.receive(b"lease never-seen 1000\r\n")
    house.client("workq").wire.receive(
        b"add 61a444a0-6128-41c0-8078-cc757d3bd2d8 never-seen 1000 1000 0\r\n\r\n"
    )
    assert b" never-seen 0\r\n" in wire.heard


def test_qless_remembers_only_the_last_workers():
    house = House()
    client = house.client("qless")
    for number in range(10_050):
        client.wire.connection.receive(
            commands.qless("QLESS.POP", 1, "q", f"worker-{number}", 1, 1_352_375_200), house.now, 64
        )
        client.wire.connection.replies.clear()
    workers = client.wire.connection.hub.api.qless.workers.last_seen
    assert len(workers) == 10_000
    assert next(iter(workers)) == "worker-50"
    later = [f"later-{number}" for number in range(100)]  # each removes 100 outdated workers
    for name in later:
        client.wire.connection.receive(
            commands.qless("QLESS.POP", 1, "q", name, 1, 1_352_375_200 + 86_401), house.now, 64
        )
    assert list(workers) == later


class CountedWorkers(OrderedDict[str, int]):
    """Counts the workers that are examined."""

    examined = 0

    def items(self) -> Iterator[tuple[str, int]]:
        for each in super().items():
            self.examined += 1
            yield each


def test_a_new_qless_worker_does_not_examine_all_others():
    client = House().client("qless")
    qless = client.wire.connection.hub.api.qless
    qless.workers.last_seen = workers = CountedWorkers()
    for number in range(1000):
        client.says(commands.qless("QLESS.POP", 1, "q", f"worker-{number}", 1, 1_352_375_200))
    assert len(workers) == 1000
    assert workers.examined <= 1000
