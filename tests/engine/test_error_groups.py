"""Failure groups: dead and retrying jobs by their error."""

from random import Random

import pytest

from millrace.engine import consistency
from millrace.engine.engine import Engine
from millrace.engine.events import fingerprint
from millrace.engine.failure_groups import FINGERPRINT_BATCH_SIZE
from millrace.engine.states import DEAD, SCHEDULED
from millrace.protocols.spec import protocol_rules
from millrace.store.memory import MemoryStore
from scene import START, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


def failed(scene: Scene, jid: str, message: str = "it broke", **fields) -> None:
    scene.fail(scene.pushed_and_leased(jid, **fields), message=message)


def groups(scene: Scene) -> dict[str, tuple[int, int]]:
    """The newest job of each group, with the numbers of dead and retrying jobs."""
    assert consistency.check_engine(scene.engine).problems == []
    return {
        group.newest.jid: (group.dead, group.retrying)
        for group in scene.engine.failure_groups.values()
    }


def test_errors_that_differ_in_numbers_are_one_group(scene):
    failed(scene, "a", "timeout after 3 s")
    scene.now += 1
    failed(scene, "b", "timeout after 99 s")
    failed(scene, "c", "refused", retries=-1)
    assert groups(scene) == {"b": (0, 2), "c": (1, 0)}
    assert set(scene.engine.failure_groups) == {
        fingerprint("Oops", "timeout after 1 s"),
        fingerprint("Oops", "refused"),
    }
    assert scene.engine.failure_groups.count == 3


def test_a_retried_job_leaves_its_group_and_joins_that_of_its_new_error(scene):
    failed(scene, "a", "first")
    job = scene.engine.find("a")
    scene.advance_to(job.due_at)
    assert groups(scene) == {}
    assert scene.lease() is job
    scene.fail(job, message="second")
    assert job.state == SCHEDULED
    assert list(scene.engine.failure_groups) == [fingerprint("Oops", "second")]


def test_a_killed_retry_stays_in_its_group(scene):
    failed(scene, "a")
    scene.engine.kill(scene.engine.find("a"), scene.now)
    assert groups(scene) == {"a": (1, 0)}
    scene.engine.retry_now(scene.engine.find("a"), scene.now)
    assert groups(scene) == {}


def test_a_job_killed_without_an_error_is_in_no_group(scene):
    scene.engine.kill(scene.push("a"), scene.now)
    assert scene.engine.find("a").state == DEAD
    assert groups(scene) == {}


def test_a_removed_newest_job_is_replaced_by_the_next(scene):
    for jid in "abc":
        failed(scene, jid)
        scene.now += 1
    for newest in "cba":
        assert list(groups(scene)) == [newest]
        scene.engine.cancel(scene.engine.find(newest), scene.now)
    assert groups(scene) == {}
    assert scene.engine.failure_groups.count == 0


def test_a_moved_job_leaves_its_group(scene):
    failed(scene, "a")
    scene.engine.move(scene.engine.find("a"), "other", scene.now, 0)
    assert groups(scene) == {}


def test_a_flush_removes_all_groups(scene):
    failed(scene, "a")
    scene.engine.flush(scene.now)
    assert groups(scene) == {}


def stored(scene: Scene, store: MemoryStore) -> None:
    store.prepare(scene.engine.take_changes(), scene.engine)
    store.commit()


def test_groups_are_rebuilt_in_steps_after_startup(scene):
    store = MemoryStore()
    for n in range(FINGERPRINT_BATCH_SIZE + 10):
        failed(scene, f"job-{n}", "broken " + "x" * n)
    stored(scene, store)
    engine = Engine(Random(1), protocol_rules())
    store.load().fill(engine)
    failing = engine.failure_groups
    assert len(failing) == 0
    assert failing.count == FINGERPRINT_BATCH_SIZE + 10
    engine.cancel(engine.find("job-3"), scene.now)  # before the index is rebuilt
    assert len(list(failing.index_remaining())) == 1
    assert len(failing) == failing.count == FINGERPRINT_BATCH_SIZE + 9
    assert consistency.check_engine(engine).problems == []
    assert not failing.index_batch()


def test_a_revert_restores_the_groups(scene):
    store = MemoryStore()
    failed(scene, "a", "first")
    failed(scene, "b", "first")
    stored(scene, store)
    engine = scene.engine
    engine.cancel(engine.find("a"), scene.now)
    failed(scene, "c", "second")
    batch = engine.take_changes()
    recovered = store.load_jobs([seq for part in batch.touched_seqs() for seq in part])
    engine.revert([batch], recovered.jobs.values(), recovered.queues)
    list(engine.failure_groups.index_remaining())
    assert set(engine.failure_groups) == {fingerprint("Oops", "first")}
    (group,) = engine.failure_groups.values()
    assert sorted(job.jid for job in group.jobs.values()) == ["a", "b"]
    assert consistency.check_engine(engine).problems == []


def test_a_wrong_index_is_found_and_repaired(scene):
    failed(scene, "a")
    failed(scene, "b", "other")
    engine = scene.engine
    engine.failure_groups.remove(engine.find("a"))
    next(iter(engine.failure_groups.values())).dead = 3
    assert [problem.what for problem in consistency.check_engine(engine).problems] == [
        "failure"
    ] * 2
    consistency.repair(engine, START)
    assert len(groups(scene)) == 2
