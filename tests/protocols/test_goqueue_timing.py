"""The two times of Go Job Queue, the ttp and the timeout, with microsecond precision."""

import pytest
from goqueue_conversation import TIMEOUT, Goqueue

from millrace.engine.states import LEASED, READY

TICK = 0.000_001


# ttp


@pytest.mark.parametrize("ttp", [1, 2, 3600])
def test_a_job_returns_exactly_at_the_end_of_its_ttp(ttp):
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x", ttp=ttp).reserves().hears_job(1, b"x", ttp=ttp)
        talk.advance(ttp - TICK)
        assert talk.job(1).state == LEASED
        talk.advance(TICK)
        assert talk.job(1).state == READY
        client.reserves().hears_job(1, b"x", ttp=ttp)


def test_the_ttp_starts_with_the_reserve():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=2)
        talk.advance(100)
        client.reserves().hears_job(1, ttp=2)
        assert talk.job(1).deadline == talk.now + 2_000_000


def test_each_reserve_starts_a_new_ttp():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=2)
        for _ in range(3):
            client.reserves().hears_job(1, ttp=2)
            talk.advance(2 - TICK)
            assert talk.job(1).state == LEASED
            talk.advance(TICK)


def test_a_job_returns_to_its_old_position():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=1).adds(2).adds(3)
        client.reserves().hears_job(1, ttp=1)
        talk.advance(1)
        client.reserves().hears_job(1, ttp=1).reserves().hears_job(2)
        talk.advance(1)
        client.reserves().hears_job(1, ttp=1).reserves().hears_job(3)


def test_a_returned_job_is_behind_more_urgent_jobs():
    with Goqueue() as talk:
        client = talk.connect().adds(1, priority=5, ttp=1)
        client.reserves().hears_job(1, priority=5, ttp=1).adds(2, priority=4).adds(3, priority=6)
        talk.advance(1)
        client.reserves().hears_job(2, priority=4).reserves().hears_job(1, priority=5, ttp=1)


def test_a_waiter_receives_a_job_at_the_end_of_its_ttp():
    with Goqueue() as talk:
        holder, waiter = talk.connect(), talk.connect()
        holder.adds(1, ttp=3).reserves().hears_job(1, ttp=3)
        waiter.reserves(timeout=0)
        talk.advance(3 - TICK)
        waiter.hears_nothing()
        talk.advance(TICK)
        waiter.hears_job(1, ttp=3)
        assert talk.job(1).attempt == 2


def test_several_jobs_return_at_their_times():
    with Goqueue() as talk:
        client = talk.connect()
        for seq in (1, 2, 3):
            client.adds(seq, ttp=4 - seq).reserves().hears_job(seq, ttp=4 - seq)
        waiters = [talk.connect().reserves(timeout=0) for _ in range(3)]
        for waiter, seq in zip(waiters, (3, 2, 1), strict=True):
            talk.advance(1)
            waiter.hears_job(seq, ttp=4 - seq).deletes(seq).hears_ok()


def test_a_waiter_receives_the_most_urgent_of_the_jobs_that_return_at_the_same_time():
    with Goqueue() as talk:
        holder, waiter = talk.connect(), talk.connect()
        for seq, priority in enumerate((2, 1, 3), 1):
            holder.adds(seq, priority=priority)
            holder.reserves().hears_job(seq, priority=priority)
        waiter.reserves(timeout=100)
        talk.advance(60)
        waiter.hears_job(2, priority=1)


def test_no_job_returns_while_the_store_fails():
    with Goqueue() as talk:
        waiter, client = talk.connect(), talk.connect()
        client.adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        waiter.reserves(timeout=0)
        talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "disk full"))
        talk.advance(3)
        waiter.hears_nothing()
        talk.acts(lambda world: world.engine.resume(world.now))
        talk.advance(1)
        waiter.hears_job(1, ttp=1)


# Timeouts


@pytest.mark.parametrize("timeout", [1, 2, 86_400, 2**32 - 1])
def test_a_timeout_occurs_at_its_time(timeout):
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=timeout)
        talk.advance(timeout - TICK)
        client.hears_nothing()
        talk.advance(TICK)
        client.hears(TIMEOUT)


def test_a_job_just_before_the_timeout_is_delivered():
    with Goqueue() as talk:
        waiter, producer = talk.connect(), talk.connect()
        waiter.reserves(timeout=2)
        talk.advance(2 - TICK)
        producer.adds(1)
        waiter.hears_job(1)
        talk.advance(10)
        waiter.hears_nothing()


def test_a_timeout_of_0_has_no_timer():
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=0)
        assert talk.engine.next_timer() is None
        client.hangs_up()
        assert not talk.engine.waiters


def test_timeouts_keep_the_order_of_other_waiters():
    with Goqueue() as talk:
        waiters = [talk.connect().reserves(timeout=timeout) for timeout in (5, 1, 5, 2, 5)]
        producer = talk.connect()
        talk.advance(2)
        waiters[1].hears(TIMEOUT)
        waiters[3].hears(TIMEOUT)
        for seq, number in enumerate((0, 2, 4), 1):
            producer.adds(seq)
            waiters[number].hears_job(seq)


def test_a_repeated_request_is_last_in_line():
    with Goqueue() as talk:
        first, second, producer = (talk.connect() for _ in range(3))
        first.reserves(timeout=1)
        second.reserves(timeout=10)
        talk.advance(1)
        first.hears(TIMEOUT).reserves(timeout=10)
        producer.adds(1).adds(2)
        second.hears_job(1)
        first.hears_job(2)


def test_waiters_of_different_queues_are_separate():
    with Goqueue() as talk:
        a, b, producer = (talk.connect() for _ in range(3))
        a.reserves("a", 0)
        b.reserves("b", 0)
        producer.adds(1, queue="b")
        b.hears_job(1)
        a.hears_nothing()
        producer.adds(2, queue="a")
        a.hears_job(2)
