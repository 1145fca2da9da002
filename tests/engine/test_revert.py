"""When the store fails, the engine halts, reverts the uncommitted changes and continues later."""

import pytest

from millrace.engine.errors import NotLeased
from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED
from millrace.engine.timers import UNAVAILABLE_RETRY
from millrace.protocols.registry import FAKTORY, QLESS
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, durable_state, ready_jids, recover, undo, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


# While the store fails


def test_no_job_is_leased_while_halted(scene):
    scene.push()
    scene.engine.unavailable_reason = "disk full"
    assert scene.lease() is None
    scene.wait()
    assert scene.delivered() == []


def test_no_timer_changes_a_job_while_halted(scene):
    scheduled = scene.push("scheduled", due_at=START + SECOND)
    leased = scene.pushed_and_leased("leased", lease_duration=SECOND)
    scene.engine.take_changes()
    scene.engine.unavailable_reason = "disk full"
    scene.advance(10)
    assert (scheduled.state, leased.state) == (SCHEDULED, LEASED)
    assert not scene.engine.change_set
    assert scene.engine.next_timer() <= scene.now + UNAVAILABLE_RETRY


def test_a_revert_restores_the_order_of_the_queues(scene):
    store = MemoryStore()
    for name in ("a", "b", "c"):
        scene.push(name, name)
    commit(scene.engine, store)
    scene.engine.remove_queue("a", scene.now)
    scene.push("again", "a")
    undo(scene.engine, store, [scene.engine.take_changes()], "disk full")
    assert list(scene.engine.queues) == ["a", "b", "c"] == list(recover(store).queues)


def test_waiters_time_out_while_halted(scene):
    waiter = scene.wait(seconds=2)
    scene.engine.unavailable_reason = "disk full"
    scene.advance(2)
    assert scene.timed_out() == [waiter]


def test_waiters_receive_their_jobs_after_a_halt(scene):
    scene.push("a", "a")
    scene.push("b", "b")
    scene.engine.unavailable_reason = "disk full"
    first, second = scene.wait("a", "nobody", "b"), scene.wait("unheard-of", "b")
    scene.engine.resume(scene.now)
    assert not scene.engine.unavailable_reason
    assert sorted((receiver.key, job.jid) for receiver, job in scene.delivered()) == sorted(
        [(first.key, "a"), (second.key, "b")]
    )


def test_due_timers_take_effect_after_a_halt(scene):
    job = scene.push(due_at=START + SECOND)
    scene.engine.unavailable_reason = "disk full"
    scene.advance(10)
    scene.engine.resume(scene.now)
    scene.advance(UNAVAILABLE_RETRY / SECOND)
    assert job.state == READY


# Reverting changes that were not committed


@pytest.fixture
def stored(scene) -> MemoryStore:
    """A store with two ready jobs, one leased, one scheduled, one dead, and a paused queue."""
    store = MemoryStore()
    scene.pushed_and_leased("leased")
    scene.push("ready-1")
    scene.push("ready-2")
    scene.push("scheduled", due_at=START + 60 * SECOND)
    scene.engine.kill(scene.push("dead"), scene.now)
    scene.push("elsewhere", "paused")
    scene.engine.pause("paused", paused=True, now=scene.now)
    scene.advance(1)
    commit(scene.engine, store)
    return store


def undone(scene: Scene, store: MemoryStore) -> dict:
    undo(scene.engine, store, [scene.engine.take_changes()], "disk full")
    state = durable_state(scene.engine)
    state.pop("next_seq")  # the counter may advance: a refused seq is not reused
    return state


def committed(store: MemoryStore) -> dict:
    state = durable_state(recover(store))
    state.pop("next_seq")
    return state


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.push("new"),
        lambda s: s.push("new", "new-queue"),
        lambda s: s.lease(),
        lambda s: s.engine.release(s.lease(), s.now),
        lambda s: s.engine.renew(s.engine.find("leased"), s.now + SECOND, s.now),
        lambda s: s.complete(s.engine.find("leased")),
        lambda s: s.complete(s.engine.find("leased"), keep_until=s.now + SECOND),
        lambda s: s.fail(s.engine.find("leased")),
        lambda s: s.engine.kill(s.engine.find("ready-1"), s.now),
        lambda s: s.engine.kill(s.engine.find("ready-2"), s.now),
        lambda s: s.engine.cancel(s.engine.find("ready-1"), s.now),
        lambda s: s.engine.cancel(s.engine.find("dead"), s.now),
        lambda s: s.engine.retry_now(s.engine.find("dead"), s.now),
        lambda s: s.engine.retry_now(s.engine.find("scheduled"), s.now),
        lambda s: s.engine.pause("paused", paused=False, now=s.now),
        lambda s: s.engine.pause("default", paused=True, now=s.now),
        lambda s: s.engine.remove_queue("default", s.now),
        lambda s: s.engine.remove_queue("paused", s.now),
        lambda s: s.engine.flush(s.now),
        lambda s: (s.engine.flush(s.now), s.push("new"), s.push("other", "paused")),
        lambda s: s.advance(7200),
        lambda s: (s.engine.release(s.lease(), s.now), s.lease(), s.lease(), s.push("x")),
    ],
)
def test_any_change_can_be_undone(scene, stored, change):
    before = committed(stored)
    change(scene)
    assert undone(scene, stored) == before
    assert ready_jids(scene.engine) == ["ready-1", "ready-2"]
    assert scene.engine.next_timer() is not None
    assert not scene.engine.change_set
    scene.engine.resume(scene.now)
    assert [scene.lease().jid for _ in range(2)] == ["ready-1", "ready-2"]


def test_a_change_on_top_of_a_refused_change_is_reverted_with_it(scene, stored):
    before = committed(stored)
    job = scene.push("new", "new-queue")
    first = scene.engine.take_changes()
    assert scene.lease("new-queue") is job
    scene.complete(scene.lease())
    undo(scene.engine, stored, [first, scene.engine.take_changes()], "disk full")
    state = durable_state(scene.engine)
    state.pop("next_seq")
    assert state == before
    assert "new-queue" not in scene.engine.queues


def test_waiters_keep_waiting_through_a_reverted_change(scene, stored):
    waiter = scene.wait("new-queue", "default")
    assert waiter.key in scene.engine.queues["default"].waiters
    scene.push("other", "other")
    scene.engine.flush(scene.now)
    undone(scene, stored)
    assert scene.delivered() == []
    scene.engine.resume(scene.now)
    assert [(receiver, job.jid) for receiver, job in scene.delivered()] == [(waiter, "ready-1")]


def test_a_job_with_a_reverted_lease_is_leased_again(scene, stored):
    job = scene.lease()
    undone(scene, stored)
    scene.engine.resume(scene.now)
    again = scene.lease()
    assert (again.seq, again.attempt) == (job.seq, 1)
    assert again is not job


def test_a_reverted_lease_cannot_be_released(scene, stored):
    old = scene.lease()
    undone(scene, stored)
    scene.engine.resume(scene.now)
    current = scene.lease()
    with pytest.raises(NotLeased):
        scene.engine.release(old, scene.now)
    assert scene.engine.leased[old.seq] is current


def test_a_lease_from_before_a_flush_cannot_be_released(scene):
    job = scene.pushed_and_leased()
    scene.engine.flush(scene.now)
    with pytest.raises(NotLeased):
        scene.engine.release(job, scene.now)
    assert scene.engine.jobs == {}


# Restarts


def test_restored_jobs_have_the_states_of_their_records(scene, stored):
    engine = recover(stored)
    states = {job.jid: job.state for job in engine.jobs.values()}
    assert states == {
        "leased": LEASED,
        "ready-1": READY,
        "ready-2": READY,
        "scheduled": SCHEDULED,
        "dead": DEAD,
        "elsewhere": READY,
    }
    again = Scene(engine)
    assert again.lease("paused") is None
    assert ready_jids(engine) == ["ready-1", "ready-2"]
    again.advance(1800)
    assert engine.find("leased").state == SCHEDULED
    assert engine.find("leased").failures == 1
    assert engine.find("scheduled").state == READY


def test_a_restart_continues_the_seqs(scene, stored):
    engine = recover(stored)
    assert engine.push(unit("new"), scene.now).seq == 7


def test_restored_jobs_are_not_written_again(scene, stored):
    engine = recover(stored)
    assert not engine.change_set
    assert (engine.change_set.new, engine.change_set.changed) == ({}, {})


def test_a_new_job_never_goes_before_a_restored_one_even_if_the_clock_went_back(scene, stored):
    again = Scene(recover(stored))
    again.now = START - 3600 * SECOND
    again.push("new")
    assert ready_jids(again.engine) == ["ready-1", "ready-2", "new"]


# Leases that a crash or a failed commit lost


def test_a_lease_lost_in_a_crash_is_restored_to_the_client_that_ends_it(scene, stored):
    assert scene.lease().jid == "ready-1"  # the process crashes before the commit
    again = Scene(recover(stored))
    job = again.engine.reclaim_by_id("ready-1", "worker-1", FAKTORY, again.now)
    assert (job.state, job.holder, job.attempt) == (LEASED, "worker-1", 1)
    assert ready_jids(again.engine) == ["ready-2"]
    assert again.engine.queues["default"].counts[READY] == 1
    again.complete(job)
    assert again.engine.find("ready-1") is None


def test_a_reverted_lease_is_restored_to_the_client_that_ends_it(scene, stored):
    scene.lease()
    undone(scene, stored)
    scene.engine.resume(scene.now)
    assert scene.engine.reclaim_by_id("ready-1", "worker-1", FAKTORY, scene.now).state == LEASED


def test_a_job_that_was_never_leased_is_not_reclaimed(scene, stored):
    again = Scene(recover(stored))
    again.advance(10)
    again.push("new")
    for jid in ("new", "scheduled", "dead", "leased", "unknown"):
        assert again.engine.reclaim_by_id(jid, "worker-1", FAKTORY, again.now) is None
    assert not [cause for cause in again.causes() if cause == "leased"]


def test_a_job_leased_since_the_restart_is_not_reclaimed(scene, stored):
    again = Scene(recover(stored))
    job = again.lease(holder="worker-2")
    assert again.engine.reclaim_by_id(job.jid, "worker-1", FAKTORY, again.now) is None
    assert job.holder == "worker-2"


def test_without_a_restart_no_lease_can_be_reclaimed(scene):
    scene.push()
    assert scene.engine.reclaim_by_id("job-1", "worker-1", FAKTORY, scene.now) is None


def test_a_reclaimable_job_of_several_with_one_jid_is_found(scene):
    store = MemoryStore()
    first, second = scene.push("same"), scene.push("same")
    commit(scene.engine, store)
    again = Scene(recover(store))
    assert again.lease().seq == first.seq
    assert again.engine.reclaim_by_id("same", "worker-1", FAKTORY, again.now).seq == second.seq


def test_the_retention_of_statistics_survives_a_refused_commit_and_a_flush(scene):
    store, engine = MemoryStore(), scene.engine
    engine.statistics.keep_days = 90
    for change in (scene.push, lambda: engine.flush(scene.now)):
        change()
        undo(engine, store, [engine.take_changes()], "disk full")
        engine.resume(scene.now)
        assert engine.statistics.keep_days == 90
    scene.engine.flush(scene.now)
    assert scene.engine.statistics.keep_days == 90


def test_a_revert_keeps_the_order_of_dead_jobs(scene):
    """Also of those that the limit on dead jobs does not concern."""
    store, engine = MemoryStore(), scene.engine
    for number in range(4):
        engine.kill(scene.push(f"job-{number}", origin=QLESS), scene.now)
    commit(engine, store)
    before = list(engine.dead_untrimmed)
    assert list(recover(store).dead_untrimmed) == before
    engine.set_tags(engine.jobs[before[1]], [("tag", scene.now)])
    undo(engine, store, [engine.take_changes()], "disk full")
    assert list(engine.dead_untrimmed) == before
