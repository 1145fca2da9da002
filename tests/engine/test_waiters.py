"""Waiting for a job: fair, without delay, cancelled with the connection."""

import sys

import pytest

from millrace.engine import bulk_loads
from millrace.engine.job import FOREVER
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.states import LEASED, READY
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, QLESS, WORKQ
from scene import SECOND, START, Scene, own_clock, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_waiter_receives_a_job_when_it_is_pushed(scene):
    waiter = scene.wait(holder="worker-3")
    job = scene.push()
    assert scene.delivered() == [(waiter, job)]
    assert (job.state, job.holder) == (LEASED, "worker-3")


def test_a_waiter_receives_a_job_when_it_is_due(scene):
    scene.push(due_at=START + SECOND)
    waiter = scene.wait(seconds=2)
    scene.advance(1)
    assert [receiver for receiver, _ in scene.delivered()] == [waiter]


def test_a_late_tick_serves_due_jobs_before_waiters_time_out(scene):
    job = scene.push(due_at=START + SECOND)
    waiter, second = scene.wait(seconds=2), scene.wait(seconds=2)
    scene.advance(10)
    assert scene.delivered() == [(waiter, job)]
    assert scene.timed_out() == [second]


def test_jobs_that_are_due_together_go_to_the_oldest_waiters_in_the_order_of_their_queues(scene):
    names = ("a", "b", "c", "b")
    jobs = [scene.push(f"job-{n}", queue=q, due_at=START + SECOND) for n, q in enumerate(names)]
    first, second = scene.wait("none", "c", "b", "a"), scene.wait("c", "b", "a")
    third, last = scene.wait("b"), scene.wait("a", "c")
    scene.advance(1)
    expected = [(first, jobs[2]), (second, jobs[1]), (third, jobs[3]), (last, jobs[0])]
    assert scene.delivered() == expected


def test_waiters_are_served_in_the_order_of_their_arrival(scene):
    waiters = [scene.wait(holder=f"worker-{n}") for n in range(3)]
    jobs = [scene.push(f"job-{n}") for n in range(3)]
    assert scene.delivered() == list(zip(waiters, jobs, strict=True))


def test_fairness_holds_across_different_lists_of_queues(scene):
    first, second = scene.wait("b", "a"), scene.wait("a")
    job = scene.push("job-1", "a")
    assert scene.delivered() == [(first, job)]
    job = scene.push("job-2", "a")
    assert scene.delivered() == [(second, job)]


def test_a_waiter_receives_only_one_job(scene):
    waiter = scene.wait("a", "b")
    first = scene.push("job-1", "b")
    second = scene.push("job-2", "a")
    assert scene.delivered() == [(waiter, first)]
    assert second.state == READY


def test_a_waiter_receives_jobs_of_its_queues_only(scene):
    scene.wait("a")
    job = scene.push(queue="b")
    assert scene.delivered() == []
    assert job.state == READY


def test_a_waiter_without_a_job_times_out(scene):
    waiter = scene.wait(seconds=2)
    scene.advance(1.9)
    assert scene.timed_out() == []
    scene.advance(0.1)
    assert scene.timed_out() == [waiter]
    scene.push()
    assert scene.delivered() == []


def test_a_waiter_that_was_served_does_not_time_out(scene):
    scene.wait()
    scene.push()
    scene.advance(10)
    assert scene.timed_out() == []


def test_a_waiter_of_a_closed_connection_is_removed(scene):
    cancelled, remaining = scene.wait("a", "b"), scene.wait("a", "b")
    scene.engine.cancel_wait(cancelled)
    job = scene.push(queue="b")
    assert scene.delivered() == [(remaining, job)]
    scene.advance(10)
    assert scene.timed_out() == []


def test_cancelling_a_waiter_twice_has_no_effect(scene):
    waiter, other = scene.wait(), scene.wait()
    scene.engine.cancel_wait(waiter)
    scene.engine.cancel_wait(waiter)
    job = scene.push()
    assert scene.delivered() == [(other, job)]


def test_cancelled_waits_leave_no_trace(scene):
    for _ in range(100):
        scene.engine.cancel_wait(scene.wait("a", "b"))
    scene.wait("c", seconds=1)
    scene.advance(1)
    assert scene.engine.queues == {}
    assert len(scene.engine.timers) == 0
    assert not scene.engine.change_set


def test_waiting_does_not_register_a_queue(scene):
    scene.wait("a")
    assert not scene.engine.queues["a"].registered
    scene.push("job-1", "a")
    assert scene.engine.queues["a"].registered


def test_a_registered_queue_stays_when_its_waiters_leave(scene):
    scene.push(queue="a")
    scene.lease("a")
    scene.engine.cancel_wait(scene.wait("a"))
    assert scene.engine.queues["a"].registered


def test_a_waiter_without_offers_waits_until_its_timeout(scene):
    without_offers, with_offers = scene.wait(), scene.wait()
    scene.engine.stop_offering(without_offers)
    job = scene.push()
    assert scene.delivered() == [(with_offers, job)]
    scene.advance(2)
    assert scene.timed_out() == [without_offers]


def test_a_waiter_without_queues_times_out(scene):
    waiter = scene.wait()
    waiter.queues = ()
    scene.engine.cancel_wait(waiter)
    scene.engine.add_waiter(waiter, scene.now + SECOND)
    scene.advance(1)
    assert scene.timed_out() == [waiter]


# Waiting without a timeout


def wait_forever(scene: Scene, *queues: str) -> Waiter:
    waiter = Waiter(queues or ("default",), "worker-1", FAKTORY, None)
    scene.engine.add_waiter(waiter, FOREVER)
    return waiter


def test_a_wait_without_timeout_needs_no_timer(scene):
    waiter = wait_forever(scene)
    assert scene.engine.next_timer() is None
    scene.advance(10**9)
    assert scene.timed_out() == []
    job = scene.push()
    assert scene.delivered() == [(waiter, job)]


def test_a_wait_without_timeout_is_served_in_order(scene):
    first, ever, last = scene.wait(), wait_forever(scene), scene.wait()
    jobs = [scene.push(f"job-{number}") for number in range(3)]
    assert scene.delivered() == list(zip((first, ever, last), jobs, strict=True))


def test_a_cancelled_wait_without_timeout_leaves_no_trace(scene):
    for _ in range(100):
        scene.engine.cancel_wait(wait_forever(scene, "a", "b"))
    assert scene.engine.queues == {}
    assert len(scene.engine.waiters) == 0
    assert len(scene.engine.timers) == 0


def test_a_wait_without_timeout_survives_a_flush_and_a_halt(scene):
    waiter = wait_forever(scene)
    scene.engine.flush(scene.now)
    scene.engine.unavailable_reason = "disk full"
    job = scene.push()
    assert scene.delivered() == []
    scene.engine.resume(scene.now)
    assert scene.delivered() == [(waiter, job)]


def test_a_wait_without_timeout_or_offers_receives_no_job(scene):
    waiter = wait_forever(scene)
    scene.engine.stop_offering()
    job = scene.push()
    scene.advance(10**6)
    assert (scene.delivered(), scene.timed_out(), job.state) == ([], [], READY)
    scene.engine.cancel_wait(waiter)
    assert len(scene.engine.waiters) == 0


def test_a_wait_for_a_result_may_omit_the_timeout(scene):
    job = scene.pushed_and_leased()
    waiter = Waiter((), "", WORKQ, None)
    scene.engine.add_waiter(waiter, FOREVER, job)
    assert scene.engine.next_timer() == job.deadline
    scene.complete(job, result=b"42")
    assert [(notified, outcome.result) for notified, outcome in scene.engine.waiters.outcomes] == [
        (waiter, b"42")
    ]
    assert scene.engine.waiters.awaited_job_count == 0


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_lease_starts_now_for_a_job_of_a_client_with_another_clock(hours):
    scene = Scene()
    scene.wait()
    with own_clock(scene, hours * 3600 * SECOND) as time:
        job = scene.engine.push(unit("theirs", origin=QLESS, lease_duration=60 * SECOND), time)
    assert (job.leased_at, job.deadline) == (scene.now, scene.now + 60 * SECOND)
    assert scene.engine.timers.when(job.seq) == job.deadline


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_job_released_by_a_client_with_another_clock_is_ready_now(hours):
    scene = Scene()
    job = scene.pushed_and_leased()
    with own_clock(scene, hours * 3600 * SECOND) as time:
        scene.engine.release(job, time)
    assert job.ready_at == scene.now
    assert scene.push("after it").created == scene.now


def test_a_wait_keeps_its_length_when_the_clock_is_set(scene):
    before = scene.wait(seconds=10)
    scene.advance(1)
    scene.engine.tick(scene.now)
    scene.now -= 3600 * SECOND
    since = scene.wait(seconds=10)
    scene.engine.clock_moved(-3600 * SECOND)
    scene.advance(9)
    assert scene.timed_out() == [before]
    scene.advance(1)
    assert scene.timed_out() == [since]


def test_a_lease_keeps_its_deadline_when_the_clock_is_set(scene):
    job = scene.pushed_and_leased(lease_duration=10 * SECOND)
    deadline = job.deadline
    scene.engine.clock_moved(-3600 * SECOND)
    assert scene.engine.timers.when(job.seq) == job.deadline == deadline


# Several jobs that become ready together


def test_a_waiter_gets_a_job_of_its_first_queue_from_one_push_of_several(scene: Scene) -> None:
    waiter = scene.wait("b", "a")
    low, first, high = scene.engine.push_many(
        [unit("job-1", "a"), unit("job-2", "b"), unit("job-3", "b", rank=1)], scene.now
    )
    assert scene.delivered() == [(waiter, high)]
    assert (low.state, first.state) == (READY, READY)


def test_a_waiter_gets_a_job_of_its_first_queue_from_a_released_load(scene: Scene) -> None:
    bulk_loads.open_load(scene.engine, "load", scene.now)
    for jid, queue in (("job-1", "a"), ("job-2", "b")):
        assert bulk_loads.stage(scene.engine, "load", unit(jid, queue), scene.now)
    waiter = scene.wait("b", "a")
    bulk_loads.start_release(scene.engine, "load", scene.now)
    assert bulk_loads.release(scene.engine, "load", 10, scene.now) == 2
    ((served, job),) = scene.delivered()
    assert (served, job.queue) == (waiter, "b")


def test_jobs_of_many_queues_are_served_with_little_work(scene):
    """The cost of a waiter does not depend on the number of queues."""
    count = 1000
    waiters = [scene.wait(f"queue-{number}") for number in range(count)]
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += frame.f_code.co_filename.endswith("assignments.py")
        return trace

    with scene.engine.hold_queues(scene.now):
        for number in reversed(range(count)):
            scene.push(f"job-{number}", f"queue-{number}")
        sys.settrace(trace)
    sys.settrace(None)
    assert [waiter for waiter, _ in scene.delivered()] == waiters
    assert lines < 200 * count


def test_a_waiter_gets_the_job_of_the_first_of_its_queues(scene):
    """The client that has waited longest is the first, even if it waits for many queues."""
    late = ("c", "b", "a")
    first, second, third = scene.wait("b", "c"), scene.wait(*late), scene.wait(*late)
    with scene.engine.hold_queues(scene.now):
        for queue in ("a", "c", "b"):
            scene.push(f"job-{queue}", queue)
    found = [(waiter, job.jid) for waiter, job in scene.delivered()]
    assert found == [(first, "job-b"), (second, "job-c"), (third, "job-a")]


def test_held_queues_with_full_limits_are_passed_over(scene):
    scene.engine.set_limit(QUEUE_KEY_PREFIX + "full", 1, 0, scene.now)
    scene.push("running", "full")
    assert scene.lease("full") is not None
    first, second = scene.wait("full", "free"), scene.wait("full")
    with scene.engine.hold_queues(scene.now):
        scene.push("waits", "full")
        scene.push("starts", "free")
    found = [(waiter, job.jid) for waiter, job in scene.delivered()]
    assert found == [(first, "starts")]
    assert second in scene.engine.waiters
