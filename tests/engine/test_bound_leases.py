"""Leases that end with the connection of the holder: all leases of Masenko clients."""

from contextlib import suppress

import pytest
from invariants import consistent

from failing_stores import FailingMemoryStore
from millrace.engine.errors import NotLeased
from millrace.engine.job import AFTER_ARRIVALS, BEFORE_ARRIVALS, FOREVER, NO_PROTOCOL, SECOND, Job
from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED
from millrace.engine.timers import UNAVAILABLE_RETRY
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, WORKQ
from millrace.store import SqliteStore
from scene import (
    MasenkoScene,
    Scene,
    commit,
    commit_or_revert,
    durable_but_for_seqs,
    ready_jids,
    recover,
    refused,
    restarted,
)


@pytest.fixture
def scene() -> MasenkoScene:
    return MasenkoScene()


@pytest.fixture
def store() -> FailingMemoryStore:
    return FailingMemoryStore()


def halt(scene: Scene, store: FailingMemoryStore) -> None:
    """End a turn whose commit fails. The engine stays unavailable."""
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""


# Properties of bound leases


@pytest.mark.parametrize("origin", [MASENKO, FAKTORY, WORKQ, GOQUEUE])
def test_a_bound_lease_never_expires(scene, origin):
    job = scene.pushed_and_leased(origin=origin, lease_duration=SECOND)
    assert (job.deadline, job.holder, job.holder_protocol) == (FOREVER, "connection-1", MASENKO)
    assert scene.engine.next_timer() is None
    scene.advance(10**9)
    assert (job.state, job.attempt) == (LEASED, 1)
    consistent(scene.engine)


def test_a_masenko_job_held_by_another_protocol_has_a_deadline(scene):
    job = scene.push(lease_duration=60 * SECOND)
    assert Scene.lease(scene) is job
    assert job.deadline == scene.now + 60 * SECOND
    scene.advance(60)
    assert job.state == DEAD
    assert scene.events()[-1].group == "LeaseExpired"


def test_a_bound_lease_delivered_to_a_waiter_never_expires(scene):
    waiter = Waiter(("default",), "connection-1", MASENKO, None)
    scene.engine.add_waiter(waiter, scene.now + SECOND)
    job = scene.push()
    assert scene.delivered() == [(waiter, job)]
    assert job.deadline == FOREVER
    assert len(scene.engine.timers) == 0


def test_a_bound_lease_ends_on_complete_fail_release_or_cancel(scene):
    scene.complete(scene.pushed_and_leased("one"))
    scene.fail(scene.pushed_and_leased("two", retries=1))
    scene.engine.release(scene.pushed_and_leased("three"), scene.now)
    scene.engine.cancel(scene.lease(), scene.now)
    assert {job.jid: job.state for job in scene.engine.jobs.values()} == {"two": SCHEDULED}
    consistent(scene.engine)


def test_a_time_to_live_ends_a_bound_lease(scene):
    scene.pushed_and_leased(origin=WORKQ, expires_at=scene.now + SECOND)
    scene.advance(1)
    assert scene.engine.jobs == {}
    assert len(scene.engine.timers) == 0


def test_the_next_lease_by_another_protocol_has_a_deadline(scene):
    job = scene.pushed_and_leased(lease_duration=SECOND)
    scene.engine.release(job, scene.now)
    assert Scene.lease(scene) is job
    assert job.deadline == scene.now + SECOND
    consistent(scene.engine)


# A lost connection: by the rules of the job's origin


def test_a_lost_connection_counts_as_a_failure_of_a_masenko_job(scene):
    job = scene.pushed_and_leased(retries=1)
    scene.advance(2.5)
    scene.disconnect()
    assert (job.state, job.failures, job.due_at) == (SCHEDULED, 1, scene.now + SECOND // 2)
    event = scene.events()[-1]
    assert (event.type, event.actor, event.worker) == ("expired", MASENKO, "connection-1")
    assert (event.group, event.message) == ("ConnectionLost", "the client is gone")
    assert (event.run, event.state) == (2_500_000, SCHEDULED)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)
    consistent(scene.engine)


def test_without_retries_a_lost_connection_ends_the_job(scene):
    job = scene.pushed_and_leased()
    scene.disconnect()
    assert job.state == DEAD
    consistent(scene.engine)


@pytest.mark.parametrize(
    ("fields", "state", "failures"),
    [
        ({"origin": FAKTORY, "retries": 25}, SCHEDULED, 1),
        ({"origin": FAKTORY, "retries": -1}, DEAD, 1),
        ({"origin": WORKQ, "retries": 0, "expires_at": 1 << 60}, READY, 0),
        ({"origin": WORKQ, "retries": 0, "expires_at": 1 << 60, "max_attempts": 1}, DEAD, 0),
        ({"origin": GOQUEUE}, READY, 1),
        ({"origin": GOQUEUE, "max_attempts": 1}, DEAD, 1),
        ({"origin": MASENKO, "retries": 1}, SCHEDULED, 1),
    ],
)
def test_a_lost_connection_follows_the_policy_of_an_expired_lease(scene, fields, state, failures):
    job = scene.pushed_and_leased(**fields)
    scene.disconnect()
    assert (job.state, job.failures, job.attempt) == (state, failures, 1)
    assert scene.causes()[-1] == "expired"
    consistent(scene.engine)


def test_a_job_without_retention_is_removed(scene):
    scene.pushed_and_leased(origin=FAKTORY, retries=0)
    scene.disconnect()
    assert scene.engine.jobs == {}
    assert len(scene.engine.timers) == 0


def test_workq_and_goqueue_jobs_return_to_their_old_positions(scene):
    for jid, origin in (("go", GOQUEUE), ("work", WORKQ)):
        scene.pushed_and_leased(jid, origin=origin, retries=9, expires_at=1 << 60)
        scene.advance(1)
    scene.push("later")
    scene.disconnect()
    assert ready_jids(scene.engine) == ["go", "work", "later"]


def test_only_leases_of_the_lost_connection_end(scene):
    mine, other = scene.push("mine", retries=1), scene.push("other")
    assert scene.lease(holder="connection-1") is mine
    assert scene.lease(holder="connection-2") is other
    scene.disconnect("connection-1")
    assert (mine.state, other.state, other.holder) == (SCHEDULED, LEASED, "connection-2")


def test_all_leases_of_a_connection_end(scene):
    jobs = [scene.pushed_and_leased(f"job-{n}", retries=1) for n in range(5)]
    scene.disconnect()
    assert {job.state for job in jobs} == {SCHEDULED}
    assert scene.engine.leased == {}
    consistent(scene.engine)


def test_a_returned_job_is_delivered_to_the_next_waiter(scene):
    job = scene.pushed_and_leased(origin=GOQUEUE)
    waiter = scene.wait(holder="worker-2")
    scene.disconnect()
    assert scene.delivered() == [(waiter, job)]


def end_lease_without_effect(scene: Scene, job: Job) -> None:
    """The engine may refuse the call. It has no effect, immediately or later."""
    with suppress(NotLeased):
        scene.engine.leases.end_after_disconnect(job, scene.now, "the client is gone")
    scene.engine.resume(scene.now)
    scene.advance(10)


@pytest.mark.parametrize("halted", ["", "disk full"])
def test_only_a_leased_job_can_lose_its_connection(scene, halted):
    job = scene.push()
    scene.engine.unavailable_reason = halted
    end_lease_without_effect(scene, job)
    assert (job.state, scene.causes()) == (READY, ["pushed"])


# While the store fails


def test_leases_of_a_lost_connection_stay_while_halted(scene):
    job = scene.pushed_and_leased()
    scene.engine.take_changes()
    scene.engine.unavailable_reason = "disk full"
    scene.disconnect()
    scene.advance(10)
    assert (job.state, job.failures) == (LEASED, 0)
    assert not scene.engine.change_set
    assert scene.engine.next_timer() <= scene.now + UNAVAILABLE_RETRY
    consistent(scene.engine)


@pytest.mark.parametrize(
    ("origin", "state"),
    [(MASENKO, SCHEDULED), (FAKTORY, SCHEDULED), (WORKQ, READY), (GOQUEUE, READY)],
)
def test_leases_of_a_lost_connection_end_after_the_halt(scene, origin, state):
    job = scene.pushed_and_leased(origin=origin, retries=1, expires_at=1 << 60)
    scene.engine.unavailable_reason = "disk full"
    scene.disconnect()
    scene.advance(10)
    scene.engine.resume(scene.now)
    scene.advance(UNAVAILABLE_RETRY / SECOND)
    assert job.state == state
    assert scene.causes()[-1] == "expired"
    consistent(scene.engine)


def test_a_job_completed_after_its_connection_was_lost_leaves_no_timer(scene):
    job = scene.pushed_and_leased()
    scene.engine.unavailable_reason = "disk full"
    scene.disconnect()
    scene.engine.resume(scene.now)
    scene.engine.complete(job, scene.now, WORKQ, allow_unleased=True)
    assert len(scene.engine.timers) == 0


def test_a_lease_reverted_by_a_failed_commit_does_not_end_again(scene, store):
    """A caller that still has the old record changes nothing."""
    scene.push()
    commit(scene.engine, store)
    job = scene.lease()
    halt(scene, store)
    end_lease_without_effect(scene, job)
    assert scene.engine.find("job-1").state == READY
    consistent(scene.engine)


def test_a_lease_of_a_reverted_job_does_not_end_again(scene, store):
    scene.push("stays")
    commit(scene.engine, store)
    job = scene.pushed_and_leased("goes", "other")
    halt(scene, store)
    end_lease_without_effect(scene, job)
    assert [job.jid for job in scene.engine.jobs.values()] == ["stays"]
    consistent(scene.engine)


# When the commit of an ended lease fails


@pytest.mark.parametrize(
    ("origin", "state"),
    [(MASENKO, SCHEDULED), (FAKTORY, SCHEDULED), (WORKQ, READY), (GOQUEUE, READY)],
)
def test_a_reverted_failure_of_a_lost_connection_happens_again(scene, store, origin, state):
    scene.pushed_and_leased(origin=origin, retries=1, expires_at=1 << 60)
    commit(scene.engine, store)
    scene.disconnect()
    halt(scene, store)
    job = scene.engine.find("job-1")
    assert (job.state, job.holder) == (LEASED, "connection-1")
    consistent(scene.engine)
    scene.advance(5)
    assert job.state == LEASED
    scene.engine.resume(scene.now)
    scene.advance(UNAVAILABLE_RETRY / SECOND)
    assert job.state == state
    consistent(scene.engine)


def test_a_reverted_end_leaves_the_lease_with_its_open_connection(scene, store):
    scene.pushed_and_leased()
    commit(scene.engine, store)
    for end in (scene.fail, scene.complete):
        end(scene.engine.find("job-1"))
        refused(scene, store)
        scene.advance(100)
        job = scene.engine.find("job-1")
        assert (job.state, job.holder, job.deadline) == (LEASED, "connection-1", FOREVER)
        consistent(scene.engine)
    scene.complete(job)


def test_a_lease_whose_completion_was_reverted_ends_with_its_lost_connection(scene, store):
    scene.pushed_and_leased(retries=1)
    commit(scene.engine, store)
    scene.complete(scene.engine.find("job-1"))
    halt(scene, store)
    scene.disconnect()
    scene.engine.resume(scene.now)
    scene.advance(UNAVAILABLE_RETRY / SECOND)
    assert scene.engine.find("job-1").state == SCHEDULED


def test_the_lease_still_ends_after_repeated_failed_commits(scene, store):
    scene.pushed_and_leased(retries=1)
    commit(scene.engine, store)
    scene.disconnect()
    for _ in range(3):
        halt(scene, store)
        assert scene.engine.find("job-1").state == LEASED
        scene.engine.resume(scene.now)
        scene.advance(UNAVAILABLE_RETRY / SECOND)
        assert scene.engine.find("job-1").state == SCHEDULED
    commit(scene.engine, store)
    assert recover(store).find("job-1").failures == 1


# A restart


def test_the_store_keeps_a_bound_lease_unchanged(scene, tmp_path):
    store = SqliteStore(tmp_path)
    scene.pushed_and_leased(retries=3)
    again = restarted(scene, store)
    job = again.engine.find("job-1")
    assert (job.state, job.deadline, job.holder) == (LEASED, FOREVER, "connection-1")
    assert (job.holder_protocol, job.attempt) == (MASENKO, 1)
    assert len(again.engine.timers) == 0
    store.close()


def test_a_restart_ends_bound_leases_without_counting_a_failure(scene, store):
    scene.pushed_and_leased(retries=0, dead_queue="dead")
    again = restarted(scene, store)
    again.advance(1)
    again.engine.restoration.after_restart(again.now)
    job = again.engine.find("job-1")
    assert (job.state, job.queue, job.failures, job.failure) == (READY, "default", 0, None)
    (event,) = again.events()
    assert (event.type, event.actor, event.state) == ("released", NO_PROTOCOL, READY)
    assert (again.engine.totals.processed, again.engine.totals.failures) == (0, 0)
    consistent(again.engine)
    third = restarted(again, store)
    assert third.engine.find("job-1").state == READY
    third.engine.restoration.after_restart(third.now)
    assert not third.engine.change_set


def test_a_restart_returns_jobs_to_their_positions(scene, store):
    places = {
        "c": 0,
        "late": AFTER_ARRIVALS + 2,
        "a": BEFORE_ARRIVALS + 5,
        "b": BEFORE_ARRIVALS + 7,
        "d": 0,
    }
    for jid, place in places.items():
        scene.push(jid, position=place)
        scene.advance(1)
    scene.push("last")
    for _ in range(5):
        scene.lease(holder="connection-2")
    assert [job.jid for job in scene.engine.leased.values()] == ["a", "b", "c", "d", "last"]
    again = restarted(scene, store)
    again.engine.restoration.after_restart(again.now)
    assert ready_jids(again.engine) == ["a", "b", "c", "d", "last", "late"]
    assert [event.jid for event in again.events()] == ["a", "b", "c", "d", "last"]
    assert again.engine.queues["default"].ready.front_count == 2
    consistent(again.engine)


def test_a_restart_keeps_leases_of_other_protocols(scene, store):
    scene.push(retries=1, lease_duration=60 * SECOND)
    Scene.lease(scene)
    again = restarted(scene, store)
    again.engine.restoration.after_restart(again.now)
    assert again.engine.find("job-1").state == LEASED
    again.advance(60)
    assert again.engine.find("job-1").state == SCHEDULED


def test_no_client_can_reclaim_a_bound_lease_after_a_restart(scene, store):
    scene.pushed_and_leased()
    again = restarted(scene, store)
    again.engine.restoration.after_restart(again.now)
    job = again.engine.find("job-1")
    assert not again.engine.reclaim(job, "connection-1", MASENKO, again.now)
    assert again.engine.reclaim_by_id("job-1", "worker-1", FAKTORY, again.now) is None


def test_a_refused_commit_at_startup_does_not_count_as_a_failure(scene, store):
    scene.pushed_and_leased(retries=0)
    again = restarted(scene, store)
    again.engine.restoration.after_restart(again.now)
    halt(again, store)
    assert again.engine.find("job-1").state == LEASED
    again.engine.resume(again.now)
    again.advance(UNAVAILABLE_RETRY / SECOND)
    job = again.engine.find("job-1")
    assert (job.state, job.failures) == (READY, 0)
    consistent(again.engine)


def test_a_refused_commit_at_startup_still_drops_transient_jobs(store):
    scene = Scene()
    scene.push(origin=WORKQ, transient=True)
    again = restarted(scene, store)
    again.engine.restoration.after_restart(again.now)
    halt(again, store)
    again.engine.resume(again.now)
    again.advance(UNAVAILABLE_RETRY / SECOND)
    assert again.engine.jobs == {}


# Leases that a failed commit reverted


def test_a_holder_can_reclaim_a_lease_that_it_holds(scene):
    job = scene.pushed_and_leased()
    assert scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert (job.attempt, scene.causes()) == (1, ["pushed", "leased"])


def test_another_holder_or_protocol_cannot_reclaim_a_lease(scene):
    job = scene.pushed_and_leased()
    assert not scene.engine.reclaim(job, "connection-2", MASENKO, scene.now)
    assert not scene.engine.reclaim(job, "connection-1", FAKTORY, scene.now)
    assert job.holder == "connection-1"


def test_a_reverted_lease_is_restored_to_its_holder(scene, store):
    scene.push("job-1")
    scene.push("job-2")
    commit(scene.engine, store)
    assert scene.lease().jid == "job-1"
    before = durable_but_for_seqs(recover(store))
    refused(scene, store)
    assert durable_but_for_seqs(scene.engine) == before
    job = scene.engine.find("job-1")
    assert scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert (job.state, job.holder, job.attempt, job.deadline) == (
        LEASED,
        "connection-1",
        1,
        FOREVER,
    )
    assert ready_jids(scene.engine) == ["job-2"]
    consistent(scene.engine)
    scene.complete(job)
    assert scene.engine.find("job-1") is None


def test_a_reverted_lease_is_not_restored_while_another_client_holds_the_job(scene, store):
    scene.push()
    commit(scene.engine, store)
    scene.lease()
    refused(scene, store)
    assert scene.lease(holder="connection-2").jid == "job-1"
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert job.holder == "connection-2"


def test_a_reverted_lease_is_not_restored_after_another_client_released_the_job(scene, store):
    scene.push()
    commit(scene.engine, store)
    scene.lease()
    refused(scene, store)
    scene.engine.release(scene.lease(holder="connection-2"), scene.now)
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert job.state == READY


def test_a_released_lease_is_not_restored(scene):
    job = scene.pushed_and_leased()
    scene.engine.release(job, scene.now)
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert (job.state, scene.causes()) == (READY, ["pushed", "leased", "released"])


@pytest.mark.parametrize("state", [SCHEDULED, DEAD])
def test_a_job_that_is_not_ready_is_not_reclaimed(scene, store, state):
    job = scene.push(due_at=scene.now + SECOND if state == SCHEDULED else 0)
    if state == DEAD:
        scene.engine.kill(job, scene.now)
    commit(scene.engine, store)
    scene.push("in vain")
    refused(scene, store)
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert job.state == state


def test_the_record_of_a_reverted_lease_is_not_a_lease(scene, store):
    scene.push()
    commit(scene.engine, store)
    old = scene.lease()
    refused(scene, store)
    assert not scene.engine.reclaim(old, "connection-1", MASENKO, scene.now)


def test_no_lease_is_restored_while_the_store_fails(scene, store):
    scene.push()
    commit(scene.engine, store)
    scene.lease()
    halt(scene, store)
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert not scene.engine.change_set


def test_a_restored_lease_can_fail_and_the_order_of_other_jobs_holds(scene, store):
    for jid, origin in (("first", GOQUEUE), ("second", GOQUEUE), ("mine", MASENKO)):
        scene.push(jid, origin=origin, retries=9)
        scene.advance(1)
    commit(scene.engine, store)
    first = scene.lease(holder="connection-2")
    commit(scene.engine, store)
    assert (first.jid, scene.lease().jid, scene.lease().jid) == ("first", "second", "mine")
    refused(scene, store)
    mine = scene.engine.find("mine")
    assert scene.engine.reclaim(mine, "connection-1", MASENKO, scene.now)
    scene.fail(mine)
    scene.disconnect("connection-2")
    assert [scene.lease().jid, scene.lease().jid] == ["first", "second"]
