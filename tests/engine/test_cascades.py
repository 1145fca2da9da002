"""Jobs that do not outlive those they wait for: a failure for good takes Masenko's along."""

import pytest
from invariants import consistent

from failing_stores import FailingMemoryStore
from millrace.engine.events import fingerprint
from millrace.engine.job import EARLIER, FAKTORY, GOQUEUE, MASENKO, NO_PROTOCOL, WORKQ
from millrace.engine.policy import DAY, SECOND
from millrace.engine.states import BLOCKED, DEAD, DONE, LEASED, READY, SCHEDULED
from millrace.engine.waiters import Waiter
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


def happened(scene: Scene, cause: str) -> list[str]:
    """To whom, in which order."""
    return [event.jid for event in scene.events() if event.type == cause]


def fail_root(scene: Scene) -> None:
    scene.fail(scene.lease("roots"))


def family(scene: Scene, **fields) -> None:
    """Two children of one root and two grandchildren each, born in turn."""
    root = scene.push("root", "roots", **fields)
    a, b = (scene.push(jid, blockers=[root.seq], **fields) for jid in ("a", "b"))
    for jid, parent in (("a1", a), ("b1", b), ("a2", a), ("b2", b)):
        scene.push(jid, blockers=[parent.seq], **fields)


DEPTH_FIRST = ["a", "a1", "a2", "b", "b1", "b2"]


# Who falls, and in which order


def test_a_job_fails_with_the_one_that_it_waits_for(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    assert (blocker.state, job.state, job.extra.blockers) == (DEAD, DEAD, [])
    assert scene.causes()[-2:] == ["failed", "doomed"]
    assert list(scene.engine.dead.values()) == [blocker, job]
    consistent(scene.engine)


def test_while_there_are_tries_left_nobody_falls(scene):
    blocker = scene.pushed_and_leased("blocker", retries=1)
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    assert (blocker.state, job.state) == (SCHEDULED, BLOCKED)
    scene.advance_to(blocker.due)
    scene.complete(scene.lease())
    assert job.state == READY


def test_an_expired_lease_and_a_lost_connection_take_along_as_well():
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


def test_a_killed_blocker_takes_along_as_well(scene):
    blocker = scene.push("blocker", dead_queue="dead")
    job = scene.push("job", blockers=[blocker.seq], dead_queue="dead")
    scene.engine.kill(blocker, scene.now)
    assert (blocker.state, blocker.queue) == (DEAD, "default")
    assert (job.state, job.queue) == (READY, "dead")
    assert scene.causes()[-3:] == ["killed", "doomed", "moved"]


def test_all_generations_fall_depth_first(scene):
    family(scene)
    fail_root(scene)
    assert happened(scene, "doomed") == DEPTH_FIRST
    assert set(states(scene).values()) == {DEAD}
    assert [job.jid for job in scene.engine.dead.values()] == ["root", *DEPTH_FIRST]
    consistent(scene.engine)


def test_each_moves_before_the_next_one_falls(scene):
    family(scene, dead_queue="dead")
    fail_root(scene)
    fates = [(event.type, event.jid) for event in scene.events()[-14:]]
    expected = [("failed", "root"), ("moved", "root")]
    expected += [(cause, jid) for jid in DEPTH_FIRST for cause in ("doomed", "moved")]
    assert fates == expected


def test_in_a_shared_dead_queue_the_blocker_is_first_and_then_depth_first(scene):
    family(scene, dead_queue="dead")
    fail_root(scene)
    assert ready_jids(scene.engine, "dead") == ["root", *DEPTH_FIRST]


def test_behind_what_is_there_already(scene):
    family(scene, dead_queue="dead")
    scene.push("there", "dead")
    scene.advance(1)
    fail_root(scene)
    assert ready_jids(scene.engine, "dead")[:2] == ["there", "root"]


def test_each_goes_to_its_own_dead_queue_or_the_dead_set(scene):
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


def test_across_queues(scene):
    blocker = scene.push("0", "queue-0")
    for number in range(1, 5):
        blocker = scene.push(str(number), f"queue-{number}", blockers=[blocker.seq])
    scene.fail(scene.lease("queue-0"))
    assert [queue.counts[DEAD] for queue in scene.engine.queues.values()] == [1] * 5
    assert all(sum(queue.counts) == 1 for queue in scene.engine.queues.values())
    consistent(scene.engine)


def test_who_waits_for_both_sides_of_a_diamond_falls_once(scene):
    top = scene.push("top", "roots")
    left, right = (scene.push(jid, blockers=[top.seq]) for jid in ("left", "right"))
    scene.push("bottom", blockers=[left.seq, right.seq])
    scene.push("below", blockers=[top.seq, left.seq, right.seq, 4])
    fail_root(scene)
    assert happened(scene, "doomed") == ["left", "bottom", "below", "right"]
    assert set(states(scene).values()) == {DEAD}
    consistent(scene.engine)


def test_a_second_blocker_that_lives_saves_nobody(scene):
    dying, living = scene.push("dying", "roots"), scene.push("living")
    job = scene.push("job", blockers=[living.seq, dying.seq])
    fail_root(scene)
    assert (job.state, job.extra.blockers) == (DEAD, [])
    consistent(scene.engine)
    scene.complete(scene.lease())
    assert job.state == DEAD
    assert happened(scene, "unblocked") == []


def test_who_does_not_wait_for_the_fallen_is_left_alone(scene):
    family(scene)
    other = scene.push("other")
    scene.push("waits for other", blockers=[other.seq])
    fail_root(scene)
    assert (states(scene)["other"], states(scene)["waits for other"]) == (READY, BLOCKED)


def test_a_job_that_somebody_killed_does_not_fall_once_more(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq], dead_queue="dead")
    scene.engine.kill(job, scene.now)
    scene.fail(blocker)
    assert (job.state, job.queue) == (DEAD, "default")
    assert happened(scene, "doomed") == []
    scene.engine.requeue(job, scene.now)
    scene.engine.cancel(blocker, scene.now)
    assert (job.state, job.extra.blockers) == (READY, [])
    consistent(scene.engine)


def test_who_waits_for_the_dead_queue_gets_the_fallen_in_their_order(scene):
    family(scene, dead_queue="dead")
    waiters = [scene.wait("dead", holder=f"worker-{n}") for n in range(3)]
    fail_root(scene)
    delivered = [(waiter, job.jid) for waiter, job in scene.delivered()]
    assert delivered == list(zip(waiters, ["root", "a", "a1"], strict=True))
    consistent(scene.engine)


def test_a_job_that_is_leased_in_its_dead_queue_while_others_fall_is_left_alone(scene):
    """Whoever waits gets the root before its dependents have fallen."""
    waiter = scene.wait("dead", holder="undertaker")
    family(scene, dead_queue="dead")
    fail_root(scene)
    ((told, root),) = scene.delivered()
    assert (told, root.jid, root.state, root.holder) == (waiter, "root", LEASED, "undertaker")
    assert len(ready_jids(scene.engine, "dead")) == 6
    scene.complete(root)
    consistent(scene.engine)


def test_who_waits_for_the_end_of_a_job_is_told_that_it_fell(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    waiter = Waiter((), "", WORKQ, None)
    scene.engine.wait_for_end(job, waiter, scene.now + 60 * SECOND)
    scene.fail(blocker)
    ((told, outcome),) = scene.engine.outcomes
    assert (told, outcome.job, outcome.succeeded) == (waiter, job, False)


# What follows for those who fell


def test_who_fell_can_be_run_again(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    scene.engine.requeue(job, scene.now)
    assert scene.lease() is job
    assert (job.attempt, job.failures) == (1, 0)
    scene.complete(job)
    consistent(scene.engine)


def test_who_fell_is_kept_as_long_as_who_failed(scene):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq])
    scene.fail(blocker)
    assert job.due == blocker.due == scene.now + 180 * DAY
    scene.advance(180 * 86_400)
    assert scene.engine.jobs == {}
    assert len(scene.engine.timers) == 0


def test_a_blocker_in_its_dead_queue_blocks_those_that_come_later(scene):
    blocker = scene.pushed_and_leased("blocker", dead_queue="dead")
    scene.fail(blocker)
    late, later = (scene.push(jid, blockers=[blocker.seq]) for jid in ("late", "later"))
    assert late.state == BLOCKED
    scene.engine.cancel(later, scene.now)
    scene.complete(scene.lease("dead"))
    assert late.state == READY
    consistent(scene.engine)


def test_a_blocker_that_fails_in_its_dead_queue_takes_along_those_that_came_later(scene):
    blocker = scene.pushed_and_leased("blocker", dead_queue="dead")
    scene.fail(blocker)
    late = scene.push("late", blockers=[blocker.seq])
    scene.fail(scene.lease("dead"))
    assert (blocker.state, late.state) == (DEAD, DEAD)
    consistent(scene.engine)


@pytest.mark.parametrize("dead_max", [0, 1, 3])
def test_a_dead_set_that_is_full_drops_the_fallen_like_others(dead_max):
    scene = MasenkoScene(dead_max=dead_max)
    family(scene)
    fail_root(scene)
    assert len(scene.engine.dead) == dead_max
    assert len(happened(scene, "doomed")) == 6
    assert happened(scene, "purged") == ["root", *DEPTH_FIRST][: 7 - dead_max]
    assert happened(scene, "unblocked") == []
    consistent(scene.engine)


# Other origins


@pytest.mark.parametrize("origin", [FAKTORY, WORKQ, GOQUEUE])
def test_a_job_of_another_origin_goes_on_waiting_for_a_dead_one(scene, origin):
    blocker = scene.pushed_and_leased("blocker")
    job = scene.push("job", blockers=[blocker.seq], origin=origin)
    scene.fail(blocker)
    assert (blocker.state, job.state) == (DEAD, BLOCKED)
    scene.engine.requeue(blocker, scene.now)
    scene.complete(scene.lease())
    assert job.state == READY
    consistent(scene.engine)


@pytest.mark.parametrize("origin", [FAKTORY, WORKQ, GOQUEUE])
def test_a_job_of_another_origin_is_let_go_by_one_that_is_gone(origin):
    scene = MasenkoScene(dead_max=0)
    root = scene.push("root", "roots")
    child = scene.push("child", blockers=[root.seq])
    jobs = [scene.push(f"job-{b.seq}", blockers=[b.seq], origin=origin) for b in (root, child)]
    fail_root(scene)
    assert [job.state for job in jobs] == [READY, READY]
    consistent(scene.engine)


def test_a_job_of_another_origin_waits_for_one_that_went_to_its_dead_queue(scene):
    blocker = scene.pushed_and_leased("blocker", dead_queue="dead")
    job = scene.push("job", blockers=[blocker.seq], origin=FAKTORY)
    scene.fail(blocker)
    assert job.state == BLOCKED
    scene.complete(scene.lease("dead"))
    assert job.state == READY


def test_a_job_of_another_origin_stops_the_fall_of_those_behind_it(scene):
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
        ({"origin": WORKQ, "retries": 0, "expires": 1 << 60}, DEAD),
        ({"origin": WORKQ, "retries": 0, "fleeting": True}, None),
        ({"origin": GOQUEUE, "most_attempts": 1}, DEAD),
    ],
    ids=["faktory", "faktory discards", "workq", "workq run", "goqueue"],
)
def test_a_blocker_of_any_origin_that_fails_for_good_takes_masenko_s_along(scene, fields, state):
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


def end_by_outliving_its_time(scene, job):
    scene.advance_to(job.expires)


@pytest.mark.parametrize(
    "end",
    [
        end_by_completing,
        end_by_keeping_a_result,
        end_by_cancelling,
        end_by_removing_its_queue,
        end_by_outliving_its_time,
    ],
    ids=lambda end: end.__name__,
)
def test_an_end_that_is_no_failure_lets_go(scene, end):
    blocker = scene.push("blocker", "roots", expires=scene.now + 10 * SECOND)
    job = scene.push("job", blockers=[blocker.seq])
    end(scene, blocker)
    assert (job.state, job.extra.blockers) == (READY, [])
    assert happened(scene, "doomed") == []
    consistent(scene.engine)


def test_a_purged_blocker_lets_go_of_those_it_did_not_take_along(scene):
    blocker = scene.push("blocker", origin=FAKTORY)
    scene.engine.kill(blocker, scene.now)
    job = scene.push("job", blockers=[blocker.seq], origin=FAKTORY)
    assert job.state == BLOCKED
    scene.advance_to(blocker.due)
    assert job.state == READY


# At the push


@pytest.mark.parametrize(("origin", "state"), [(MASENKO, READY), (FAKTORY, BLOCKED)])
def test_a_dead_blocker_is_ignored_where_it_would_take_along(scene, origin, state):
    dead = scene.push("dead")
    scene.engine.kill(dead, scene.now)
    job = scene.push("job", blockers=[dead.seq], origin=origin)
    assert job.state == state
    assert (job.extra is None) == (state == READY)
    consistent(scene.engine)


def test_what_is_gone_done_or_dead_is_ignored_and_what_lives_is_not(scene):
    gone = scene.push("gone")
    scene.engine.cancel(gone, scene.now)
    done = scene.pushed_and_leased("done")
    scene.complete(done, keep_until=scene.now + 60 * SECOND)
    dead = scene.push("dead")
    scene.engine.kill(dead, scene.now)
    living = scene.push("living")
    assert (done.state, dead.state) == (DONE, DEAD)
    blockers = [gone.seq, done.seq, 999, dead.seq, living.seq, living.seq]
    job = scene.push("job", blockers=blockers)
    assert (job.state, job.extra.blockers) == (BLOCKED, [living.seq])
    free = scene.push("free", blockers=blockers[:4], dead_queue="dead")
    assert (free.state, free.extra.blockers) == (READY, [])
    consistent(scene.engine)


def test_a_chain_can_be_pushed_at_once_behind_a_living_job(scene):
    root = scene.push("root", "roots")
    pushes = [
        unit(f"job-{n}", origin=MASENKO, blockers=[-1] if n else [root.seq]) for n in range(4)
    ]
    jobs = scene.engine.push_many(pushes, scene.now)
    assert [job.state for job in jobs] == [BLOCKED] * 4
    fail_root(scene)
    assert [job.state for job in jobs] == [DEAD] * 4


# What is said of it


def test_the_event_says_why(scene):
    blocker = scene.pushed_and_leased("blocker")
    scene.advance(5)
    due = scene.now + 60 * SECOND
    scene.push("job-7", "mail", blockers=[blocker.seq], kind="Send", tags=["red"], rank=4, due=due)
    scene.advance(5)
    scene.fail(blocker)
    event = scene.events()[-1]
    assert (event.time, event.type, event.seq, event.jid) == (scene.now, "doomed", 2, "job-7")
    assert (event.queue, event.kind, event.rank, event.size) == ("mail", "Send", 4, 9)
    assert (event.origin, event.actor, event.worker) == (MASENKO, NO_PROTOCOL, "")
    assert (event.attempt, event.state, event.wait, event.run) == (0, DEAD, 0, 0)
    assert (event.ready_at, event.leased_at, event.due) == (0, 0, scene.now + 180 * DAY)
    assert event.group == "BlockerFailed"
    assert event.message == "a job that it waited for has failed for good"
    assert event.fingerprint == fingerprint(event.group, event.message)
    assert event.tags == ("red",)
    failure = scene.engine.find("job-7").failure
    assert (failure.group, failure.message) == (event.group, event.message)
    assert (failure.first_at, failure.last_at) == (scene.now, scene.now)


def test_a_fall_counts_as_a_job_that_failed_but_not_as_an_attempt(scene):
    family(scene)
    fail_root(scene)
    scene.engine.count()
    days = {day.queue: day for day in scene.engine.statistics.days.values()}
    assert (days["roots"].failures, days["roots"].failed) == (1, 1)
    assert (days["default"].failures, days["default"].failed) == (0, 6)
    assert (days["default"].retries, days["default"].run.count) == (0, 0)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (1, 1)


# Restarts and failed commits


@pytest.mark.parametrize("dead_queue", ["", "dead"])
def test_a_restart_before_and_after_changes_nothing(dead_queue):
    scene, never = MasenkoScene(), MasenkoScene()
    store = FailingMemoryStore()
    for step in (lambda each: family(each, dead_queue=dead_queue), fail_root):
        for each in (scene, never):
            each.advance(1)
            step(each)
        falls = happened(scene, "doomed")
        assert falls == happened(never, "doomed")
        scene = restarted(scene, store)
        never.engine.take_batch()
        assert durable_state(scene.engine) == durable_state(never.engine)
        for name in never.engine.queues:
            assert ready_jids(scene.engine, name) == ready_jids(never.engine, name)
        consistent(scene.engine)
    assert falls == DEPTH_FIRST


def test_after_a_restart_they_fall_in_the_same_order_whatever_their_places(scene):
    root = scene.push("root", "roots")
    for jid, place in (("a", 0), ("b", EARLIER + 5), ("c", 0), ("d", EARLIER + 3)):
        scene.push(jid, blockers=[root.seq], place=place)
    again = restarted(scene, FailingMemoryStore())
    for each in (scene, again):
        fail_root(each)
    assert happened(again, "doomed") == happened(scene, "doomed") == ["a", "b", "c", "d"]


def test_after_a_failed_commit_they_fall_in_the_same_order(scene):
    store = FailingMemoryStore()
    root, other = scene.push("root", "roots"), scene.push("other")
    scene.push("a", blockers=[root.seq, other.seq])
    scene.push("b", blockers=[root.seq])
    commit(scene.engine, store)
    scene.engine.kill(other, scene.now)
    assert happened(scene, "doomed") == ["a"]
    refused(scene, store)
    fail_root(scene)
    assert happened(scene, "doomed") == ["a", "b"]


@pytest.mark.parametrize("dead_queue", ["", "dead"])
def test_a_fall_that_could_not_be_written_is_undone_as_a_whole(scene, dead_queue):
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
    assert happened(scene, "doomed") == DEPTH_FIRST
    assert faktory_s.state == BLOCKED
    assert days_of(scene.engine.statistics) == before["statistics"]
    commit(scene.engine, store)
    consistent(scene.engine)
    assert durable_state(recover(store)) == durable_state(scene.engine)


def test_a_fall_after_a_failed_commit_let_go_in_vain(scene):
    """The root's success was undone: so must be what it led to, and its failure leads elsewhere."""
    store = FailingMemoryStore()
    family(scene)
    commit(scene.engine, store)
    scene.complete(scene.lease("roots"))
    assert states(scene)["a"] == READY
    refused(scene, store)
    assert states(scene)["a"] == BLOCKED
    fail_root(scene)
    assert happened(scene, "doomed") == DEPTH_FIRST
    consistent(scene.engine)


# Nothing is kept of those who wait no more


def waiting_for(scene: Scene, blocker: int) -> int:
    return len(scene.engine.dependencies.by_blocker.get(blocker, ()))


@pytest.mark.parametrize("origin", [MASENKO, FAKTORY])
def test_who_was_cancelled_is_forgotten_by_the_one_it_waited_for(scene, origin):
    blocker = scene.push("blocker")
    for _ in range(1000):
        scene.engine.cancel(scene.push("job", blockers=[blocker.seq], origin=origin), scene.now)
    assert waiting_for(scene, blocker.seq) == 0
    consistent(scene.engine)


def test_jobs_whose_push_was_undone_leave_no_trace(scene):
    store = FailingMemoryStore()
    blocker = scene.push("blocker")
    commit(scene.engine, store)
    for _ in range(50):
        pushes = [unit("a", origin=MASENKO), unit("b", origin=MASENKO, blockers=[-1, blocker.seq])]
        scene.engine.push_many(pushes, scene.now)
        refused(scene, store)
    assert scene.engine.dependencies.by_blocker == {}


def test_a_change_undone_again_and_again_is_noted_once(scene):
    store = FailingMemoryStore()
    blocker = scene.push("blocker")
    scene.push("job", blockers=[blocker.seq])
    commit(scene.engine, store)
    for _ in range(50):
        scene.engine.kill(scene.engine.find("job"), scene.now)
        refused(scene, store)
    assert waiting_for(scene, blocker.seq) == 1
    consistent(scene.engine)


# Many


@pytest.mark.parametrize("depth", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_chain_of_any_depth_falls(depth):
    scene = MasenkoScene()
    fields = {"origin": MASENKO, "retries": 0}
    pushes = [unit("", "roots", **fields)]
    pushes += [unit("", blockers=[-1], **fields) for _ in range(depth - 1)]
    jobs = scene.engine.push_many(pushes, scene.now)
    fail_root(scene)
    assert all(job.state == DEAD for job in jobs)
    assert [row[2] for row in scene.engine.batch.events[-depth:]] == list(range(1, depth + 1))
    assert scene.engine.dependencies.by_blocker == {}
    assert len(scene.engine.dead) == depth


@pytest.mark.slow
def test_a_hundred_thousand_that_wait_for_one_fall_with_it(scene):
    root = scene.push("root", "roots")
    for _ in range(100_000):
        scene.push("", blockers=[root.seq])
    fail_root(scene)
    assert scene.engine.queues["default"].counts[DEAD] == 100_000
    assert (len(scene.engine.dead), scene.engine.dead_dropped) == (100_000, 1)
    assert scene.engine.dependencies.by_blocker == {}
