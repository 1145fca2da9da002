"""The rows of the sheet in order, and the durability of the replies."""

from struct import pack

import pytest
from goqueue_conversation import OK, TIMEOUT, Goqueue, add, added, delete, error, reserve, reserved

from millrace.engine.states import DEAD, READY


def test_bytes_recorded_from_the_original():
    with Goqueue() as talk:
        client = talk.connect()
        for seq in (1, 2, 3):
            client.adds(seq, queue="others")
        client.says(add(b"zero", "q1", 0, 1)).hears(b"ADDED\0" + b"\4\0\0\0\0\0\0\0")
        client.says(reserve("q1", 1)).hears(
            b"RESERVED\0\4\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0reserved\0\4\0\0\0zero"
        )


# Order and ids


def test_the_lower_number_is_first_then_the_older_job():
    with Goqueue() as talk:
        client = talk.connect()
        priorities = (2, 1, 4, 1, 2, 3)
        for seq, priority in enumerate(priorities, 1):
            client.adds(seq, b"%d" % seq, priority=priority)
        for seq in (2, 4, 1, 5, 6, 3):
            client.reserves().hears_job(seq, b"%d" % seq, priority=priorities[seq - 1])


def test_priority_0_is_first_and_the_largest_last():
    with Goqueue() as talk:
        client = talk.connect().adds(1, priority=2**32 - 1).adds(2, priority=1).adds(3)
        client.reserves().hears_job(3).reserves().hears_job(2, priority=1)
        client.reserves().hears_job(1, priority=2**32 - 1)


def test_all_queues_share_one_counter_of_ids():
    with Goqueue() as talk:
        client = talk.connect().adds(1, queue="a").adds(2, queue="b").adds(3, queue="a")
        for seq in (1, 2, 3):
            client.deletes(seq).hears_ok()
        client.adds(4, queue="c")


def test_every_job_has_an_id_for_other_protocols():
    with Goqueue() as talk:
        talk.connect().adds(1).adds(2)
        assert talk.job(1).jid == "00000000-0000-4000-8000-000000000001"
        assert talk.engine.find("00000000-0000-4000-8000-000000000002") is talk.job(2)


# Status


def test_the_status_is_reserved_even_after_a_ttp_expiry():
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x", ttp=1)
        for _ in range(3):
            client.reserves().hears_job(1, b"x", ttp=1)
            talk.advance(1)


# DELETE


@pytest.mark.parametrize("seq", [0, 1, 7, 2**63, 2**64 - 1])
def test_delete_of_an_unknown_id(seq):
    with Goqueue() as talk:
        talk.connect().says(delete(seq)).hears(b"ERROR\0Job %d already deleted\0" % seq)


def test_delete_twice():
    with Goqueue() as talk:
        client = talk.connect().adds(1).deletes(1).hears_ok()
        client.deletes(1).hears_error("Job 1 already deleted").is_still_there()


def test_delete_of_a_ready_job():
    with Goqueue() as talk:
        client = talk.connect().adds(1).adds(2).deletes(1).hears_ok()
        client.reserves().hears_job(2)


def test_delete_of_a_reserved_job_by_another_connection():
    with Goqueue() as talk:
        holder, other = talk.connect(), talk.connect()
        holder.adds(1).reserves().hears_job(1)
        other.deletes(1).hears_ok()
        holder.deletes(1).hears_error("Job 1 already deleted")
        talk.advance(120)
        holder.reserves().hears_nothing()
        talk.advance(1)
        holder.hears(TIMEOUT)


def test_delete_is_the_acknowledgement():
    with Goqueue() as talk:
        talk.connect().adds(1).reserves().hears_job(1).deletes(1).hears_ok()
        assert talk.engine.totals.processed == 1
        assert talk.engine.totals.failures == 0


def test_delete_of_a_job_after_its_ttp():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        talk.advance(1)
        assert talk.job(1).state == READY
        client.deletes(1).hears_ok()
        assert not talk.engine.jobs


def test_delete_of_a_job_that_another_client_has_since_reserved():
    with Goqueue() as talk:
        late, other = talk.connect(), talk.connect()
        late.adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        talk.advance(1)
        other.reserves().hears_job(1, ttp=1)
        late.deletes(1).hears_ok()
        other.deletes(1).hears_error("Job 1 already deleted")


# RESERVE


def test_a_waiter_of_a_closed_connection_is_removed():
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.reserves(timeout=0).hangs_up()
        assert not talk.engine.waiters
        assert not talk.engine.queues
        other.adds(1).reserves().hears_job(1)


@pytest.mark.parametrize("timeout", [0, 1])
def test_a_reserve_registers_no_queue(timeout):
    with Goqueue() as talk:
        client = talk.connect().reserves("nowhere", timeout)
        assert not any(queue.registered for queue in talk.engine.queues.values())
        if timeout:
            talk.advance(1)
            client.hears(TIMEOUT)
        else:
            client.hangs_up()
        assert "nowhere" not in talk.engine.queues


def test_a_ready_job_needs_no_waiting():
    with Goqueue() as talk:
        client = talk.connect().adds(1).adds(2)
        client.reserves(timeout=0).hears_job(1).reserves(timeout=1).hears_job(2)


def test_waiters_are_served_in_the_order_of_their_arrival():
    with Goqueue() as talk:
        waiters = [talk.connect().reserves(timeout=10 - n) for n in range(3)]
        producer = talk.connect()
        for seq, waiter in enumerate(waiters, 1):
            producer.adds(seq)
            waiter.hears_job(seq)


def test_closed_and_timed_out_waiters_are_skipped():
    with Goqueue() as talk:
        closed, late, third = (talk.connect() for _ in range(3))
        closed.reserves(timeout=0)
        late.reserves(timeout=2)
        third.reserves(timeout=0)
        closed.hangs_up()
        talk.advance(2)
        late.hears(TIMEOUT)
        talk.connect().adds(1)
        third.hears_job(1)


def test_a_waiting_reserve_receives_the_first_job():
    with Goqueue() as talk:
        waiter, producer = talk.connect(), talk.connect()
        waiter.reserves(timeout=0)
        producer.adds(1, priority=9).adds(2, priority=1)
        waiter.hears_job(1, priority=9).reserves().hears_job(2, priority=1)


def test_a_job_with_an_unwritten_reply_is_returned():
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.adds(1).stops_reading().reserves().hears_job(1).hangs_up()
        assert talk.job(1).attempt == 0
        other.reserves().hears_job(1)


def test_a_holder_that_disconnects_keeps_the_job_until_its_ttp():
    with Goqueue() as talk:
        holder, other = talk.connect(), talk.connect()
        holder.adds(1, ttp=3).reserves().hears_job(1, ttp=3).hangs_up()
        other.reserves(timeout=10).hears_nothing()
        talk.advance(2.999)
        other.hears_nothing()
        talk.advance(0.001)
        other.hears_job(1, ttp=3)


# Unknown commands, names, data


@pytest.mark.parametrize("command_bytes", ["FOO", "A", "ADDED", "QUIT", "W" * 255])
def test_an_unknown_command(command_bytes):
    with Goqueue() as talk:
        client = (
            talk.connect()
            .says(command_bytes.encode() + b"\0")
            .hears_error(f"Unknown Command {command_bytes}")
        )
        client.says(b"CONNECT\0").hears_ok()


@pytest.mark.parametrize(
    "command_bytes",
    [b"", b"add", b"Add", b"ADD ", b" ADD", b"ADD\n", b"ADD1", b"\xc3\x84DD", b"W" * 256],
)
def test_an_invalid_command_closes_without_a_reply(command_bytes):
    with Goqueue() as talk:
        client = talk.connect().says(b"CONNECT\0").hears_ok()
        client.says(command_bytes + b"\0" + b"CONNECT\0").hears_the_end()


def test_an_empty_queue_name_in_add():
    with Goqueue() as talk:
        client = talk.connect().says(add(b"data", ""))
        client.hears(b"ERROR\0Error adding new job to queue \0").adds(1)


def test_an_empty_queue_name_in_reserve_is_an_empty_queue():
    with Goqueue() as talk:
        client = talk.connect().reserves("", 1).hears_nothing()
        talk.advance(1)
        client.hears(TIMEOUT)


def test_zero_length_data():
    with Goqueue() as talk:
        talk.connect().adds(1, b"").reserves().hears_job(1, b"")


def test_ttp_0_is_one_second():
    with Goqueue() as talk:
        client = talk.connect().says(add(b"x", ttp=0)).hears(added(1))
        client.reserves().hears_job(1, b"x", ttp=1)
        client.reserves(timeout=2).hears_nothing()
        talk.advance(0.999)
        client.hears_nothing()
        talk.advance(0.001)
        client.hears_job(1, b"x", ttp=1)


# Pipelining


def test_pipelined_commands_are_answered_in_order():
    with Goqueue() as talk:
        input_bytes = (
            b"CONNECT\0"
            + add(b"one")
            + reserve()
            + b"FOO\0"
            + delete(1)
            + delete(1)
            + add(b"")
            + b"CONNECT\0"
        )
        talk.connect().says(input_bytes).hears(
            OK,
            added(1),
            reserved(1, b"one"),
            error("Unknown Command FOO"),
            OK,
            error("Job 1 already deleted"),
            added(2),
            OK,
        )


def test_a_waiting_reserve_delays_later_commands():
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.says(reserve(timeout=5) + add(b"mine") + b"CONNECT\0").hears_nothing()
        other.adds(1, b"theirs")
        client.hears(reserved(1, b"theirs"), added(2), OK)


def test_a_timeout_releases_later_commands():
    with Goqueue() as talk:
        client = talk.connect().says(reserve(timeout=1) + reserve(timeout=2) + b"CONNECT\0")
        talk.advance(1)
        client.hears(TIMEOUT)
        talk.advance(2)
        client.hears(TIMEOUT, OK)


def test_500_pipelined_commands():
    with Goqueue() as talk:
        client = talk.connect().says(add(b"x") * 500 + b"CONNECT\0")
        client.hears(*(added(seq) for seq in range(1, 501)), OK)


# The end of a connection


@pytest.mark.parametrize("timeout", [0, 60])
def test_a_half_closed_client_continues_to_wait(timeout):
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.reserves(timeout=timeout).says_no_more().hears_nothing().is_still_there()
        other.adds(1)
        client.hears_job(1).hears_the_end()


def test_a_half_closed_client_receives_all_replies():
    with Goqueue() as talk:
        client = talk.connect()
        client.says(
            reserve(timeout=1) + add(b"x") + reserve(timeout=0) + reserve("b", 1) + delete(1)
        )
        client.says_no_more().hears_nothing()
        talk.advance(1)
        client.hears(TIMEOUT, added(1), reserved(1, b"x"))
        talk.advance(1)
        client.hears(TIMEOUT, OK).hears_the_end()


def test_a_half_closed_client_without_outstanding_commands():
    with Goqueue() as talk:
        talk.connect().adds(1).says_no_more().hears_the_end()


@pytest.mark.parametrize(
    ("input_bytes", "command_bytes"),
    [
        (b"ADD\0", "ADD"),
        (add(b"1234567890")[:-1], "ADD"),
        (add(b"")[:-9], "ADD"),
        (b"DELETE\0\1\0\0\0", "DELETE"),
        (b"RESERVE\0q1\0\1\0\0", "RESERVE"),
        (b"RESERVE\0q1", "RESERVE"),
    ],
)
def test_the_end_inside_a_command(input_bytes, command_bytes):
    with Goqueue() as talk:
        client = talk.connect().says(b"CONNECT\0" + input_bytes).hears(OK)
        client.says_no_more().hears_error(f"Malformed {command_bytes} command: it is not complete")
        client.hears_the_end()
        assert not talk.engine.jobs


def test_an_end_inside_a_command_name():
    with Goqueue() as talk:
        talk.connect().says(b"CONN").says_no_more().hears_the_end()


def test_too_many_connections():
    with Goqueue(max_connections=1) as talk:
        client = talk.connect()
        talk.connect().hears_error("Too many connections").hears_the_end()
        client.hangs_up()
        talk.connect().says(b"CONNECT\0").hears_ok()


def test_a_stopping_server_delivers_no_job():
    with Goqueue() as talk:
        waiter, client = talk.connect(), talk.connect()
        waiter.reserves(timeout=5)
        talk.acts(lambda world: world.hub.stop())
        client.adds(1).reserves(timeout=3).hears_nothing()
        talk.advance(5)
        waiter.hears(TIMEOUT)
        client.hears(TIMEOUT).deletes(1).hears_ok()


# Durability


def test_which_replies_wait_for_the_disk():
    with Goqueue() as talk:
        client = talk.connect()
        client.adds(1, b"x")  # 0
        client.says(b"CONNECT\0").hears_ok()
        client.reserves().hears_job(1, b"x")
        client.says(add(b"", "")).hears_error("Error adding new job to queue ")
        talk.acts(lambda world: world.hold_commits())
        client.deletes(1).hears_ok()  # 4
        client.deletes(1).hears_error("Job 1 already deleted")  # 5
        client.adds(2)  # 6
        client.reserves().hears_job(2)  # 7: its ADD may still be refused
        assert client.wire.durable == [0, 4, 5, 6, 7]


def test_a_delivery_of_a_job_that_is_not_durable_waits_for_the_disk():
    with Goqueue() as talk:
        talk.acts(lambda world: world.hold_commits())
        waiter, client = talk.connect(), talk.connect()
        waiter.reserves()
        client.adds(1)
        waiter.hears_job(1)
        assert waiter.wire.durable == [0]


def test_the_refusal_is_an_error_of_the_protocol():
    with Goqueue() as talk:
        refusal = talk.connect().connection.unavailable_reply("disk full")
        assert refusal == b"ERROR\0disk full: nothing was changed, try again later\0"


# Poison


def test_without_a_limit_a_job_always_returns():
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x", ttp=1)
        for _ in range(100):
            client.reserves().hears_job(1, b"x", ttp=1)
            talk.advance(1)
        assert talk.job(1).state == READY


def test_max_deliveries_leads_to_the_dead_set():
    with Goqueue(max_deliveries=3) as talk:
        client = talk.connect().adds(1, b"poison", ttp=1).adds(2, b"good", ttp=1)
        for _ in range(3):
            client.reserves().hears_job(1, b"poison", ttp=1)
            talk.advance(1)
        assert talk.job(1).state == DEAD
        assert (talk.job(1).attempt, talk.job(1).inline_payload) == (3, b"poison")
        client.reserves().hears_job(2, b"good", ttp=1)
        client.deletes(2).hears_ok()
        client.deletes(1).hears_ok()
        client.deletes(1).hears_error("Job 1 already deleted")


def test_a_job_deleted_at_its_last_delivery_is_done():
    with Goqueue(max_deliveries=1) as talk:
        client = talk.connect().adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        client.deletes(1).hears_ok()
        talk.advance(5)
        assert not talk.engine.jobs


def test_a_returned_lease_does_not_count_as_a_delivery():
    with Goqueue(max_deliveries=1) as talk:
        unlucky, client = talk.connect(), talk.connect()
        client.adds(1, ttp=1)
        unlucky.stops_reading().reserves().hears_job(1, ttp=1).hangs_up()
        client.reserves().hears_job(1, ttp=1)


def test_the_length_covers_only_the_data():
    with Goqueue() as talk:
        client = talk.connect().says(b"ADD\0q\0" + pack("<III", 0, 1, 3) + b"abcCONNECT\0")
        client.hears(added(1), OK)
