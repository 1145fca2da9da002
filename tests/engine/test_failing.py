"""Jobs by what they failed of: the dead, and those that wait for another try."""

from random import Random

import pytest

from millrace.engine import consistency
from millrace.engine.engine import Engine
from millrace.engine.events import fingerprint
from millrace.engine.failure_groups import FINGERPRINT_BATCH_SIZE
from millrace.engine.states import DEAD, SCHEDULED
from millrace.store.memory import MemoryStore
from scene import START, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


def failed(scene: Scene, jid: str, message: str = "it broke", **fields) -> None:
    scene.fail(scene.pushed_and_leased(jid, **fields), message=message)


def groups(scene: Scene) -> dict[str, tuple[int, int]]:
    """The newest job of each group, and how many are dead and retrying."""
    assert consistency.check(scene.engine).problems == []
    return {
        group.newest.jid: (group.dead, group.retrying) for group in scene.engine.failing.values()
    }


def test_errors_that_differ_in_numbers_are_the_same(scene):
    failed(scene, "a", "timeout after 3 s")
    scene.now += 1
    failed(scene, "b", "timeout after 99 s")
    failed(scene, "c", "refused", retries=-1)
    assert groups(scene) == {"b": (0, 2), "c": (1, 0)}
    assert set(scene.engine.failing) == {
        fingerprint("Oops", "timeout after 1 s"),
        fingerprint("Oops", "refused"),
    }
    assert scene.engine.failing.count == 3


def test_a_job_that_is_tried_again_leaves_and_comes_back_with_its_new_error(scene):
    failed(scene, "a", "first")
    job = scene.engine.find("a")
    scene.advance_to(job.due)
    assert groups(scene) == {}
    assert scene.lease() is job
    scene.fail(job, message="second")
    assert job.state == SCHEDULED
    assert list(scene.engine.failing) == [fingerprint("Oops", "second")]


def test_a_retry_that_is_killed_is_dead_of_the_same(scene):
    failed(scene, "a")
    scene.engine.kill(scene.engine.find("a"), scene.now)
    assert groups(scene) == {"a": (1, 0)}
    scene.engine.requeue(scene.engine.find("a"), scene.now)
    assert groups(scene) == {}


def test_a_job_that_was_killed_without_an_error_has_failed_of_nothing(scene):
    scene.engine.kill(scene.push("a"), scene.now)
    assert scene.engine.find("a").state == DEAD
    assert groups(scene) == {}


def test_when_the_newest_goes_another_is_it(scene):
    for jid in "abc":
        failed(scene, jid)
        scene.now += 1
    for newest in "cba":
        assert list(groups(scene)) == [newest]
        scene.engine.cancel(scene.engine.find(newest), scene.now)
    assert groups(scene) == {}
    assert scene.engine.failing.count == 0


def test_a_job_that_moves_begins_anew(scene):
    failed(scene, "a")
    scene.engine.move(scene.engine.find("a"), "other", scene.now, 0)
    assert groups(scene) == {}


def test_a_flush_forgets_them(scene):
    failed(scene, "a")
    scene.engine.flush(scene.now)
    assert groups(scene) == {}


def stored(scene: Scene, store: MemoryStore) -> None:
    store.begin(scene.engine.take_batch(), scene.engine)
    store.commit()


def test_after_a_start_they_are_found_bit_by_bit(scene):
    store = MemoryStore()
    for n in range(FINGERPRINT_BATCH_SIZE + 10):
        failed(scene, f"job-{n}", "broken " + "x" * n)
    stored(scene, store)
    engine = Engine(Random(1))
    store.load().put_into(engine)
    failing = engine.failing
    assert len(failing) == 0
    assert failing.count == FINGERPRINT_BATCH_SIZE + 10
    engine.cancel(engine.find("job-3"), scene.now)  # before anybody knew what of it failed
    assert len(list(failing.complete())) == 1
    assert len(failing) == failing.count == FINGERPRINT_BATCH_SIZE + 9
    assert consistency.check(engine).problems == []
    assert not failing.go_on()


def test_what_was_undone_is_undone_here(scene):
    store = MemoryStore()
    failed(scene, "a", "first")
    failed(scene, "b", "first")
    stored(scene, store)
    engine = scene.engine
    engine.cancel(engine.find("a"), scene.now)
    failed(scene, "c", "second")
    batch = engine.take_batch()
    recovered = store.reread([seq for part in batch.parts() for seq in part])
    engine.revert([batch], recovered.jobs.values(), recovered.queues)
    list(engine.failing.complete())
    assert set(engine.failing) == {fingerprint("Oops", "first")}
    (group,) = engine.failing.values()
    assert sorted(job.jid for job in group.jobs.values()) == ["a", "b"]
    assert consistency.check(engine).problems == []


def test_a_wrong_index_is_found_and_mended(scene):
    failed(scene, "a")
    failed(scene, "b", "other")
    engine = scene.engine
    engine.failing.leave(engine.find("a").seq)
    next(iter(engine.failing.values())).dead = 3
    assert [problem.what for problem in consistency.check(engine).problems] == ["failure"] * 2
    consistency.repair(engine, START)
    assert len(groups(scene)) == 2
