"""Jobs that wait for other jobs."""

import pytest

from millrace.engine.errors import EngineError
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.protocols.registry import FAKTORY
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, own_clock, recover, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_job_waits_for_its_blockers(scene):
    first, second = scene.push("first"), scene.push("second")
    job = scene.push("third", blockers=[first.seq, second.seq])
    assert job.state == BLOCKED
    assert [scene.lease(), scene.lease(), scene.lease()] == [first, second, None]
    scene.complete(first)
    assert job.state == BLOCKED
    scene.complete(second)
    assert job.state == READY
    assert scene.lease() is job


def test_the_end_of_the_last_blocker_delivers_the_job_to_a_waiter(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    waiter = scene.wait()
    scene.complete(blocker)
    assert scene.delivered() == [(waiter, job)]


def test_a_waiter_gets_the_first_of_the_jobs_that_are_unblocked_together(scene):
    blocker = scene.pushed_and_leased("blocker")
    low = scene.push("low", blockers=[blocker.seq])
    high = scene.push("high", blockers=[blocker.seq], rank=5)
    waiter = scene.wait()
    scene.complete(blocker)
    assert scene.delivered() == [(waiter, high)]
    assert low.state == READY


def test_an_unblocked_job_with_a_future_due_time_is_scheduled(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq], due_at=START + 60 * SECOND)
    assert job.state == BLOCKED
    scene.complete(blocker)
    assert job.state == SCHEDULED
    scene.advance(60)
    assert job.state == READY


def test_a_done_or_unknown_blocker_is_ignored(scene):
    done = scene.pushed_and_leased("done")
    scene.complete(done, keep_until=START + 60 * SECOND)
    assert scene.push("job-1", blockers=[done.seq, 999]).state == READY


def test_a_blocker_that_fails_and_is_retried_still_blocks(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.fail(blocker)
    assert job.state == BLOCKED
    scene.advance_to(blocker.due_at)
    scene.complete(scene.lease())
    assert job.state == READY


def end_by_completing(scene, job):
    scene.complete(scene.lease())


def end_by_keeping_a_result(scene, job):
    scene.complete(scene.lease(), keep_until=scene.now + 60 * SECOND)


def end_by_cancelling(scene, job):
    scene.engine.cancel(job, scene.now)


def end_by_discarding(scene, job):
    scene.engine.update(job, retries=0)
    scene.fail(scene.lease())


def end_by_purging(scene, job):
    scene.engine.kill(job, scene.now)
    scene.advance_to(job.due_at)


def end_by_overflow(scene, job):
    scene.engine.retention.dead_max = 0
    scene.engine.kill(job, scene.now)


def end_by_removing_its_queue(scene, job):
    scene.engine.remove_queue("default", scene.now)


@pytest.mark.parametrize(
    "end",
    [
        end_by_completing,
        end_by_keeping_a_result,
        end_by_cancelling,
        end_by_discarding,
        end_by_purging,
        end_by_overflow,
        end_by_removing_its_queue,
    ],
    ids=lambda end: end.__name__,
)
def test_no_job_waits_for_an_ended_job(scene, end):
    blocker = scene.push("blocker")
    job = scene.push("blocked", "other", blockers=[blocker.seq])
    end(scene, blocker)
    assert job.state == READY
    assert job.extra.blockers == []


def test_dependencies_survive_a_restart(scene):
    store = MemoryStore()
    first, second = scene.push("first"), scene.push("second")
    scene.push("third", blockers=[first.seq, second.seq])
    commit(scene.engine, store)
    scene.complete(scene.lease())
    commit(scene.engine, store)
    again = Scene(recover(store))
    assert again.engine.find("third").state == BLOCKED
    assert again.engine.find("third").extra.blockers == [second.seq]
    again.complete(again.lease())
    assert again.engine.find("third").state == READY


def test_within_a_batch_jobs_can_depend_on_earlier_jobs(scene):
    pushes = [unit("a"), unit("b", blockers=[-1]), unit("c", blockers=[-1, -2])]
    a, b, c = scene.engine.push_many(pushes, scene.now)
    assert (a.state, b.state, c.state) == (READY, BLOCKED, BLOCKED)
    assert sorted(c.extra.blockers) == [a.seq, b.seq]


def test_a_batch_with_an_invalid_dependency_is_refused_as_a_whole(scene):
    with pytest.raises((EngineError, ValueError, IndexError)):
        scene.engine.push_many([unit("a"), unit("b", blockers=[-2])], scene.now)
    assert scene.engine.jobs == {}
    assert scene.engine.change_set.events == []


def test_a_killed_blocked_job_ignores_its_blockers_when_it_is_retried(scene):
    blocker = scene.push("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.kill(job, scene.now)
    scene.engine.retry_now(job, scene.now)
    assert job.state == READY
    scene.engine.cancel(blocker, scene.now)
    assert job.state == READY


def test_a_job_that_waits_for_itself_is_not_delivered(scene):
    scene.wait()
    job = scene.push(blockers=[scene.engine.next_seq])
    assert (job.state, scene.delivered()) == (BLOCKED, [])
    scene.engine.unblock(job, [job.seq], scene.now)
    assert [delivered for _, delivered in scene.delivered()] == [job]


def test_a_caller_with_its_clock_ahead_unblocks_no_job_before_its_due_time(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq], due_at=START + 60 * SECOND)
    with own_clock(scene, 3600 * SECOND) as time:
        scene.engine.complete(blocker, time, FAKTORY)
    assert job.state == SCHEDULED
    scene.advance(59)
    assert job.state == SCHEDULED
    scene.advance(1)
    assert job.state == READY
