"""Long requests and cleanups of one client run in slices, and other clients are served in
between.
"""

import gc
import json
import sys
from collections.abc import Callable, Generator
from itertools import pairwise
from random import Random

import pytest

from millrace.engine.cascades import CASCADE_BATCH_SIZE, STEP_LIMIT
from millrace.engine.consistency import check_engine
from millrace.engine.engine import Engine
from millrace.engine.job import DAY, NewJob
from millrace.engine.leases import LEASES_BATCH_SIZE
from millrace.engine.removal import REMOVAL_BATCH_SIZE
from millrace.protocols.faktory import info
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import LOST_WORKER_BATCH_SIZE, LOST_WORKER_TIMEOUT, FaktoryHub
from millrace.protocols.masenko import info as masenko_info
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.errors import ScriptError
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.job_replies import JOBS_BATCH_SIZE
from millrace.protocols.qless.queries import QUEUE_BATCH_SIZE
from millrace.protocols.registry import FAKTORY, MASENKO, QLESS
from millrace.protocols.spec import protocol_rules
from millrace.server.run_queue import (
    COMMANDS_PER_READ,
    COMMANDS_PER_SLICE,
    MAX_CLIENTS_PER_SLICE,
    SLICE_MICROSECONDS,
    RunQueue,
)
from wires import data_of, waiting

NOW = 1_794_771_831_000_000


def filled(count: int) -> Engine:
    engine = Engine(Random(1), protocol_rules())
    for _ in range(count):
        engine.push(NewJob("", "x", b"[]", FAKTORY, "q", 25, 1_800_000_000), NOW)
    return engine


def test_the_tasks_of_a_lost_connection_fail_some_in_each_turn():
    engine = filled(2 * LEASES_BATCH_SIZE + 1)
    for _ in range(2 * LEASES_BATCH_SIZE + 1):
        engine.lease(["q"], "lost", MASENKO, NOW)
    engine.leases.close("lost", NOW)
    left = []
    while engine.leased:
        left.append(len(engine.leased))
        engine.tick(NOW)
    assert left == [LEASES_BATCH_SIZE + 1, 1]
    assert engine.next_timer() != NOW
    assert {job.failure.group for job in engine.jobs.values()} == {"ConnectionLost"}


def test_a_task_that_ended_before_its_slice_is_skipped():
    engine = filled(LEASES_BATCH_SIZE + 1)
    jobs = [engine.lease(["q"], "lost", MASENKO, NOW) for _ in range(LEASES_BATCH_SIZE + 1)]
    engine.leases.close("lost", NOW)
    engine.cancel(jobs[-1], NOW)
    engine.tick(NOW)
    assert len(engine.jobs) == LEASES_BATCH_SIZE
    assert not engine.leased


def test_the_jobs_of_a_lost_worker_fail_some_in_each_turn():
    engine = filled(LOST_WORKER_BATCH_SIZE + 1)
    hub = FaktoryHub(
        engine,
        started_at=NOW,
        challenge=lambda: (1, "s"),
        memory_mb=lambda: 1,
        recover_lost_workers=True,
    )
    for _ in range(LOST_WORKER_BATCH_SIZE + 1):
        engine.lease(["q"], "lost", FAKTORY, NOW)
    later = NOW + LOST_WORKER_TIMEOUT
    hub.handle_alarm("lost", later)
    assert len(engine.leased) == 1
    engine.tick(later)
    assert engine.alarms == [(hub, "lost")]
    hub.handle_alarm("lost", later)
    assert not engine.leased


def test_a_hello_that_is_too_large_is_refused():
    """The server stores the contents of a HELLO as long as the client is connected."""
    engine = Engine(Random(1), protocol_rules())
    hub = FaktoryHub(engine, started_at=NOW, challenge=lambda: (1, "s"), memory_mb=lambda: 1)
    client = FaktoryConnection(hub)
    client.receive(b'HELLO {"v":2,"wid":"w","hostname":"%b"}\r\n' % (b"x" * (1 << 18)), NOW, 64)
    assert client.replies[-1].data == b"-ERR invalid HELLO: longer than 262144 bytes\r\n"
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
        # No client sees the queue or gets a job of a queue that is being removed.
        assert engine.lease(["q"], "w", FAKTORY, NOW) is None
        assert not any(queue.registered for queue in engine.queues.values())
    steps = [before - after for before, after in pairwise(left)]
    assert steps == [REMOVAL_BATCH_SIZE] * len(steps)
    assert not engine.jobs
    assert not engine.queues
    assert data_of(client) == [b"+OK\r\n"]
    assert waiting(client) == [0]


def test_the_dependents_of_removed_jobs_start_some_in_each_slice():
    engine, count = Engine(Random(1), protocol_rules()), 2 * REMOVAL_BATCH_SIZE
    for number in range(count):
        root = engine.push(NewJob(f"root-{number}", "t", b"[]", FAKTORY, "roots", 0, DAY), NOW)
        for _ in range(CASCADE_BATCH_SIZE):
            fields = {"blockers": [root.seq]}
            engine.push(NewJob("", "t", b"[]", FAKTORY, "waiting", 0, DAY, **fields), NOW)
    client = faktory_client(engine)
    blocked = [len(engine.blocked)]
    more = client.receive(b"QUEUE REMOVE roots\r\n", NOW, 1)
    blocked.append(len(engine.blocked))
    while blocked[-1]:
        if more:
            more = client.run(NOW, 1)
        else:
            engine.tick(NOW)
        blocked.append(len(engine.blocked))
    started = [before - after for before, after in pairwise(blocked)]
    assert max(started) <= STEP_LIMIT + CASCADE_BATCH_SIZE + REMOVAL_BATCH_SIZE
    assert len(engine.jobs) == count * CASCADE_BATCH_SIZE
    assert check_engine(engine).total == 0


def test_the_queues_in_info_are_counted_in_slices():
    engine = Engine(Random(1), protocol_rules())
    for number in range(3000):
        queue = f"q{number * 7919 % 3000:04}"
        engine.push(NewJob("", "x", b"[]", FAKTORY, queue, 25, 1_800_000_000), NOW)
    client = faktory_client(engine)
    assert client.receive(b"INFO\r\n", NOW, 1)
    turns = 1
    while client.run(NOW, 1):
        turns += 1
    assert turns > 3000 // info.QUEUE_BATCH_SIZE
    [reply] = data_of(client)
    assert reply.split(b"\r\n")[1] == info.encode_info(client.hub, NOW)
    queues = json.loads(reply.split(b"\r\n")[1])["faktory"]["queues"]
    assert list(queues) == [f"q{number:04}" for number in range(3000)]
    assert set(queues.values()) == {1}


def test_the_queues_of_masenko_are_written_in_slices_and_pieces():
    engine, count = Engine(Random(1), protocol_rules()), 20 * masenko_info.INFO_BATCH_SIZE + 1
    for number in range(count):
        engine.push(NewJob("", "t", b"[]", MASENKO, f"q-{number}", 0, DAY), NOW)
    hub = MasenkoHub(engine)
    steps = 0
    writing = masenko_info.write_info(hub)
    while True:
        try:
            next(writing)
        except StopIteration as end:
            pieces = end.value
            break
        steps += 1
    assert steps == 20
    assert max(map(len, pieces)) < 200 * masenko_info.INFO_BATCH_SIZE
    client = MasenkoConnection(hub)
    more = client.receive(b"INFO\r\n", NOW, 1)
    while more:
        more = client.run(NOW, 1)
    reply = b"".join(data_of(client))
    shown = json.loads(reply.removeprefix(b"OK "))
    assert [queue["name"] for queue in shown["queues"]] == [f"q-{n}" for n in range(count)]
    assert len(shown["metrics"]["masenko_tasks_total"]) == count


def test_a_job_pushed_while_its_queue_is_removed_stays():
    engine = filled(3 * REMOVAL_BATCH_SIZE)
    client = faktory_client(engine)
    client.receive(b"QUEUE REMOVE q\r\n", NOW, 1)
    new = engine.push(NewJob("", "x", b"[]", FAKTORY, "q", 25, 1_800_000_000), NOW)
    while client.run(NOW, 1):
        pass
    assert list(engine.jobs.values()) == [new]
    assert engine.lease(["q"], "w", FAKTORY, NOW) is new


def test_the_rest_of_a_queue_stays_when_the_client_is_lost():
    engine = filled(3 * REMOVAL_BATCH_SIZE)
    client = faktory_client(engine)
    client.receive(b"QUEUE REMOVE q\r\n", NOW, 1)
    client.connection_lost(NOW)
    assert len(engine.jobs) == 2 * REMOVAL_BATCH_SIZE
    assert engine.queues["q"].registered
    assert engine.lease(["q"], "w", FAKTORY, NOW) is not None


def test_all_queues_are_paused_in_slices():
    engine = Engine(Random(1), protocol_rules())
    for number in range(1000):
        engine.push(NewJob("", "x", b"[]", FAKTORY, f"q{number}", 25, 1_800_000_000), NOW)
    client = faktory_client(engine)
    client.receive(b"QUEUE PAUSE *\r\n", NOW, 1)
    paused = [100]
    while client.run(NOW, 1):
        paused.append(sum(queue.paused for queue in engine.queues.values()))
    assert max(after - before for before, after in pairwise(paused)) <= 100
    assert all(queue.paused for queue in engine.queues.values())
    assert data_of(client) == [b"+OK\r\n"]


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


def test_a_refused_cancel_of_several_jobs_has_no_effect() -> None:
    """A later job has a dependent that the command does not name: the earlier jobs stay
    unchanged.
    """
    engine = Engine(Random(1), protocol_rules())
    api = QlessApi(QlessHub(engine, started_at=NOW))

    def call(command: str, *words: str) -> object:
        return api.call("C", command, [], [b"1", *(word.encode() for word in words)], NOW)

    for jid, blocker in (("root", ""), ("child", "root"), ("parent", ""), ("kid", "parent")):
        depends = ("depends", json.dumps([blocker])) if blocker else ()
        call("put", "", "q", jid, "K", "{}", "0", *depends)
    unknown = [f"unknown-{number}" for number in range(150)]
    slices = call("cancel", "child", *unknown, "parent")
    assert isinstance(slices, Generator)
    with pytest.raises(ScriptError, match="is a dependency of kid"):
        finish(slices)
    child = engine.find("child")
    assert child.extra.blockers == [engine.find("root").seq]
    assert not check_engine(engine).problems


def test_qless_lists_many_queues_in_slices() -> None:
    engine = Engine(Random(1), protocol_rules())
    for number in range(5 * QUEUE_BATCH_SIZE):
        engine.push(NewJob("", "x", b"[]", FAKTORY, f"q{number:05}", 25, 1_800_000_000), NOW)
    api = QlessApi(QlessHub(engine, started_at=NOW))
    slices = api.call("C", "queues", [], [b"1"], NOW)
    assert isinstance(slices, Generator)
    assert len(list(slices)) >= 5
    slices = api.call("C", "queues", [], [b"1"], NOW)
    assert isinstance(slices, Generator)
    names = [row["name"] for row in json.loads(finish(slices))]
    assert names == [f"q{number:05}" for number in range(5 * QUEUE_BATCH_SIZE)]


@pytest.mark.parametrize(
    "words",
    [
        (b"KEYS", b"*a*a*a*b"),
        (b"DBSIZE",),
        (b"ZRANGE", b"ql:q:q-work", b"0", b"-1"),
        (b"FLUSHALL",),
    ],
)
def test_redis_commands_on_a_large_number_of_jobs_take_several_turns(
    words: tuple[bytes, ...],
) -> None:
    engine = Engine(Random(1), protocol_rules())
    hub = QlessHub(engine, started_at=NOW)
    QlessApi(hub)
    for number in range(5000):
        engine.push(NewJob(f"j{number}", "x", b"[]", QLESS, "q", 5, 1_800_000_000), NOW)
    client = QlessConnection(hub)
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
    more, turns = client.receive(request, NOW, 1), 1
    while more:
        assert not client.replies
        more = client.run(NOW, 1)
        turns += 1
    assert turns >= 5
    [reply] = data_of(client)
    assert reply[:1] != b"-"


# The queue of clients with more commands than their share


class Loop:
    """The part of an event loop that runs callbacks soon."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Pipeliner:
    """A session with a number of commands that take a given time each."""

    def __init__(self, name: str, commands: int, takes: int, scene: "Scene") -> None:
        self.name = name
        self.commands = commands
        self._takes = takes
        self._scene = scene

    def resume(self, share: int) -> None:
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


def test_waiting_sessions_take_turns_within_a_time_limit():
    scene = Scene()
    takes = SLICE_MICROSECONDS // COMMANDS_PER_SLICE // 2 + 1  # two slices exceed the limit
    for name in "abc":
        scene.comes(name, 2 * COMMANDS_PER_SLICE, takes)
    assert [scene.turn() for _ in range(4)] == [["a", "b"], ["c", "a"], ["b", "c"], []]


def test_while_sessions_wait_other_sessions_run_one_command_at_once():
    scene = Scene()
    assert scene.queue.commands_per_read == COMMANDS_PER_READ
    scene.comes("a", 3 * COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    assert scene.queue.commands_per_read == 1
    scene.turn()
    assert scene.queue.commands_per_read == 1
    while scene.turn():
        pass
    assert scene.queue.commands_per_read == COMMANDS_PER_READ
    assert scene.loop.soon == []


def test_waiting_sessions_pause_when_the_next_commit_is_full():
    scene = Scene()
    scene.comes("a", 2 * COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    scene.comes("b", COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    assert scene.turn() == ["a"]
    scene.crowded = True
    assert scene.turn() == []
    assert scene.loop.soon == []  # no callback is scheduled repeatedly
    assert scene.queue.commands_per_read == 1
    scene.comes("c", COMMANDS_PER_SLICE, SLICE_MICROSECONDS)
    assert scene.loop.soon == []
    scene.crowded = False
    scene.queue.resume()
    scene.queue.resume()  # no session is waiting to be resumed
    assert [scene.turn() for _ in range(4)] == [["b"], ["a"], ["c"], []]


def test_a_clock_that_stops_or_goes_back_stops_no_session():
    scene = Scene()
    scene.comes("a", (MAX_CLIENTS_PER_SLICE + 1) * COMMANDS_PER_SLICE, 0)
    assert len(scene.turn()) == MAX_CLIENTS_PER_SLICE
    assert len(scene.turn()) == 1
    scene.comes("b", 2 * COMMANDS_PER_SLICE, -1_000_000)
    assert [scene.turn(), scene.turn()] == [["b"], ["b"]]


def test_a_failing_session_does_not_stop_other_sessions():
    scene = Scene()
    scene.queue.add(Breaking())
    scene.comes("a", COMMANDS_PER_SLICE, 1)
    with pytest.raises(ZeroDivisionError):
        scene.turn()
    assert scene.turn() == ["a"]


class Breaking:
    def resume(self, share: int) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("command", "most_kept"),
    [
        (b"QUEUE REMOVE q", 64 + 1000 // 4),  # the sweep of the queue follows
        (b'MUTATE {"cmd":"clear","target":"scheduled"}', 1),
        (b'MUTATE {"cmd":"discard","target":"scheduled","filter":{"regexp":"*"}}', 1),
    ],
)
def test_removed_jobs_are_freed_in_slices(command: bytes, most_kept: int) -> None:
    """Freeing 50,000 jobs at the end of a command took 35 ms."""
    engine = Engine(Random(1), protocol_rules())
    due = 0 if command.startswith(b"QUEUE") else NOW + DAY
    for _ in range(1000):
        push = NewJob("", "x", b"[]", FAKTORY, "q", 25, 1_800_000_000, b"\n\n\n", due_at=due)
        engine.push(push, NOW)
    jobs = list(engine.jobs.values())
    client = faktory_client(engine)
    more = client.receive(command + b"\r\n", NOW, 1)
    while more and len(engine.jobs) > 200:
        more = client.run(NOW, 1)
        engine.take_changes()
    assert more
    removed = [job for job in jobs if job.seq not in engine.jobs]
    assert len(removed) >= 800
    del jobs
    # The list `removed`, the loop variable and the argument of the function.
    assert sum(sys.getrefcount(job) > 3 for job in removed) <= most_kept


def test_the_jobs_of_a_bulk_push_are_freed_in_slices() -> None:
    def alive() -> int:
        return sum(isinstance(each, NewJob) for each in gc.get_objects())

    engine = Engine(Random(1), protocol_rules())
    client, before = faktory_client(engine), alive()
    units = [{"jid": f"unit-{number:05}", "jobtype": "t", "args": []} for number in range(1000)]
    more = client.receive(b"PUSHB %b\r\n" % json.dumps(units).encode(), NOW, 1)
    while more and len(engine.jobs) < 600:
        more = client.run(NOW, 1)
    assert more
    assert alive() - before <= 1000 - len(engine.jobs) + 1
