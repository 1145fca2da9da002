"""The Go Job Queue protocol's description, in its order: data definitions, errors, commands."""

import pytest
from goqueue_conversation import MAX_UINT32, OK, TIMEOUT, Goqueue, delete, error, reserve

# Data definitions


def test_integers_are_little_endian():
    with Goqueue() as talk:
        client = talk.connect()
        client.says(
            b"ADD\0q1\0" + bytes([4, 3, 2, 1]) + bytes([1, 2, 0, 0]) + bytes([2, 0, 0, 0]) + b"hi"
        ).hears(b"ADDED\0" + bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        job = talk.job(1)
        assert job.rank == -0x01020304
        assert job.lease_duration == 0x0201 * 1_000_000
        assert job.inline_payload == b"hi"
        client.reserves().hears(
            b"RESERVED\0"
            + bytes([1, 0, 0, 0, 0, 0, 0, 0])
            + bytes([4, 3, 2, 1])
            + bytes([1, 2, 0, 0])
            + b"reserved\0"
            + bytes([2, 0, 0, 0])
            + b"hi"
        )
        client.says(b"DELETE\0" + bytes([1, 0, 0, 0, 0, 0, 0, 0])).hears(OK)


@pytest.mark.parametrize(
    "queue", ["q", "emails", "żółw 🐢", "with space", "line\r\nbreak", "\x01", '"', "q" * 255]
)
def test_a_queue_is_any_utf8_string(queue):
    with Goqueue() as talk:
        talk.connect().adds(1, b"x", queue).reserves(queue).hears_job(1, b"x")


def test_queues_are_separate():
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"a", "a").adds(2, b"b", "b")
        client.reserves("b").hears_job(2, b"b").reserves("a").hears_job(1, b"a")


def test_an_id_has_64_bits():
    with Goqueue() as talk:
        talk.acts(lambda world: setattr(world.engine, "next_seq", 2**40 + 7))
        client = talk.connect().adds(2**40 + 7, b"x").reserves().hears_job(2**40 + 7, b"x")
        client.deletes(7).hears_error("Job 7 already deleted")
        client.deletes(2**40 + 7).hears_ok()


@pytest.mark.parametrize("priority", [0, 1, 2**31 - 1, 2**31, MAX_UINT32])
def test_a_priority_is_an_unsigned_32_bit_integer(priority):
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x", priority=priority)
        client.reserves().hears_job(1, b"x", priority=priority)


@pytest.mark.parametrize("ttp", [1, 60, 2**31, MAX_UINT32])
def test_a_ttp_is_a_number_of_seconds(ttp):
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x", ttp=ttp).reserves().hears_job(1, b"x", ttp=ttp)
        talk.advance(ttp - 1)
        client.reserves(timeout=2).hears_nothing()
        talk.advance(1)
        client.hears_job(1, b"x", ttp=ttp)


@pytest.mark.parametrize(
    "data",
    [b"x", b"\0", b"\0" * 9, b"DELETE\0\x01\0\0\0\0\0\0\0", bytes(range(256)), b"x" * 70_000],
)
def test_data_is_any_bytes(data):
    with Goqueue() as talk:
        client = talk.connect().adds(1, data).adds(2, b"next")
        client.reserves().hears_job(1, data).reserves().hears_job(2, b"next")


def test_a_timeout_is_a_number_of_seconds():
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=300)
        talk.advance(299.999_999)
        client.hears_nothing()
        talk.advance(0.000_001)
        client.hears(TIMEOUT)


def test_a_timeout_of_0_is_unlimited():
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.reserves(timeout=0)
        talk.advance(10 * 365 * 86_400)
        client.hears_nothing()
        other.adds(1, b"at last")
        client.hears_job(1, b"at last")


# Errors


def test_an_error_is_a_name_and_a_string():
    with Goqueue() as talk:
        talk.connect().says(delete(5)).hears(b"ERROR\0Job 5 already deleted\0")


# Commands


def test_add_returns_the_new_id():
    with Goqueue() as talk:
        client = talk.connect().adds(1).adds(2, queue="q2").adds(3)
        client.deletes(3).hears_ok().adds(4)


def test_connect_has_no_effect():
    with Goqueue() as talk:
        before = talk.world.snapshot()
        talk.connect().says(b"CONNECT\0").hears(b"OK\0").says(b"CONNECT\0").hears(b"OK\0")
        assert talk.world.snapshot() == before | {"connections": 1}


def test_connect_is_optional():
    with Goqueue() as talk:
        talk.connect().adds(1)


def test_delete():
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x").says(delete(1)).hears(b"OK\0")
        client.says(reserve()).hears_nothing()
        talk.advance(1)
        client.hears(TIMEOUT)


def test_reserve():
    with Goqueue() as talk:
        talk.connect().adds(1, b"x", priority=7, ttp=9).says(reserve()).hears(
            b"RESERVED\0" + b"\1\0\0\0\0\0\0\0" + b"\7\0\0\0" + b"\x09\0\0\0" + b"reserved\0"
            b"\1\0\0\0x"
        )


def test_a_reserved_job_is_not_delivered_again():
    with Goqueue() as talk:
        first, second = talk.connect(), talk.connect()
        first.adds(1, b"x").reserves().hears_job(1, b"x")
        second.reserves(timeout=5).hears_nothing()
        talk.advance(5)
        second.hears(TIMEOUT)


def test_reserve_without_a_job_in_time():
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=1).hears_nothing()
        talk.advance(1)
        client.hears(b"TIMEOUT\0")


def test_every_command_may_be_answered_with_an_error():
    def disk_is_full(world):
        world.engine.unavailable_reason = "disk full"

    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x")
        talk.acts(disk_is_full)
        refused = error("disk full: nothing was changed, try again later")
        before = talk.world.snapshot()
        client.says(b"CONNECT\0").hears_ok()
        for command in (
            b"ADD\0q1\0" + bytes(12),
            delete(1),
            delete(9),
            reserve(),
            reserve("other"),
        ):
            client.says(command).hears(refused)
        assert talk.world.snapshot() == before
        talk.acts(lambda world: world.engine.resume(world.now))
        client.reserves().hears_job(1, b"x").deletes(1).hears_ok()
