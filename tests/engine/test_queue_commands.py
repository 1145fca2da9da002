"""Commands on whole queues: pause, remove, flush."""

import pytest

from millrace.engine.states import GONE, LEASED, READY
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, durable_state, recover


@pytest.fixture
def scene() -> Scene:
    return Scene()


# Queues


def test_a_paused_queue_delivers_no_job(scene):
    scene.push("job-1", "a")
    scene.push("job-2", "b")
    scene.engine.pause("a", paused=True, now=scene.now)
    assert scene.lease("a", "b").jid == "job-2"
    assert scene.lease("a", "b") is None


def test_a_paused_queue_accepts_jobs(scene):
    scene.push("job-1")
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait()
    scene.push("job-2")
    assert scene.delivered() == []
    scene.engine.pause("default", paused=False, now=scene.now)
    assert [(receiver, job.jid) for receiver, job in scene.delivered()] == [(waiter, "job-1")]
    assert scene.lease().jid == "job-2"


def test_a_pause_survives_a_restart(scene):
    store = MemoryStore()
    scene.push(queue="a")
    scene.push(queue="b")
    scene.engine.pause("a", paused=True, now=scene.now)
    commit(scene.engine, store)
    assert durable_state(recover(store))["queues"] == {"a": True, "b": False}


def test_pausing_an_unknown_queue_does_nothing(scene):
    scene.engine.pause("unknown", paused=True, now=scene.now)
    scene.wait("waited-for")
    scene.engine.pause("waited-for", paused=True, now=scene.now)
    assert not scene.engine.change_set
    assert not scene.engine.caller.must_wait
    assert scene.push(queue="waited-for").state == LEASED


def test_pausing_twice_is_one_change(scene):
    scene.push()
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.caller.must_wait = False
    scene.engine.pause("default", paused=True, now=scene.now)
    assert not scene.engine.caller.must_wait


def test_removing_a_queue_drops_its_ready_jobs_its_name_and_its_pause(scene):
    scene.push("job-1", "a")
    other = scene.push("job-2", "b")
    scene.engine.pause("a", paused=True, now=scene.now)
    scene.engine.remove_queue("a", scene.now)
    assert list(scene.engine.queues) == ["b"]
    assert scene.engine.jobs == {other.seq: other}
    assert scene.causes()[-1] == "cancelled"
    scene.push("job-3", "a")
    assert scene.lease("a").jid == "job-3"


def test_removing_a_queue_leaves_jobs_that_are_elsewhere(scene):
    engine = scene.engine
    leased = scene.pushed_and_leased("leased")
    scheduled = scene.push("scheduled", due_at=START + 60 * SECOND)
    dead = scene.push("dead")
    engine.kill(dead, scene.now)
    engine.remove_queue("default", scene.now)
    assert sorted(engine.jobs) == [leased.seq, scheduled.seq, dead.seq]
    assert not engine.queues["default"].registered
    scene.complete(leased)
    assert leased.state == GONE


def test_a_returning_job_reopens_a_removed_queue(scene):
    store = MemoryStore()
    job = scene.push(due_at=START + 60 * SECOND)
    scene.engine.remove_queue("default", scene.now)
    assert not scene.engine.queues["default"].registered
    scene.advance(60)
    assert scene.engine.queues["default"].registered
    commit(scene.engine, store)
    assert durable_state(recover(store))["queues"] == {"default": False}
    assert scene.lease() is job


def test_a_removed_queue_is_forgotten_with_its_last_job(scene):
    job = scene.pushed_and_leased()
    scene.engine.remove_queue("default", scene.now)
    scene.complete(job)
    assert scene.engine.queues == {}


def test_waiters_of_a_removed_queue_keep_waiting(scene):
    scene.push(queue="a")
    scene.lease("a")
    waiter = scene.wait("a")
    scene.engine.remove_queue("a", scene.now)
    job = scene.push("job-2", "a")
    assert scene.delivered() == [(waiter, job)]


def test_removing_a_queue_unblocks_jobs_that_depend_on_each_other(scene):
    blocker = scene.push("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait()
    scene.engine.remove_queue("default", scene.now)
    assert scene.delivered() == [(waiter, job)]


def test_removing_a_queue_delivers_none_of_its_removed_jobs(scene):
    blocker, other = scene.push("blocker"), scene.push("other")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait()
    scene.engine.remove_queue("default", scene.now)
    assert scene.delivered() == [(waiter, job)]
    assert other.attempt == 0


def test_a_job_unblocked_by_the_removal_of_its_queue_reopens_the_queue(scene):
    blocker = scene.push("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.remove_queue("default", scene.now)
    assert job.state == READY
    assert scene.engine.queues["default"].registered
    assert scene.engine.change_set.queues == {"default": False}
    assert scene.lease() is job


def test_removing_an_unknown_queue_does_nothing(scene):
    scene.engine.remove_queue("unknown", scene.now)
    assert not scene.engine.change_set


# Flushing


def test_a_flush_forgets_every_job_queue_and_counter(scene):
    engine = scene.engine
    scene.fail(scene.pushed_and_leased("retry"))
    scene.complete(scene.pushed_and_leased("done"), keep_until=START + SECOND)
    scene.pushed_and_leased("leased")
    engine.kill(scene.push("dead"), scene.now)
    scene.push("ready")
    scene.push("blocked", blockers=[engine.find("ready").seq])
    engine.current_statistics()
    engine.flush(scene.now)
    assert engine.jobs == {}
    assert engine.queues == {}
    assert engine.find("ready") is None
    for index in (engine.scheduled, engine.blocked, engine.leased, engine.done, engine.dead):
        assert not index
    assert engine.retrying == 0
    assert not any(queue.counts[READY] for queue in engine.queues.values())
    assert len(engine.timers) == 0
    assert (engine.totals.processed, engine.totals.failures) == (0, 0)
    assert engine.statistics.days == {}


def test_waiters_keep_waiting_through_a_flush(scene):
    scene.push("old")
    scene.lease()
    waiter = scene.wait()
    scene.engine.flush(scene.now)
    job = scene.push("new")
    assert scene.delivered() == [(waiter, job)]


def test_a_flush_forgets_a_pause(scene):
    scene.push("old")
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.wait()
    scene.engine.flush(scene.now)
    scene.push("new")
    assert len(scene.delivered()) == 1


def test_a_flush_forgets_queues_with_waiters(scene):
    store = MemoryStore()
    scene.push("old")
    scene.lease()
    scene.wait()
    scene.engine.flush(scene.now)
    assert not scene.engine.queues["default"].registered
    scene.push("new")
    commit(scene.engine, store)
    assert durable_state(recover(store)) == durable_state(scene.engine)
    assert durable_state(scene.engine)["queues"] == {"default": False}


def test_alarms_outlive_a_flush(scene):
    scene.engine.set_alarm(("beat", "w1"), START + SECOND)
    scene.engine.flush(scene.now)
    scene.advance(1)
    assert scene.engine.alarms == [("beat", "w1")]


def test_events_before_a_flush_are_recorded(scene):
    """Their replies are sent with the reply to the flush, so the journal must contain them."""
    scene.push("old")
    scene.engine.flush(scene.now)
    scene.push("new")
    assert scene.causes() == ["pushed", "flushed", "pushed"]
    batch = scene.engine.take_changes()
    assert batch.cleared
    assert [job.jid for job in batch.new.values()] == ["new"]
