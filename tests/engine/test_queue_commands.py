"""What is done to whole queues: pause, remove, flush."""

import pytest

from millrace.engine.states import GONE, LEASED, READY
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, durable_state, recover


@pytest.fixture
def scene() -> Scene:
    return Scene()


# Queues


def test_a_paused_queue_hands_out_nothing(scene):
    scene.push("job-1", "a")
    scene.push("job-2", "b")
    scene.engine.pause("a", paused=True, now=scene.now)
    assert scene.lease("a", "b").jid == "job-2"
    assert scene.lease("a", "b") is None


def test_a_paused_queue_takes_jobs_in(scene):
    scene.push("job-1")
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait()
    scene.push("job-2")
    assert scene.delivered() == []
    scene.engine.pause("default", paused=False, now=scene.now)
    assert [(who, job.jid) for who, job in scene.delivered()] == [(waiter, "job-1")]
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
    assert not scene.engine.batch
    assert scene.engine.changes == 0
    assert scene.push(queue="waited-for").state == LEASED


def test_pausing_twice_is_one_change(scene):
    scene.push()
    scene.engine.pause("default", paused=True, now=scene.now)
    before = scene.engine.changes
    scene.engine.pause("default", paused=True, now=scene.now)
    assert scene.engine.changes == before


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
    scheduled = scene.push("scheduled", due=START + 60 * SECOND)
    dead = scene.push("dead")
    engine.kill(dead, scene.now)
    engine.remove_queue("default", scene.now)
    assert sorted(engine.jobs) == [leased.seq, scheduled.seq, dead.seq]
    assert not engine.queues["default"].known
    scene.complete(leased)
    assert leased.state == GONE


def test_a_removed_queue_is_opened_anew_by_a_job_that_comes_back(scene):
    store = MemoryStore()
    job = scene.push(due=START + 60 * SECOND)
    scene.engine.remove_queue("default", scene.now)
    assert not scene.engine.queues["default"].known
    scene.advance(60)
    assert scene.engine.queues["default"].known
    commit(scene.engine, store)
    assert durable_state(recover(store))["queues"] == {"default": False}
    assert scene.lease() is job


def test_a_removed_queue_is_forgotten_with_its_last_job(scene):
    job = scene.pushed_and_leased()
    scene.engine.remove_queue("default", scene.now)
    scene.complete(job)
    assert scene.engine.queues == {}


def test_those_who_wait_for_a_removed_queue_go_on_waiting(scene):
    scene.push(queue="a")
    scene.lease("a")
    waiter = scene.wait("a")
    scene.engine.remove_queue("a", scene.now)
    job = scene.push("job-2", "a")
    assert scene.delivered() == [(waiter, job)]


def test_removing_a_queue_in_which_jobs_depend_on_each_other_leaves_none_of_them_stuck(scene):
    blocker = scene.push("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait()
    scene.engine.remove_queue("default", scene.now)
    assert scene.delivered() == [(waiter, job)]


def test_removing_a_queue_hands_out_none_of_the_jobs_that_it_removes(scene):
    blocker, other = scene.push("blocker"), scene.push("other")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.pause("default", paused=True, now=scene.now)
    waiter = scene.wait()
    scene.engine.remove_queue("default", scene.now)
    assert scene.delivered() == [(waiter, job)]
    assert other.attempt == 0


def test_a_job_let_go_by_the_removal_of_its_queue_opens_the_queue_anew(scene):
    blocker = scene.push("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.remove_queue("default", scene.now)
    assert job.state == READY
    assert scene.engine.queues["default"].known
    assert scene.engine.batch.queues == {"default": False}
    assert scene.lease() is job


def test_removing_an_unknown_queue_does_nothing(scene):
    scene.engine.remove_queue("unknown", scene.now)
    assert not scene.engine.batch


# Flushing


def test_a_flush_forgets_every_job_queue_and_counter(scene):
    engine = scene.engine
    scene.fail(scene.pushed_and_leased("retry"))
    scene.complete(scene.pushed_and_leased("done"), keep_until=START + SECOND)
    scene.pushed_and_leased("leased")
    engine.kill(scene.push("dead"), scene.now)
    scene.push("ready")
    scene.push("blocked", blockers=[engine.find("ready").seq])
    engine.count()
    engine.flush(scene.now)
    assert engine.jobs == {}
    assert engine.queues == {}
    assert engine.find("ready") is None
    for index in (engine.scheduled, engine.blocked, engine.leased, engine.done, engine.dead):
        assert not index
    assert engine.retrying == 0
    assert engine.ready_count() == 0
    assert len(engine.timers) == 0
    assert (engine.totals.processed, engine.totals.failures) == (0, 0)
    assert engine.statistics.days == {}


def test_those_who_wait_go_on_waiting_over_a_flush(scene):
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


def test_a_flush_makes_queues_unknown_even_where_somebody_waits(scene):
    store = MemoryStore()
    scene.push("old")
    scene.lease()
    scene.wait()
    scene.engine.flush(scene.now)
    assert not scene.engine.queues["default"].known
    scene.push("new")
    commit(scene.engine, store)
    assert durable_state(recover(store)) == durable_state(scene.engine)
    assert durable_state(scene.engine)["queues"] == {"default": False}


def test_alarms_outlive_a_flush(scene):
    scene.engine.alarm(("beat", "w1"), START + SECOND)
    scene.engine.flush(scene.now)
    scene.advance(1)
    assert scene.engine.alarms == [("beat", "w1")]


def test_what_happened_before_a_flush_is_still_told(scene):
    """Its replies are sent with the flush's own, so the journal must have it, too."""
    scene.push("old")
    scene.engine.flush(scene.now)
    scene.push("new")
    assert scene.causes() == ["pushed", "flushed", "pushed"]
    batch = scene.engine.take_batch()
    assert batch.cleared
    assert [job.jid for job in batch.new.values()] == ["new"]
