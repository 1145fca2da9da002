"""The heartbeat and waits, on a virtual clock."""

from random import Random

import pytest
from conversation import START
from masenko_conversation import EMPTY, OK, PONG, Masenko

from millrace.engine.engine import Engine
from millrace.engine.job import SECOND
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.spec import protocol_rules
from wires import data_of

TICK = 0.000001


@pytest.mark.parametrize("heartbeat", [45, 1, 0.5])
def test_a_silent_client_is_disconnected(heartbeat):
    with Masenko(heartbeat=round(heartbeat * 1_000_000)) as talk:
        client = talk.connect()
        talk.advance(heartbeat)
        client.hears_nothing().is_still_there()
        talk.advance(TICK)
        client.hears_error("no heartbeat").hears_the_end()


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"PING\n", PONG),
        (b"NOPE\n", b'ERR {"msg":"unknown verb NOPE"}\n'),
        (b"\n", b'ERR {"msg":"unknown verb "}\n'),
        (b"PUSH x\n", b'ERR {"msg":"cannot unmarshal payload"}\n'),
        (b'FETCH {"queues":[]}\n', EMPTY),
        (b"ATOMIC\nDONE\n", OK),
    ],
)
def test_any_line_counts(line, reply):
    with Masenko() as talk:
        client = talk.connect()
        for _ in range(4):
            talk.advance(40)
            client.says(line).hears(reply)
        talk.advance(45)
        client.says(line).hears(reply)
        talk.advance(45 + TICK)
        client.hears_error("no heartbeat").hears_the_end()


def test_lines_inside_of_a_transaction_count():
    with Masenko() as talk:
        client = talk.connect().says("ATOMIC")
        for _ in range(3):
            talk.advance(40)
            client.says('PUSH {"name":"a"}')
        talk.advance(40)
        client.says("DONE").hears(b'OK {"ids":[1,2,3]}\n')
        client.says("ATOMIC")
        talk.advance(45 + TICK)
        client.hears_error("no heartbeat").hears_the_end()


def test_bytes_without_a_newline_do_not_count():
    with Masenko() as talk:
        client = talk.connect()
        for _ in range(9):
            talk.advance(5)
            client.says(b"P").hears_nothing()
        talk.advance(TICK)
        client.hears_error("no heartbeat").hears_the_end()


def test_a_disconnected_client_loses_its_tasks():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        talk.advance(46)
        client.hears_error("no heartbeat").hears_the_end()
        assert talk.connect().fetches()["failures"] == 1


def test_a_fetch_as_long_as_the_heartbeat_is_answered():
    with Masenko(heartbeat=1_000_000) as talk:
        client = talk.connect().says('FETCH {"timeout":"1s"}')
        talk.advance(1)
        client.hears(EMPTY).is_still_there()
        client.says('FETCH {"timeout":"1s"}')
        talk.advance(1)
        client.hears(EMPTY).says("PING").hears(PONG)


def test_a_fetch_as_long_as_the_heartbeat_can_return_a_late_task():
    with Masenko(heartbeat=1_000_000) as talk:
        client, other = talk.connect(), talk.connect()
        client.says('FETCH {"timeout":"1s"}')
        talk.advance(0.999)
        other.pushes()
        client.hears_task()
        talk.advance(0.4)
        client.acks(1)
        other.says("PING").hears(PONG)


@pytest.mark.parametrize(
    ("timeout", "left"), [("1s", 44), ("20s", 25), ("22.5s", 22.5), ("30s", 22.5), ("45s", 22.5)]
)
def test_after_a_fetch_at_least_half_of_the_heartbeat_is_left(timeout, left):
    with Masenko() as talk:
        client = talk.connect().says(f'FETCH {{"timeout":"{timeout}"}}')
        talk.advance(float(timeout[:-1]))
        client.hears(EMPTY)
        talk.advance(left)
        client.hears_nothing().is_still_there()
        talk.advance(TICK)
        client.hears_error("no heartbeat").hears_the_end()


def test_commands_behind_a_fetch_count_when_they_run():
    with Masenko() as talk:
        client = talk.connect().says('FETCH {"timeout":"30s"}\nFETCH {"timeout":"30s"}\nPING')
        talk.advance(30)
        client.hears(EMPTY)
        talk.advance(30)
        client.hears(EMPTY, PONG)
        talk.advance(45)
        client.is_still_there()
        talk.advance(TICK)
        client.hears_error("no heartbeat").hears_the_end()


def test_the_order_of_queues_applies_to_tasks_due_at_the_same_time():
    with Masenko() as talk:
        client, late, early = talk.connect(), talk.connect(), talk.connect()
        for queue in ("a", "b", "c", "a"):
            client.pushes(queue, queue=queue, execute_at="2026-11-15T19:44:00Z")
        early.asks("none", "c", "b", "a", timeout="30s")
        late.asks("c", "b", "a", timeout="30s")
        talk.advance(15)
        assert early.hears_task()["queue"] == "c"
        assert late.hears_task()["queue"] == "b"
        assert client.queues()["a"] == (0, 2, 0)


@pytest.mark.parametrize("count", [2, 300])
def test_the_order_of_queues_applies_to_the_tasks_of_a_transaction(count):
    with Masenko() as talk:
        client, worker = talk.connect(), talk.connect()
        worker.asks("b", "a", timeout="30s")
        queues = ["a", "b"] * (count // 2)
        pushes = [f'PUSH {{"name":"n","queue":"{queue}"}}' for queue in queues]
        ids = b",".join(b"%d" % number for number in range(1, count + 1))
        client.commits(*pushes).hears(b'OK {"ids":[%b]}\n' % ids)
        assert worker.hears_task()["queue"] == "b"


def test_a_client_is_disconnected_once():
    with Masenko() as talk:
        client = talk.connect()
        talk.advance(200)
        client.hears_error("no heartbeat").hears_the_end()
        assert len(talk.engine.timers) == 0


def test_a_closed_connection_leaves_no_alarm():
    with Masenko() as talk:
        client = talk.connect().says("PING").hears(PONG)
        talk.advance(1)
        assert len(talk.engine.timers) == 1
        client.says('FETCH {"timeout":"40s"}')
        assert len(talk.engine.timers) == 2
        client.hangs_up()
        assert len(talk.engine.timers) == 0


def test_a_refused_connection_has_no_alarm():
    with Masenko(max_connections=0) as talk:
        talk.connect().hears_error("too many connections").hears_the_end()
        assert (len(talk.engine.timers), talk.engine.leases.holders) == (0, set())


def test_one_alarm_for_any_number_of_lines():
    with Masenko() as talk:
        client = talk.connect()
        talk.advance(1)
        ticks = talk.engine.timers._last_number
        for _ in range(100):
            client.says("PING").hears(PONG)
        assert talk.engine.timers._last_number == ticks


def test_waiters_are_served_in_order_and_once():
    with Masenko() as talk:
        workers = [talk.connect().asks("a", "b", timeout="30s") for _ in range(5)]
        talk.advance(29)
        client = talk.connect()
        for queue in "abab":
            client.pushes(queue=queue)
        for number, worker in enumerate(workers[:4], 1):
            assert worker.hears_task()["id"] == number
        workers[4].hears_nothing()
        talk.advance(1)
        workers[4].hears(EMPTY)


def test_half_a_heartbeat_by_default():
    with Masenko(heartbeat=1_000_001) as talk:
        client = talk.connect().says("FETCH")
        talk.advance(0.499999)
        client.hears_nothing()
        talk.advance(TICK)
        client.hears(EMPTY)


def test_less_than_a_microsecond_counts_as_one():
    with Masenko() as talk:
        client = talk.connect().says('FETCH {"timeout":1}').hears_nothing()
        talk.advance(TICK)
        client.hears(EMPTY)


def test_a_long_command_continues_beyond_the_heartbeat():
    engine = Engine(Random(1), protocol_rules())
    hub = MasenkoHub(engine, heartbeat=SECOND)
    client, now = MasenkoConnection(hub), START

    def tick():
        nonlocal now
        now += SECOND // 10
        engine.tick(now)
        alarms, engine.alarms = engine.alarms, []
        for owner, what in alarms:
            owner.handle_alarm(what, now)

    count = 10_000
    client.receive(b"ATOMIC\n" + b'PUSH {"name":"a"}\n' * count + b"DONE\n", now, 2 * count)
    begun = now
    while client.long_command is not None:
        tick()
        client.run(now, 1)
        assert not client.closing
    assert now - begun > 2 * SECOND
    assert data_of(client) == [OK]
    client.replies.clear()
    for _ in range(4):
        tick()
        assert not client.replies, "the client has half of the heartbeat for its next line"
    client.receive(b"PING\n", now, 1)
    assert data_of(client) == [PONG]
    client.replies.clear()
    for _ in range(11):
        tick()
    assert data_of(client) == [b'ERR {"msg":"no heartbeat"}\n']
