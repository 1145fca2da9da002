"""Queues without jobs are forgotten after a period, unless this would lose data."""

import pytest

from millrace.engine.idle_queues import SWEEP_BATCH_SIZE, IdleQueues
from millrace.store import MemoryStore
from scene import SECOND, Scene, commit, recover

DAY = 86_400 * SECOND


@pytest.fixture
def scene() -> Scene:
    """A queue `default` whose only job is done."""
    scene = Scene()
    scene.push("job-1")
    scene.complete(scene.lease("default"))
    return scene


def forget(scene: Scene, idle: IdleQueues, after: int = 0) -> list[str]:
    return idle.remove_idle_batch(scene.now + after, DAY)


def test_an_idle_queue_is_forgotten_after_the_idle_period(scene):
    idle = IdleQueues(scene.engine)
    assert forget(scene, idle) == []
    assert forget(scene, idle, DAY - 1) == []
    assert forget(scene, idle, DAY) == ["default"]
    assert "default" not in scene.engine.queues
    scene.push("job-2")
    assert scene.engine.queues["default"].registered


def test_a_restart_does_not_restore_a_forgotten_queue(scene):
    store = MemoryStore()
    commit(scene.engine, store)
    idle = IdleQueues(scene.engine)
    forget(scene, idle)
    forget(scene, idle, DAY)
    commit(scene.engine, store)
    assert "default" not in recover(store).queues


@pytest.mark.parametrize(
    "use",
    [
        lambda scene: scene.push("job-2"),
        lambda scene: scene.wait(),
        lambda scene: scene.engine.pause("default", paused=True, now=scene.now),
        lambda scene: scene.engine.set_retention("default", DAY),
        lambda scene: scene.engine.limits.set("ql:q:default", 1, 0, scene.now),
        lambda scene: scene.engine.limits.set_concurrency("default", 1),
    ],
)
def test_jobs_clients_pauses_and_settings_keep_a_queue(scene, use):
    use(scene)
    idle = IdleQueues(scene.engine)
    assert forget(scene, idle) == forget(scene, idle, DAY) == []


def test_a_request_for_jobs_restarts_the_idle_period(scene):
    idle = IdleQueues(scene.engine)
    forget(scene, idle)
    scene.now += DAY - 1
    assert scene.lease("default") is None
    assert forget(scene, idle, 1) == []
    assert forget(scene, idle, DAY) == ["default"]


def test_no_queue_is_forgotten_while_the_store_fails(scene):
    idle = IdleQueues(scene.engine)
    forget(scene, idle)
    scene.engine.unavailable_reason = "disk full"
    assert forget(scene, idle, DAY) == []


def test_each_step_examines_some_queues(scene):
    for number in range(3 * SWEEP_BATCH_SIZE):
        scene.push(f"job-{number}", f"queue-{number}")
        scene.complete(scene.lease(f"queue-{number}"))
    idle = IdleQueues(scene.engine)
    for _ in range(4):
        assert forget(scene, idle) == []
    steps = [len(forget(scene, idle, DAY)) for _ in range(4)]
    assert steps == [SWEEP_BATCH_SIZE] * 3 + [1]
    assert not scene.engine.queues
