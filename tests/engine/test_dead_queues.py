"""Dead queues: a job that failed permanently starts over there, once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from invariants import consistent

from failing_stores import FailingMemoryStore, FailingSqliteStore
from millrace.engine.events import fingerprint
from millrace.engine.job import DAY, NO_PROTOCOL
from millrace.engine.states import DEAD, LEASED, READY, SCHEDULED
from millrace.protocols.registry import FAKTORY, MASENKO
from scene import (
    START,
    MasenkoScene,
    Scene,
    durable_but_for_seqs,
    durable_state,
    ready_jids,
    refused,
    restarted,
)


@pytest.fixture
def scene() -> MasenkoScene:
    return MasenkoScene()


def test_after_its_last_attempt_a_job_is_ready_in_its_dead_queue(scene):
    job = scene.pushed_and_leased(retries=1, dead_queue="dead", payload=b'{"a": 1}', tags=["red"])
    scene.fail(job)
    assert (job.queue, job.state, job.failures) == ("default", SCHEDULED, 1)
    scene.advance_to(job.due_at)
    assert scene.lease() is job
    scene.fail(job)
    assert (job.queue, job.state, job.failures, job.due_at) == ("dead", READY, 0, 0)
    assert (job.seq, job.jid, job.kind, job.inline_payload) == (1, "job-1", "SomeJob", b'{"a": 1}')
    assert (job.retries, job.created, job.extra.tags) == (1, START, ["red"])
    assert job.extra.dead_queue == ""
    assert scene.engine.dead == {}
    assert len(scene.engine.timers) == 0
    assert scene.engine.find("job-1") is job
    consistent(scene.engine)
    assert scene.lease("default") is None
    assert scene.lease("dead") is job


def test_the_events_record_the_death_and_then_the_move(scene):
    job = scene.pushed_and_leased("job-7", "mail", dead_queue="dead", tags=["red"])
    scene.advance(3)
    scene.fail(job, "KeyError", "no key 17")
    failed, moved = scene.events()[-2:]
    assert (failed.type, failed.queue, failed.state) == ("failed", "mail", DEAD)
    assert (failed.actor, failed.worker, failed.attempt) == (FAKTORY, "connection-1", 1)
    assert (failed.run, failed.due) == (3_000_000, scene.now + 180 * DAY)
    assert (failed.group, failed.message) == ("KeyError", "no key 17")
    assert failed.fingerprint == fingerprint("KeyError", "no key 17")
    assert (moved.type, moved.queue, moved.state) == ("moved", "dead", READY)
    assert (moved.seq, moved.jid, moved.origin, moved.actor) == (1, "job-7", MASENKO, NO_PROTOCOL)
    assert (moved.time, moved.ready_at >= scene.now) == (scene.now, True)
    assert (moved.attempt, moved.due, moved.run, moved.wait) == (1, 0, 0, 0)
    assert (moved.group, moved.message, moved.tags) == ("", "", ("red",))


def test_the_job_gets_its_retries_back_and_then_ends_in_the_dead_set(scene):
    job = scene.push(retries=2, dead_queue="dead")
    queues = []
    while (leased := scene.lease("default", "dead")) is not None:
        assert leased is job
        queues.append((job.queue, job.failures))
        scene.fail(job)
        scene.advance_to(max(scene.now, job.due_at if job.state == SCHEDULED else 0))
    assert queues == [(name, failures) for name in ("default", "dead") for failures in range(3)]
    assert (job.queue, job.state, job.attempt, job.failures) == ("dead", DEAD, 6, 3)
    assert job.due_at == scene.now + 180 * DAY
    assert scene.causes().count("moved") == 1
    assert list(scene.engine.dead.values()) == [job]
    consistent(scene.engine)


def test_the_retry_delays_start_over(scene):
    job = scene.pushed_and_leased(retries=1, dead_queue="dead")
    scene.fail(job)
    scene.advance_to(job.due_at)
    scene.fail(scene.lease())
    scene.fail(scene.lease("dead"))
    assert (job.state, job.due_at - scene.now) == (SCHEDULED, 1_000_000)


def test_the_last_failure_is_kept(scene):
    job = scene.pushed_and_leased(dead_queue="dead")
    scene.fail(job, "Oops", "one")
    assert (job.failure.message, job.failure.first_at) == ("one", START)
    scene.advance(1)
    scene.fail(scene.lease("dead"), "Oops", "two")
    assert (job.failure.message, job.failure.first_at) == ("two", START)


def test_the_job_goes_behind_the_jobs_of_the_dead_queue(scene):
    scene.push("there-1", "dead")
    job = scene.push("job-1", dead_queue="dead")
    scene.push("there-2", "dead")
    scene.advance(1)
    scene.fail(scene.lease())
    scene.advance(1)
    scene.push("later", "dead")
    assert ready_jids(scene.engine, "dead") == ["there-1", "there-2", "job-1", "later"]
    assert job.ready_at >= START + 1_000_000


def test_the_job_goes_behind_jobs_pushed_at_the_same_time(scene):
    """All commands of one packet have the same time."""
    scene.pushed_and_leased("job-1", dead_queue="dead")
    scene.push("there", "dead")
    scene.fail(scene.engine.find("job-1"))
    assert ready_jids(scene.engine, "dead") == ["there", "job-1"]


def test_the_job_loses_a_position_ahead_of_arrivals(scene):
    job = scene.pushed_and_leased(retries=1, dead_queue="dead")
    scene.fail(job)
    assert job.position < 0
    scene.advance_to(job.due_at)
    scene.push("there", "dead")
    scene.advance(1)
    scene.fail(scene.lease())
    assert job.position > 0
    assert ready_jids(scene.engine, "dead") == ["there", "job-1"]
    assert scene.engine.queues["dead"].ready.front_count == 0


def test_the_job_keeps_its_rank(scene):
    scene.pushed_and_leased("high", rank=5, dead_queue="dead")
    scene.push("there", "dead")
    scene.fail(scene.engine.find("high"))
    assert ready_jids(scene.engine, "dead") == ["high", "there"]


def test_a_dead_queue_that_is_the_jobs_own_queue_gives_it_a_second_run(scene):
    job = scene.pushed_and_leased("job-1", dead_queue="default")
    scene.advance(1)
    scene.push("other")
    scene.advance(1)
    scene.fail(job)
    assert ready_jids(scene.engine) == ["other", "job-1"]
    assert (job.state, job.failures, job.extra.dead_queue) == (READY, 0, "")
    consistent(scene.engine)
    scene.complete(scene.lease())
    scene.fail(scene.lease())
    assert (job.state, job.queue) == (DEAD, "default")
    consistent(scene.engine)


def test_a_waiter_of_the_dead_queue_receives_the_job_immediately(scene):
    waiter = scene.wait("dead", holder="undertaker")
    job = scene.pushed_and_leased(dead_queue="dead")
    scene.fail(job)
    assert scene.delivered() == [(waiter, job)]
    assert (job.state, job.holder, job.queue, job.attempt) == (LEASED, "undertaker", "dead", 2)
    assert scene.causes()[-3:] == ["failed", "moved", "leased"]
    consistent(scene.engine)


def test_a_paused_dead_queue_accepts_the_job_and_does_not_deliver_it(scene):
    scene.push("there", "dead")
    scene.engine.pause("dead", paused=True, now=scene.now)
    scene.wait("dead")
    scene.fail(scene.pushed_and_leased(dead_queue="dead"))
    assert scene.delivered() == []
    assert scene.engine.queues["dead"].counts[READY] == 2


def test_the_counters_of_both_queues_follow_the_job(scene):
    job = scene.push(dead_queue="dead")
    seen = []

    def count() -> None:
        consistent(scene.engine)
        counts = {q.name: [q.counts[s] for s in (READY, LEASED, DEAD)] for q in queues.values()}
        seen.append((counts["default"], counts.get("dead")))

    queues = scene.engine.queues
    count()
    scene.lease()
    count()
    scene.fail(job)
    count()
    scene.lease("dead")
    count()
    scene.fail(job)
    count()
    assert seen == [
        ([1, 0, 0], None),
        ([0, 1, 0], None),
        ([0, 0, 0], [1, 0, 0]),
        ([0, 0, 0], [0, 1, 0]),
        ([0, 0, 0], [0, 0, 1]),
    ]


def test_the_statistics_count_each_death_in_its_queue(scene):
    job = scene.pushed_and_leased(dead_queue="dead")
    scene.fail(job)
    scene.fail(scene.lease("dead"))
    scene.engine.current_statistics()
    days = {day.queue: day for day in scene.engine.statistics.days.values()}
    for name in ("default", "dead"):
        assert (days[name].failures, days[name].failed, days[name].wait.count) == (1, 1, 1)
    assert (scene.engine.totals.processed, scene.engine.totals.failures) == (2, 2)


def test_an_unknown_dead_queue_becomes_known(scene):
    job = scene.pushed_and_leased(dead_queue="dead")
    scene.engine.take_changes()
    assert "dead" not in scene.engine.queues
    scene.fail(job)
    assert scene.engine.queues["dead"].registered
    assert scene.engine.change_set.queues == {"dead": False}


def test_a_removed_queue_is_forgotten_with_its_last_job(scene):
    job = scene.pushed_and_leased(dead_queue="dead")
    scene.engine.remove_queue("default", scene.now)
    assert "default" in scene.engine.queues
    scene.fail(job)
    assert list(scene.engine.queues) == ["dead"]
    consistent(scene.engine)


# All permanent failures, and ends without failure


def by_its_holder(scene: MasenkoScene) -> None:
    scene.fail(scene.lease())


def by_a_client_without_a_lease(scene: MasenkoScene) -> None:
    (job,) = scene.engine.jobs.values()
    scene.engine.fail(job, scene.now, FAKTORY, "Oops", "", [], allow_unleased=True)


def by_an_expired_lease(scene: MasenkoScene) -> None:
    Scene.lease(scene)
    scene.advance(1800)


def by_a_lost_connection(scene: MasenkoScene) -> None:
    scene.lease()
    scene.disconnect()


def by_a_blocker(scene: MasenkoScene) -> None:
    (job,) = scene.engine.jobs.values()
    scene.engine.cancel(job, scene.now)
    blocker = scene.push("blocker", "other")
    scene.push("job-1", dead_queue="dead", blockers=[blocker.seq])
    scene.engine.kill(blocker, scene.now)


@pytest.mark.parametrize(
    "end",
    [
        by_its_holder,
        by_a_client_without_a_lease,
        by_an_expired_lease,
        by_a_lost_connection,
        by_a_blocker,
    ],
    ids=lambda end: end.__name__,
)
@pytest.mark.parametrize("dead_max", [100_000, 0])
def test_every_permanent_failure_moves_the_job(end: Callable[[MasenkoScene], None], dead_max: int):
    """The job moves even if the dead set is full: it never counts towards the limit of the dead
    set.
    """
    scene = MasenkoScene(dead_max=dead_max)
    scene.push("job-1", dead_queue="dead")
    end(scene)
    job = scene.engine.find("job-1")
    assert (job.queue, job.state, job.failures) == ("dead", READY, 0)
    assert scene.engine.retention.dead_dropped == (
        dead_max == 0 and end is by_a_blocker
    )  # the blocker
    consistent(scene.engine)


def test_without_a_dead_queue_a_full_dead_set_drops_the_job():
    scene = MasenkoScene(dead_max=0)
    scene.fail(scene.pushed_and_leased())
    assert scene.engine.jobs == {}
    assert scene.causes()[-2:] == ["failed", "purged"]
    consistent(scene.engine)


def test_a_job_of_any_origin_can_have_a_dead_queue(scene):
    job = scene.pushed_and_leased(origin=FAKTORY, retries=-1, dead_queue="dead")
    scene.fail(job)
    assert (job.queue, job.state) == ("dead", READY)


def test_a_killed_job_stays_in_the_dead_set(scene):
    job = scene.push(dead_queue="dead")
    scene.engine.kill(job, scene.now)
    assert (job.queue, job.state, job.extra.dead_queue) == ("default", DEAD, "dead")
    assert scene.causes() == ["pushed", "killed"]
    assert "dead" not in scene.engine.queues
    consistent(scene.engine)


def test_a_killed_job_that_is_retried_keeps_its_dead_queue(scene):
    job = scene.push(dead_queue="dead")
    scene.engine.kill(job, scene.now)
    scene.engine.retry_now(job, scene.now)
    scene.fail(scene.lease())
    assert (job.queue, job.state) == ("dead", READY)


@pytest.mark.parametrize("state", [READY, SCHEDULED, LEASED])
def test_a_cancelled_or_completed_job_does_not_move(scene, state):
    job = scene.push(dead_queue="dead", due_at=START + 1_000_000 if state == SCHEDULED else 0)
    if state == LEASED:
        scene.complete(scene.lease())
    else:
        scene.engine.cancel(job, scene.now)
    assert scene.engine.jobs == {}
    assert "moved" not in scene.causes()
    assert "dead" not in scene.engine.queues


# Restarts and failed commits after every step


def is_pushed(scene: MasenkoScene) -> None:
    scene.push("job-1", retries=1, dead_queue="dead", tags=["red"])
    scene.push("there", "dead")


def is_leased(scene: MasenkoScene) -> None:
    assert Scene.lease(scene, "default").jid == "job-1"


def fails(scene: MasenkoScene) -> None:
    scene.fail(scene.engine.find("job-1"))


def becomes_due(scene: MasenkoScene) -> None:
    scene.advance(20)
    assert scene.engine.find("job-1").state == READY


def is_leased_from_the_dead_queue(scene: MasenkoScene) -> None:
    while (job := Scene.lease(scene, "dead")).jid != "job-1":
        scene.complete(job)


def is_requeued(scene: MasenkoScene) -> None:
    scene.engine.retry_now(scene.engine.find("job-1"), scene.now)


STEPS = [
    is_pushed,
    is_leased,
    fails,
    becomes_due,
    is_leased,
    fails,  # and moves
    is_leased_from_the_dead_queue,
    fails,
    becomes_due,
    is_leased_from_the_dead_queue,
    fails,  # permanently
    is_requeued,
]


def location(scene: MasenkoScene) -> tuple:
    job = scene.engine.find("job-1")
    return (job.queue, job.state, job.failures, job.attempt, job.extra.dead_queue)


@pytest.fixture(params=[FailingMemoryStore, FailingSqliteStore])
def store(request, tmp_path: Path):
    store = request.param(tmp_path) if request.param is FailingSqliteStore else request.param()
    yield store
    store.close()


def test_a_restart_after_every_step_changes_nothing(store):
    scene, never = MasenkoScene(), MasenkoScene()
    seen = []
    for step in STEPS:
        for each in (scene, never):
            each.advance(0.1)
            step(each)
        scene = restarted(scene, store)
        never.engine.take_changes()
        assert durable_state(scene.engine) == durable_state(never.engine)
        for name in never.engine.queues:
            assert ready_jids(scene.engine, name) == ready_jids(never.engine, name)
        consistent(scene.engine)
        seen.append(location(scene))
    assert [where[:2] for where in seen] == [
        ("default", READY),
        ("default", LEASED),
        ("default", SCHEDULED),
        ("default", READY),
        ("default", LEASED),
        ("dead", READY),
        ("dead", LEASED),
        ("dead", SCHEDULED),
        ("dead", READY),
        ("dead", LEASED),
        ("dead", DEAD),
        ("dead", READY),
    ]


def test_every_step_can_be_reverted_and_repeated(store):
    scene = restarted(MasenkoScene(), store)
    for step in STEPS:
        scene.advance(0.1)
        before = durable_but_for_seqs(scene.engine)
        order = {name: ready_jids(scene.engine, name) for name in scene.engine.queues}
        step(scene)
        refused(scene, store)
        assert durable_but_for_seqs(scene.engine) == before
        assert {name: ready_jids(scene.engine, name) for name in scene.engine.queues} == order
        consistent(scene.engine)
        step(scene)
        consistent(scene.engine)
        scene = restarted(scene, store)
    assert location(scene) == ("dead", READY, 2, 4, "")


def test_a_dead_queue_opened_by_a_reverted_change_is_unknown_again(store):
    scene = MasenkoScene()
    scene.pushed_and_leased(dead_queue="dead")
    scene = restarted(scene, store)
    scene.engine.restoration.after_restart(scene.now)
    scene.fail(scene.lease())
    assert scene.engine.queues["dead"].registered
    refused(scene, store)
    assert "dead" not in scene.engine.queues
