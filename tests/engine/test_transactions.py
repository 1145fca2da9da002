"""A large transaction takes effect as a whole, although it takes several turns."""

from itertools import pairwise

import pytest
from invariants import consistent

from failing_stores import FailingMemoryStore
from millrace.engine.states import LEASED, READY
from millrace.engine.transactions import TRANSACTION_BATCH_SIZE, TRANSACTION_PREFIX
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.registry import MASENKO
from millrace.store import MemoryStore
from scene import MasenkoScene, commit, refused, restarted
from wires import data_of, waiting

MANY = 3 * TRANSACTION_BATCH_SIZE + 7


@pytest.fixture
def scene() -> MasenkoScene:
    return MasenkoScene()


def client(scene: MasenkoScene) -> MasenkoConnection:
    return MasenkoConnection(MasenkoHub(scene.engine))


def held(scene: MasenkoScene, connection: MasenkoConnection, count: int) -> list[int]:
    """Tasks that the connection holds."""
    for number in range(count):
        scene.push(f"held-{number}", "held", origin=MASENKO)
    for _ in range(count):
        connection.receive(b'FETCH {"queues":["held"]}\n', scene.now, 64)
    connection.replies.clear()
    return scene.engine.leases.of_holder(connection.caller.holder)


def send(scene: MasenkoScene, connection: MasenkoConnection, acks: list[int]) -> bool:
    """Send a transaction with hundreds of pushes and these completions. Return whether it
    continues.
    """
    task = b'PUSH {"name":"t","queue":"q"}\n'
    lines = b"".join(b'ACK {"id":%d}\n' % seq for seq in acks)
    connection.receive(b"ATOMIC\n" + task * MANY + lines, scene.now, 10_000)
    return connection.receive(b"DONE\n", scene.now, 1)


def seal(scene: MasenkoScene, connection: MasenkoConnection) -> None:
    """Let the connection work until the transaction is sealed, not carried out."""
    while not is_sealed(scene):
        assert connection.run(scene.now, 1)


def is_sealed(scene: MasenkoScene) -> bool:
    return any(key.startswith(TRANSACTION_PREFIX) for key in scene.engine.settings)


def states(scene: MasenkoScene) -> list[int]:
    return [job.state for job in scene.engine.jobs.values() if job.queue == "q"]


def test_no_task_can_be_fetched_before_all_are_pushed(scene):
    connection, other = client(scene), client(scene)
    acks = held(scene, connection, TRANSACTION_BATCH_SIZE + 3)
    assert send(scene, connection, acks)
    steps = 0
    while not is_sealed(scene):
        steps += 1
        assert READY not in states(scene)
        assert scene.engine.queues["held"].counts[LEASED] == len(acks)
        other.receive(b"PING\n", scene.now, 1)  # other clients are served
        assert connection.run(scene.now, 1)
    assert steps >= MANY // TRANSACTION_BATCH_SIZE
    while connection.run(scene.now, 1):
        pass
    assert data_of(connection) == [b"OK {}\n"] or connection.replies[0].data.startswith(
        b'OK {"ids":['
    )
    assert waiting(connection) == [0]
    scene.tick()
    assert states(scene) == [READY] * MANY
    assert not scene.engine.leased
    consistent(scene.engine)
    seqs = [scene.engine.lease(["q"], "w", MASENKO, scene.now).seq for _ in range(MANY)]
    assert seqs == sorted(seqs)
    assert not any(key.startswith(TRANSACTION_PREFIX) for key in scene.engine.settings)


def test_one_tick_releases_a_batch(scene):
    connection = client(scene)
    send(scene, connection, [])
    seal(scene, connection)
    ready = []
    while len(ready) < 10 and (not ready or ready[-1] < MANY):
        scene.engine.tick(scene.now)
        ready.append(states(scene).count(READY))
    assert ready == [TRANSACTION_BATCH_SIZE * n for n in (1, 2, 3)] + [MANY]


def test_the_next_command_of_the_client_follows_the_whole_transaction(scene):
    connection = client(scene)
    send(scene, connection, [])
    connection.receive(b"PING\n", scene.now, 1)
    ready = []
    while connection.run(scene.now, 1):
        ready.append(states(scene).count(READY))
        assert len(connection.replies) < 2 or ready[-1] == MANY
    assert len(connection.replies) == 2
    assert states(scene) == [READY] * MANY
    assert all(after - before <= TRANSACTION_BATCH_SIZE for before, after in pairwise(ready))


def test_the_reply_follows_the_whole_transaction(scene):
    """A client that knows of the OK must find every task, and no completed one."""
    connection = client(scene)
    acks = held(scene, connection, TRANSACTION_BATCH_SIZE + 3)
    send(scene, connection, acks)
    while not connection.replies:
        connection.run(scene.now, 1)
    assert states(scene) == [READY] * MANY
    assert not scene.engine.leased


def test_the_reply_waits_for_the_commit_of_the_seal(scene):
    store = MemoryStore()
    connection = client(scene)
    scene.engine.durable = True
    send(scene, connection, [])
    seal(scene, connection)
    for _ in range(20):
        assert connection.run(scene.now, 1)
    assert connection.long_command_waits, "the session must not use the loop all the time"
    assert not connection.replies
    commit(scene.engine, store)
    while connection.run(scene.now, 1):
        pass
    assert waiting(connection) == []
    assert data_of(connection)[0].startswith(b"OK {")


def test_a_refused_batch_does_not_refuse_a_sealed_transaction(scene):
    """The seal is durable, so the client must not send the transaction again."""
    store = FailingMemoryStore()
    connection = client(scene)
    scene.engine.durable = True
    send(scene, connection, held(scene, connection, 2))
    seal(scene, connection)
    commit(scene.engine, store)
    assert connection.run(scene.now, 1)
    refused(scene, store)
    while connection.run(scene.now, 1):
        commit(scene.engine, store)
    assert data_of(connection)[0].startswith(b"OK {")
    assert states(scene) == [READY] * MANY
    assert not any(job.queue == "held" for job in scene.engine.jobs.values())
    consistent(scene.engine)


def test_a_lost_connection_discards_the_transaction(scene):
    connection = client(scene)
    assert send(scene, connection, [])
    assert connection.run(scene.now, 1)
    assert states(scene)
    connection.connection_lost(scene.now)
    scene.tick()
    assert not states(scene)
    consistent(scene.engine)


def test_a_crash_before_the_end_discards_the_transaction(scene):
    store = MemoryStore()
    connection = client(scene)
    assert send(scene, connection, held(scene, connection, 2))
    assert connection.run(scene.now, 1)
    again = restarted(scene, store)
    assert states(again)
    again.engine.restoration.after_restart(again.now)
    assert not states(again)
    assert again.engine.queues["held"].counts[READY] == 2
    consistent(again.engine)


def test_a_crash_after_the_end_keeps_the_transaction(scene):
    store = MemoryStore()
    connection = client(scene)
    send(scene, connection, held(scene, connection, 2))
    seal(scene, connection)
    assert READY not in states(scene)
    again = restarted(scene, store)
    again.engine.restoration.after_restart(again.now)
    assert states(again) == [READY] * MANY
    assert not any(job.queue == "held" for job in again.engine.jobs.values())
    consistent(again.engine)


def test_a_refused_step_refuses_the_transaction(scene):
    store = FailingMemoryStore()
    connection = client(scene)
    assert send(scene, connection, held(scene, connection, 2))
    commit(scene.engine, store)
    assert connection.run(scene.now, 1)
    refused(scene, store)
    while connection.run(scene.now, 1):
        pass
    [reply] = data_of(connection)
    assert b"nothing was changed" in reply
    scene.tick()
    assert not states(scene)
    assert scene.engine.queues["held"].counts[LEASED] == 2
    consistent(scene.engine)


def test_a_refused_seal_refuses_the_transaction(scene):
    """The staged tasks are committed, and the commit of the end fails."""
    store = FailingMemoryStore()
    connection = client(scene)
    acks = held(scene, connection, 2)
    send(scene, connection, acks)
    while not is_sealed(scene):
        commit(scene.engine, store)
        assert connection.run(scene.now, 1)
    refused(scene, store)
    while connection.run(scene.now, 1):
        pass
    [reply] = data_of(connection)
    assert b"nothing was changed" in reply
    scene.tick()
    assert not states(scene)
    assert scene.engine.leases.of_holder(connection.caller.holder) == acks
    assert scene.engine.queues["held"].counts[LEASED] == 2
    consistent(scene.engine)


def test_a_small_transaction_takes_one_turn(scene):
    connection = client(scene)
    task = b'PUSH {"name":"t","queue":"q"}\n'
    lines = task * TRANSACTION_BATCH_SIZE
    assert not connection.receive(b"ATOMIC\n" + lines + b"DONE\n", scene.now, 10_000)
    assert states(scene) == [READY] * TRANSACTION_BATCH_SIZE


def test_a_flush_ends_a_transaction(scene):
    connection = client(scene)
    send(scene, connection, [])
    seal(scene, connection)
    scene.engine.flush(scene.now)
    scene.tick()
    assert not scene.engine.jobs
    scene.push("after", "q")
    scene.tick()
    assert states(scene) == [READY]
