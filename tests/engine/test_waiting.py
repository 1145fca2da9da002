"""Waiting for a job: fair, woken at once, forgotten with the connection."""

import pytest

from millrace.engine.job import FAKTORY, FOREVER, QLESS, WORKQ
from millrace.engine.states import LEASED, READY
from millrace.engine.waiters import Waiter
from scene import SECOND, START, Scene, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_waiter_gets_a_job_the_moment_it_is_pushed(scene):
    waiter = scene.wait(holder="worker-3")
    job = scene.push()
    assert scene.delivered() == [(waiter, job)]
    assert (job.state, job.holder) == (LEASED, "worker-3")


def test_a_waiter_gets_a_job_the_moment_it_is_due(scene):
    scene.push(due=START + SECOND)
    waiter = scene.wait(seconds=2)
    scene.advance(1)
    assert [who for who, _ in scene.delivered()] == [waiter]


def test_waiters_are_served_in_the_order_in_which_they_came(scene):
    waiters = [scene.wait(holder=f"worker-{n}") for n in range(3)]
    jobs = [scene.push(f"job-{n}") for n in range(3)]
    assert scene.delivered() == list(zip(waiters, jobs, strict=True))


def test_fairness_holds_over_different_lists_of_queues(scene):
    first, second = scene.wait("b", "a"), scene.wait("a")
    job = scene.push("job-1", "a")
    assert scene.delivered() == [(first, job)]
    job = scene.push("job-2", "a")
    assert scene.delivered() == [(second, job)]


def test_a_waiter_gets_one_job_only(scene):
    waiter = scene.wait("a", "b")
    first = scene.push("job-1", "b")
    second = scene.push("job-2", "a")
    assert scene.delivered() == [(waiter, first)]
    assert second.state == READY


def test_a_waiter_gets_nothing_of_a_queue_it_did_not_name(scene):
    scene.wait("a")
    job = scene.push(queue="b")
    assert scene.delivered() == []
    assert job.state == READY


def test_a_waiter_that_gets_nothing_in_time_is_told_so(scene):
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


def test_a_waiter_whose_connection_is_gone_is_forgotten(scene):
    gone, here = scene.wait("a", "b"), scene.wait("a", "b")
    scene.engine.unwait(gone)
    job = scene.push(queue="b")
    assert scene.delivered() == [(here, job)]
    scene.advance(10)
    assert scene.timed_out() == []


def test_forgetting_a_waiter_twice_does_nothing(scene):
    waiter, other = scene.wait(), scene.wait()
    scene.engine.unwait(waiter)
    scene.engine.unwait(waiter)
    job = scene.push()
    assert scene.delivered() == [(other, job)]


def test_waiting_leaves_no_trace(scene):
    for _ in range(100):
        scene.engine.unwait(scene.wait("a", "b"))
    scene.wait("c", seconds=1)
    scene.advance(1)
    assert scene.engine.queues == {}
    assert len(scene.engine.timers) == 0
    assert not scene.engine.batch


def test_waiting_does_not_make_a_queue_known(scene):
    scene.wait("a")
    assert not scene.engine.queues["a"].known
    scene.push("job-1", "a")
    assert scene.engine.queues["a"].known


def test_a_queue_known_stays_when_its_waiters_go(scene):
    scene.push(queue="a")
    scene.lease("a")
    scene.engine.unwait(scene.wait("a"))
    assert scene.engine.queues["a"].known


def test_a_deaf_waiter_waits_to_its_end_but_gets_nothing(scene):
    deaf, hears = scene.wait(), scene.wait()
    scene.engine.deafen(deaf)
    job = scene.push()
    assert scene.delivered() == [(hears, job)]
    scene.advance(2)
    assert scene.timed_out() == [deaf]


def test_a_waiter_for_nothing_times_out(scene):
    waiter = scene.wait()
    waiter.queues = ()
    scene.engine.unwait(waiter)
    scene.engine.wait(waiter, scene.now + SECOND)
    scene.advance(1)
    assert scene.timed_out() == [waiter]


# For ever


def wait_for_ever(scene: Scene, *queues: str) -> Waiter:
    waiter = Waiter(queues or ("default",), "worker-1", FAKTORY, None)
    scene.engine.wait(waiter, FOREVER)
    return waiter


def test_who_waits_for_ever_needs_no_timer_and_is_never_told_that_nothing_came(scene):
    waiter = wait_for_ever(scene)
    assert scene.engine.next_timer() is None
    scene.advance(10**9)
    assert scene.timed_out() == []
    job = scene.push()
    assert scene.delivered() == [(waiter, job)]


def test_who_waits_for_ever_has_its_turn_like_others(scene):
    first, ever, last = scene.wait(), wait_for_ever(scene), scene.wait()
    jobs = [scene.push(f"job-{number}") for number in range(3)]
    assert scene.delivered() == list(zip((first, ever, last), jobs, strict=True))


def test_who_waits_for_ever_and_goes_leaves_no_trace(scene):
    for _ in range(100):
        scene.engine.unwait(wait_for_ever(scene, "a", "b"))
    assert scene.engine.queues == {}
    assert len(scene.engine.waiters) == 0
    assert len(scene.engine.timers) == 0


def test_who_waits_for_ever_waits_over_a_flush_and_a_halt(scene):
    waiter = wait_for_ever(scene)
    scene.engine.flush(scene.now)
    scene.engine.halted = "disk full"
    job = scene.push()
    assert scene.delivered() == []
    scene.engine.resume(scene.now)
    assert scene.delivered() == [(waiter, job)]


def test_who_waits_for_ever_and_is_deaf_gets_nothing_and_hears_nothing(scene):
    waiter = wait_for_ever(scene)
    scene.engine.deafen_all()
    job = scene.push()
    scene.advance(10**6)
    assert (scene.delivered(), scene.timed_out(), job.state) == ([], [], READY)
    scene.engine.unwait(waiter)
    assert len(scene.engine.waiters) == 0


def test_the_end_of_a_job_can_be_waited_for_for_ever(scene):
    job = scene.pushed_and_leased()
    waiter = Waiter((), "", WORKQ, None)
    scene.engine.wait_for_end(job, waiter, FOREVER)
    assert scene.engine.next_timer() == job.deadline
    scene.complete(job, result=b"42")
    assert [(told, outcome.result) for told, outcome in scene.engine.outcomes] == [(waiter, b"42")]
    assert scene.engine.waiters.awaited == 0


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_lease_begins_now_whatever_the_clock_of_whoever_brought_the_job(hours):
    scene = Scene()
    scene.wait()
    skew = scene.engine.skew = hours * 3600 * SECOND
    job = scene.engine.push(unit("theirs", origin=QLESS, lease_for=60 * SECOND), scene.now + skew)
    assert (job.leased_at, job.deadline) == (scene.now, scene.now + 60 * SECOND)
    assert scene.engine.timers.when(job.seq) == job.deadline


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_job_that_somebody_with_another_clock_gives_back_is_ready_since_now(hours):
    scene = Scene()
    job = scene.pushed_and_leased()
    skew = scene.engine.skew = hours * 3600 * SECOND
    scene.engine.release(job, scene.now + skew)
    scene.engine.skew = 0
    assert job.ready_at == scene.now
    assert scene.push("after it").created == scene.now


def test_when_the_clock_is_set_a_wait_is_as_long_as_it_was_to_be(scene):
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


def test_when_the_clock_is_set_a_lease_ends_when_the_clock_says(scene):
    job = scene.pushed_and_leased(lease_for=10 * SECOND)
    deadline = job.deadline
    scene.engine.clock_moved(-3600 * SECOND)
    assert scene.engine.timers.when(job.seq) == job.deadline == deadline
