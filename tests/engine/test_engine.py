"""The commands of the engine: a job from its push to its end."""

import time
from random import Random

import pytest

from millrace.engine.caller import Caller
from millrace.engine.engine import Engine
from millrace.engine.errors import EngineError, NotLeased, WrongState
from millrace.engine.job import NewJob
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY
from millrace.protocols.spec import protocol_rules
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, ready_jids, recover, undo, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


# Pushing


def test_a_pushed_job_is_ready(scene):
    job = scene.push("job-1", "mail", kind="SendMail", payload=b'["x"]', wire_fields=b"more")
    assert job.state == READY
    assert (job.seq, job.jid, job.queue, job.kind) == (1, "job-1", "mail", "SendMail")
    assert (job.inline_payload, job.wire_fields, job.origin) == (b'["x"]', b"more", FAKTORY)
    assert (job.created, job.ready_at, job.attempt, job.failures) == (START, START, 0, 0)
    assert scene.engine.jobs == {1: job}
    assert scene.engine.queues["mail"].counts[READY] == 1


def test_seqs_increase_and_are_never_reused(scene):
    scene.engine.cancel(scene.push("job-1"), scene.now)
    assert scene.push("job-2").seq == 2
    scene.engine.flush(scene.now)
    assert scene.push("job-3").seq == 3


def test_a_job_with_a_future_due_time_is_scheduled_until_then(scene):
    job = scene.push(due_at=START + 10 * SECOND)
    assert job.state == SCHEDULED
    assert scene.lease() is None
    scene.advance(9.999999)
    assert job.state == SCHEDULED
    scene.advance(0.000001)
    assert job.state == READY
    assert job.ready_at == START + 10 * SECOND
    assert scene.lease() is job


@pytest.mark.parametrize("due", [0, START - SECOND, START])
def test_a_job_with_a_past_due_time_is_ready_immediately(scene, due):
    assert scene.push(due_at=due).state == READY


def test_a_push_makes_its_queue_known(scene):
    scene.push(queue="mail")
    assert scene.engine.queues["mail"].registered
    assert scene.engine.take_changes().queues == {"mail": False}
    scene.push("job-2", queue="mail")
    assert scene.engine.take_changes().queues == {}


def test_a_clock_set_back_does_not_put_a_new_job_before_an_old_one(scene):
    scene.push("old")
    scene.now -= 3600 * SECOND
    scene.push("new")
    assert ready_jids(scene.engine) == ["old", "new"]
    assert scene.lease().jid == "old"


def test_several_jobs_can_be_pushed_as_one_change(scene):
    jobs = scene.engine.push_many([unit("a"), unit("b"), unit("c")], scene.now)
    assert [job.jid for job in jobs] == ["a", "b", "c"]
    assert ready_jids(scene.engine) == ["a", "b", "c"]


# Duplicates of a jid


def test_jobs_may_share_a_jid(scene):
    first, second, third = (scene.push("same") for _ in range(3))
    assert scene.engine.find("same") is first
    assert scene.engine.find_all("same") == [first, second, third]
    assert [scene.lease() for _ in range(4)] == [first, second, third, None]


@pytest.mark.parametrize("removed_job", [0, 1, 2])
def test_the_other_jobs_of_a_jid_are_found_after_one_is_removed(scene, removed_job):
    jobs = [scene.push("same") for _ in range(3)]
    scene.engine.cancel(jobs.pop(removed_job), scene.now)
    assert scene.engine.find_all("same") == jobs
    assert scene.engine.find("same") is jobs[0]
    for job in jobs:
        scene.engine.cancel(job, scene.now)
    assert scene.engine.find("same") is None
    assert scene.engine.find_all("same") == []


def test_the_leased_job_of_a_jid_can_be_found(scene):
    first, second = scene.push("same"), scene.push("same")
    assert scene.engine.find_leased("same", FAKTORY) is None
    scene.engine.kill(first, scene.now)
    assert scene.lease() is second
    assert scene.engine.find_leased("same", FAKTORY) is second
    assert scene.engine.find_leased("unknown", FAKTORY) is None


def test_the_oldest_job_of_a_jid_is_found_after_a_restart(scene):
    first = scene.pushed_and_leased("same")
    scene.advance(1)
    second = scene.push("same")
    scene.fail(first)
    scene.advance_to(first.due_at)  # it is now behind the second
    assert [job.seq for job in scene.engine.find_all("same")] == [1, 2]
    store = MemoryStore()
    commit(scene.engine, store)
    engine = recover(store)
    assert [job.seq for job in engine.find_all("same")] == [first.seq, second.seq]


def test_the_oldest_job_of_a_jid_is_found_after_a_revert(scene):
    store = MemoryStore()
    first, second = scene.push("same"), scene.push("same")
    commit(scene.engine, store)
    scene.engine.kill(first, scene.now)
    undo(scene.engine, store, [scene.engine.take_changes()], "disk full")
    assert [job.seq for job in scene.engine.find_all("same")] == [first.seq, second.seq]


def test_thousands_of_jobs_with_one_jid_do_not_delay_a_restart(scene):
    store = MemoryStore()
    for _ in range(20_000):
        scene.push("same")
    commit(scene.engine, store)
    started = time.process_time()
    engine = recover(store)
    assert time.process_time() - started < 3
    assert [job.seq for job in engine.find_all("same")] == list(range(1, 20_001))


# Leasing


def test_a_lease_has_a_holder_an_attempt_and_a_deadline(scene):
    scene.push(lease_duration=60 * SECOND)
    scene.advance(5)
    job = scene.lease(holder="worker-7")
    assert job.state == LEASED
    assert (job.holder, job.holder_protocol, job.attempt) == ("worker-7", FAKTORY, 1)
    assert (job.leased_at, job.deadline) == (scene.now, scene.now + 60 * SECOND)
    assert scene.engine.leased == {job.seq: job}
    assert scene.engine.next_timer() == job.deadline


def test_a_job_has_one_lease_at_a_time(scene):
    job = scene.push()
    assert scene.lease() is job
    assert scene.lease() is None


def test_queues_are_used_in_the_order_of_the_request(scene):
    scene.push("a", "low")
    scene.push("b", "high")
    scene.push("c", "high")
    leased = [scene.lease("high", "low", "unknown").jid for _ in range(3)]
    assert leased == ["b", "c", "a"]


def test_higher_ranks_are_leased_first_then_in_order_of_arrival(scene):
    for jid, rank in (("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)):
        scene.push(jid, rank=rank)
    assert [scene.lease().jid for _ in range(5)] == ["b", "d", "a", "e", "c"]


def test_an_unknown_queue_has_no_jobs(scene):
    assert scene.lease("unknown") is None
    assert scene.engine.queues == {}


def test_a_lease_does_not_wait_for_a_commit(scene):
    scene.push()
    scene.engine.caller.must_wait = False
    scene.lease()
    assert not scene.engine.caller.must_wait
    assert scene.engine.change_set  # it is written nevertheless


def test_renewing_moves_the_deadline(scene):
    job = scene.pushed_and_leased(lease_duration=60 * SECOND)
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


def test_a_completed_job_is_removed(scene):
    job = scene.pushed_and_leased()
    scene.complete(job)
    assert job.state == GONE
    assert scene.engine.jobs == {}
    assert scene.engine.find("job-1") is None
    assert scene.engine.leased == {}
    assert scene.engine.next_timer() is None
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 0)


def test_a_result_is_retained_as_long_as_requested(scene):
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


def test_a_retained_result_is_dropped_on_time_after_a_restart(scene):
    store = MemoryStore()
    scene.complete(scene.pushed_and_leased(), result=b"42", keep_until=START + 60 * SECOND)
    commit(scene.engine, store)
    again = Scene(recover(store))
    assert again.engine.find("job-1").extra.result == b"42"
    again.advance(59)
    assert again.engine.find("job-1") is not None
    again.advance(1)
    assert again.engine.find("job-1") is None


def test_a_job_pushed_and_completed_within_a_change_set_leaves_only_its_events(scene):
    scene.complete(scene.pushed_and_leased())
    batch = scene.engine.take_changes()
    assert (batch.new, batch.changed, batch.removed) == ({}, {}, {})
    assert [row[1] for row in batch.events] == ["pushed", "leased", "completed"]


def test_a_change_set_lists_new_changed_and_removed_jobs(scene):
    changed, removed_job = scene.push("changed"), scene.push("gone")
    scene.engine.take_changes()
    new = scene.push("new")
    scene.lease()
    scene.engine.cancel(removed_job, scene.now)
    batch = scene.engine.take_changes()
    assert batch.new == {new.seq: new}
    assert batch.changed == {changed.seq: changed}
    assert list(batch.removed) == [removed_job.seq]


# Failing


def test_a_failed_job_is_retried_later(scene):
    job = scene.pushed_and_leased()
    scene.fail(job, "KeyError", "no such key")
    assert job.state == SCHEDULED
    assert START + 15 * SECOND <= job.due_at <= START + 44 * SECOND
    assert (job.failures, job.attempt) == (1, 1)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)
    assert scene.engine.retrying == 1
    scene.advance_to(job.due_at)
    assert scene.engine.retrying == 0
    assert scene.lease() is job
    assert job.attempt == 2


def test_a_failure_record_keeps_the_first_time_and_the_last_message(scene):
    job = scene.pushed_and_leased()
    scene.fail(job, "KeyError", "first")
    scene.advance_to(job.due_at)
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


def test_an_expired_lease_is_a_failure(scene):
    job = scene.pushed_and_leased(lease_duration=60 * SECOND)
    scene.advance(59.999999)
    assert job.state == LEASED
    scene.advance(0.000001)
    assert job.state == SCHEDULED
    assert job.failures == 1
    assert scene.engine.timer_counts.expired == 1
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)


def test_timers_are_counted_by_effect(scene):
    scene.push("first", due_at=START + SECOND)
    scene.advance(1)
    job = scene.lease()
    scene.fail(job)
    scene.advance_to(job.due_at)
    scene.engine.kill(job, scene.now)
    scene.advance_to(job.due_at)
    clocked = scene.engine.timer_counts
    assert (clocked.started, clocked.retried, clocked.expired, clocked.purged) == (1, 1, 0, 1)


def test_a_failure_is_retained_as_a_result_only_for_a_job_with_a_waiter(scene):
    awaited = scene.push("asked", "other")
    scene.engine.add_waiter(Waiter((), "", FAKTORY, None), scene.now + SECOND, awaited)
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    assert job.extra is None


# Releasing


def test_a_released_job_returns_to_its_position_without_an_attempt(scene):
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


def test_a_released_job_is_delivered_to_the_next_waiter(scene):
    job = scene.pushed_and_leased()
    waiter = scene.wait(holder="worker-2")
    scene.engine.release(job, scene.now)
    assert scene.delivered() == [(waiter, job)]
    assert (job.attempt, job.holder) == (1, "worker-2")


# Actions of operators


def test_a_scheduled_job_can_be_started_now(scene):
    job = scene.push(due_at=START + 3600 * SECOND)
    scene.engine.retry_now(job, scene.now)
    assert job.state == READY
    assert len(scene.engine.timers) == 0
    scene.advance(7200)
    assert job.state == READY


def test_a_dead_job_can_be_retried(scene):
    job = scene.pushed_and_leased(retries=-1)
    scene.fail(job)
    scene.engine.retry_now(job, scene.now)
    assert (job.state, job.due_at) == (READY, 0)
    assert scene.engine.dead == {}
    assert scene.lease() is job


def test_a_requeued_job_goes_to_the_end_of_its_queue(scene):
    scene.push("scheduled", due_at=START + 3600 * SECOND)
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    scene.engine.retry_now(scene.engine.find("scheduled"), scene.now)
    assert ready_jids(scene.engine) == ["other", "scheduled"]


def test_only_scheduled_and_dead_jobs_can_be_requeued(scene):
    job = scene.push()
    with pytest.raises(WrongState):
        scene.engine.retry_now(job, scene.now)
    scene.lease()
    with pytest.raises(WrongState):
        scene.engine.retry_now(job, scene.now)
    assert scene.causes() == ["pushed", "leased"]


def test_a_ready_job_can_be_killed(scene):
    job = scene.push("a")
    scene.push("b")
    scene.engine.kill(job, scene.now)
    assert job.state == DEAD
    assert ready_jids(scene.engine) == ["b"]
    assert scene.engine.queues["default"].counts[READY] == 1


def test_a_scheduled_job_can_be_killed(scene):
    job = scene.push(due_at=START + SECOND)
    scene.engine.kill(job, scene.now)
    scene.advance(10)
    assert job.state == DEAD
    assert scene.engine.scheduled == {}


def test_a_killed_retry_no_longer_counts_as_a_retry(scene):
    job = scene.pushed_and_leased()
    scene.fail(job)
    scene.engine.kill(job, scene.now)
    assert scene.engine.retrying == 0


def test_killing_a_dead_job_again_extends_its_retention(scene):
    first, second = scene.push("first"), scene.push("second")
    scene.engine.kill(first, scene.now)
    scene.engine.kill(second, scene.now)
    scene.advance(60)
    scene.engine.kill(first, scene.now)
    assert list(scene.engine.dead) == [second.seq, first.seq]
    assert first.due_at == second.due_at + 60 * SECOND


def test_a_leased_or_done_job_cannot_be_killed(scene):
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
        SCHEDULED: scene.push("scheduled", due_at=START + SECOND),
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
    assert scene.engine.retention.dead_dropped == 1
    assert scene.causes()[-1] == "purged"


def test_a_dead_set_of_size_zero_retains_no_job():
    scene = Scene(dead_max=0)
    job = scene.push()
    scene.engine.kill(job, scene.now)
    assert job.state == GONE
    assert scene.engine.jobs == {}


def test_the_oldest_dead_job_is_the_same_after_a_restart():
    scene, store = Scene(), MemoryStore()
    jobs = [scene.push(f"job-{n}") for n in range(3)]
    for job in (jobs[1], jobs[2], jobs[0]):
        scene.advance(1)
        scene.engine.kill(job, scene.now)
    commit(scene.engine, store)
    assert list(recover(store).dead) == list(scene.engine.dead) == [2, 3, 1]


def test_dead_jobs_are_purged_on_time_after_a_restart():
    scene, store = Scene(), MemoryStore()
    job = scene.push()
    scene.engine.kill(job, scene.now)
    commit(scene.engine, store)
    again = Scene(recover(store))
    again.advance_to(job.due_at - 1)
    assert len(again.engine.dead) == 1
    again.advance_to(job.due_at)
    assert again.engine.jobs == {}


# Tags


def test_tags_survive_a_restart(scene):
    store = MemoryStore()
    assert scene.push("tagged", tags=["red", "blue"]).extra.tags == ["red", "blue"]
    assert scene.push("plain").extra is None
    commit(scene.engine, store)
    assert recover(store).find("tagged").extra.tags == ["red", "blue"]


# Timers


def test_an_alarm_fires_at_its_time(scene):
    scene.engine.set_alarm(("beat", "w1"), START + SECOND)
    scene.advance(0.5)
    assert scene.engine.alarms == []
    scene.advance(0.5)
    assert scene.engine.alarms == [("beat", "w1")]
    assert scene.engine.next_timer() is None


def test_a_cancelled_alarm_does_not_fire(scene):
    scene.engine.set_alarm(("owner", "one"), START + SECOND)
    scene.engine.set_alarm(("owner", "two"), START + SECOND)
    scene.engine.set_alarm(("owner", "one"), None)
    scene.engine.set_alarm(("owner", "unheard of"), None)
    scene.advance(1)
    assert scene.engine.alarms == [("owner", "two")]
    scene.engine.set_alarm(("owner", "two"), None)
    assert len(scene.engine.timers) == 0


def test_a_postponed_alarm_fires_once(scene):
    for seconds in (1, 3, 2):
        scene.engine.set_alarm("beat", START + seconds * SECOND)
    scene.advance(1)
    assert scene.engine.alarms == []
    scene.advance(9)
    assert scene.engine.alarms == ["beat"]


def test_alarms_fire_while_the_store_fails(scene):
    scene.engine.unavailable_reason = "disk full"
    scene.engine.set_alarm("beat", START + SECOND)
    scene.advance(1)
    assert scene.engine.alarms == ["beat"]


def test_the_next_timer_is_the_earliest_of_all(scene):
    scene.push("scheduled", due_at=START + 90 * SECOND)
    assert scene.engine.next_timer() == START + 90 * SECOND
    scene.pushed_and_leased("leased", lease_duration=60 * SECOND)
    assert scene.engine.next_timer() == START + 60 * SECOND
    waiter = scene.wait(seconds=2)
    assert scene.engine.next_timer() == START + 2 * SECOND
    scene.engine.cancel_wait(waiter)
    assert scene.engine.next_timer() == START + 60 * SECOND


def test_a_tick_handles_a_limited_number_of_timers(scene):
    for n in range(5):
        scene.push(f"job-{n}", due_at=START + SECOND)
    scene.now += SECOND
    scene.engine.tick(scene.now, limit=3)
    assert len(scene.engine.scheduled) == 2
    assert scene.engine.next_timer() == START + SECOND
    scene.engine.tick(scene.now, limit=3)
    assert scene.engine.scheduled == {}


def test_jobs_that_become_due_together_are_ready_in_seq_order(scene):
    scene.push("late", due_at=START + 2 * SECOND)
    scene.push("early", due_at=START + SECOND)
    scene.advance(5)
    assert ready_jids(scene.engine) == ["late", "early"]


def test_a_change_delays_the_reply_to_the_current_caller(scene):
    engine = scene.engine
    first, second = Caller(engine, FAKTORY), Caller(engine, FAKTORY)
    engine.caller = first
    job = scene.push()
    assert first.must_wait
    engine.caller = second
    scene.lease()
    assert not second.must_wait
    scene.complete(job)
    assert second.must_wait
    assert not engine.server_caller.must_wait


def test_a_reply_that_depends_on_the_state_waits_for_uncommitted_changes_only(scene):
    engine = scene.engine
    caller = Caller(engine, FAKTORY)
    engine.durable = True
    caller.wait()
    assert not caller.must_wait
    scene.push()
    caller.wait()
    assert caller.must_wait


def test_a_lease_waits_for_uncommitted_changes_of_its_job(scene):
    engine = scene.engine
    engine.durable = True
    scene.push("a")
    engine.take_changes()
    scene.push("b")
    engine.caller = Caller(engine, FAKTORY)
    scene.lease()
    assert not engine.caller.must_wait
    scene.lease()
    assert engine.caller.must_wait


def test_a_delivery_of_a_job_that_was_just_pushed_waits(scene):
    scene.engine.durable = True
    waiter = scene.wait()
    scene.push()
    assert waiter.must_wait


def test_the_version_changes_with_every_durable_change(scene):
    engine, seen = scene.engine, set()

    def differs() -> bool:
        known = engine.version in seen
        seen.add(engine.version)
        return not known

    assert differs()
    job = scene.push()
    assert differs()
    engine.set_tags(job, [("a", 1)])
    assert differs()
    engine.set_tags(job, [("b", 1)])
    assert differs()
    engine.set_setting("a", b"1")
    assert differs()
    engine.set_setting("a", b"2")
    assert differs()
    engine.take_changes()
    assert differs()


def test_the_same_seed_replays_the_same_delays():
    def due() -> list[int]:
        scene = Scene(Engine(Random(42), protocol_rules()))
        jobs = [scene.pushed_and_leased(f"job-{n}") for n in range(10)]
        for job in jobs:
            scene.fail(job)
        return [job.due_at for job in jobs]

    assert due() == due()
    assert len(set(due())) > 1


def test_a_push_has_defaults_for_optional_fields():
    push = NewJob("job-1", "SomeJob", b"[]", FAKTORY, "default", 25, 60 * SECOND)
    assert (push.rank, push.due_at, push.tags, push.blockers, push.wire_fields) == (
        0,
        0,
        [],
        [],
        b"",
    )
