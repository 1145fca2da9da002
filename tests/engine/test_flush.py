"""FLUSH removes everything, or the jobs of one protocol."""

import sys
from itertools import islice

import pytest

from millrace.engine import consistency
from millrace.engine.removal import FLUSH_BATCH_SIZE
from millrace.protocols.registry import FAKTORY, GOQUEUE, QLESS
from millrace.store import MemoryStore
from scene import Scene, commit, durable_state, recover


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    for number in range(3):
        scene.push(f"faktory-{number}")
        scene.push(f"qless-{number}", origin=QLESS)
    scene.lease()
    scene.engine.kill(scene.push("dead", origin=QLESS), scene.now)
    scene.push("blocked", "other", origin=QLESS, blockers=[2])
    return scene


def jids(scene: Scene) -> set[str]:
    return {job.jid for job in scene.engine.jobs.values()}


def test_a_flush_of_one_protocol_keeps_the_jobs_of_other_protocols(scene):
    scene.engine.pause("default", paused=True, now=scene.now)
    scene.engine.flush(scene.now, QLESS)
    assert jids(scene) == {"faktory-0", "faktory-1", "faktory-2"}
    assert scene.engine.queues["default"].paused
    assert consistency.check_engine(scene.engine).total == 0


def test_a_flush_of_one_protocol_delivers_no_dependent(scene):
    scene.wait("other")
    scene.engine.flush(scene.now, QLESS)
    assert scene.delivered() == []


def test_a_flush_of_one_protocol_is_durable(scene):
    store = MemoryStore()
    commit(scene.engine, store)
    scene.engine.flush(scene.now, QLESS)
    assert "cancelled" in scene.causes()
    commit(scene.engine, store)
    assert durable_state(recover(store)) == durable_state(scene.engine)


def test_a_flush_of_one_protocol_runs_in_steps(scene):
    for number in range(2 * FLUSH_BATCH_SIZE):
        scene.push(f"go-{number}", origin=GOQUEUE)
    steps = scene.engine.removal.flush_steps(lambda: scene.now, GOQUEUE)
    assert list(islice(steps, 1)) == [FLUSH_BATCH_SIZE]
    scene.push("new", origin=GOQUEUE)
    assert list(steps) == [FLUSH_BATCH_SIZE]
    assert scene.engine.find("new") is not None
    assert not [job for job in scene.engine.jobs.values() if job.jid.startswith("go-")]


def test_a_flush_of_all_protocols_removes_all_jobs(scene):
    scene.engine.flush(scene.now)
    assert scene.engine.jobs == {}
    assert scene.lease() is None


def test_a_flush_examines_queues_and_timers_with_little_work():
    """Each queue, and each time of a scheduled job, costs a line of Python or two."""
    scene, count = Scene(), 2000
    for number in range(count):
        scene.push(f"job-{number}", f"queue-{number}")
        scene.push(f"later-{number}", "later", due_at=scene.now + 1_000_000)
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += 1
        return trace

    sys.settrace(trace)
    try:
        scene.engine.flush(scene.now)
    finally:
        sys.settrace(None)
    assert lines < 4 * count
    assert not scene.engine.jobs
    assert not scene.engine.queues
    assert consistency.check_engine(scene.engine).total == 0


def test_a_flush_of_an_absent_protocol_changes_nothing(scene):
    scene.engine.take_changes()
    scene.engine.flush(scene.now, GOQUEUE)
    assert not scene.engine.change_set
    assert FAKTORY in {job.origin for job in scene.engine.jobs.values()}
