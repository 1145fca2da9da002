"""Leases that last as long as the holder's connection: Masenko's, whoever pushed the job."""

from contextlib import suppress

import pytest
from invariants import consistent

from failing_stores import FailingMemoryStore
from millrace.engine.errors import NotLeased
from millrace.engine.job import (
    EARLIER,
    FAKTORY,
    FOREVER,
    GOQUEUE,
    LATER,
    MASENKO,
    NO_PROTOCOL,
    WORKQ,
    Job,
)
from millrace.engine.policy import SECOND
from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED
from millrace.engine.transitions import HALTED_RETRY
from millrace.engine.waiters import Waiter
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
    """End a turn that cannot be written; nothing can from then on."""
    store.fail = "commit"
    assert not commit_or_revert(scene.engine, store)
    store.fail = ""


# What they are


@pytest.mark.parametrize("origin", [MASENKO, FAKTORY, WORKQ, GOQUEUE])
def test_a_bound_lease_has_no_end_of_its_own(scene, origin):
    job = scene.pushed_and_leased(origin=origin, lease_for=SECOND)
    assert (job.deadline, job.holder, job.actor) == (FOREVER, "connection-1", MASENKO)
    assert scene.engine.next_timer() is None
    scene.advance(10**9)
    assert (job.state, job.attempt) == (LEASED, 1)
    consistent(scene.engine)


def test_a_job_of_masenko_held_by_another_protocol_has_a_deadline(scene):
    job = scene.push(lease_for=60 * SECOND)
    assert Scene.lease(scene) is job
    assert job.deadline == scene.now + 60 * SECOND
    scene.advance(60)
    assert job.state == DEAD
    assert scene.events()[-1].group == "LeaseExpired"


def test_a_bound_lease_by_delivery_has_no_end_either(scene):
    waiter = Waiter(("default",), "connection-1", MASENKO, None)
    scene.engine.wait(waiter, scene.now + SECOND)
    job = scene.push()
    assert scene.delivered() == [(waiter, job)]
    assert job.deadline == FOREVER
    assert len(scene.engine.timers) == 0


def test_it_ends_like_any_other(scene):
    scene.complete(scene.pushed_and_leased("one"))
    scene.fail(scene.pushed_and_leased("two", retries=1))
    scene.engine.release(scene.pushed_and_leased("three"), scene.now)
    scene.engine.cancel(scene.lease(), scene.now)
    assert {job.jid: job.state for job in scene.engine.jobs.values()} == {"two": SCHEDULED}
    consistent(scene.engine)


def test_a_time_to_live_ends_it_as_well(scene):
    scene.pushed_and_leased(origin=WORKQ, expires=scene.now + SECOND)
    scene.advance(1)
    assert scene.engine.jobs == {}
    assert len(scene.engine.timers) == 0


def test_a_job_that_others_take_next_has_a_deadline_again(scene):
    job = scene.pushed_and_leased(lease_for=SECOND)
    scene.engine.release(job, scene.now)
    assert Scene.lease(scene) is job
    assert job.deadline == scene.now + SECOND
    consistent(scene.engine)


# A lost connection: by the rules of the job's origin


def test_a_lost_connection_counts_as_a_failure_of_masenko_s(scene):
    job = scene.pushed_and_leased(retries=1)
    scene.advance(2.5)
    scene.disconnect()
    assert (job.state, job.failures, job.due) == (SCHEDULED, 1, scene.now + SECOND // 2)
    event = scene.events()[-1]
    assert (event.type, event.actor, event.worker) == ("expired", MASENKO, "connection-1")
    assert (event.group, event.message) == ("ConnectionLost", "the client is gone")
    assert (event.run, event.state) == (2_500_000, SCHEDULED)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)
    consistent(scene.engine)


def test_without_retries_a_lost_connection_is_the_end(scene):
    job = scene.pushed_and_leased()
    scene.disconnect()
    assert job.state == DEAD
    consistent(scene.engine)


@pytest.mark.parametrize(
    ("fields", "state", "failures"),
    [
        ({"origin": FAKTORY, "retries": 25}, SCHEDULED, 1),
        ({"origin": FAKTORY, "retries": -1}, DEAD, 1),
        ({"origin": WORKQ, "retries": 0, "expires": 1 << 60}, READY, 0),
        ({"origin": WORKQ, "retries": 0, "expires": 1 << 60, "most_attempts": 1}, DEAD, 0),
        ({"origin": GOQUEUE}, READY, 1),
        ({"origin": GOQUEUE, "most_attempts": 1}, DEAD, 1),
        ({"origin": MASENKO, "retries": 1}, SCHEDULED, 1),
    ],
)
def test_what_follows_is_what_follows_an_expired_lease(scene, fields, state, failures):
    job = scene.pushed_and_leased(**fields)
    scene.disconnect()
    assert (job.state, job.failures, job.attempt) == (state, failures, 1)
    assert scene.causes()[-1] == "expired"
    consistent(scene.engine)


def test_what_need_not_be_kept_is_gone(scene):
    scene.pushed_and_leased(origin=FAKTORY, retries=0)
    scene.disconnect()
    assert scene.engine.jobs == {}
    assert len(scene.engine.timers) == 0


def test_workq_s_and_go_job_queue_s_come_back_to_their_old_places(scene):
    for jid, origin in (("go", GOQUEUE), ("work", WORKQ)):
        scene.pushed_and_leased(jid, origin=origin, retries=9, expires=1 << 60)
        scene.advance(1)
    scene.push("later")
    scene.disconnect()
    assert ready_jids(scene.engine) == ["go", "work", "later"]


def test_only_the_lost_connection_s_leases_end(scene):
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


def test_a_job_that_came_back_is_given_to_the_next_who_waits(scene):
    job = scene.pushed_and_leased(origin=GOQUEUE)
    waiter = scene.wait(holder="worker-2")
    scene.disconnect()
    assert scene.delivered() == [(waiter, job)]


def forsake_in_vain(scene: Scene, job: Job) -> None:
    """It may be refused, but does nothing, then or later."""
    with suppress(NotLeased):
        scene.engine.forsake(job, scene.now, "the client is gone")
    scene.engine.resume(scene.now)
    scene.advance(10)


@pytest.mark.parametrize("halted", ["", "disk full"])
def test_only_a_lease_can_be_forsaken(scene, halted):
    job = scene.push()
    scene.engine.halted = halted
    forsake_in_vain(scene, job)
    assert (job.state, scene.causes()) == (READY, ["pushed"])


# While nothing can be written


def test_while_halted_a_lost_connection_s_leases_stay(scene):
    job = scene.pushed_and_leased()
    scene.engine.take_batch()
    scene.engine.halted = "disk full"
    scene.disconnect()
    scene.advance(10)
    assert (job.state, job.failures) == (LEASED, 0)
    assert not scene.engine.batch
    assert scene.engine.next_timer() <= scene.now + HALTED_RETRY
    consistent(scene.engine)


@pytest.mark.parametrize(
    ("origin", "state"),
    [(MASENKO, SCHEDULED), (FAKTORY, SCHEDULED), (WORKQ, READY), (GOQUEUE, READY)],
)
def test_after_the_halt_they_end_by_themselves(scene, origin, state):
    job = scene.pushed_and_leased(origin=origin, retries=1, expires=1 << 60)
    scene.engine.halted = "disk full"
    scene.disconnect()
    scene.advance(10)
    scene.engine.resume(scene.now)
    scene.advance(HALTED_RETRY / SECOND)
    assert job.state == state
    assert scene.causes()[-1] == "expired"
    consistent(scene.engine)


def test_a_job_that_goes_while_it_is_to_be_forsaken_leaves_no_timer(scene):
    job = scene.pushed_and_leased()
    scene.engine.halted = "disk full"
    scene.disconnect()
    scene.engine.resume(scene.now)
    scene.engine.complete(job, scene.now, WORKQ, unleased=True)
    assert len(scene.engine.timers) == 0


def test_a_lease_that_a_failed_commit_undid_cannot_be_forsaken(scene, store):
    """Whoever still has the record of it does no harm."""
    scene.push()
    commit(scene.engine, store)
    job = scene.lease()
    halt(scene, store)
    forsake_in_vain(scene, job)
    assert scene.engine.find("job-1").state == READY
    consistent(scene.engine)


def test_a_job_that_a_failed_commit_undid_cannot_be_forsaken(scene, store):
    scene.push("stays")
    commit(scene.engine, store)
    job = scene.pushed_and_leased("goes", "other")
    halt(scene, store)
    forsake_in_vain(scene, job)
    assert [job.jid for job in scene.engine.jobs.values()] == ["stays"]
    consistent(scene.engine)


# When the end of a lease could not be written


@pytest.mark.parametrize(
    ("origin", "state"),
    [(MASENKO, SCHEDULED), (FAKTORY, SCHEDULED), (WORKQ, READY), (GOQUEUE, READY)],
)
def test_a_lost_connection_s_failure_that_was_undone_happens_again(scene, store, origin, state):
    scene.pushed_and_leased(origin=origin, retries=1, expires=1 << 60)
    commit(scene.engine, store)
    scene.disconnect()
    halt(scene, store)
    job = scene.engine.find("job-1")
    assert (job.state, job.holder) == (LEASED, "connection-1")
    consistent(scene.engine)
    scene.advance(5)
    assert job.state == LEASED
    scene.engine.resume(scene.now)
    scene.advance(HALTED_RETRY / SECOND)
    assert job.state == state
    consistent(scene.engine)


def test_what_a_connection_that_is_there_did_in_vain_leaves_it_the_lease(scene, store):
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


def test_a_connection_that_goes_after_its_word_was_undone_loses_the_lease(scene, store):
    scene.pushed_and_leased(retries=1)
    commit(scene.engine, store)
    scene.complete(scene.engine.find("job-1"))
    halt(scene, store)
    scene.disconnect()
    scene.engine.resume(scene.now)
    scene.advance(HALTED_RETRY / SECOND)
    assert scene.engine.find("job-1").state == SCHEDULED


def test_every_later_failed_commit_still_ends_it(scene, store):
    scene.pushed_and_leased(retries=1)
    commit(scene.engine, store)
    scene.disconnect()
    for _ in range(3):
        halt(scene, store)
        assert scene.engine.find("job-1").state == LEASED
        scene.engine.resume(scene.now)
        scene.advance(HALTED_RETRY / SECOND)
        assert scene.engine.find("job-1").state == SCHEDULED
    commit(scene.engine, store)
    assert recover(store).find("job-1").failures == 1


# A restart


def test_a_bound_lease_is_in_the_store_as_it_is(scene, tmp_path):
    store = SqliteStore(tmp_path)
    scene.pushed_and_leased(retries=3)
    again = restarted(scene, store)
    job = again.engine.find("job-1")
    assert (job.state, job.deadline, job.holder) == (LEASED, FOREVER, "connection-1")
    assert (job.actor, job.attempt) == (MASENKO, 1)
    assert len(again.engine.timers) == 0
    store.close()


def test_after_a_restart_bound_leases_end_and_it_is_nobody_s_failure(scene, store):
    scene.pushed_and_leased(retries=0, dead_queue="dead")
    again = restarted(scene, store)
    again.advance(1)
    again.engine.begin_anew(again.now)
    job = again.engine.find("job-1")
    assert (job.state, job.queue, job.failures, job.failure) == (READY, "default", 0, None)
    (event,) = again.events()
    assert (event.type, event.actor, event.state) == ("released", NO_PROTOCOL, READY)
    assert (again.engine.totals.processed, again.engine.totals.failures) == (0, 0)
    consistent(again.engine)
    third = restarted(again, store)
    assert third.engine.find("job-1").state == READY
    third.engine.begin_anew(third.now)
    assert not third.engine.batch


def test_they_come_back_to_their_places(scene, store):
    places = {"c": 0, "late": LATER + 2, "a": EARLIER + 5, "b": EARLIER + 7, "d": 0}
    for jid, place in places.items():
        scene.push(jid, place=place)
        scene.advance(1)
    scene.push("last")
    for _ in range(5):
        scene.lease(holder="connection-2")
    assert [job.jid for job in scene.engine.leased.values()] == ["a", "b", "c", "d", "last"]
    again = restarted(scene, store)
    again.engine.begin_anew(again.now)
    assert ready_jids(again.engine) == ["a", "b", "c", "d", "last", "late"]
    assert [event.jid for event in again.events()] == ["a", "b", "c", "d", "last"]
    assert again.engine.queues["default"].ready.early == 2
    consistent(again.engine)


def test_leases_of_other_protocols_go_on(scene, store):
    scene.push(retries=1, lease_for=60 * SECOND)
    Scene.lease(scene)
    again = restarted(scene, store)
    again.engine.begin_anew(again.now)
    assert again.engine.find("job-1").state == LEASED
    again.advance(60)
    assert again.engine.find("job-1").state == SCHEDULED


def test_nobody_can_say_after_a_restart_that_it_held_them(scene, store):
    scene.pushed_and_leased()
    again = restarted(scene, store)
    again.engine.begin_anew(again.now)
    job = again.engine.find("job-1")
    assert not again.engine.reclaim(job, "connection-1", MASENKO, again.now)
    assert again.engine.regain("job-1", "worker-1", FAKTORY, again.now) is None


def test_a_beginning_that_could_not_be_written_is_still_nobody_s_failure(scene, store):
    scene.pushed_and_leased(retries=0)
    again = restarted(scene, store)
    again.engine.begin_anew(again.now)
    halt(again, store)
    assert again.engine.find("job-1").state == LEASED
    again.engine.resume(again.now)
    again.advance(HALTED_RETRY / SECOND)
    job = again.engine.find("job-1")
    assert (job.state, job.failures) == (READY, 0)
    consistent(again.engine)


def test_a_beginning_that_could_not_be_written_still_drops_what_went_with_its_client(store):
    scene = Scene()
    scene.push(origin=WORKQ, fleeting=True)
    again = restarted(scene, store)
    again.engine.begin_anew(again.now)
    halt(again, store)
    again.engine.resume(again.now)
    again.advance(HALTED_RETRY / SECOND)
    assert again.engine.jobs == {}


# Leases that a failed commit has forgotten


def test_a_holder_is_told_that_it_holds_what_it_holds(scene):
    job = scene.pushed_and_leased()
    assert scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert (job.attempt, scene.causes()) == (1, ["pushed", "leased"])


def test_nobody_else_is(scene):
    job = scene.pushed_and_leased()
    assert not scene.engine.reclaim(job, "connection-2", MASENKO, scene.now)
    assert not scene.engine.reclaim(job, "connection-1", FAKTORY, scene.now)
    assert job.holder == "connection-1"


def test_a_lease_that_was_undone_is_given_again_to_its_holder(scene, store):
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


def test_but_not_when_somebody_else_has_it_by_then(scene, store):
    scene.push()
    commit(scene.engine, store)
    scene.lease()
    refused(scene, store)
    assert scene.lease(holder="connection-2").jid == "job-1"
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert job.holder == "connection-2"


def test_nor_when_somebody_else_had_it_and_gave_it_back(scene, store):
    scene.push()
    commit(scene.engine, store)
    scene.lease()
    refused(scene, store)
    scene.engine.release(scene.lease(holder="connection-2"), scene.now)
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert job.state == READY


def test_nor_after_an_ordinary_release(scene):
    job = scene.pushed_and_leased()
    scene.engine.release(job, scene.now)
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert (job.state, scene.causes()) == (READY, ["pushed", "leased", "released"])


@pytest.mark.parametrize("state", [SCHEDULED, DEAD])
def test_nor_what_is_not_ready(scene, store, state):
    job = scene.push(due=scene.now + SECOND if state == SCHEDULED else 0)
    if state == DEAD:
        scene.engine.kill(job, scene.now)
    commit(scene.engine, store)
    scene.push("in vain")
    refused(scene, store)
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert job.state == state


def test_the_record_of_a_lease_that_was_undone_is_no_lease(scene, store):
    scene.push()
    commit(scene.engine, store)
    old = scene.lease()
    refused(scene, store)
    assert not scene.engine.reclaim(old, "connection-1", MASENKO, scene.now)


def test_nothing_is_leased_again_while_nothing_can_be_written(scene, store):
    scene.push()
    commit(scene.engine, store)
    scene.lease()
    halt(scene, store)
    job = scene.engine.find("job-1")
    assert not scene.engine.reclaim(job, "connection-1", MASENKO, scene.now)
    assert not scene.engine.batch


def test_a_lease_given_again_can_fail_and_the_order_of_the_others_holds(scene, store):
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
