"""What no good client sends: lengths that lie, strings without an end, floods. Nothing is done of a
command that cannot be read, nothing is kept beyond the limits, and others notice nothing.
"""

import time
import tracemalloc

import pytest
from goqueue_conversation import (
    MOST,
    OK,
    Goqueue,
    GoqueueWorld,
    add,
    added,
    error,
    reserve,
    reserved,
)

from millrace.protocols.goqueue import GoqueueConnection

LIMIT = 16 << 20
TOO_LARGE = "Malformed ADD command: the data is larger than 16777216 bytes"
TOO_LONG = "the queue name is longer than 255 bytes"


# Data


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31, MOST])
def test_a_length_above_the_limit_ends_the_connection_before_the_data_comes(size):
    with Goqueue() as talk:
        client = talk.connect().says(b"CONNECT\0" + add(b"", size=size)).hears(OK)
        client.hears_error(TOO_LARGE).hears_the_end()
        assert talk.engine.next_seq == 1


def test_what_follows_such_a_length_is_not_done():
    with Goqueue() as talk:
        client = talk.connect().says(add(b"", size=MOST) + b"CONNECT\0")
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


def test_nothing_is_allocated_from_a_length():
    world = GoqueueWorld({"max_data": MOST})
    tracemalloc.start()
    try:
        wire = world.connect()
        wire.receive(add(b"some", size=MOST))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert wire.connection.backlog == 1


def test_the_end_inside_the_data_adds_nothing():
    with Goqueue() as talk:
        talk.connect().says(add(b"12345", size=6)).hangs_up()
        assert not talk.engine.jobs
        assert not talk.engine.queues


# Strings


@pytest.mark.parametrize("end", [b"", b"\0" + bytes(12), b"q" * 1000])
@pytest.mark.parametrize("word", ["ADD", "RESERVE"])
def test_a_queue_name_beyond_the_limit(word, end):
    with Goqueue() as talk:
        client = talk.connect().says(word.encode() + b"\0" + b"q" * 256 + end)
        client.hears_error(f"Malformed {word} command: {TOO_LONG}").hears_the_end()
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
def test_a_queue_name_that_is_no_utf8(queue):
    with Goqueue() as talk:
        client = talk.connect().says(add(b"DELETE\0", queue))
        client.hears_error("The queue name is not UTF-8")
        client.reserves(queue, 0).hears_error("The queue name is not UTF-8")
        client.adds(1)
        assert list(talk.engine.queues) == ["q1"]


@pytest.mark.parametrize("word", [b"a", b"ADD\n", b"AD D", b"\x7f", b"WAIT / HTTP/1.1", b"W" * 256])
def test_a_word_that_cannot_become_a_command_ends_the_connection_before_its_nul(word):
    with Goqueue() as talk:
        talk.connect().says(word).hears_the_end()


def test_a_word_that_can_still_become_a_command():
    with Goqueue() as talk:
        talk.connect().says(b"W" * 255).hears_nothing().is_still_there()


def test_what_came_before_a_bad_word_is_answered():
    with Goqueue() as talk:
        talk.connect().says(add(b"x") + b"oops").hears(added(1)).hears_the_end()


def test_nobody_is_heard_after_the_end():
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(b"oops")
    wire.connection.receive(b"CONNECT\0" * 1000, world.now, 64)
    assert wire.connection.replies == []
    assert wire.connection.backlog <= 4, "what nobody will look at is not kept"


# Floods


def test_a_client_that_waits_is_not_read_beyond_the_servers_limit():
    """The server reads no more while `backlog` is above its limit, so it must tell all there is."""
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(reserve(timeout=0))
    for _ in range(4):
        wire.receive(b"CONNECT\0" * 100_000)
    assert wire.connection.backlog == 4 * 800_000


def test_a_command_that_is_still_coming_is_read_on():
    """Were it counted by its bytes, nobody would read the rest, and it would never be done."""
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(add(b"x" * (8 << 20), size=9 << 20))
    assert wire.connection.backlog == 1
    wire.receive(b"x" * (1 << 20))
    assert wire.connection.backlog == 0
    assert wire.heard == added(1)


def test_also_behind_a_wait():
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(reserve(timeout=1) + add(b"x" * (2 << 20), size=3 << 20))
    assert wire.connection.backlog > 2 << 20
    world.advance(1_000_000)
    assert wire.connection.backlog == 1


def test_a_share_of_commands_at_a_time():
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    assert connection.receive(b"CONNECT\0" * 10, world.now, 4)
    assert len(connection.replies) == 4
    assert connection.backlog == 6 * 8
    assert connection.run(world.now, 4)
    assert not connection.run(world.now, 4)
    assert len(connection.replies) == 10
    assert connection.backlog == 0


def test_what_is_fed_is_done_later():
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    connection.feed(b"CONNECT\0CON")
    connection.feed(b"NECT\0")
    assert connection.replies == []
    assert not connection.run(world.now, 64)
    assert connection.replies == [OK, OK]


def test_after_a_large_reply_the_next_command_waits_for_the_next_turn():
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    big = b"x" * 70_000
    connection.receive(add(big) + add(big), world.now, 64)
    connection.replies.clear()
    assert connection.receive(reserve() + reserve(), world.now, 64)
    assert connection.replies == [reserved(1, big)]
    assert not connection.run(world.now, 64)
    assert connection.replies == [reserved(1, big), reserved(2, big)]


def test_what_was_done_is_not_kept():
    world = GoqueueWorld({})
    wire = world.connect()
    wire.receive(add(b"x" * 1_000_000) + b"CONN")
    assert wire.connection._data == b"CONN"
    wire.receive(b"ECT\0")
    assert wire.connection._data == b""
    assert wire.connection._later == b""


@pytest.mark.parametrize(("total", "size"), [(1 << 18, 1), (LIMIT, 1000)])
def test_data_in_small_pieces_takes_no_longer_than_it_must(total, size):
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    command = add(b"x" * total)
    started = time.process_time()
    for at in range(0, len(command), size):
        connection.receive(command[at : at + size], world.now, 64)
    assert connection.replies == [added(1)]
    assert time.process_time() - started < 8  # quadratic, it would be longer


def test_a_thousand_commands_in_one_piece_are_not_copied_each_time():
    """Each command leaves the rest where it is: 1 MiB of them costs no 500 GiB of copying."""
    world = GoqueueWorld({})
    connection = GoqueueConnection(world.hub)
    started = time.process_time()
    more = connection.receive(b"CONNECT\0" * (1 << 17), world.now, 64)
    while more:
        more = connection.run(world.now, 64)
    assert len(connection.replies) == 1 << 17
    assert time.process_time() - started < 30
