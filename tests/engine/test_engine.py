"""The engine, command by command: a job from its push to its end."""

import time
from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.engine.errors import EngineError, NotLeased, WrongState
from millrace.engine.job import FAKTORY, Push
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, ready_jids, recover, undo, unit


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
    assert scene.engine.find_leased("same", FAKTORY) is None
    scene.engine.kill(first, scene.now)
    assert scene.lease() is second
    assert scene.engine.find_leased("same", FAKTORY) is second
    assert scene.engine.find_leased("unknown", FAKTORY) is None


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


def test_many_jobs_of_one_jid_do_not_hold_up_a_restart(scene):
    store = MemoryStore()
    for _ in range(20_000):
        scene.push("same")
    commit(scene.engine, store)
    started = time.perf_counter()
    engine = recover(store)
    assert time.perf_counter() - started < 3
    assert [job.seq for job in engine.find_all("same")] == list(range(1, 20_001))


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


def test_a_failure_is_kept_as_a_result_only_where_somebody_asks_for_that_job_s(scene):
    asked = scene.push("asked", "other")
    scene.engine.wait_for_end(asked, Waiter((), "", FAKTORY, None), scene.now + SECOND)
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.extra is None


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


# Tags


def test_tags_are_kept(scene):
    store = MemoryStore()
    assert scene.push("tagged", tags=["red", "blue"]).extra.tags == ["red", "blue"]
    assert scene.push("plain").extra is None
    commit(scene.engine, store)
    assert recover(store).find("tagged").extra.tags == ["red", "blue"]


# Time


def test_an_alarm_comes_at_its_moment(scene):
    scene.engine.alarm(("beat", "w1"), START + SECOND)
    scene.advance(0.5)
    assert scene.engine.alarms == []
    scene.advance(0.5)
    assert scene.engine.alarms == [("beat", "w1")]
    assert scene.engine.next_timer() is None


def test_an_alarm_that_is_called_off_does_not_come(scene):
    scene.engine.alarm(("owner", "one"), START + SECOND)
    scene.engine.alarm(("owner", "two"), START + SECOND)
    scene.engine.unalarm(("owner", "one"))
    scene.engine.unalarm(("owner", "unheard of"))
    scene.advance(1)
    assert scene.engine.alarms == [("owner", "two")]
    scene.engine.unalarm(("owner", "two"))
    assert len(scene.engine.timers) == 0


def test_an_alarm_can_be_put_off_and_comes_once(scene):
    for seconds in (1, 3, 2):
        scene.engine.alarm("beat", START + seconds * SECOND)
    scene.advance(1)
    assert scene.engine.alarms == []
    scene.advance(9)
    assert scene.engine.alarms == ["beat"]


def test_alarms_come_while_nothing_can_be_written(scene):
    scene.engine.halted = "disk full"
    scene.engine.alarm("beat", START + SECOND)
    scene.advance(1)
    assert scene.engine.alarms == ["beat"]


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
    scene.engine.tick(scene.now, limit=3)
    assert len(scene.engine.scheduled) == 2
    assert scene.engine.next_timer() == START + SECOND
    scene.engine.tick(scene.now, limit=3)
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
