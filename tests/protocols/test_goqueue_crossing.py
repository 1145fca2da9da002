"""Crossing jobs: the numbers that a Go Job Queue worker sees for other protocols' jobs, and its
deletions. tests/conformance covers the rest of the life of crossing jobs.
"""

import pytest
from goqueue_conversation import MAX_UINT32, Goqueue, GoqueueWorld

from millrace.engine.job import FOREVER, Job, NewJob
from millrace.engine.states import BLOCKED, DEAD, DONE, READY, SCHEDULED
from millrace.protocols.registry import FAKTORY, WORKQ

JID = "6ba7b810-9dad-11d1-80b4-00c04fd430c4"


def pushes(**fields):
    """Push a job of another protocol to q1."""
    fields = {"origin": WORKQ, "lease_duration": 60_000_000, "payload": b"pong", **fields}

    def act(world: GoqueueWorld) -> None:
        push = NewJob(JID, "ping", queue="q1", retries=0, **fields)
        world.engine.push(push, world.now)

    return act


# Towards this protocol


@pytest.mark.parametrize(
    ("rank", "priority"),
    [
        (0, 0),
        (-7, 7),
        (7, 0),
        (2**31, 0),
        (-MAX_UINT32, MAX_UINT32),
        (-(2**40), MAX_UINT32),
        (-(2**32), MAX_UINT32),
    ],
)
def test_a_rank_is_a_negated_priority(rank, priority):
    with Goqueue() as talk:
        talk.acts(pushes(rank=rank))
        talk.connect().reserves().hears_job(1, b"pong", priority=priority)


@pytest.mark.parametrize(
    ("microseconds", "ttp"),
    [
        (1, 1),
        (999_999, 1),
        (1_000_000, 1),
        (1_999_999, 1),
        (1_800_000_000, 1800),
        (2**60, MAX_UINT32),
    ],
)
def test_the_ttp_is_in_whole_seconds(microseconds, ttp):
    with Goqueue() as talk:
        talk.acts(pushes(lease_duration=microseconds))
        talk.connect().reserves().hears_job(1, b"pong", ttp=ttp)


def test_a_job_retained_for_its_result_counts_as_deleted():
    with Goqueue() as talk:
        talk.acts(pushes(expires_at=FOREVER))
        client = talk.connect().reserves().hears_job(1, b"pong")
        talk.acts(lambda world: world.hold_commits())
        client.deletes(1).hears_ok()
        client.deletes(1).hears_error("Job 1 already deleted")
        assert talk.job(1).state == DONE
        assert client.wire.durable == [1, 2]


def test_delete_of_a_scheduled_a_blocked_and_a_dead_job():
    def kills(world: GoqueueWorld) -> None:
        world.engine.kill(world.engine.jobs[3], world.now)

    with Goqueue() as talk:
        talk.acts(pushes(due_at=talk.now + 1_000_000))
        talk.acts(pushes(blockers=[1]))
        talk.acts(pushes())
        talk.acts(kills)
        assert [talk.job(seq).state for seq in (1, 2, 3)] == [SCHEDULED, BLOCKED, DEAD]
        client = talk.connect()
        for seq in (2, 1, 3):
            client.deletes(seq).hears_ok().deletes(seq).hears_error(f"Job {seq} already deleted")
        assert not talk.engine.jobs


# From this protocol


def leases(world: GoqueueWorld) -> Job:
    job = world.engine.lease(["q1"], "worker", FAKTORY, world.now)
    assert job is not None
    return job


def test_a_reported_failure_is_retried_at_the_end_of_the_ttp():
    def fails(world: GoqueueWorld) -> None:
        job = world.engine.jobs[1]
        world.engine.fail(job, world.now, FAKTORY, "Oops", "no luck", [])

    with Goqueue() as talk:
        client, waiter = talk.connect().adds(1, b"x", ttp=10), talk.connect()
        talk.acts(leases)
        talk.advance(3)
        talk.acts(fails)
        waiter.reserves(timeout=0).hears_nothing()
        talk.advance(6.999)
        waiter.hears_nothing()
        talk.advance(0.001)
        waiter.hears_job(1, b"x", ttp=10)
        client.deletes(1).hears_ok()


def test_a_requeued_dead_job_is_delivered_again():
    with Goqueue(max_deliveries=1) as talk:
        client = talk.connect().adds(1, b"x", ttp=1).reserves().hears_job(1, b"x", ttp=1)
        talk.advance(1)
        talk.acts(lambda world: world.engine.retry_now(world.engine.jobs[1], world.now))
        assert talk.job(1).state == READY
        client.reserves().hears_job(1, b"x", ttp=1).deletes(1).hears_ok()
