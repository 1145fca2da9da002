"""The sheet's rows, one after another, and what the server makes of the replies."""

from struct import pack

import pytest
from goqueue_conversation import OK, TIMEOUT, Goqueue, add, added, delete, error, reserve, reserved

from millrace.engine.states import DEAD, READY


def test_bytes_seen_of_the_original():
    with Goqueue() as talk:
        client = talk.connect()
        for seq in (1, 2, 3):
            client.adds(seq, queue="others")
        client.says(add(b"zero", "q1", 0, 1)).hears(b"ADDED\0" + b"\4\0\0\0\0\0\0\0")
        client.says(reserve("q1", 1)).hears(
            b"RESERVED\0\4\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0reserved\0\4\0\0\0zero"
        )


# Order and ids


def test_the_lower_number_first_and_within_it_the_older():
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


def test_one_counter_for_all_queues_and_no_id_twice():
    with Goqueue() as talk:
        client = talk.connect().adds(1, queue="a").adds(2, queue="b").adds(3, queue="a")
        for seq in (1, 2, 3):
            client.deletes(seq).hears_ok()
        client.adds(4, queue="c")


def test_every_job_can_be_named_by_other_protocols():
    with Goqueue() as talk:
        talk.connect().adds(1).adds(2)
        assert talk.job(1).jid == "00000000-0000-4000-8000-000000000001"
        assert talk.engine.find("00000000-0000-4000-8000-000000000002") is talk.job(2)


# Status


def test_the_status_is_reserved_also_after_a_ttp_expiry():
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


def test_delete_by_another_connection_of_a_reserved_job():
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


def test_delete_of_a_job_whose_ttp_is_over():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        talk.advance(1)
        assert talk.job(1).state == READY
        client.deletes(1).hears_ok()
        assert not talk.engine.jobs


def test_delete_of_a_job_that_somebody_else_has_reserved_since():
    with Goqueue() as talk:
        late, other = talk.connect(), talk.connect()
        late.adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        talk.advance(1)
        other.reserves().hears_job(1, ttp=1)
        late.deletes(1).hears_ok()
        other.deletes(1).hears_error("Job 1 already deleted")


# RESERVE


def test_a_waiter_is_freed_when_its_client_is_gone():
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.reserves(timeout=0).hangs_up()
        assert not talk.engine.waiters
        assert not talk.engine.queues
        other.adds(1).reserves().hears_job(1)


@pytest.mark.parametrize("timeout", [0, 1])
def test_a_reserve_makes_no_queue(timeout):
    with Goqueue() as talk:
        client = talk.connect().reserves("nowhere", timeout)
        assert not any(queue.known for queue in talk.engine.queues.values())
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


def test_waiters_are_served_in_the_order_in_which_they_came():
    with Goqueue() as talk:
        waiters = [talk.connect().reserves(timeout=10 - n) for n in range(3)]
        producer = talk.connect()
        for seq, waiter in enumerate(waiters, 1):
            producer.adds(seq)
            waiter.hears_job(seq)


def test_who_is_gone_or_timed_out_is_passed_over():
    with Goqueue() as talk:
        gone, late, third = (talk.connect() for _ in range(3))
        gone.reserves(timeout=0)
        late.reserves(timeout=2)
        third.reserves(timeout=0)
        gone.hangs_up()
        talk.advance(2)
        late.hears(TIMEOUT)
        talk.connect().adds(1)
        third.hears_job(1)


def test_a_waiting_reserve_gets_the_best_of_what_comes():
    with Goqueue() as talk:
        waiter, producer = talk.connect(), talk.connect()
        waiter.reserves(timeout=0)
        producer.adds(1, priority=9).adds(2, priority=1)
        waiter.hears_job(1, priority=9).reserves().hears_job(2, priority=1)


def test_a_job_whose_client_is_gone_before_it_could_be_told_is_given_back():
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


@pytest.mark.parametrize("word", ["FOO", "A", "ADDED", "QUIT", "W" * 255])
def test_an_unknown_command(word):
    with Goqueue() as talk:
        client = talk.connect().says(word.encode() + b"\0").hears_error(f"Unknown Command {word}")
        client.says(b"CONNECT\0").hears_ok()


@pytest.mark.parametrize(
    "word", [b"", b"add", b"Add", b"ADD ", b" ADD", b"ADD\n", b"ADD1", b"\xc3\x84DD", b"W" * 256]
)
def test_a_word_that_is_no_command_closes_without_a_reply(word):
    with Goqueue() as talk:
        client = talk.connect().says(b"CONNECT\0").hears_ok()
        client.says(word + b"\0" + b"CONNECT\0").hears_the_end()


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


def test_commands_sent_at_once_are_answered_in_order():
    with Goqueue() as talk:
        said = (
            b"CONNECT\0"
            + add(b"one")
            + reserve()
            + b"FOO\0"
            + delete(1)
            + delete(1)
            + add(b"")
            + b"CONNECT\0"
        )
        talk.connect().says(said).hears(
            OK,
            added(1),
            reserved(1, b"one"),
            error("Unknown Command FOO"),
            OK,
            error("Job 1 already deleted"),
            added(2),
            OK,
        )


def test_a_waiting_reserve_holds_up_what_is_behind_it():
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.says(reserve(timeout=5) + add(b"mine") + b"CONNECT\0").hears_nothing()
        other.adds(1, b"theirs")
        client.hears(reserved(1, b"theirs"), added(2), OK)


def test_a_timeout_lets_go_of_what_is_behind_it():
    with Goqueue() as talk:
        client = talk.connect().says(reserve(timeout=1) + reserve(timeout=2) + b"CONNECT\0")
        talk.advance(1)
        client.hears(TIMEOUT)
        talk.advance(2)
        client.hears(TIMEOUT, OK)


def test_many_commands_in_one_piece():
    with Goqueue() as talk:
        client = talk.connect().says(add(b"x") * 500 + b"CONNECT\0")
        client.hears(*(added(seq) for seq in range(1, 501)), OK)


# The end of a connection


@pytest.mark.parametrize("timeout", [0, 60])
def test_a_half_closed_client_goes_on_waiting(timeout):
    with Goqueue() as talk:
        client, other = talk.connect(), talk.connect()
        client.reserves(timeout=timeout).says_no_more().hears_nothing().is_still_there()
        other.adds(1)
        client.hears_job(1).hears_the_end()


def test_a_half_closed_client_is_answered_all_it_asked_for():
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


def test_a_half_closed_client_with_nothing_open():
    with Goqueue() as talk:
        talk.connect().adds(1).says_no_more().hears_the_end()


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (b"ADD\0", "ADD"),
        (add(b"1234567890")[:-1], "ADD"),
        (add(b"")[:-9], "ADD"),
        (b"DELETE\0\1\0\0\0", "DELETE"),
        (b"RESERVE\0q1\0\1\0\0", "RESERVE"),
        (b"RESERVE\0q1", "RESERVE"),
    ],
)
def test_the_end_inside_a_command(said, word):
    with Goqueue() as talk:
        client = talk.connect().says(b"CONNECT\0" + said).hears(OK)
        client.says_no_more().hears_error(f"Malformed {word} command: it is not complete")
        client.hears_the_end()
        assert not talk.engine.jobs


def test_the_end_inside_a_word():
    with Goqueue() as talk:
        talk.connect().says(b"CONN").says_no_more().hears_the_end()


def test_too_many_connections():
    with Goqueue(max_connections=1) as talk:
        client = talk.connect()
        talk.connect().hears_error("Too many connections").hears_the_end()
        client.hangs_up()
        talk.connect().says(b"CONNECT\0").hears_ok()


def test_a_stopping_server_hands_out_nothing():
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
        client.deletes(1).hears_ok()  # 3
        client.deletes(1).hears_error("Job 1 already deleted")  # 4
        client.says(add(b"", "")).hears_error("Error adding new job to queue ")
        talk.acts(lambda world: world.hold_commits())
        client.adds(2)  # 6
        client.reserves().hears_job(2)  # 7: its ADD may still be refused
        assert client.wire.durable == [0, 3, 4, 6, 7]


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
        refusal = talk.connect().connection.refusal("disk full")
        assert refusal == b"ERROR\0disk full: nothing was changed, try again later\0"


# Poison


def test_without_a_limit_a_job_comes_back_for_ever():
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
        assert (talk.job(1).attempt, talk.job(1).payload) == (3, b"poison")
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


def test_a_lease_that_was_given_back_is_no_delivery():
    with Goqueue(max_deliveries=1) as talk:
        unlucky, client = talk.connect(), talk.connect()
        client.adds(1, ttp=1)
        unlucky.stops_reading().reserves().hears_job(1, ttp=1).hangs_up()
        client.reserves().hears_job(1, ttp=1)


def test_the_length_is_of_the_data_alone():
    with Goqueue() as talk:
        client = talk.connect().says(b"ADD\0q\0" + pack("<III", 0, 1, 3) + b"abcCONNECT\0")
        client.hears(added(1), OK)
