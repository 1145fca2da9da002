"""Malformed input: wrong lengths, strings without an end, floods. The server executes no unreadable
command, buffers no more than its limits, and serves other clients.
"""

import time
import tracemalloc

import pytest
from goqueue_conversation import (
    MAX_UINT32,
    OK,
    Goqueue,
    GoqueueWorld,
    add,
    added,
    error,
    reserve,
    reserved,
)

from millrace.protocols.goqueue.connection import GoqueueConnection
from wires import data_of

LIMIT = 16 << 20
TOO_LARGE = "Malformed ADD command: the data is larger than 16777216 bytes"
TOO_LONG = "the queue name is longer than 255 bytes"


# Data


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31, MAX_UINT32])
def test_a_length_above_the_limit_closes_the_connection_before_the_data(size):
    with Goqueue() as talk:
        client = talk.connect().says(b"CONNECT\0" + add(b"", size=size)).hears(OK)
        client.hears_error(TOO_LARGE).hears_the_end()
        assert talk.engine.next_seq == 1


def test_commands_after_such_a_length_are_ignored():
    with Goqueue() as talk:
        client = talk.connect().says(add(b"", size=MAX_UINT32) + b"CONNECT\0")
        client.hears_error(TOO_LARGE).hears_the_end()


def test_data_at_the_limit():
    world = GoqueueWorld({"max_data": 100_000})
    wire = world.connect()
    wire.receive(add(b"x" * 100_000))
    assert wire.heard == added(1)
    wire.receive(add(b"x" * 100_001))
    assert bytes(wire.heard).endswith(
        error("Malformed ADD command: the data is larger than 100000 bytes")
    )
    assert wire.closed


def test_the_largest_data_of_all():
    world = GoqueueWorld({})
    wire = world.connect()
    data = b"0123456789abcdef" * (1 << 20)
    command = add(data)
    for at in range(0, len(command), 262_144):
        wire.receive(command[at : at + 262_144])
    wire.receive(reserve())
    assert bytes(wire.heard) == added(1) + reserved(1, data)


def test_a_length_alone_allocates_no_memory():
    world = GoqueueWorld({"max_data": MAX_UINT32})
    tracemalloc.start()
    try:
        wire = world.connect()
        wire.receive(add(b"some", size=MAX_UINT32))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert wire.connection.unprocessed_bytes == 1


def test_an_end_inside_the_data_adds_no_job():
    with Goqueue() as talk:
        talk.connect().says(add(b"12345", size=6)).hangs_up()
        assert not talk.engine.jobs
        assert not talk.engine.queues


# Strings


@pytest.mark.parametrize("end", [b"", b"\0" + bytes(12), b"q" * 1000])
@pytest.mark.parametrize("command_bytes", ["ADD", "RESERVE"])
def test_a_queue_name_beyond_the_limit(command_bytes, end):
    with Goqueue() as talk:
        client = talk.connect().says(command_bytes.encode() + b"\0" + b"q" * 256 + end)
        client.hears_error(f"Malformed {command_bytes} command: {TOO_LONG}").hears_the_end()
        assert not talk.engine.queues


def test_a_queue_name_is_measured_in_bytes():
    with Goqueue() as talk:
        client = talk.connect().adds(1, queue="ż" * 127 + "q")
        client.says(add(b"", "ż" * 128))
        client.hears_error(f"Malformed ADD command: {TOO_LONG}").hears_the_end()


def test_a_queue_name_without_an_end_yet():
    with Goqueue() as talk:
        client = talk.connect().says(b"ADD\0" + b"q" * 255).hears_nothing().is_still_there()
        client.says(b"\0" + bytes(12)).hears(added(1))


@pytest.mark.parametrize(
    "queue", [b"\xff", b"q\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\x80" * 255, b"\xf5\x80\x80\x80"]
)
def test_a_queue_name_that_is_not_utf8(queue):
    with Goqueue() as talk:
        client = talk.connect().says(add(b"DELETE\0", queue))
        client.hears_error("The queue name is not UTF-8")
        client.reserves(queue, 0).hears_error("The queue name is not UTF-8")
        client.adds(1)
        assert list(talk.engine.queues) == ["q1"]


@pytest.mark.parametrize(
    "command_bytes", [b"a", b"ADD\n", b"AD D", b"\x7f", b"WAIT / HTTP/1.1", b"W" * 256]
)
def test_an_invalid_command_closes_the_connection_before_its_nul(command_bytes):
    with Goqueue() as talk:
        talk.connect().says(command_bytes).hears_the_end()


def test_an_incomplete_command_keeps_the_connection_open():
    with Goqueue() as talk:
        talk.connect().says(b"W" * 255).hears_nothing().is_still_there()


def test_commands_before_an_invalid_one_are_answered():
    with Goqueue() as talk:
        talk.connect().says(add(b"x") + b"oops").hears(added(1)).hears_the_end()


def test_input_after_the_end_is_ignored():
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(b"oops")
    wire.connection.receive(b"CONNECT\0" * 1000, world.now, 64)
    assert wire.connection.replies == []
    assert wire.connection.unprocessed_bytes <= 4, "unused input is not buffered"


# Floods


def test_input_of_a_waiting_client_is_limited():
    """The server stops reading while `unprocessed_bytes` is above its limit, so the value must
    include all input.
    """
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(reserve(timeout=0))
    for _ in range(4):
        wire.receive(b"CONNECT\0" * 100_000)
    assert wire.connection.unprocessed_bytes == 4 * 800_000


def test_the_rest_of_an_incomplete_command_is_read():
    """If its bytes counted, the server would stop reading, and the command would never complete."""
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(add(b"x" * (8 << 20), size=9 << 20))
    assert wire.connection.unprocessed_bytes == 1
    wire.receive(b"x" * (1 << 20))
    assert wire.connection.unprocessed_bytes == 0
    assert wire.heard == added(1)


def test_the_rest_of_an_incomplete_command_behind_a_wait_is_read():
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(reserve(timeout=1) + add(b"x" * (2 << 20), size=3 << 20))
    assert wire.connection.unprocessed_bytes > 2 << 20
    world.advance(1_000_000)
    assert wire.connection.unprocessed_bytes == 1


def test_a_share_of_commands_at_a_time():
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    assert connection.receive(b"CONNECT\0" * 10, world.now, 4)
    assert len(connection.replies) == 4
    assert connection.unprocessed_bytes == 6 * 8
    assert connection.run(world.now, 4)
    assert not connection.run(world.now, 4)
    assert len(connection.replies) == 10
    assert connection.unprocessed_bytes == 0


def test_fed_input_is_executed_later():
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    connection.feed(b"CONNECT\0CON")
    connection.feed(b"NECT\0")
    assert data_of(connection) == []
    assert not connection.run(world.now, 64)
    assert data_of(connection) == [OK, OK]


def test_after_a_large_reply_the_next_command_waits_for_the_next_turn():
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    big = b"x" * 70_000
    connection.receive(add(big) + add(big), world.now, 64)
    connection.replies.clear()
    assert connection.receive(reserve() + reserve(), world.now, 64)
    assert data_of(connection) == [reserved(1, big)]
    assert not connection.run(world.now, 64)
    assert data_of(connection) == [reserved(1, big), reserved(2, big)]


def test_executed_input_is_not_buffered():
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(add(b"x" * 1_000_000) + b"CONN")
    assert wire.connection._input.data == b"CONN"
    wire.receive(b"ECT\0")
    assert wire.connection._input.data == b""
    assert wire.connection.memory_used == 0


@pytest.mark.parametrize(("total", "size"), [(1 << 18, 1), (LIMIT, 1000)])
def test_data_in_small_segments_takes_linear_time(total, size):
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    command = add(b"x" * total)
    started = time.process_time()
    for at in range(0, len(command), size):
        connection.receive(command[at : at + size], world.now, 64)
    assert data_of(connection) == [added(1)]
    assert time.process_time() - started < 8  # quadratic time would be longer


def test_a_thousand_pipelined_commands_are_not_copied_each_time():
    """Each command leaves the following bytes in place: 1 MiB of commands does not cost 500 GiB of
    copies.
    """
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    started = time.process_time()
    more = connection.receive(b"CONNECT\0" * (1 << 17), world.now, 64)
    while more:
        more = connection.run(world.now, 64)
    assert len(connection.replies) == 1 << 17
    assert time.process_time() - started < 30
