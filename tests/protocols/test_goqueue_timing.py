"""Go Job Queue's two times, the ttp and the time-out, to the microsecond."""

import pytest
from goqueue_conversation import TIMEOUT, Goqueue

from millrace.engine.states import LEASED, READY

TICK = 0.000_001


# ttp


@pytest.mark.parametrize("ttp", [1, 2, 3600])
def test_a_job_comes_back_when_its_ttp_is_over_and_not_before(ttp):
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x", ttp=ttp).reserves().hears_job(1, b"x", ttp=ttp)
        talk.advance(ttp - TICK)
        assert talk.job(1).state == LEASED
        talk.advance(TICK)
        assert talk.job(1).state == READY
        client.reserves().hears_job(1, b"x", ttp=ttp)


def test_the_ttp_begins_with_the_reserve():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=2)
        talk.advance(100)
        client.reserves().hears_job(1, ttp=2)
        assert talk.job(1).deadline == talk.now + 2_000_000


def test_each_reserve_begins_a_new_ttp():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=2)
        for _ in range(3):
            client.reserves().hears_job(1, ttp=2)
            talk.advance(2 - TICK)
            assert talk.job(1).state == LEASED
            talk.advance(TICK)


def test_a_job_comes_back_at_its_old_place():
    with Goqueue() as talk:
        client = talk.connect().adds(1, ttp=1).adds(2).adds(3)
        client.reserves().hears_job(1, ttp=1)
        talk.advance(1)
        client.reserves().hears_job(1, ttp=1).reserves().hears_job(2)
        talk.advance(1)
        client.reserves().hears_job(1, ttp=1).reserves().hears_job(3)


def test_and_behind_more_urgent_ones():
    with Goqueue() as talk:
        client = talk.connect().adds(1, priority=5, ttp=1)
        client.reserves().hears_job(1, priority=5, ttp=1).adds(2, priority=4).adds(3, priority=6)
        talk.advance(1)
        client.reserves().hears_job(2, priority=4).reserves().hears_job(1, priority=5, ttp=1)


def test_a_waiter_gets_a_job_whose_ttp_is_over_at_that_moment():
    with Goqueue() as talk:
        holder, waiter = talk.connect(), talk.connect()
        holder.adds(1, ttp=3).reserves().hears_job(1, ttp=3)
        waiter.reserves(timeout=0)
        talk.advance(3 - TICK)
        waiter.hears_nothing()
        talk.advance(TICK)
        waiter.hears_job(1, ttp=3)
        assert talk.job(1).attempt == 2


def test_several_jobs_come_back_each_at_its_moment():
    with Goqueue() as talk:
        client = talk.connect()
        for seq in (1, 2, 3):
            client.adds(seq, ttp=4 - seq).reserves().hears_job(seq, ttp=4 - seq)
        waiters = [talk.connect().reserves(timeout=0) for _ in range(3)]
        for waiter, seq in zip(waiters, (3, 2, 1), strict=True):
            talk.advance(1)
            waiter.hears_job(seq, ttp=4 - seq).deletes(seq).hears_ok()


def test_nothing_comes_back_while_nothing_can_be_written():
    with Goqueue() as talk:
        waiter, client = talk.connect(), talk.connect()
        client.adds(1, ttp=1).reserves().hears_job(1, ttp=1)
        waiter.reserves(timeout=0)
        talk.acts(lambda world: setattr(world.engine, "halted", "disk full"))
        talk.advance(3)
        waiter.hears_nothing()
        talk.acts(lambda world: world.engine.resume(world.now))
        talk.advance(1)
        waiter.hears_job(1, ttp=1)


# Time-outs


@pytest.mark.parametrize("timeout", [1, 2, 86_400, 2**32 - 1])
def test_a_timeout_comes_at_its_moment(timeout):
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=timeout)
        talk.advance(timeout - TICK)
        client.hears_nothing()
        talk.advance(TICK)
        client.hears(TIMEOUT)


def test_a_job_at_the_last_moment_is_given():
    with Goqueue() as talk:
        waiter, producer = talk.connect(), talk.connect()
        waiter.reserves(timeout=2)
        talk.advance(2 - TICK)
        producer.adds(1)
        waiter.hears_job(1)
        talk.advance(10)
        waiter.hears_nothing()


def test_a_timeout_of_0_has_no_moment():
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=0)
        assert talk.engine.next_timer() is None
        client.hangs_up()
        assert not talk.engine.waiters


def test_timeouts_do_not_move_the_others_in_the_line():
    with Goqueue() as talk:
        waiters = [talk.connect().reserves(timeout=timeout) for timeout in (5, 1, 5, 2, 5)]
        producer = talk.connect()
        talk.advance(2)
        waiters[1].hears(TIMEOUT)
        waiters[3].hears(TIMEOUT)
        for seq, number in enumerate((0, 2, 4), 1):
            producer.adds(seq)
            waiters[number].hears_job(seq)


def test_who_asks_again_is_last_in_the_line():
    with Goqueue() as talk:
        first, second, producer = (talk.connect() for _ in range(3))
        first.reserves(timeout=1)
        second.reserves(timeout=10)
        talk.advance(1)
        first.hears(TIMEOUT).reserves(timeout=10)
        producer.adds(1).adds(2)
        second.hears_job(1)
        first.hears_job(2)


def test_lines_of_different_queues_are_apart():
    with Goqueue() as talk:
        a, b, producer = (talk.connect() for _ in range(3))
        a.reserves("a", 0)
        b.reserves("b", 0)
        producer.adds(1, queue="b")
        b.hears_job(1)
        a.hears_nothing()
        producer.adds(2, queue="a")
        a.hears_job(2)
