"""EXEC of many commands or of long ones runs in steps, and other clients see no part of it."""

from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.qless import transactions
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.registry import FAKTORY, QLESS
from millrace.protocols.spec import protocol_rules
from wires import data_of, waiting

NOW = 1_700_000_000_000_000


def request(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def put(number: int) -> bytes:
    return request("QLESS.PUT", 1, "q", f"t{number}", "klass", "{}", NOW // 1_000_000, 0)


class Port:
    """A Qless port with jobs, without a server: `turn` gives each client one share."""

    def __init__(self, jobs: int = 0) -> None:
        self.engine = Engine(Random(1), protocol_rules())
        self.hub = QlessHub(self.engine, started_at=NOW)
        QlessApi(self.hub)
        for number in range(jobs):
            self.engine.push(NewJob(f"j{number}", "x", b"[]", QLESS, "q", 5, 1_800_000_000), NOW)
        self.clients: list[QlessConnection] = []

    def connect(self) -> QlessConnection:
        client = QlessConnection(self.hub)
        self.clients.append(client)
        return client

    def turn(self) -> None:
        """Serve due alarms, then each client."""
        self.engine.tick(NOW)
        alarms, self.engine.alarms = self.engine.alarms, []
        for owner, what in alarms:
            owner.handle_alarm(what, NOW)
        for client in self.clients:
            client.run(NOW, 1)

    def turns_until(self, client: QlessConnection) -> int:
        """Turns until the client has a reply."""
        for number in range(100_000):
            if client.replies:
                return number
            self.turn()
        raise AssertionError("no reply")


@pytest.fixture
def port() -> Port:
    return Port(3000)


def begin(client: QlessConnection, *commands: bytes) -> None:
    """Send a transaction, and drop the replies before that to EXEC."""
    client.receive(request("MULTI") + b"".join(commands), NOW, 20_000)
    assert data_of(client) == [b"+OK\r\n", *[b"+QUEUED\r\n"] * len(commands)]
    client.replies.clear()
    client.receive(request("EXEC"), NOW, 1)


@pytest.mark.parametrize("count", [99, 999])
def test_long_reads_of_a_transaction_delay_no_other_client(port: Port, count: int) -> None:
    client, other = port.connect(), port.connect()
    begin(client, *[request("KEYS", "nothing")] * count)
    assert not client.replies
    for _ in range(5):
        other.receive(request("PING"), NOW, 1)
        assert other.replies.pop().data == b"+PONG\r\n"
        port.turn()
    assert port.turns_until(client) > 0.9 * count
    assert data_of(client) == [b"*%d\r\n" % count + b"*0\r\n" * count]


def test_other_clients_wait_for_a_large_transaction_with_changes(port: Port) -> None:
    client, other = port.connect(), port.connect()
    begin(client, *map(put, range(1000)))
    assert 0 < len(port.engine.jobs) - 3000 < 1000  # the first step
    other.receive(request("ZCARD", "ql:q:q-work"), NOW, 1)
    assert not other.replies
    assert port.turns_until(other) >= 9
    assert data_of(other) == [b":4000\r\n"]
    port.turns_until(client)
    [reply] = data_of(client)
    assert waiting(client) == [0]
    assert reply.startswith(b"*1000\r\n$2\r\nt0\r\n")


def test_clients_of_other_protocols_do_not_wait(port: Port) -> None:
    client = port.connect()
    begin(client, *map(put, range(1000)))
    port.engine.push(NewJob("f", "x", b"[]", FAKTORY, "other", 5, 1_800_000_000), NOW)
    assert port.engine.lease(["other"], "w", FAKTORY, NOW) is not None
    assert not client.replies


def test_a_small_transaction_runs_in_one_step(port: Port) -> None:
    client = port.connect()
    begin(client, *map(put, range(transactions.STEP_COST - 1)))
    assert client.replies[0].data.startswith(b"*%d\r\n" % (transactions.STEP_COST - 1))
    assert port.hub.transactions.exclusive is None


def test_a_transaction_completes_after_its_client_disconnected(port: Port) -> None:
    client, other = port.connect(), port.connect()
    begin(client, *map(put, range(1000)))
    client.connection_lost(NOW)
    port.clients.remove(client)
    other.receive(request("ZCARD", "ql:q:q-work"), NOW, 1)
    port.turns_until(other)
    assert data_of(other) == [b":4000\r\n"]


def test_the_other_clients_wait_for_a_limited_number_of_steps(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_EXCLUSIVE_STEPS", 5)
    client, other = port.connect(), port.connect()
    begin(client, put(1), *[request("KEYS", "nothing")] * 99, put(2))
    other.receive(request("PING"), NOW, 1)
    assert 4 <= port.turns_until(other) <= 6
    assert not client.replies
    port.turns_until(client)
    assert client.replies[0].data.startswith(b"*101\r\n")
    assert len(port.engine.jobs) == 3002


def test_a_flush_within_a_transaction_runs_in_steps(port: Port) -> None:
    client = port.connect()
    begin(client, request("FLUSHDB"), put(1))
    assert port.turns_until(client) > 9
    assert data_of(client) == [b"*2\r\n+OK\r\n$2\r\nt1\r\n"]
    assert [job.jid for job in port.engine.jobs.values()] == ["t1"]


def test_a_refused_commit_within_a_transaction_is_reported(port: Port) -> None:
    client, other = port.connect(), port.connect()
    port.engine.durable = True
    port.engine.take_changes()
    begin(client, *map(put, range(1000)))
    port.engine.revert([port.engine.take_changes()], [], {})
    port.engine.load_settings({})
    port.engine.unavailable_reason = "no space"
    other.receive(request("PING"), NOW, 1)
    port.turns_until(client)
    assert client.replies[0].data.startswith(b"-MISCONF no space")
    port.turns_until(other)
    assert port.hub.transactions.exclusive is None


def test_a_list_that_a_transaction_pushes_to_serves_its_waiting_client(port: Port) -> None:
    client, other = port.connect(), port.connect()
    other.receive(request("BRPOP", "list", 10), NOW, 1)
    begin(client, request("RPUSH", "list", "item"), request("PING"))
    assert data_of(client) == [b"*2\r\n:1\r\n+PONG\r\n"]
    assert data_of(other) == [b"*2\r\n$4\r\nlist\r\n$4\r\nitem\r\n"]


def test_a_defect_in_a_step_ends_the_wait_of_other_clients(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = port.connect(), port.connect()
    begin(client, *map(put, range(1000)))
    other.receive(request("PING"), NOW, 1)
    monkeypatch.setattr(client, "perform", None)
    with pytest.raises(TypeError):
        port.turn()
    assert port.turns_until(other) == 1


# WATCH


@pytest.mark.parametrize(("queue", "done"), [("other", True), ("q", False)])
def test_a_watched_long_key_changes_with_its_queue(port: Port, queue: str, done: bool) -> None:
    client = port.connect()
    client.receive(request("WATCH", "ql:q:q-work"), NOW, 1)
    port.engine.push(NewJob("new", "x", b"[]", QLESS, queue, 5, 1_800_000_000), NOW)
    client.replies.clear()
    begin(client, request("PING"))
    assert data_of(client) == [b"*1\r\n+PONG\r\n" if done else b"*-1\r\n"]


@pytest.mark.parametrize("change", ["lease", "cancel", "rank", "move", "new queue"])
def test_each_change_of_a_queue_is_seen(port: Port, change: str) -> None:
    engine, client = port.engine, port.connect()
    client.receive(request("WATCH", "ql:q:q-work"), NOW, 1)
    job = engine.by_jid["j7"]
    if change == "lease":
        engine.lease(["q"], "w", FAKTORY, NOW)
    elif change == "cancel":
        engine.cancel(job, NOW)
    elif change == "rank":
        engine.set_rank(job, 5, job.position)
    elif change == "move":
        engine.move(job, "elsewhere", NOW, QLESS)
    else:
        for each in list(engine.jobs.values()):
            engine.cancel(each, NOW)
        engine.remove_queue("q", NOW)
    client.replies.clear()
    begin(client, request("PING"))
    assert data_of(client) == [b"*-1\r\n"]


def test_a_renewed_lease_changes_the_locks_of_its_queue(port: Port) -> None:
    engine, client = port.engine, port.connect()
    held = [engine.lease(["q"], "w", QLESS, NOW) for _ in range(200)]
    client.receive(request("WATCH", "ql:q:q-locks"), NOW, 1)
    assert held[0] is not None
    engine.renew(held[0], NOW + 60_000_000, NOW)
    client.replies.clear()
    begin(client, request("PING"))
    assert data_of(client) == [b"*-1\r\n"]


def test_after_fifty_watched_keys_any_change_counts(port: Port) -> None:
    client = port.connect()
    client.receive(request("WATCH", *(f"ql:j:j{n}" for n in range(51))), NOW, 1)
    port.engine.push(NewJob("new", "x", b"[]", QLESS, "other", 5, 1_800_000_000), NOW)
    client.replies.clear()
    begin(client, request("PING"))
    assert data_of(client) == [b"*-1\r\n"]
