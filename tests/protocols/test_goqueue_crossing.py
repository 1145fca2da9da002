"""Jobs that cross: what a Go Job Queue worker sees of other protocols' jobs, and they of its jobs."""

import pytest
from goqueue_conversation import MOST, Goqueue, GoqueueWorld

from millrace.engine.job import FAKTORY, FOREVER, WORKQ, Job, Push
from millrace.engine.queues import Waiter
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.protocols.faktory import workunit

JID = "6ba7b810-9dad-11d1-80b4-00c04fd430c4"


def pushes(**fields):
    """Somebody pushes a job of another protocol to q1."""
    fields = {"origin": WORKQ, "lease_for": 60_000_000, "payload": b"pong", **fields}

    def act(world: GoqueueWorld) -> None:
        push = Push(JID, "ping", queue="q1", retries=0, **fields)
        world.engine.push(push, world.now)

    return act


def completes(seq: int, actor: int = WORKQ):
    return lambda world: world.engine.complete(world.engine.jobs[seq], world.now, actor)


# Towards this protocol


@pytest.mark.parametrize("payload", [b'["a",1]', b"\xff\0", b""])
def test_the_data_is_the_payload_and_the_id_the_number(payload):
    with Goqueue() as talk:
        talk.acts(pushes(origin=FAKTORY, payload=payload))
        talk.connect().reserves().hears_job(1, payload).deletes(1).hears_ok()
        assert not talk.engine.jobs


@pytest.mark.parametrize(
    ("rank", "priority"),
    [(0, 0), (-7, 7), (7, 0), (2**31, 0), (-MOST, MOST), (-(2**40), MOST), (-(2**32), MOST)],
)
def test_a_rank_is_a_priority_with_its_sign_turned(rank, priority):
    with Goqueue() as talk:
        talk.acts(pushes(rank=rank))
        talk.connect().reserves().hears_job(1, b"pong", priority=priority)


@pytest.mark.parametrize(
    ("microseconds", "ttp"),
    [(1, 1), (999_999, 1), (1_000_000, 1), (1_999_999, 1), (1_800_000_000, 1800), (2**60, MOST)],
)
def test_the_ttp_is_in_whole_seconds(microseconds, ttp):
    with Goqueue() as talk:
        talk.acts(pushes(lease_for=microseconds))
        talk.connect().reserves().hears_job(1, b"pong", ttp=ttp)


def test_a_more_urgent_job_of_another_protocol_is_first():
    with Goqueue() as talk:
        client = talk.connect().adds(1)
        talk.acts(pushes(rank=3))
        client.reserves().hears_job(2, b"pong").reserves().hears_job(1)


def test_delete_completes_a_leased_job_of_another_protocol():
    """Whoever waits for its result is told that it succeeded."""
    with Goqueue() as talk:
        talk.acts(pushes(expires=FOREVER))
        client = talk.connect().reserves().hears_job(1, b"pong")
        told = []

        class Owner:
            session = talk.connect().wire

            def conclude(self, outcome, now):
                told.append((outcome.succeeded, outcome.result))

        def waits(world: GoqueueWorld) -> None:
            waiter = Waiter((), "", WORKQ, Owner())
            world.engine.wait_for_end(world.engine.jobs[1], waiter, FOREVER)

        talk.acts(waits)
        client.deletes(1).hears_ok()
        assert told == [(True, b"")]
        assert talk.job(1).state == DONE


def test_a_job_that_is_kept_for_its_result_counts_as_deleted():
    with Goqueue() as talk:
        talk.acts(pushes(expires=FOREVER))
        client = talk.connect().reserves().hears_job(1, b"pong").deletes(1).hears_ok()
        client.deletes(1).hears_error("Job 1 already deleted")
        assert talk.job(1).state == DONE
        assert client.wire.durable == [1, 2]


def test_delete_of_a_scheduled_a_blocked_and_a_dead_job():
    def kills(world: GoqueueWorld) -> None:
        world.engine.kill(world.engine.jobs[3], world.now)

    with Goqueue() as talk:
        talk.acts(pushes(due=talk.now + 1_000_000))
        talk.acts(pushes(blockers=[1]))
        talk.acts(pushes())
        talk.acts(kills)
        assert [talk.job(seq).state for seq in (1, 2, 3)] == [SCHEDULED, BLOCKED, DEAD]
        client = talk.connect()
        for seq in (2, 1, 3):
            client.deletes(seq).hears_ok().deletes(seq).hears_error(f"Job {seq} already deleted")
        assert not talk.engine.jobs


def test_what_follows_an_expiry_is_the_origins_rule():
    with Goqueue() as talk:
        talk.acts(pushes(origin=FAKTORY, lease_for=1_000_000))
        talk.connect().reserves().hears_job(1, b"pong", ttp=1)
        talk.advance(1)
        assert 1 not in talk.engine.jobs  # retries 0: Faktory discards it


def test_a_waiting_reserve_gets_a_job_of_another_protocol():
    with Goqueue() as talk:
        client = talk.connect().reserves(timeout=0)
        talk.acts(pushes())
        client.hears_job(1, b"pong")
        assert talk.job(1).actor == 5


def test_a_paused_queue_gives_nothing():
    def pauses(paused: bool):
        return lambda world: world.engine.pause("q1", paused=paused, now=world.now)

    with Goqueue() as talk:
        client = talk.connect().adds(1)
        talk.acts(pauses(True))
        client.reserves(timeout=0).hears_nothing()
        talk.acts(pauses(False))
        client.hears_job(1)


# From this protocol


def leases(world: GoqueueWorld) -> Job:
    job = world.engine.lease(["q1"], "worker", FAKTORY, world.now)
    assert job is not None
    return job


def test_a_worker_of_another_protocol_takes_and_completes_it():
    with Goqueue() as talk:
        client = talk.connect().adds(1, b"x")
        talk.acts(leases)
        assert (talk.job(1).state, talk.job(1).kind) == (LEASED, "")
        client.reserves().hears_nothing()
        talk.advance(1)
        client.hears(b"TIMEOUT\0")
        talk.acts(completes(1, FAKTORY))
        client.deletes(1).hears_error("Job 1 already deleted")


def test_a_faktory_worker_knows_it_by_its_queue():
    with Goqueue() as talk:
        talk.connect().adds(1, b"x")
        assert b'"jobtype":"q1"' in workunit.write(talk.job(1))


def test_a_failure_that_it_reports_is_tried_again_when_the_ttp_would_be_over():
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


def test_its_deliveries_count_towards_the_limit():
    with Goqueue(max_deliveries=1) as talk:
        client = talk.connect().adds(1, b"x", ttp=1)
        talk.acts(leases)
        talk.advance(1)
        assert talk.job(1).state == DEAD
        client.deletes(1).hears_ok()


def test_a_requeued_dead_job_is_given_again():
    with Goqueue(max_deliveries=1) as talk:
        client = talk.connect().adds(1, b"x", ttp=1).reserves().hears_job(1, b"x", ttp=1)
        talk.advance(1)
        talk.acts(lambda world: world.engine.requeue(world.engine.jobs[1], world.now))
        assert talk.job(1).state == READY
        client.reserves().hears_job(1, b"x", ttp=1).deletes(1).hears_ok()
