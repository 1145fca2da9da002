"""The engine, command by command."""

from random import Random

import pytest

from millrace.engine.engine import HALTED_RETRY, Engine
from millrace.engine.errors import EngineError, NotLeased, WrongState
from millrace.engine.job import FAKTORY, Push
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from millrace.store import MemoryStore
from scene import (
    SECOND,
    START,
    Scene,
    commit,
    durable_state,
    ready_jids,
    recover,
    undo,
    unit,
)


@pytest.fixture
def scene() -> Scene:
    return Scene()


# Pushing


def test_a_pushed_job_is_ready(scene):
    job = scene.push("job-1", "mail", kind="SendMail", payload=b'["x"]', spec=b"more")
    assert job.state == READY
    assert (job.seq, job.jid, job.queue, job.kind) == (1, "job-1", "mail", "SendMail")
    assert (job.payload, job.spec, job.origin) == (b'["x"]', b"more", FAKTORY)
    assert (job.created, job.ready_at, job.attempt, job.failures) == (START, START, 0, 0)
    assert scene.engine.jobs == {1: job}
    assert scene.engine.queues["mail"].counts[READY] == 1


def test_seqs_count_up_and_are_never_used_again(scene):
    scene.engine.cancel(scene.push("job-1"), scene.now)
    assert scene.push("job-2").seq == 2
    scene.engine.flush(scene.now)
    assert scene.push("job-3").seq == 3


def test_a_job_with_a_moment_in_the_future_is_scheduled_until_then(scene):
    job = scene.push(due=START + 10 * SECOND)
    assert job.state == SCHEDULED
    assert scene.lease() is None
    scene.advance(9.999999)
    assert job.state == SCHEDULED
    scene.advance(0.000001)
    assert job.state == READY
    assert job.ready_at == START + 10 * SECOND
    assert scene.lease() is job


@pytest.mark.parametrize("due", [0, START - SECOND, START])
def test_a_job_with_a_moment_that_has_come_is_ready_at_once(scene, due):
    assert scene.push(due=due).state == READY


def test_a_push_makes_its_queue_known(scene):
    scene.push(queue="mail")
    assert scene.engine.queues["mail"].known
    assert scene.engine.take_batch().queues == {"mail": False}
    scene.push("job-2", queue="mail")
    assert scene.engine.take_batch().queues == {}


def test_a_clock_that_goes_back_does_not_put_a_new_job_before_an_old_one(scene):
    scene.push("old")
    scene.now -= 3600 * SECOND
    scene.push("new")
    assert ready_jids(scene.engine) == ["old", "new"]
    assert scene.lease().jid == "old"


def test_many_can_be_pushed_as_one_change(scene):
    jobs = scene.engine.push_many([unit("a"), unit("b"), unit("c")], scene.now)
    assert [job.jid for job in jobs] == ["a", "b", "c"]
    assert ready_jids(scene.engine) == ["a", "b", "c"]


# Duplicates of a jid


def test_jobs_may_share_a_jid(scene):
    first, second, third = (scene.push("same") for _ in range(3))
    assert scene.engine.find("same") is first
    assert scene.engine.find_all("same") == [first, second, third]
    assert [scene.lease() for _ in range(4)] == [first, second, third, None]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_when_one_of_several_goes_the_others_are_still_found(scene, gone):
    jobs = [scene.push("same") for _ in range(3)]
    scene.engine.cancel(jobs.pop(gone), scene.now)
    assert scene.engine.find_all("same") == jobs
    assert scene.engine.find("same") is jobs[0]
    for job in jobs:
        scene.engine.cancel(job, scene.now)
    assert scene.engine.find("same") is None
    assert scene.engine.find_all("same") == []


def test_of_several_the_leased_one_can_be_found(scene):
    first, second = scene.push("same"), scene.push("same")
    assert scene.engine.find_leased("same") is None
    scene.engine.kill(first, scene.now)
    assert scene.lease() is second
    assert scene.engine.find_leased("same") is second
    assert scene.engine.find_leased("unknown") is None


def test_the_oldest_of_several_is_found_after_a_restart_too(scene):
    first = scene.pushed_and_leased("same")
    scene.advance(1)
    second = scene.push("same")
    scene.fail(first)
    scene.advance_to(first.due)  # it now stands behind the second
    assert [job.seq for job in scene.engine.find_all("same")] == [1, 2]
    store = MemoryStore()
    commit(scene.engine, store)
    engine = recover(store)
    assert [job.seq for job in engine.find_all("same")] == [first.seq, second.seq]


def test_the_oldest_of_several_is_found_after_a_revert_too(scene):
    store = MemoryStore()
    first, second = scene.push("same"), scene.push("same")
    commit(scene.engine, store)
    scene.engine.kill(first, scene.now)
    undo(scene.engine, store, [scene.engine.take_batch()], "disk full")
    assert [job.seq for job in scene.engine.find_all("same")] == [first.seq, second.seq]


# Leasing


def test_a_lease_has_a_holder_an_attempt_and_a_deadline(scene):
    scene.push(lease_for=60 * SECOND)
    scene.advance(5)
    job = scene.lease(holder="worker-7")
    assert job.state == LEASED
    assert (job.holder, job.actor, job.attempt) == ("worker-7", FAKTORY, 1)
    assert (job.leased_at, job.deadline) == (scene.now, scene.now + 60 * SECOND)
    assert scene.engine.leased == {job.seq: job}
    assert scene.engine.next_timer() == job.deadline


def test_a_job_is_leased_to_one_only(scene):
    job = scene.push()
    assert scene.lease() is job
    assert scene.lease() is None


def test_queues_are_asked_in_their_order(scene):
    scene.push("a", "low")
    scene.push("b", "high")
    scene.push("c", "high")
    leased = [scene.lease("high", "low", "unknown").jid for _ in range(3)]
    assert leased == ["b", "c", "a"]


def test_higher_ranks_go_first_then_first_come_first_served(scene):
    for jid, rank in (("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)):
        scene.push(jid, rank=rank)
    assert [scene.lease().jid for _ in range(5)] == ["b", "d", "a", "e", "c"]


def test_a_queue_that_nobody_pushed_to_has_nothing(scene):
    assert scene.lease("unknown") is None
    assert scene.engine.queues == {}


def test_a_lease_is_not_a_change_that_must_be_durable_first(scene):
    scene.push()
    before = scene.engine.changes
    scene.lease()
    assert scene.engine.changes == before
    assert scene.engine.batch  # but it is written


def test_renewing_moves_the_deadline(scene):
    job = scene.pushed_and_leased(lease_for=60 * SECOND)
    scene.advance(50)
    scene.engine.renew(job, scene.now + 60 * SECOND, scene.now)
    scene.advance(59)
    assert job.state == LEASED
    scene.advance(1)
    assert job.state == SCHEDULED
    assert scene.causes() == ["pushed", "leased", "renewed", "expired"]


def test_a_renewed_deadline_survives_a_restart(scene):
    store = MemoryStore()
    job = scene.pushed_and_leased()
    commit(scene.engine, store)
    scene.engine.renew(job, START + 9999 * SECOND, scene.now)
    commit(scene.engine, store)
    assert recover(store).jobs[1].deadline == START + 9999 * SECOND


def test_only_a_leased_job_can_be_renewed_completed_failed_or_released(scene):
    job = scene.push()
    for attempt in (
        lambda: scene.engine.renew(job, scene.now, scene.now),
        lambda: scene.complete(job),
        lambda: scene.fail(job),
        lambda: scene.engine.release(job, scene.now),
    ):
        with pytest.raises(NotLeased):
            attempt()
    assert issubclass(NotLeased, EngineError)
    assert job.state == READY
    assert scene.causes() == ["pushed"]
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (0, 0)


# Waiting


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


# Completing


def test_a_completed_job_is_gone(scene):
    job = scene.pushed_and_leased()
    scene.complete(job)
    assert job.state == GONE
    assert scene.engine.jobs == {}
    assert scene.engine.find("job-1") is None
    assert scene.engine.leased == {}
    assert scene.engine.next_timer() is None
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 0)


def test_a_result_is_kept_for_as_long_as_was_asked(scene):
    job = scene.pushed_and_leased()
    scene.complete(job, result=b"42", keep_until=START + 60 * SECOND)
    assert job.state == DONE
    assert job.extra.result == b"42"
    assert scene.engine.find("job-1") is job
    scene.advance(59)
    assert scene.engine.done == {job.seq: job}
    scene.advance(1)
    assert scene.engine.find("job-1") is None
    assert scene.causes()[-1] == "purged"


def test_a_result_kept_is_dropped_in_time_after_a_restart_too(scene):
    store = MemoryStore()
    scene.complete(scene.pushed_and_leased(), result=b"42", keep_until=START + 60 * SECOND)
    commit(scene.engine, store)
    again = Scene(recover(store))
    assert again.engine.find("job-1").extra.result == b"42"
    again.advance(59)
    assert again.engine.find("job-1") is not None
    again.advance(1)
    assert again.engine.find("job-1") is None


def test_a_job_that_came_and_went_within_a_batch_leaves_only_its_events(scene):
    scene.complete(scene.pushed_and_leased())
    batch = scene.engine.take_batch()
    assert (batch.new, batch.changed, batch.gone) == ({}, {}, {})
    assert [row[1] for row in batch.events] == ["pushed", "leased", "completed"]


def test_a_batch_says_what_is_new_changed_and_gone(scene):
    changed, gone = scene.push("changed"), scene.push("gone")
    scene.engine.take_batch()
    new = scene.push("new")
    scene.lease()
    scene.engine.cancel(gone, scene.now)
    batch = scene.engine.take_batch()
    assert batch.new == {new.seq: new}
    assert batch.changed == {changed.seq: changed}
    assert list(batch.gone) == [gone.seq]


# Failing


def test_a_failed_job_is_tried_again_later(scene):
    job = scene.pushed_and_leased()
    scene.fail(job, "KeyError", "no such key")
    assert job.state == SCHEDULED
    assert START + 15 * SECOND <= job.due <= START + 44 * SECOND
    assert (job.failures, job.attempt) == (1, 1)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)
    assert scene.engine.retrying == 1
    scene.advance_to(job.due)
    assert scene.engine.retrying == 0
    assert scene.lease() is job
    assert job.attempt == 2


def test_a_failure_remembers_the_first_time_and_the_last_words(scene):
    job = scene.pushed_and_leased()
    scene.fail(job, "KeyError", "first")
    scene.advance_to(job.due)
    scene.lease()
    scene.fail(job, "IndexError", "second")
    assert (job.failure.first_at, job.failure.last_at) == (START, scene.now)
    assert (job.failure.group, job.failure.message) == ("IndexError", "second")
    assert job.failure.backtrace == ["line 1", "line 2"]


def test_a_job_without_retries_is_discarded_when_it_fails(scene):
    job = scene.pushed_and_leased(retries=0)
    scene.fail(job)
    assert job.state == GONE
    assert scene.engine.jobs == {}
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)


def test_a_job_out_of_retries_is_dead(scene):
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.state == DEAD
    assert scene.engine.dead == {job.seq: job}
    assert scene.engine.retrying == 0


def test_a_lease_that_runs_out_is_a_failure(scene):
    job = scene.pushed_and_leased(lease_for=60 * SECOND)
    scene.advance(59.999999)
    assert job.state == LEASED
    scene.advance(0.000001)
    assert job.state == SCHEDULED
    assert job.failures == 1
    assert scene.engine.clocked.expired == 1
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)


def test_the_clock_s_work_is_counted_by_what_it_was(scene):
    scene.push("first", due=START + SECOND)
    scene.advance(1)
    job = scene.lease()
    scene.fail(job)
    scene.advance_to(job.due)
    scene.engine.kill(job, scene.now)
    scene.advance_to(job.due)
    clocked = scene.engine.clocked
    assert (clocked.started, clocked.retried, clocked.expired, clocked.purged) == (1, 1, 0, 1)


# Giving back


def test_a_released_job_is_back_at_its_old_place_and_nothing_was_counted(scene):
    job = scene.push("first")
    scene.advance(1)
    scene.push("second")
    scene.advance(1)
    assert scene.lease() is job
    scene.engine.release(job, scene.now)
    assert job.state == READY
    assert (job.attempt, job.failures, job.failure) == (0, 0, None)
    assert ready_jids(scene.engine) == ["first", "second"]
    assert scene.engine.totals.processed == 0
    assert len(scene.engine.timers) == 0


def test_a_released_job_goes_to_the_next_who_waits(scene):
    job = scene.pushed_and_leased()
    waiter = scene.wait(holder="worker-2")
    scene.engine.release(job, scene.now)
    assert scene.delivered() == [(waiter, job)]
    assert (job.attempt, job.holder) == (1, "worker-2")


# What people do to jobs


def test_a_scheduled_job_can_be_run_now(scene):
    job = scene.push(due=START + 3600 * SECOND)
    scene.engine.requeue(job, scene.now)
    assert job.state == READY
    assert len(scene.engine.timers) == 0
    scene.advance(7200)
    assert job.state == READY


def test_a_dead_job_can_be_run_again(scene):
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    scene.engine.requeue(job, scene.now)
    assert (job.state, job.due) == (READY, 0)
    assert scene.engine.dead == {}
    assert scene.lease() is job


def test_a_requeued_job_goes_to_the_end_of_its_queue(scene):
    scene.push("scheduled", due=START + 3600 * SECOND)
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    scene.engine.requeue(scene.engine.find("scheduled"), scene.now)
    assert ready_jids(scene.engine) == ["other", "scheduled"]


def test_only_scheduled_and_dead_jobs_can_be_requeued(scene):
    job = scene.push()
    with pytest.raises(WrongState):
        scene.engine.requeue(job, scene.now)
    scene.lease()
    with pytest.raises(WrongState):
        scene.engine.requeue(job, scene.now)
    assert scene.causes() == ["pushed", "leased"]


def test_a_ready_job_can_be_killed(scene):
    job = scene.push("a")
    scene.push("b")
    scene.engine.kill(job, scene.now)
    assert job.state == DEAD
    assert ready_jids(scene.engine) == ["b"]
    assert scene.engine.queues["default"].counts[READY] == 1


def test_a_scheduled_job_can_be_killed(scene):
    job = scene.push(due=START + SECOND)
    scene.engine.kill(job, scene.now)
    scene.advance(10)
    assert job.state == DEAD
    assert scene.engine.scheduled == {}


def test_killing_a_retry_makes_it_no_retry_any_more(scene):
    job = scene.pushed_and_leased()
    scene.fail(job)
    scene.engine.kill(job, scene.now)
    assert scene.engine.retrying == 0


def test_killing_the_dead_makes_them_last_longer(scene):
    first, second = scene.push("first"), scene.push("second")
    scene.engine.kill(first, scene.now)
    scene.engine.kill(second, scene.now)
    scene.advance(60)
    scene.engine.kill(first, scene.now)
    assert list(scene.engine.dead) == [second.seq, first.seq]
    assert first.due == second.due + 60 * SECOND


def test_a_job_that_is_held_or_done_cannot_be_killed(scene):
    job = scene.pushed_and_leased()
    with pytest.raises(WrongState):
        scene.engine.kill(job, scene.now)
    scene.complete(job, keep_until=scene.now + SECOND)
    with pytest.raises(WrongState):
        scene.engine.kill(job, scene.now)
    assert job.state == DONE


def test_a_job_can_be_cancelled_in_every_state(scene):
    engine = scene.engine
    leased = scene.pushed_and_leased("leased")
    done = scene.pushed_and_leased("done")
    scene.complete(done, keep_until=START + 60 * SECOND)
    jobs = {
        READY: scene.push("ready"),
        SCHEDULED: scene.push("scheduled", due=START + SECOND),
        BLOCKED: scene.push("blocked", blockers=[leased.seq]),
        DEAD: scene.push("dead"),
        DONE: done,
        LEASED: leased,
    }
    engine.kill(jobs[DEAD], scene.now)
    for state, job in jobs.items():
        assert job.state == state
        engine.cancel(job, scene.now)
        assert job.state == GONE
    assert engine.jobs == {}
    assert len(engine.timers) == 0
    assert engine.queues["default"].counts == [0] * 6


def test_the_end_of_a_cancelled_lease_is_refused(scene):
    job = scene.pushed_and_leased()
    scene.engine.cancel(job, scene.now)
    with pytest.raises(NotLeased):
        scene.complete(job)
    with pytest.raises(NotLeased):
        scene.engine.release(job, scene.now)


# The dead set


def test_the_dead_set_drops_the_oldest_when_it_is_full():
    scene = Scene(dead_max=2)
    jobs = [scene.push(f"job-{n}") for n in range(3)]
    for job in reversed(jobs):
        scene.engine.kill(job, scene.now)
    assert [job.jid for job in scene.engine.dead.values()] == ["job-1", "job-0"]
    assert jobs[2].state == GONE
    assert scene.engine.dead_dropped == 1
    assert scene.causes()[-1] == "purged"


def test_a_dead_set_of_none_keeps_nobody():
    scene = Scene(dead_max=0)
    job = scene.push()
    scene.engine.kill(job, scene.now)
    assert job.state == GONE
    assert scene.engine.jobs == {}


def test_the_oldest_dead_is_the_same_after_a_restart():
    scene, store = Scene(), MemoryStore()
    jobs = [scene.push(f"job-{n}") for n in range(3)]
    for job in (jobs[1], jobs[2], jobs[0]):
        scene.advance(1)
        scene.engine.kill(job, scene.now)
    commit(scene.engine, store)
    assert list(recover(store).dead) == list(scene.engine.dead) == [2, 3, 1]


def test_the_dead_are_purged_in_time_after_a_restart():
    scene, store = Scene(), MemoryStore()
    job = scene.push()
    scene.engine.kill(job, scene.now)
    commit(scene.engine, store)
    again = Scene(recover(store))
    again.advance_to(job.due - 1)
    assert len(again.engine.dead) == 1
    again.advance_to(job.due)
    assert again.engine.jobs == {}


# Dependencies


def test_a_job_waits_for_those_it_depends_on(scene):
    first, second = scene.push("first"), scene.push("second")
    job = scene.push("third", blockers=[first.seq, second.seq])
    assert job.state == BLOCKED
    assert [scene.lease(), scene.lease(), scene.lease()] == [first, second, None]
    scene.complete(first)
    assert job.state == BLOCKED
    scene.complete(second)
    assert job.state == READY
    assert scene.lease() is job


def test_the_last_blocker_s_end_hands_the_job_to_who_waits(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    waiter = scene.wait()
    scene.complete(blocker)
    assert scene.delivered() == [(waiter, job)]


def test_an_unblocked_job_whose_moment_is_to_come_is_scheduled(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq], due=START + 60 * SECOND)
    assert job.state == BLOCKED
    scene.complete(blocker)
    assert job.state == SCHEDULED
    scene.advance(60)
    assert job.state == READY


def test_what_is_done_or_unknown_blocks_nobody(scene):
    done = scene.pushed_and_leased("done")
    scene.complete(done, keep_until=START + 60 * SECOND)
    assert scene.push("job-1", blockers=[done.seq, 999]).state == READY


def test_a_blocker_that_fails_and_is_retried_still_blocks(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.fail(blocker)
    assert job.state == BLOCKED
    scene.advance_to(blocker.due)
    scene.complete(scene.lease())
    assert job.state == READY


def end_by_completing(scene, job):
    scene.complete(scene.lease())


def end_by_keeping_a_result(scene, job):
    scene.complete(scene.lease(), keep_until=scene.now + 60 * SECOND)


def end_by_cancelling(scene, job):
    scene.engine.cancel(job, scene.now)


def end_by_discarding(scene, job):
    job.retries = 0
    scene.fail(scene.lease())


def end_by_purging(scene, job):
    scene.engine.kill(job, scene.now)
    scene.advance_to(job.due)


def end_by_overflow(scene, job):
    scene.engine.dead_max = 0
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
def test_no_job_waits_for_one_that_is_over(scene, end):
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


def test_within_a_batch_jobs_can_depend_on_those_pushed_before(scene):
    pushes = [unit("a"), unit("b", blockers=[-1]), unit("c", blockers=[-1, -2])]
    a, b, c = scene.engine.push_many(pushes, scene.now)
    assert (a.state, b.state, c.state) == (READY, BLOCKED, BLOCKED)
    assert sorted(c.extra.blockers) == [a.seq, b.seq]


def test_a_batch_with_a_dependency_on_nothing_is_refused_as_a_whole(scene):
    with pytest.raises((EngineError, ValueError, IndexError)):
        scene.engine.push_many([unit("a"), unit("b", blockers=[-2])], scene.now)
    assert scene.engine.jobs == {}
    assert scene.engine.batch.events == []


def test_killing_a_blocked_job_and_running_it_again_ignores_its_blockers(scene):
    blocker = scene.push("blocker")
    job = scene.push("blocked", blockers=[blocker.seq])
    scene.engine.kill(job, scene.now)
    scene.engine.requeue(job, scene.now)
    assert job.state == READY
    scene.engine.cancel(blocker, scene.now)
    assert job.state == READY


# Tags


def test_tags_are_kept(scene):
    store = MemoryStore()
    assert scene.push("tagged", tags=["red", "blue"]).extra.tags == ["red", "blue"]
    assert scene.push("plain").extra is None
    commit(scene.engine, store)
    assert recover(store).find("tagged").extra.tags == ["red", "blue"]


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
    assert not scene.push("job-3", "a").state == BLOCKED
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
    assert scene.engine.queues["default"].known == (job.state == READY)


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
    engine.statistics.fold(engine.batch.events)
    engine.flush(scene.now)
    assert engine.jobs == {}
    assert engine.queues == {}
    assert engine.find("ready") is None
    assert not (engine.scheduled or engine.leased or engine.dead or engine.done or engine.blocked)
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


# Time


def test_an_alarm_comes_at_its_moment(scene):
    scene.engine.alarm(("beat", "w1"), START + SECOND)
    scene.advance(0.5)
    assert scene.engine.alarms == []
    scene.advance(0.5)
    assert scene.engine.alarms == [("beat", "w1")]
    assert scene.engine.next_timer() is None


def test_the_next_timer_is_the_earliest_of_all(scene):
    scene.push("scheduled", due=START + 90 * SECOND)
    assert scene.engine.next_timer() == START + 90 * SECOND
    scene.pushed_and_leased("leased", lease_for=60 * SECOND)
    assert scene.engine.next_timer() == START + 60 * SECOND
    waiter = scene.wait(seconds=2)
    assert scene.engine.next_timer() == START + 2 * SECOND
    scene.engine.unwait(waiter)
    assert scene.engine.next_timer() == START + 60 * SECOND


def test_a_tick_does_at_most_so_much(scene):
    for n in range(5):
        scene.push(f"job-{n}", due=START + SECOND)
    scene.now += SECOND
    scene.engine.tick(scene.now, most=3)
    assert len(scene.engine.scheduled) == 2
    assert scene.engine.next_timer() == START + SECOND
    scene.engine.tick(scene.now, most=3)
    assert scene.engine.scheduled == {}


def test_jobs_due_at_once_are_handed_out_in_the_order_of_their_seqs(scene):
    scene.push("late", due=START + 2 * SECOND)
    scene.push("early", due=START + SECOND)
    scene.advance(5)
    assert ready_jids(scene.engine) == ["late", "early"]


def test_replies_that_announce_a_change_can_be_told_by_the_count_of_changes(scene):
    engine = scene.engine
    before = engine.changes
    job = scene.push()
    assert engine.changes == before + 1
    scene.lease()
    assert engine.changes == before + 1
    scene.complete(job)
    assert engine.changes == before + 2


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


def test_the_same_seed_replays_the_same_delays():
    def due() -> list[int]:
        scene = Scene(Engine(Random(42)))
        jobs = [scene.pushed_and_leased(f"job-{n}") for n in range(10)]
        for job in jobs:
            scene.fail(job)
        return [job.due for job in jobs]

    assert due() == due()
    assert len(set(due())) > 1


def test_a_push_can_be_made_with_the_least():
    push = Push("job-1", "SomeJob", b"[]", FAKTORY, "default", 25, 60 * SECOND)
    assert (push.rank, push.due, push.tags, push.blockers, push.spec) == (0, 0, [], [], b"")
