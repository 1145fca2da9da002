"""When nothing can be written: the engine halts, puts everything back, and goes on later."""

import pytest

from millrace.engine.errors import NotLeased
from millrace.engine.job import FAKTORY
from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED
from millrace.engine.transitions import HALTED_RETRY
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, durable_state, ready_jids, recover, undo, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


# When nothing can be made durable


def test_while_halted_no_job_is_handed_out(scene):
    scene.push()
    scene.engine.halted = "disk full"
    assert scene.lease() is None
    scene.wait()
    assert scene.delivered() == []


def test_while_halted_the_clock_changes_no_job(scene):
    scheduled = scene.push("scheduled", due=START + SECOND)
    leased = scene.pushed_and_leased("leased", lease_for=SECOND)
    scene.engine.take_batch()
    scene.engine.halted = "disk full"
    scene.advance(10)
    assert (scheduled.state, leased.state) == (SCHEDULED, LEASED)
    assert not scene.engine.batch
    assert scene.engine.next_timer() <= scene.now + HALTED_RETRY


def test_queues_are_in_their_order_again(scene):
    store = MemoryStore()
    for name in ("a", "b", "c"):
        scene.push(name, name)
    commit(scene.engine, store)
    scene.engine.remove_queue("a", scene.now)
    scene.push("again", "a")
    undo(scene.engine, store, [scene.engine.take_batch()], "disk full")
    assert list(scene.engine.queues) == ["a", "b", "c"] == list(recover(store).queues)


def test_while_halted_waiters_time_out_as_ever(scene):
    waiter = scene.wait(seconds=2)
    scene.engine.halted = "disk full"
    scene.advance(2)
    assert scene.timed_out() == [waiter]


def test_after_a_halt_those_who_waited_get_their_jobs(scene):
    scene.push("a", "a")
    scene.push("b", "b")
    scene.engine.halted = "disk full"
    first, second = scene.wait("a", "nobody", "b"), scene.wait("unheard-of", "b")
    scene.engine.resume(scene.now)
    assert not scene.engine.halted
    assert sorted((who.key, job.jid) for who, job in scene.delivered()) == sorted(
        [(first.key, "a"), (second.key, "b")]
    )


def test_after_a_halt_what_fell_due_meanwhile_happens(scene):
    job = scene.push(due=START + SECOND)
    scene.engine.halted = "disk full"
    scene.advance(10)
    scene.engine.resume(scene.now)
    scene.advance(HALTED_RETRY / SECOND)
    assert job.state == READY


# Undoing what could not be written


@pytest.fixture
def kept(scene) -> MemoryStore:
    """A store that has two ready jobs, one leased, one scheduled, one dead, and a paused queue."""
    store = MemoryStore()
    scene.pushed_and_leased("leased")
    scene.push("ready-1")
    scene.push("ready-2")
    scene.push("scheduled", due=START + 60 * SECOND)
    scene.engine.kill(scene.push("dead"), scene.now)
    scene.push("elsewhere", "paused")
    scene.engine.pause("paused", paused=True, now=scene.now)
    scene.advance(1)
    commit(scene.engine, store)
    return store


def undone(scene: Scene, store: MemoryStore) -> dict:
    undo(scene.engine, store, [scene.engine.take_batch()], "disk full")
    state = durable_state(scene.engine)
    state.pop("next_seq")  # it may go on: a seq that was refused need not be used
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
        lambda s: s.engine.requeue(s.engine.find("dead"), s.now),
        lambda s: s.engine.requeue(s.engine.find("scheduled"), s.now),
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
def test_any_change_can_be_undone(scene, kept, change):
    before = committed(kept)
    change(scene)
    assert undone(scene, kept) == before
    assert ready_jids(scene.engine) == ["ready-1", "ready-2"]
    assert scene.engine.next_timer() is not None
    assert not scene.engine.batch
    scene.engine.resume(scene.now)
    assert [scene.lease().jid for _ in range(2)] == ["ready-1", "ready-2"]


def test_a_change_on_top_of_one_that_could_not_be_written_is_undone_with_it(scene, kept):
    before = committed(kept)
    job = scene.push("new", "new-queue")
    first = scene.engine.take_batch()
    assert scene.lease("new-queue") is job
    scene.complete(scene.lease())
    undo(scene.engine, kept, [first, scene.engine.take_batch()], "disk full")
    state = durable_state(scene.engine)
    state.pop("next_seq")
    assert state == before
    assert "new-queue" not in scene.engine.queues


def test_those_who_wait_keep_waiting_over_an_undone_change(scene, kept):
    waiter = scene.wait("new-queue", "default")
    assert waiter.key in scene.engine.queues["default"].waiters
    scene.push("other", "other")
    scene.engine.flush(scene.now)
    undone(scene, kept)
    assert scene.delivered() == []
    scene.engine.resume(scene.now)
    assert [(who, job.jid) for who, job in scene.delivered()] == [(waiter, "ready-1")]


def test_a_job_whose_delivery_was_undone_is_handed_out_again(scene, kept):
    job = scene.lease()
    undone(scene, kept)
    scene.engine.resume(scene.now)
    again = scene.lease()
    assert (again.seq, again.attempt) == (job.seq, 1)
    assert again is not job


def test_a_lease_of_a_record_that_was_undone_cannot_be_given_back(scene, kept):
    old = scene.lease()
    undone(scene, kept)
    scene.engine.resume(scene.now)
    current = scene.lease()
    with pytest.raises(NotLeased):
        scene.engine.release(old, scene.now)
    assert scene.engine.leased[old.seq] is current


def test_a_lease_from_before_a_flush_cannot_be_given_back(scene):
    job = scene.pushed_and_leased()
    scene.engine.flush(scene.now)
    with pytest.raises(NotLeased):
        scene.engine.release(job, scene.now)
    assert scene.engine.jobs == {}


# Starting again


def test_restored_jobs_are_where_their_records_say(scene, kept):
    engine = recover(kept)
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


def test_a_restart_continues_the_seqs(scene, kept):
    engine = recover(kept)
    assert engine.push(unit("new"), scene.now).seq == 7


def test_restored_jobs_are_not_written_again(scene, kept):
    engine = recover(kept)
    assert not engine.batch
    assert (engine.batch.new, engine.batch.changed) == ({}, {})


def test_a_new_job_never_goes_before_a_restored_one_even_if_the_clock_went_back(scene, kept):
    again = Scene(recover(kept))
    again.now = START - 3600 * SECOND
    again.push("new")
    assert ready_jids(again.engine) == ["ready-1", "ready-2", "new"]


# Leases that a crash or a failed commit has forgotten


def test_a_lease_that_a_crash_forgot_is_given_again_to_who_comes_to_end_it(scene, kept):
    assert scene.lease().jid == "ready-1"  # and the process dies before that is written
    again = Scene(recover(kept))
    job = again.engine.regain("ready-1", "worker-1", FAKTORY, again.now)
    assert (job.state, job.holder, job.attempt) == (LEASED, "worker-1", 1)
    assert ready_jids(again.engine) == ["ready-2"]
    assert again.engine.queues["default"].counts[READY] == 1
    again.complete(job)
    assert again.engine.find("ready-1") is None


def test_a_lease_that_was_undone_is_given_again_to_who_comes_to_end_it(scene, kept):
    scene.lease()
    undone(scene, kept)
    scene.engine.resume(scene.now)
    assert scene.engine.regain("ready-1", "worker-1", FAKTORY, scene.now).state == LEASED


def test_a_job_that_nobody_can_have_had_is_not_given(scene, kept):
    again = Scene(recover(kept))
    again.advance(10)
    again.push("new")
    for jid in ("new", "scheduled", "dead", "leased", "unknown"):
        assert again.engine.regain(jid, "worker-1", FAKTORY, again.now) is None
    assert not [cause for cause in again.causes() if cause == "leased"]


def test_a_job_that_was_handed_out_since_the_restart_is_not_given_to_another(scene, kept):
    again = Scene(recover(kept))
    job = again.lease(holder="worker-2")
    assert again.engine.regain(job.jid, "worker-1", FAKTORY, again.now) is None
    assert job.holder == "worker-2"


def test_without_a_restart_there_is_nothing_to_regain(scene):
    scene.push()
    assert scene.engine.regain("job-1", "worker-1", FAKTORY, scene.now) is None


def test_of_several_jobs_of_one_jid_one_that_can_be_regained_is_given(scene):
    store = MemoryStore()
    first, second = scene.push("same"), scene.push("same")
    commit(scene.engine, store)
    again = Scene(recover(store))
    assert again.lease().seq == first.seq
    assert again.engine.regain("same", "worker-1", FAKTORY, again.now).seq == second.seq
