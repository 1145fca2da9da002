"""What one client can ask for, or leave behind, is done in slices, between which others are served."""

import json
from collections.abc import Callable, Generator
from itertools import pairwise
from random import Random

import pytest

from millrace.engine.engine import REMOVAL_BATCH_SIZE, Engine
from millrace.engine.job import FAKTORY, MASENKO, QLESS, Push
from millrace.protocols.faktory import FaktoryConnection, FaktoryHub
from millrace.protocols.faktory.hub import AT_ONCE, LOST_AFTER
from millrace.protocols.masenko import MasenkoHub
from millrace.protocols.masenko.forsaken import SLICE as FORSAKEN
from millrace.protocols.qless import QlessApi, QlessConnection, QlessHub
from millrace.protocols.qless.batches import JOBS_BATCH_SIZE
from millrace.protocols.qless.connection import TOO_MUCH_WORK
from millrace.protocols.qless.queries import QUEUES_BATCH_SIZE
from millrace.server.run_queue import (
    COMMANDS_PER_READ,
    COMMANDS_PER_SLICE,
    MAX_CLIENTS_PER_SLICE,
    SLICE_MICROSECONDS,
    RunQueue,
)

NOW = 1_794_771_831_000_000


def filled(count: int) -> Engine:
    engine = Engine(Random(1))
    for _ in range(count):
        engine.push(Push("", "x", b"[]", FAKTORY, "q", 25, 1_800_000_000), NOW)
    return engine


def test_the_tasks_of_a_lost_connection_fail_some_in_each_turn():
    engine = filled(2 * FORSAKEN + 1)
    hub = MasenkoHub(engine)
    seqs = [engine.lease(["q"], "lost", MASENKO, NOW).seq for _ in range(2 * FORSAKEN + 1)]
    hub.forsake("lost", seqs, NOW)
    left = []
    while engine.leased:
        left.append(len(engine.leased))
        engine.tick(NOW)
        assert engine.alarms == [(hub, "forsaken")]
        engine.alarms.clear()
        hub.alarm("forsaken", NOW)
    assert left == [FORSAKEN + 1, 1]
    assert engine.next_timer() != NOW
    assert {job.failure.group for job in engine.jobs.values()} == {"ConnectionLost"}


def test_a_task_that_ended_before_its_turn_came_is_passed_over():
    engine = filled(FORSAKEN + 1)
    hub = MasenkoHub(engine)
    jobs = [engine.lease(["q"], "lost", MASENKO, NOW) for _ in range(FORSAKEN + 1)]
    hub.forsake("lost", [job.seq for job in jobs], NOW)
    engine.cancel(jobs[-1], NOW)
    hub.alarm("forsaken", NOW)
    assert len(engine.jobs) == FORSAKEN
    assert not engine.leased


def test_the_jobs_of_a_lost_worker_fail_some_in_each_turn():
    engine = filled(AT_ONCE + 1)
    hub = FaktoryHub(
        engine,
        started_at=NOW,
        challenge=lambda: (1, "s"),
        memory_mb=lambda: 1,
        recover_lost_workers=True,
    )
    for _ in range(AT_ONCE + 1):
        engine.lease(["q"], "lost", FAKTORY, NOW)
    later = NOW + LOST_AFTER
    hub.alarm("lost", later)
    assert len(engine.leased) == 1
    engine.tick(later)
    assert engine.alarms == [(hub, "lost")]
    hub.alarm("lost", later)
    assert not engine.leased


def test_a_hello_that_tells_a_story_is_refused():
    """What it says of itself is kept as long as the client is there."""
    engine = Engine(Random(1))
    hub = FaktoryHub(engine, started_at=NOW, challenge=lambda: (1, "s"), memory_mb=lambda: 1)
    client = FaktoryConnection(hub)
    client.receive(b'HELLO {"v":2,"wid":"w","hostname":"%b"}\r\n' % (b"x" * (1 << 18)), NOW, 64)
    assert client.replies[-1] == b"-ERR invalid HELLO: longer than 262144 bytes\r\n"
    assert client.closing


def faktory_client(engine: Engine) -> FaktoryConnection:
    hub = FaktoryHub(engine, started_at=NOW, challenge=lambda: (1, "s"), memory_mb=lambda: 1)
    client = FaktoryConnection(hub)
    client.receive(b'HELLO {"v":2}\r\n', NOW, 64)
    client.replies.clear()
    return client


def test_a_queue_is_removed_in_slices():
    engine = filled(5 * REMOVAL_BATCH_SIZE)
    client = faktory_client(engine)
    client.receive(b"QUEUE REMOVE q\r\n", NOW, 1)
    left = [len(engine.jobs)]
    while client.run(NOW, 1):
        left.append(len(engine.jobs))
        # Nobody sees the queue or gets a job that is about to be removed.
        assert engine.lease(["q"], "w", FAKTORY, NOW) is None
        assert not any(queue.known for queue in engine.queues.values())
    steps = [before - after for before, after in pairwise(left)]
    assert steps == [REMOVAL_BATCH_SIZE] * len(steps)
    assert not engine.jobs
    assert not engine.queues
    assert client.replies == [b"+OK\r\n"]
    assert client.marks == [0]


def test_a_job_pushed_while_its_queue_is_removed_stays():
    engine = filled(3 * REMOVAL_BATCH_SIZE)
    client = faktory_client(engine)
    client.receive(b"QUEUE REMOVE q\r\n", NOW, 1)
    new = engine.push(Push("", "x", b"[]", FAKTORY, "q", 25, 1_800_000_000), NOW)
    while client.run(NOW, 1):
        pass
    assert list(engine.jobs.values()) == [new]
    assert engine.lease(["q"], "w", FAKTORY, NOW) is new


def test_the_rest_of_a_queue_stays_when_the_client_is_lost():
    engine = filled(3 * REMOVAL_BATCH_SIZE)
    client = faktory_client(engine)
    client.receive(b"QUEUE REMOVE q\r\n", NOW, 1)
    client.lost(NOW)
    assert len(engine.jobs) == 2 * REMOVAL_BATCH_SIZE
    assert engine.queues["q"].known
    assert engine.lease(["q"], "w", FAKTORY, NOW) is not None


def test_all_queues_are_paused_in_slices():
    engine = Engine(Random(1))
    for number in range(1000):
        engine.push(Push("", "x", b"[]", FAKTORY, f"q{number}", 25, 1_800_000_000), NOW)
    client = faktory_client(engine)
    client.receive(b"QUEUE PAUSE *\r\n", NOW, 1)
    paused = [100]
    while client.run(NOW, 1):
        paused.append(sum(queue.paused for queue in engine.queues.values()))
    assert max(after - before for before, after in pairwise(paused)) <= 100
    assert all(queue.paused for queue in engine.queues.values())
    assert client.replies == [b"+OK\r\n"]


def finish(slices: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(slices)
        except StopIteration as ended:
            return ended.value


def test_qless_pops_and_peeks_in_slices() -> None:
    engine = filled(2 * JOBS_BATCH_SIZE + 5)
    api = QlessApi(QlessHub(engine, started_at=NOW))
    for command, arguments in (("peek", ["q", "100000"]), ("pop", ["q", "w", "100000"])):
        words = [b"1", *(word.encode() for word in arguments)]
        slices = api.call("C", command, [], words, NOW)
        assert isinstance(slices, Generator)
        held = len(engine.leased)
        next(slices)
        assert len(engine.leased) - held <= JOBS_BATCH_SIZE
        assert finish(slices).count(b'"jid"') == 2 * JOBS_BATCH_SIZE + 5


def test_qless_lists_many_queues_in_slices() -> None:
    engine = Engine(Random(1))
    for number in range(5 * QUEUES_BATCH_SIZE):
        engine.push(Push("", "x", b"[]", FAKTORY, f"q{number:05}", 25, 1_800_000_000), NOW)
    api = QlessApi(QlessHub(engine, started_at=NOW))
    slices = api.call("C", "queues", [], [b"1"], NOW)
    assert isinstance(slices, Generator)
    assert len(list(slices)) >= 5
    slices = api.call("C", "queues", [], [b"1"], NOW)
    assert isinstance(slices, Generator)
    names = [row["name"] for row in json.loads(finish(slices))]
    assert names == [f"q{number:05}" for number in range(5 * QUEUES_BATCH_SIZE)]


@pytest.mark.parametrize(
    "words",
    [
        (b"KEYS", b"*a*a*a*b"),
        (b"DBSIZE",),
        (b"ZRANGE", b"ql:q:q-work", b"0", b"-1"),
        (b"FLUSHALL",),
    ],
)
def test_redis_commands_on_many_jobs_take_many_turns(words: tuple[bytes, ...]) -> None:
    engine = Engine(Random(1))
    hub = QlessHub(engine, started_at=NOW)
    QlessApi(hub)
    for number in range(5000):
        engine.push(Push(f"j{number}", "x", b"[]", QLESS, "q", 5, 1_800_000_000), NOW)
    client = QlessConnection(hub)
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
    more, turns = client.receive(request, NOW, 1), 1
    while more:
        assert not client.replies
        more = client.run(NOW, 1)
        turns += 1
    assert turns >= 5
    [reply] = client.replies
    assert reply[:1] != b"-"


def test_a_transaction_examines_a_limited_number_of_keys() -> None:
    engine = Engine(Random(1))
    hub = QlessHub(engine, started_at=NOW)
    QlessApi(hub)
    for number in range(3000):
        engine.push(Push(f"j{number}", "x", b"[]", QLESS, "q", 5, 1_800_000_000), NOW)
    client = QlessConnection(hub)
    client.receive(b"MULTI\r\n" + b"KEYS nothing\r\n" * 999 + b"EXEC\r\n", NOW, 2000)
    reply = client.replies[-1]
    assert reply.startswith(b"*999\r\n*0\r\n")
    assert reply.endswith(b"-%b\r\n" % TOO_MUCH_WORK.encode())


# The queue of those who have more commands than their share


class Loop:
    """Of an event loop only what is called soon."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Pipeliner:
    """A session with so many commands; each takes so long."""

    def __init__(self, name: str, commands: int, takes: int, scene: "Scene") -> None:
        self.name = name
        self.commands = commands
        self._takes = takes
        self._scene = scene

    def go_on(self, share: int) -> None:
        done = min(share, self.commands)
        self.commands -= done
        self._scene.now += done * self._takes
        self._scene.served.append(self.name)
        if self.commands:
            self._scene.queue.add(self)


class Scene:
    def __init__(self) -> None:
        self.now = 0
        self.served: list[str] = []
        self.loop = Loop()
        self.crowded = False
        self.queue = RunQueue(self.loop, lambda: self.now, lambda: self.crowded)

    def comes(self, name: str, commands: int, takes: int) -> None:
        self.queue.add(Pipeliner(name, commands, takes, self))

    def turn(self) -> list[str]:
        self.served.clear()
        self.loop.turn()
        return list(self.served)


def test_those_who_wait_take_turns_and_together_only_a_moment():
    scene = Scene()
    takes = SLICE_MICROSECONDS // COMMANDS_PER_SLICE // 2 + 1  # two slices are a moment
    for name in "abc":
        scene.comes(name, 2 * COMMANDS_PER_SLICE, takes)
    assert [scene.turn() for _ in range(4)] == [["a", "b"], ["c", "a"], ["b", "c"], []]


def test_while_somebody_waits_others_have_one_command_done_at_once():
    scene = Scene()
    assert scene.queue.share == COMMANDS_PER_READ
    scene.comes("a", 3 * COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    assert scene.queue.share == 1
    scene.turn()
    assert scene.queue.share == 1
    while scene.turn():
        pass
    assert scene.queue.share == COMMANDS_PER_READ
    assert scene.loop.soon == []


def test_when_enough_has_gathered_for_the_next_commit_those_who_wait_wait_for_the_one_under_way():
    scene = Scene()
    scene.comes("a", 2 * COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    scene.comes("b", COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    assert scene.turn() == ["a"]
    scene.crowded = True
    assert scene.turn() == []
    assert scene.loop.soon == []  # nobody asks again and again
    assert scene.queue.share == 1
    scene.comes("c", COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    assert scene.loop.soon == []
    scene.crowded = False
    scene.queue.resume()
    scene.queue.resume()  # there is nothing to resume
    assert [scene.turn() for _ in range(4)] == [["b"], ["a"], ["c"], []]


def test_a_clock_that_stands_still_or_goes_back_stops_nobody():
    scene = Scene()
    scene.comes("a", (MAX_CLIENTS_PER_SLICE + 1) * COMMANDS_PER_SLICE, 0)
    assert len(scene.turn()) == MAX_CLIENTS_PER_SLICE
    assert len(scene.turn()) == 1
    scene.comes("b", 2 * COMMANDS_PER_SLICE, -1_000_000)
    assert [scene.turn(), scene.turn()] == [["b"], ["b"]]


def test_a_session_that_breaks_leaves_the_others_their_turn():
    scene = Scene()
    scene.queue.add(Breaking())
    scene.comes("a", COMMANDS_PER_SLICE, 1)
    with pytest.raises(ZeroDivisionError):
        scene.turn()
    assert scene.turn() == ["a"]


class Breaking:
    def go_on(self, share: int) -> None:
        raise ZeroDivisionError
