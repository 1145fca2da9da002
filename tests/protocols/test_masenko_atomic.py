"""Transactions: the rules of the sheet for ATOMIC and DONE, and for blocking inside of them."""

from random import Random

import pytest
from masenko_conversation import OK, PONG, Masenko, heard

from millrace.engine.engine import Engine
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from scene import unit
from wires import data_of

NOW = 1_700_000_000_000_000
PUSH = 'PUSH {"name":"a"}'
COMMIT = "commit transaction: write to WAL: serialize operation: "


def refused(text: str, *lines: str, skipped_ids: int = 0) -> None:
    """A transaction of these lines is refused with this text; it has no effect except skipped ids."""
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        client.pushes("held")
        client.pushes("ready")
        client.fetches()
        client.commits(*lines).hears_error(text)
        assert client.queues() == {"default": (1, 0, 1)}
        assert client.pushes() == 3 + skipped_ids
        client.acks(1).is_still_there()


# The reply


def test_an_empty_transaction():
    assert heard("ATOMIC", "DONE") == OK
    assert heard(b"atomic junk\ndone junk\n") == OK


def test_no_reply_is_sent_before_done():
    with Masenko() as talk:
        client = talk.connect().says("ATOMIC").says(PUSH).says("push x").hears_nothing()
        client.says("done").hears_error("message 1: PUSH: cannot unmarshal payload")


def test_the_ids_of_the_pushes_in_their_order():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.commits(PUSH, 'ACK {"id":1}', PUSH, PUSH).hears(b'OK {"ids":[2,3,4]}\n')
        client.fetches()
        client.commits('ACK {"id":2}').hears(OK)


def test_a_reply_fits_into_one_read_of_the_python_client():
    with Masenko() as talk:
        client = talk.connect()
        talk.acts(lambda world: world.engine.skip_seqs(999))
        fits = (4096 - len('OK {"ids":[]}\n') + 1) // 5
        client.commits(*[PUSH] * fits)
        line = client._line()
        assert len(line) + 1 <= 4096 < len(line) + 6
        client.commits(*[PUSH] * (fits + 1)).hears(OK)
        assert len(talk.engine.jobs) == 2 * fits + 1


def test_a_line_of_exactly_4096_bytes():
    # 13 bytes around the ids, a newline, 4 digits and a comma for each but the last.
    with Masenko() as talk:
        client = talk.connect()
        talk.acts(lambda world: world.engine.skip_seqs(99_999))
        client.commits(*[PUSH] * 583)  # 583 * 7 - 1 + 14 = 4094
        assert len(client._line()) == 4093
        talk.acts(lambda world: world.engine.skip_seqs(9_990 - world.engine.next_seq))
        client.commits(*[PUSH] * 682)  # 10 of 4 digits, 672 of 5: 50 + 4032 - 1 + 14 = 4095
        assert len(client._line()) == 4094


# Refused transactions


@pytest.mark.parametrize("verb", ["PING", "QUIT", "FETCH", "NACK", "INFO", "ATOMIC", "NOPE"])
@pytest.mark.parametrize("rest", ["", " {}"])
def test_only_push_and_ack_are_allowed(verb, rest):
    for said in (verb, verb.lower()):
        refused(f"{verb} is not allowed in transaction.", f"{said}{rest}")


def test_other_lines_are_not_allowed():
    refused(" is not allowed in transaction.", "")
    refused(" is not allowed in transaction.", " PUSH")
    refused("ŻÓŁWß is not allowed in transaction.", "żółwß")
    reply = heard(b"ATOMIC\n\xff<\nDONE\n")
    assert reply == b'ERR {"msg":"\xef\xbf\xbd\\u003c is not allowed in transaction."}\n'


def test_a_nested_atomic_ends_with_the_first_done():
    with Masenko() as talk:
        client = talk.connect().says("ATOMIC\nATOMIC\nDONE\nDONE")
        client.hears_error("ATOMIC is not allowed in transaction.").hears_error("unknown verb DONE")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("PUSH", "cannot unmarshal payload"),
        ("push {", "cannot unmarshal payload"),
        ('PUSH {"name":""}', 'invalid task name ""'),
        ('PUSH {"name":"a","queue":"!"}', 'invalid queue name "!"'),
        ('PUSH {"name":"a","deadqueue":"!"}', 'invalid queue name "default"'),
        (f'PUSH {{"name":"a","blocked_by":{[1] * 256}}}', "at most 255 blocked by task IDs can be provided"),
        ('PUSH {"name":"a","blocked_by":[0]}', "cannot self reference in blocked by"),
        ('PUSH {"name":"a","blocked_by":[-1,0]}', "cannot self reference in blocked by"),
        ('PUSH {"name":"a","blocked_by":[-2]}', "invalid relative task position in blocked by"),
        ('PUSH {"name":"a","blocked_by":[-2,0]}', "invalid relative task position in blocked by"),
        ('PUSH {"name":"a","blocked_by":[-9223372036854775808]}', "invalid relative task position in blocked by"),
        ("ACK", "unmarshal payload: unexpected end of JSON input"),
        ("ack {}", "missing id"),
        ('ACK {"id":"x"}', "unmarshal payload: json: cannot unmarshal string into Go struct field ackRequest.id of type uint32"),
    ],
)  # fmt: skip
def test_invalid_commands(line, text):
    verb = line.partition(" ")[0].upper()
    refused(f"message 1: {verb}: {text}", PUSH, line, PUSH, skipped_ids=1)


def test_the_first_failing_command_decides():
    refused("message 0: ACK: missing id", "ACK {}", "PUSH x", "PING")
    refused("PING is not allowed in transaction.", PUSH, PUSH, "PING", "PUSH x", skipped_ids=2)
    refused("task 55 not acquired", 'ACK {"id":1}', PUSH, 'ACK {"id":55}', "PING", skipped_ids=1)


@pytest.mark.parametrize("task", [2, 3, 55, 4294967295])
def test_tasks_that_were_not_acquired(task):
    refused(f"task {task} not acquired", f'ACK {{"id":{task}}}', PUSH)


def test_the_same_task_acknowledged_twice():
    refused("task 1 not acquired", 'ACK {"id":1}', PUSH, 'ACK {"id":1}', skipped_ids=1)


def test_a_task_that_was_acknowledged_earlier():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.acks(1).commits('ACK {"id":1}').hears_error("task 1 not acquired")


def test_a_task_that_another_client_ended():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.pushes()
        client.fetches()
        client.fetches()
        client.says(
            f'ATOMIC\n{PUSH}\nACK {{"id":2}}\n{PUSH}\nACK {{"id":1}}\n{PUSH}'
        ).hears_nothing()
        talk.acts(lambda world: world.engine.cancel(world.engine.jobs[1], world.now))
        client.says("DONE").hears_error("task 1 not acquired")
        assert list(talk.engine.jobs) == [2]
        assert client.acks(2).pushes() == 5


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ('"queue":"%s"' % ("q" * 256), "queue name too long"),
        ('"deadqueue":"%s"' % ("d" * 256), "deadqueue name too long"),
        ('"payload":"%s"' % ("x" * 65_534), "arguments too big"),
    ],
)  # fmt: skip
def test_values_beyond_their_length(fields, problem):
    line = f'PUSH {{"name":"a",{fields}}}'
    refused(f"{COMMIT}input: {problem}", PUSH, line, PUSH, skipped_ids=3)
    refused("message 3: ACK: missing id", PUSH, line, PUSH, "ACK {}", PUSH, skipped_ids=3)
    refused("task 7 not acquired", line, 'ACK {"id":7}', skipped_ids=1)
    refused("task 1 not acquired", line, 'ACK {"id":1}', 'ACK {"id":1}', skipped_ids=1)


# Size limit


def sized(total: int) -> list[str]:
    """Pushes with this total size of records in the log of the original."""
    lines, left = [], total - 2
    while left > 65_000:
        size = min(left - 100, 60_000)
        lines.append(f'PUSH {{"name":"a","queue":"q","payload":"{"x" * (size - 19 - 2 - 2)}"}}')
        left -= size
    lines.append(f'PUSH {{"name":"a","queue":"q","payload":"{"x" * (left - 19 - 2 - 2)}"}}')
    return lines


def test_one_megabyte_is_the_limit():
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        lines = sized(1_000_000)
        ids = ",".join(str(n + 1) for n in range(len(lines)))
        client.commits(*lines).hears(b'OK {"ids":[%b]}\n' % ids.encode())
        client.commits(*sized(1_000_001)).hears_error(COMMIT + "buffer too small: size")
        assert len(talk.engine.jobs) == len(lines)
        assert client.pushes() == 2 * len(lines) + 1


def test_every_part_of_a_record_counts():
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        tail = 'PUSH {"name":"żn","queue":"qq","deadqueue":"ddd","payload": 12 ,"blocked_by":[7,8]}'
        size = 19 + 3 + 2 + 3 + 2 + 8
        client.commits(*sized(1_000_000 - size), tail)
        assert client._line().startswith(b'OK {"ids":[')
        client.commits(*sized(1_000_001 - size), tail).hears_error(
            COMMIT + "buffer too small: size"
        )


@pytest.mark.parametrize("fits", [True, False])
def test_acknowledgements_count(fits):
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.commits(*sized(1_000_000 - 7 + (not fits)), 'ACK {"id":1}')
        if fits:
            assert client._line().startswith(b'OK {"ids":[')
            assert 1 not in talk.engine.jobs
        else:
            client.hears_error(COMMIT + "buffer too small: size")
            assert list(talk.engine.jobs) == [1]


def test_forty_thousand_small_tasks_fit_and_sixty_thousand_do_not():
    talk = Masenko(dialect="original")  # played once
    client = talk.connect()
    line = 'PUSH {"name":"a","queue":"q"}'
    client.commits(*[line] * 40_000).hears(OK)
    assert len(talk.engine.jobs) == 40_000
    client.commits(*[line] * 60_000).hears_error(COMMIT + "buffer too small: size")
    assert len(talk.engine.jobs) == 40_000


def test_the_size_is_limited_in_the_dialect_of_the_original_only():
    talk = Masenko()  # played once
    client = talk.connect()
    large = f'PUSH {{"name":"a","payload":"{"x" * 65_534}"}}'
    client.commits(*[large] * 20, *[PUSH] * 40_000).hears(OK)
    assert len(talk.engine.jobs) == 40_020


def test_the_first_command_that_does_not_fit_decides():
    long = f'PUSH {{"name":"a","queue":"{"q" * 256}"}}'
    big = f'PUSH {{"name":"a","payload":"{"x" * 65_000}"}}'
    refused(f"{COMMIT}buffer too small: size", *[big] * 16, long, skipped_ids=17)
    refused(f"{COMMIT}input: queue name too long", long, *[big] * 16, skipped_ids=17)
    refused("message 17: PUSH: cannot unmarshal payload", *[big] * 17, "PUSH x", skipped_ids=17)


def test_a_refused_transaction_takes_no_memory():
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        big = f'PUSH {{"name":"a","payload":"{"x" * 65_000}"}}\n'
        client.says(b"ATOMIC\n" + big.encode() * 16)
        assert client.connection._transaction.operations == []
        client.says("DONE").hears_error(COMMIT + "buffer too small: size")
        client.says(f"ATOMIC\n{big * 3}PING")
        assert client.connection._transaction.operations == []
        client.says("DONE").hears_error("PING is not allowed in transaction.")


# Blocking


def test_blocking_is_enforced_over_chains_of_any_depth():
    with Masenko() as talk:
        client = talk.connect()
        lines = [PUSH] + ['PUSH {"name":"a","blocked_by":[-1]}'] * 40
        client.commits(*lines)._line()
        assert client.queues() == {"default": (1, 0, 0)}
        for task in range(1, 42):
            assert client.fetches()["id"] == task
            client.finds_nothing().acks(task)
        client.finds_nothing()


def test_acknowledgements_are_not_counted_in_positions():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.commits(PUSH, 'ACK {"id":1}', 'PUSH {"name":"b","blocked_by":[-1]}')._line()
        assert client.fetches()["id"] == 2
        client.finds_nothing().acks(2)
        assert client.fetches()["id"] == 3


def test_positions_and_ids_together():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.commits(PUSH, 'PUSH {"name":"b","blocked_by":[1,-1,1,-1,99]}')._line()
        client.fetches()
        client.fetches()
        client.acks(1).finds_nothing().acks(2)
        assert client.fetches()["id"] == 3


def test_a_push_blocked_by_a_task_acknowledged_in_the_same_transaction():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        blocked = 'PUSH {"name":"b","blocked_by":[1]}'
        client.commits(blocked, 'ACK {"id":1}', blocked)._line()
        assert client.queues() == {"default": (2, 0, 0)}


def test_a_blocked_task_is_delivered_once():
    with Masenko() as talk:
        client = talk.connect()
        client.commits(PUSH, PUSH, 'PUSH {"name":"c","blocked_by":[-2]}', 'PUSH {"name":"d","blocked_by":[-1,-3]}')._line()  # fmt: skip
        seen = []
        for _ in range(4):
            task = client.fetches()["id"]
            seen.append(task)
            client.acks(task)
        assert seen == [1, 2, 3, 4]
        client.finds_nothing()


def test_a_task_that_is_delivered_immediately_still_blocks():
    with Masenko() as talk:
        worker, client = talk.connect(), talk.connect()
        worker.asks(timeout="10s")
        client.commits(PUSH, 'PUSH {"name":"b","blocked_by":[-1]}').hears(b'OK {"ids":[1,2]}\n')
        assert worker.hears_task()["id"] == 1
        client.finds_nothing()
        worker.acks(1)
        assert client.fetches()["id"] == 2


# Atomicity


def test_an_end_before_done_has_no_effect():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.says(f'ATOMIC\n{PUSH}\nACK {{"id":1}}').says_no_more().hears_the_end()
        assert talk.job(1).failures == 1
        assert talk.engine.next_seq == 2


def test_a_disconnect_before_done_has_no_effect():
    with Masenko() as talk:
        talk.connect().says(f"ATOMIC\n{PUSH}").hangs_up()
        assert talk.engine.jobs == {}


def test_a_quit_inside_of_a_transaction_does_not_end_the_connection():
    with Masenko() as talk:
        client = talk.connect().commits("QUIT").hears_error("QUIT is not allowed in transaction.")
        client.says("PING").hears(PONG)


def test_a_transaction_is_one_change():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.says(f'ATOMIC\n{PUSH}\nACK {{"id":1}}\n{PUSH}')
        assert not talk.engine.change_set
        client.says("DONE").hears(b'OK {"ids":[2,3]}\n')
        assert client.wire.durable == [0, 2]


def test_a_job_of_another_protocol_can_be_acknowledged():
    with Masenko() as talk:
        talk.acts(lambda world: world.engine.push(unit("some-jid"), world.now))
        client = talk.connect()
        client.fetches()
        client.commits('ACK {"id":1}', PUSH).hears(b'OK {"ids":[2]}\n')
        assert list(talk.engine.jobs) == [2]


# A task that the connection loses while a large transaction runs in slices


def _release(engine, task):
    engine.release(task, NOW)


def _delete(engine, task):
    engine.cancel(task, NOW)


def _end_and_lease_again(engine, task):
    engine.release(task, NOW)
    assert engine.lease(["default"], "another", FAKTORY, NOW) is task


@pytest.mark.parametrize("lose", [_release, _delete, _end_and_lease_again])
def test_a_large_transaction_is_refused_if_a_task_is_lost_before_its_end(lose):
    engine = Engine(Random(1), protocol_rules())
    hub = MasenkoHub(engine)
    client = MasenkoConnection(hub)
    client.receive(b'PUSH {"name":"a"}\nPUSH {"name":"b"}\nFETCH {}\n', NOW, 10)
    client.replies.clear()
    task = engine.jobs[1]
    lines = b'ATOMIC\nACK {"id":1}\n' + b'PUSH {"name":"x"}\n' * 200 + b"DONE\n"
    client.receive(lines, NOW, 300)
    while client.long_command is None:
        client.run(NOW, 1)
    lose(engine, task)
    state = task.state
    for _ in range(100):
        client.run(NOW, 1)
        engine.tick(NOW)
    assert data_of(client) == [b'ERR {"msg":"task 1 not acquired"}\n']
    assert (task.state, task.seq in engine.jobs) == (state, lose is not _delete)
    assert all(seq <= 2 for seq in engine.jobs)
    assert client.hub.requests[b"ACK"] == 0
