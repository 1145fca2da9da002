"""Cascades: a job that fails permanently also fails the Masenko jobs that wait for it."""

import pytest
from invariants import consistent

from failing_stores import FailingMemoryStore
from millrace.engine.cascades import CASCADE_BATCH_SIZE, CASCADE_PREFIX, STEP_LIMIT
from millrace.engine.events import fingerprint
from millrace.engine.job import BEFORE_ARRIVALS, DAY, NO_PROTOCOL, SECOND
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, WORKQ
from millrace.store import MemoryStore
from scene import (
    MasenkoScene,
    Scene,
    commit,
    days_of,
    durable_but_for_seqs,
    durable_state,
    ready_jids,
    recover,
    refused,
    restarted,
    unit,
)


@pytest.fixture
def scene() -> MasenkoScene:
    return MasenkoScene()


def states(scene: Scene) -> dict[str, int]:
    return {job.jid: job.state for job in scene.engine.jobs.values()}


def jids_of(scene: Scene, cause: str) -> list[str]:
    """The jids of the events of one type, in order."""
    return [event.jid for event in scene.events() if event.type == cause]


def fail_root(scene: Scene) -> None:
    scene.fail(scene.lease("roots"))


def family(scene: Scene, **fields) -> None:
    """Two children of one root and two grandchildren each, pushed alternately."""
    root = scene.push("root", "roots", **fields)
    a, b = (scene.push(jid, blockers=[root.seq], **fields) for jid in ("a", "b"))
    for jid, parent in (("a1", a), ("b1", b), ("a2", a), ("b2", b)):
        scene.push(jid, blockers=[parent.seq], **fields)


DEPTH_FIRST = ["a", "a1", "a2", "b", "b1", "b2"]


# Affected jobs and their order


def test_a_job_fails_with_its_blocker(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    assert (blocker.state, job.state, job.extra.blockers) == (DEAD, DEAD, [])
    assert scene.causes()[-2:] == ["failed", "doomed"]
    assert list(scene.engine.dead.values()) == [blocker, job]
    consistent(scene.engine)


def test_no_dependent_fails_while_its_blocker_has_retries(scene):
    blocker = scene.pushed_and_leased("blocker", retries=1)
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    assert (blocker.state, job.state) == (SCHEDULED, BLOCKED)
    scene.advance_to(blocker.due_at)
    scene.complete(scene.lease())
    assert job.state == READY


def test_an_expired_lease_and_a_lost_connection_fail_dependents():
    for lease, end in (
        (Scene.lease, lambda scene: scene.advance(1800)),
        (MasenkoScene.lease, lambda scene: scene.disconnect()),
    ):
        scene = MasenkoScene()
        blocker = scene.push("blocker")
        job = scene.push("job", blockers=[blocker.seq])
        lease(scene)
        end(scene)
        assert (blocker.state, job.state) == (DEAD, DEAD)
        assert scene.causes()[-2:] == ["expired", "doomed"]
        consistent(scene.engine)


def test_a_killed_blocker_fails_its_dependents(scene):
    blocker = scene.push("blocker", dead_queue="dead")
    job = scene.push("job", blockers=[blocker.seq], dead_queue="dead")
    scene.engine.kill(blocker, scene.now)
    assert (blocker.state, blocker.queue) == (DEAD, "default")
    assert (job.state, job.queue) == (READY, "dead")
    assert scene.causes()[-3:] == ["killed", "doomed", "moved"]


def test_all_generations_fail_depth_first(scene):
    family(scene)
    fail_root(scene)
    assert jids_of(scene, "doomed") == DEPTH_FIRST
    assert set(states(scene).values()) == {DEAD}
    assert [job.jid for job in scene.engine.dead.values()] == ["root", *DEPTH_FIRST]
    consistent(scene.engine)


def test_each_job_moves_before_the_next_fails(scene):
    family(scene, dead_queue="dead")
    fail_root(scene)
    fates = [(event.type, event.jid) for event in scene.events()[-14:]]
    expected = [("failed", "root"), ("moved", "root")]
    expected += [(cause, jid) for jid in DEPTH_FIRST for cause in ("doomed", "moved")]
    assert fates == expected


def test_in_a_shared_dead_queue_the_blocker_precedes_its_dependents_in_depth_first_order(scene):
    family(scene, dead_queue="dead")
    fail_root(scene)
    assert ready_jids(scene.engine, "dead") == ["root", *DEPTH_FIRST]


def test_moved_jobs_go_behind_the_jobs_of_the_dead_queue(scene):
    family(scene, dead_queue="dead")
    scene.push("there", "dead")
    scene.advance(1)
    fail_root(scene)
    assert ready_jids(scene.engine, "dead")[:2] == ["there", "root"]


def test_each_job_goes_to_its_dead_queue_or_the_dead_set(scene):
    root = scene.push("root", "roots", dead_queue="one")
    child = scene.push("child", blockers=[root.seq])
    scene.push("grandchild", blockers=[child.seq], dead_queue="two")
    fail_root(scene)
    assert {job.jid: (job.queue, job.state) for job in scene.engine.jobs.values()} == {
        "root": ("one", READY),
        "child": ("default", DEAD),
        "grandchild": ("two", READY),
    }
    consistent(scene.engine)


def test_a_cascade_crosses_queues(scene):
    blocker = scene.push("0", "queue-0")
    for number in range(1, 5):
        blocker = scene.push(str(number), f"queue-{number}", blockers=[blocker.seq])
    scene.fail(scene.lease("queue-0"))
    assert [queue.counts[DEAD] for queue in scene.engine.queues.values()] == [1] * 5
    assert all(sum(queue.counts) == 1 for queue in scene.engine.queues.values())
    consistent(scene.engine)


def test_a_job_with_several_failed_blockers_fails_once(scene):
    top = scene.push("top", "roots")
    left, right = (scene.push(jid, blockers=[top.seq]) for jid in ("left", "right"))
    scene.push("bottom", blockers=[left.seq, right.seq])
    scene.push("below", blockers=[top.seq, left.seq, right.seq, 4])
    fail_root(scene)
    assert jids_of(scene, "doomed") == ["left", "bottom", "below", "right"]
    assert set(states(scene).values()) == {DEAD}
    consistent(scene.engine)


def test_a_second_live_blocker_does_not_prevent_the_failure(scene):
    dying, living = scene.push("dying", "roots"), scene.push("living")
    job = scene.push("job", blockers=[living.seq, dying.seq])
    fail_root(scene)
    assert (job.state, job.extra.blockers) == (DEAD, [])
    consistent(scene.engine)
    scene.complete(scene.lease())
    assert job.state == DEAD
    assert jids_of(scene, "unblocked") == []


def test_unrelated_jobs_are_not_affected(scene):
    family(scene)
    other = scene.push("other")
    scene.push("waits for other", blockers=[other.seq])
    fail_root(scene)
    assert (states(scene)["other"], states(scene)["waits for other"]) == (READY, BLOCKED)


def test_a_killed_job_does_not_fail_again(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq], dead_queue="dead")
    scene.engine.kill(job, scene.now)
    scene.fail(blocker)
    assert (job.state, job.queue) == (DEAD, "default")
    assert jids_of(scene, "doomed") == []
    scene.engine.retry_now(job, scene.now)
    scene.engine.cancel(blocker, scene.now)
    assert (job.state, job.extra.blockers) == (READY, [])
    consistent(scene.engine)


def test_waiters_of_the_dead_queue_receive_the_failed_jobs_in_order(scene):
    family(scene, dead_queue="dead")
    waiters = [scene.wait("dead", holder=f"worker-{n}") for n in range(3)]
    fail_root(scene)
    delivered = [(waiter, job.jid) for waiter, job in scene.delivered()]
    assert delivered == list(zip(waiters, ["root", "a", "a1"], strict=True))
    consistent(scene.engine)


def test_a_job_leased_from_its_dead_queue_during_the_cascade_keeps_its_lease(scene):
    """The waiter receives the root before its dependents fail."""
    waiter = scene.wait("dead", holder="undertaker")
    family(scene, dead_queue="dead")
    fail_root(scene)
    ((receiver, root),) = scene.delivered()
    assert (receiver, root.jid, root.state, root.holder) == (waiter, "root", LEASED, "undertaker")
    assert len(ready_jids(scene.engine, "dead")) == 6
    scene.complete(root)
    consistent(scene.engine)


def test_a_client_that_waits_for_a_result_is_notified_of_the_failure(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    waiter = Waiter((), "", WORKQ, None)
    scene.engine.add_waiter(waiter, scene.now + 60 * SECOND, job)
    scene.fail(blocker)
    ((receiver, outcome),) = scene.engine.waiters.outcomes
    assert (receiver, outcome.job, outcome.succeeded) == (waiter, job, False)


# After the failure


def test_a_failed_dependent_can_be_retried(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    scene.engine.retry_now(job, scene.now)
    assert scene.lease() is job
    assert (job.attempt, job.failures) == (1, 0)
    scene.complete(job)
    consistent(scene.engine)


def test_a_failed_dependent_has_the_retention_of_its_blocker(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    assert job.due_at == blocker.due_at == scene.now + 180 * DAY
    scene.advance(180 * 86_400)
    assert scene.engine.jobs == {}
    assert len(scene.engine.timers) == 0


def test_a_blocker_in_its_dead_queue_blocks_later_jobs(scene):
    blocker = scene.pushed_and_leased("blocker", dead_queue="dead")
    scene.fail(blocker)
    late, later = (scene.push(jid, blockers=[blocker.seq]) for jid in ("late", "later"))
    assert late.state == BLOCKED
    scene.engine.cancel(later, scene.now)
    scene.complete(scene.lease("dead"))
    assert late.state == READY
    consistent(scene.engine)


def test_a_blocker_that_fails_in_its_dead_queue_fails_later_dependents(scene):
    blocker = scene.pushed_and_leased("blocker", dead_queue="dead")
    scene.fail(blocker)
    late = scene.push("late", blockers=[blocker.seq])
    scene.fail(scene.lease("dead"))
    assert (blocker.state, late.state) == (DEAD, DEAD)
    consistent(scene.engine)


@pytest.mark.parametrize("dead_max", [0, 1, 3])
def test_a_full_dead_set_drops_failed_dependents(dead_max):
    scene = MasenkoScene(dead_max=dead_max)
    family(scene)
    fail_root(scene)
    assert len(scene.engine.dead) == dead_max
    assert len(jids_of(scene, "doomed")) == 6
    assert jids_of(scene, "purged") == ["root", *DEPTH_FIRST][: 7 - dead_max]
    assert jids_of(scene, "unblocked") == []
    consistent(scene.engine)


# Other origins


@pytest.mark.parametrize("origin", [FAKTORY, WORKQ, GOQUEUE])
def test_a_job_of_another_origin_keeps_waiting_for_a_dead_blocker(scene, origin):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq], origin=origin)
    scene.fail(blocker)
    assert (blocker.state, job.state) == (DEAD, BLOCKED)
    scene.engine.retry_now(blocker, scene.now)
    scene.complete(scene.lease())
    assert job.state == READY
    consistent(scene.engine)


@pytest.mark.parametrize("origin", [FAKTORY, WORKQ, GOQUEUE])
def test_a_job_of_another_origin_starts_when_its_blocker_is_removed(origin):
    scene = MasenkoScene(dead_max=0)
    root = scene.push("root", "roots")
    child = scene.push("child", blockers=[root.seq])
    jobs = [scene.push(f"job-{b.seq}", blockers=[b.seq], origin=origin) for b in (root, child)]
    fail_root(scene)
    assert [job.state for job in jobs] == [READY, READY]
    consistent(scene.engine)


def test_a_job_of_another_origin_waits_for_a_blocker_in_its_dead_queue(scene):
    blocker = scene.pushed_and_leased("blocker", dead_queue="dead")
    job = scene.push("job", blockers=[blocker.seq], origin=FAKTORY)
    scene.fail(blocker)
    assert job.state == BLOCKED
    scene.complete(scene.lease("dead"))
    assert job.state == READY


def test_a_job_of_another_origin_stops_the_cascade(scene):
    root = scene.push("root", "roots")
    other = scene.push("other", blockers=[root.seq], origin=FAKTORY)
    behind = scene.push("behind", blockers=[other.seq])
    fail_root(scene)
    assert (other.state, behind.state) == (BLOCKED, BLOCKED)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"origin": FAKTORY, "retries": -1}, DEAD),
        ({"origin": FAKTORY, "retries": 0}, None),
        ({"origin": WORKQ, "retries": 0, "expires_at": 1 << 60}, DEAD),
        ({"origin": WORKQ, "retries": 0, "transient": True}, None),
        ({"origin": GOQUEUE, "max_attempts": 1}, DEAD),
    ],
    ids=["faktory", "faktory discards", "workq", "workq run", "goqueue"],
)
def test_a_blocker_of_any_origin_that_fails_permanently_fails_masenko_jobs(scene, fields, state):
    blocker = scene.pushed_and_leased("blocker", **fields)
    masenko_s = scene.push("masenko's", blockers=[blocker.seq])
    faktory_s = scene.push("faktory's", blockers=[blocker.seq], origin=FAKTORY)
    scene.fail(blocker)
    assert states(scene).get("blocker") == state
    assert masenko_s.state == DEAD
    assert faktory_s.state == (READY if state is None else BLOCKED)
    consistent(scene.engine)


def end_by_completing(scene, job):
    scene.complete(scene.lease("roots"))


def end_by_keeping_a_result(scene, job):
    scene.complete(scene.lease("roots"), keep_until=scene.now + 60 * SECOND)


def end_by_cancelling(scene, job):
    scene.engine.cancel(job, scene.now)


def end_by_removing_its_queue(scene, job):
    scene.engine.remove_queue("roots", scene.now)


def end_by_expiry(scene, job):
    scene.advance_to(job.expires_at)


@pytest.mark.parametrize(
    "end",
    [
        end_by_completing,
        end_by_keeping_a_result,
        end_by_cancelling,
        end_by_removing_its_queue,
        end_by_expiry,
    ],
    ids=lambda end: end.__name__,
)
def test_an_end_without_failure_unblocks_dependents(scene, end):
    blocker = scene.push("blocker", "roots", expires_at=scene.now + 10 * SECOND)
    job = scene.push("job", blockers=[blocker.seq])
    end(scene, blocker)
    assert (job.state, job.extra.blockers) == (READY, [])
    assert jids_of(scene, "doomed") == []
    consistent(scene.engine)


def test_a_purged_blocker_unblocks_jobs_that_did_not_fail_with_it(scene):
    blocker = scene.push("blocker", origin=FAKTORY)
    scene.engine.kill(blocker, scene.now)
    job = scene.push("job", blockers=[blocker.seq], origin=FAKTORY)
    assert job.state == BLOCKED
    scene.advance_to(blocker.due_at)
    assert job.state == READY


# At the push


@pytest.mark.parametrize(("origin", "state"), [(MASENKO, READY), (FAKTORY, BLOCKED)])
def test_a_dead_blocker_is_ignored_when_a_masenko_job_is_pushed(scene, origin, state):
    dead = scene.push("dead")
    scene.engine.kill(dead, scene.now)
    job = scene.push("job", blockers=[dead.seq], origin=origin)
    assert job.state == state
    assert (job.extra is None) == (state == READY)
    consistent(scene.engine)


def test_ended_blockers_are_ignored_and_live_ones_are_not(scene):
    cancelled = scene.push("gone")
    scene.engine.cancel(cancelled, scene.now)
    done = scene.pushed_and_leased("done")
    scene.complete(done, keep_until=scene.now + 60 * SECOND)
    dead = scene.push("dead")
    scene.engine.kill(dead, scene.now)
    living = scene.push("living")
    assert (done.state, dead.state) == (DONE, DEAD)
    blockers = [cancelled.seq, done.seq, 999, dead.seq, living.seq, living.seq]
    job = scene.push("job", blockers=blockers)
    assert (job.state, job.extra.blockers) == (BLOCKED, [living.seq])
    free = scene.push("free", blockers=blockers[:4], dead_queue="dead")
    assert (free.state, free.extra.blockers) == (READY, [])
    consistent(scene.engine)


def test_a_chain_can_be_pushed_in_one_batch_behind_a_live_job(scene):
    root = scene.push("root", "roots")
    pushes = [
        unit(f"job-{n}", origin=MASENKO, blockers=[-1] if n else [root.seq]) for n in range(4)
    ]
    jobs = scene.engine.push_many(pushes, scene.now)
    assert [job.state for job in jobs] == [BLOCKED] * 4
    fail_root(scene)
    assert [job.state for job in jobs] == [DEAD] * 4


# Events and statistics


def test_the_event_names_the_blocker(scene):
    blocker = scene.pushed_and_leased("blocker")
    scene.advance(5)
    due = scene.now + 60 * SECOND
    scene.push(
        "job-7", "mail", blockers=[blocker.seq], kind="Send", tags=["red"], rank=4, due_at=due
    )
    scene.advance(5)
    scene.fail(blocker)
    event = scene.events()[-1]
    assert (event.time, event.type, event.seq, event.jid) == (scene.now, "doomed", 2, "job-7")
    assert (event.queue, event.kind, event.rank, event.size) == ("mail", "Send", 4, 9)
    assert (event.origin, event.actor, event.worker) == (MASENKO, NO_PROTOCOL, "")
    assert (event.attempt, event.state, event.wait, event.run) == (0, DEAD, 0, 0)
    assert (event.ready_at, event.leased_at, event.due) == (0, 0, scene.now + 180 * DAY)
    assert event.group == "BlockerFailed"
    assert event.message == "a job that it waited for has failed permanently"
    assert event.fingerprint == fingerprint(event.group, event.message)
    assert event.tags == ("red",)
    failure = scene.engine.find("job-7").failure
    assert (failure.group, failure.message) == (event.group, event.message)
    assert (failure.first_at, failure.last_at) == (scene.now, scene.now)


def test_a_cascaded_failure_counts_as_a_failed_job_and_not_as_an_attempt(scene):
    family(scene)
    fail_root(scene)
    scene.engine.current_statistics()
    days = {day.queue: day for day in scene.engine.statistics.days.values()}
    assert (days["roots"].failures, days["roots"].failed) == (1, 1)
    assert (days["default"].failures, days["default"].failed) == (0, 6)
    assert (days["default"].retries, days["default"].run.count) == (0, 0)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)


# Restarts and failed commits


@pytest.mark.parametrize("dead_queue", ["", "dead"])
def test_a_restart_before_and_after_a_cascade_changes_nothing(dead_queue):
    scene, never = MasenkoScene(), MasenkoScene()
    store = FailingMemoryStore()
    for step in (lambda each: family(each, dead_queue=dead_queue), fail_root):
        for each in (scene, never):
            each.advance(1)
            step(each)
        falls = jids_of(scene, "doomed")
        assert falls == jids_of(never, "doomed")
        scene = restarted(scene, store)
        never.engine.take_changes()
        assert durable_state(scene.engine) == durable_state(never.engine)
        for name in never.engine.queues:
            assert ready_jids(scene.engine, name) == ready_jids(never.engine, name)
        consistent(scene.engine)
    assert falls == DEPTH_FIRST


def test_the_order_of_a_cascade_is_the_same_after_a_restart(scene):
    root = scene.push("root", "roots")
    for jid, place in (("a", 0), ("b", BEFORE_ARRIVALS + 5), ("c", 0), ("d", BEFORE_ARRIVALS + 3)):
        scene.push(jid, blockers=[root.seq], position=place)
    again = restarted(scene, FailingMemoryStore())
    for each in (scene, again):
        fail_root(each)
    assert jids_of(again, "doomed") == jids_of(scene, "doomed") == ["a", "b", "c", "d"]


def test_the_order_of_a_cascade_is_the_same_after_a_failed_commit(scene):
    store = FailingMemoryStore()
    root, other = scene.push("root", "roots"), scene.push("other")
    scene.push("a", blockers=[root.seq, other.seq])
    scene.push("b", blockers=[root.seq])
    commit(scene.engine, store)
    scene.engine.kill(other, scene.now)
    assert jids_of(scene, "doomed") == ["a"]
    refused(scene, store)
    fail_root(scene)
    assert jids_of(scene, "doomed") == ["a", "b"]


@pytest.mark.parametrize("dead_queue", ["", "dead"])
def test_a_cascade_with_a_failed_commit_is_reverted_as_a_whole(scene, dead_queue):
    store = FailingMemoryStore()
    family(scene, dead_queue=dead_queue)
    faktory_s = scene.push("faktory's", blockers=[2], origin=FAKTORY)
    commit(scene.engine, store)
    before = durable_but_for_seqs(scene.engine)
    for _ in range(3):
        fail_root(scene)
        assert states(scene)["b2"] == (READY if dead_queue else DEAD)
        refused(scene, store)
        assert durable_but_for_seqs(scene.engine) == before
        assert states(scene) == {"root": READY, "faktory's": BLOCKED} | dict.fromkeys(
            DEPTH_FIRST, BLOCKED
        )
    fail_root(scene)
    assert jids_of(scene, "doomed") == DEPTH_FIRST
    assert faktory_s.state == BLOCKED
    assert days_of(scene.engine.statistics) == before["statistics"]
    commit(scene.engine, store)
    consistent(scene.engine)
    assert durable_state(recover(store)) == durable_state(scene.engine)


def test_a_cascade_after_a_reverted_success_fails_the_dependents(scene):
    """The revert also undoes the consequences of the success. The failure of the root then has its
    own consequences.
    """
    store = FailingMemoryStore()
    family(scene)
    commit(scene.engine, store)
    scene.complete(scene.lease("roots"))
    assert states(scene)["a"] == READY
    refused(scene, store)
    assert states(scene)["a"] == BLOCKED
    fail_root(scene)
    assert jids_of(scene, "doomed") == DEPTH_FIRST
    consistent(scene.engine)


# The index drops jobs that no longer wait


def waiting_for(scene: Scene, blocker: int) -> int:
    return len(scene.engine.dependencies.by_blocker.get(blocker, ()))


@pytest.mark.parametrize("origin", [MASENKO, FAKTORY])
def test_a_cancelled_job_is_removed_from_the_index_of_its_blocker(scene, origin):
    blocker = scene.push("blocker")
    for _ in range(1000):
        scene.engine.cancel(scene.push("job", blockers=[blocker.seq], origin=origin), scene.now)
    assert waiting_for(scene, blocker.seq) == 0
    consistent(scene.engine)


def test_jobs_of_a_reverted_push_leave_no_trace(scene):
    store = FailingMemoryStore()
    blocker = scene.push("blocker")
    commit(scene.engine, store)
    for _ in range(50):
        pushes = [unit("a", origin=MASENKO), unit("b", origin=MASENKO, blockers=[-1, blocker.seq])]
        scene.engine.push_many(pushes, scene.now)
        refused(scene, store)
    assert scene.engine.dependencies.by_blocker == {}


def test_a_change_reverted_repeatedly_is_recorded_once(scene):
    store = FailingMemoryStore()
    blocker = scene.push("blocker")
    scene.push("job", blockers=[blocker.seq])
    commit(scene.engine, store)
    for _ in range(50):
        scene.engine.kill(scene.engine.find("job"), scene.now)
        refused(scene, store)
    assert waiting_for(scene, blocker.seq) == 1
    consistent(scene.engine)


# Large cascades


@pytest.mark.parametrize("depth", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_chain_of_any_depth_fails(depth):
    scene = MasenkoScene()
    fields = {"origin": MASENKO, "retries": 0}
    pushes = [unit("", "roots", **fields)]
    pushes += [unit("", blockers=[-1], **fields) for _ in range(depth - 1)]
    jobs = scene.engine.push_many(pushes, scene.now)
    fail_root(scene)
    scene.tick()
    assert all(job.state == DEAD for job in jobs)
    assert [row[2] for row in scene.engine.change_set.events[-depth:]] == list(range(1, depth + 1))
    assert scene.engine.dependencies.by_blocker == {}
    assert len(scene.engine.dead) == depth


@pytest.mark.slow
def test_a_hundred_thousand_dependents_fail_with_their_blocker(scene):
    root = scene.push("root", "roots")
    for _ in range(100_000):
        scene.push("", blockers=[root.seq])
    fail_root(scene)
    scene.tick()
    assert scene.engine.queues["default"].counts[DEAD] == 100_000
    assert (len(scene.engine.dead), scene.engine.retention.dead_dropped) == (100_000, 1)
    assert scene.engine.dependencies.by_blocker == {}


# A bounded number per turn

MANY = 3 * CASCADE_BATCH_SIZE + 7


def many_dependents(scene: Scene, **fields) -> list[int]:
    root = scene.push("root", "roots", **fields)
    return [scene.push("", blockers=[root.seq], **fields).seq for _ in range(MANY)]


def blocked_count(scene: Scene) -> int:
    return len(scene.engine.blocked)


def test_the_dependents_of_a_job_start_over_several_turns():
    scene = Scene()
    seqs = many_dependents(scene)
    scene.complete(scene.lease("roots"))
    left = [blocked_count(scene)]
    consistent(scene.engine)
    while blocked_count(scene):
        scene.engine.tick(scene.now)
        left.append(blocked_count(scene))
        consistent(scene.engine)
    assert left == [MANY - CASCADE_BATCH_SIZE * n for n in (1, 2, 3)] + [0]
    assert [scene.lease().seq for _ in range(MANY)] == seqs
    assert not any(key.startswith(CASCADE_PREFIX) for key in scene.engine.settings)


def test_the_dependents_of_a_failed_job_fail_over_several_turns(scene):
    many_dependents(scene)
    fail_root(scene)
    left = [blocked_count(scene)]
    while blocked_count(scene):
        consistent(scene.engine)
        scene.engine.tick(scene.now)
        left.append(blocked_count(scene))
    assert left == [MANY - CASCADE_BATCH_SIZE * n for n in (1, 2, 3)] + [0]
    assert len(scene.engine.dead) == MANY + 1
    consistent(scene.engine)


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_jobs_that_end_in_one_step_share_a_limit(scene, end):
    roots = [scene.push(f"root-{number}", "roots") for number in range(MANY // 2)]
    for root in roots:
        for _ in range(CASCADE_BATCH_SIZE):
            scene.push("", blockers=[root.seq])
    total = blocked_count(scene)
    scene.tick()  # a new step
    for root in roots:
        if end == "cancel":
            scene.engine.cancel(root, scene.now)
        else:
            leased = scene.lease("roots")
            scene.complete(leased) if end == "complete" else scene.fail(leased)
        assert blocked_count(scene) < total
    first = total - blocked_count(scene)
    # Each job starts or fails at least one dependent at once.
    assert STEP_LIMIT <= first <= STEP_LIMIT + CASCADE_BATCH_SIZE + len(roots)
    while before := blocked_count(scene):
        consistent(scene.engine)
        scene.engine.tick(scene.now)
        assert before - blocked_count(scene) == min(before, CASCADE_BATCH_SIZE)
    scene.engine.tick(scene.now)
    assert not any(key.startswith(CASCADE_PREFIX) for key in scene.engine.settings)
    consistent(scene.engine)


@pytest.mark.parametrize("end", ["complete", "fail", "discard"])
def test_a_cascade_continues_after_a_restart_between_its_turns(end):
    """The root is removed in two of the cases: only the setting identifies the jobs that wait for
    it.
    """
    store = MemoryStore()
    scene = MasenkoScene()
    many_dependents(scene)
    root = scene.engine.find("root")
    if end == "complete":
        scene.complete(scene.lease("roots"))
    elif end == "fail":
        fail_root(scene)
    else:
        other = scene.push("other", "others", origin=FAKTORY, retries=0)
        for _ in range(MANY):
            scene.push("", blockers=[other.seq])
        scene.engine.cancel(root, scene.now)
        scene.tick()
        scene.fail(scene.lease("others"))
    assert blocked_count(scene) >= 2 * CASCADE_BATCH_SIZE
    again = restarted(scene, store)
    consistent(again.engine)
    again.tick()
    assert not blocked_count(again)
    states = {job.state for job in again.engine.jobs.values()}
    assert states == ({READY} if end == "complete" else {DEAD} if end == "fail" else {READY, DEAD})
    consistent(again.engine)


def test_a_cascade_continues_after_a_refused_commit_between_its_turns():
    scene = MasenkoScene()
    store = FailingMemoryStore()
    many_dependents(scene)
    scene.complete(scene.lease("roots"))
    commit(scene.engine, store)
    scene.engine.tick(scene.now)
    refused(scene, store)
    assert blocked_count(scene) == MANY - CASCADE_BATCH_SIZE
    consistent(scene.engine)
    scene.tick()
    assert not blocked_count(scene)
    consistent(scene.engine)


def test_a_flush_ends_a_cascade():
    scene = Scene()
    many_dependents(scene)
    scene.complete(scene.lease("roots"))
    scene.engine.flush(scene.now)
    scene.tick()
    assert not scene.engine.cascades.pending
    assert not any(key.startswith(CASCADE_PREFIX) for key in scene.engine.settings)
