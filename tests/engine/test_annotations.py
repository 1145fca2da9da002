"""Tags with their index, tracked ids, and the logs of jobs."""

import pytest

from millrace.engine import consistency
from millrace.engine.annotations import read_details, tags_of
from millrace.engine.engine import Engine
from millrace.engine.job import SECOND, Job
from millrace.protocols.registry import FAKTORY, HTTP, WORKQ
from millrace.store.memory import MemoryStore
from scene import START, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


def in_order(engine: Engine) -> list[str]:
    """The tracked ids in the order in which tracking started."""
    tracked = engine.annotations.tracked
    return sorted(tracked, key=lambda jid: (tracked[jid], jid))


def index(engine: Engine) -> dict[str, dict[int, int]]:
    return engine.annotations.tags


@pytest.mark.parametrize("origin", [FAKTORY, WORKQ, HTTP])
def test_tags_of_a_push_are_found_under_every_protocol(scene: Scene, origin: int) -> None:
    job = scene.push(tags=["red", "blue"], origin=origin)
    assert index(scene.engine) == {"red": {job.seq: START}, "blue": {job.seq: START}}
    scene.engine.cancel(job, scene.now)
    assert index(scene.engine) == {}


def test_new_tags_keep_the_times_of_their_addition(scene: Scene) -> None:
    job = scene.push(tags=["red"])
    scene.engine.set_tags(job, [*tags_of(job), ("blue", START + SECOND)])
    assert tags_of(job) == [("red", START), ("blue", START + SECOND)]
    assert job.extra is not None
    assert job.extra.tags == ["red", "blue"]
    assert index(scene.engine) == {"red": {job.seq: START}, "blue": {job.seq: START + SECOND}}


def test_tags_from_the_push_need_no_details(scene: Scene) -> None:
    job = scene.push()
    scene.engine.set_tags(job, [("red", job.created)])
    assert job.extra is not None
    assert job.extra.details is None


def test_the_log_keeps_its_first_and_its_newest_entries(scene: Scene) -> None:
    job = scene.push()
    for number in range(5):
        scene.engine.log(job, f"step {number}", START, 3, {"n": number})
    assert [entry[1] for entry in read_details(job).log] == ["put", "step 3", "step 4"]
    assert scene.engine.change_set


def test_tracked_ids_are_in_the_order_of_their_times(scene: Scene) -> None:
    for jid, when in (("c", 30), ("a", 10), ("b", 10), ("c", 5)):
        scene.engine.track(jid, when)
    assert in_order(scene.engine) == ["c", "a", "b"]
    scene.engine.track("a", None)
    assert scene.engine.annotations.tracked == {"c": 5, "b": 10}


def restarted(scene: Scene) -> Engine:
    store = MemoryStore()
    store.prepare(scene.engine.take_changes(), scene.engine)
    store.commit()
    again = Scene().engine
    store.load().fill(again)
    return again


def test_a_restart_keeps_tags_and_the_order_of_tracked_ids(scene: Scene) -> None:
    job = scene.push(tags=["red"])
    scene.engine.set_tags(job, [*tags_of(job), ("blue", START + SECOND)])
    for jid, when in (("z", 30), ("y", 20), ("x", 40)):
        scene.engine.track(jid, when)
    again = restarted(scene)
    assert index(again) == index(scene.engine)
    assert in_order(again) == ["y", "z", "x"]


def test_a_flush_removes_tags_and_tracked_ids(scene: Scene) -> None:
    job = scene.push(tags=["red"])
    scene.engine.track(job.jid, START)
    scene.engine.flush(scene.now)
    assert index(scene.engine) == {}
    assert scene.engine.annotations.tracked == {}
    assert restarted(scene).annotations.tracked == {}


def _remove_entry(job: Job, engine: Engine) -> None:
    del engine.annotations.tags["red"]


def _add_wrong_entry(job: Job, engine: Engine) -> None:
    engine.annotations.tags["blue"] = {job.seq: 1}


def _add_entry_of_missing_job(job: Job, engine: Engine) -> None:
    engine.annotations.tags["red"][99] = 1


def _change_tags(job: Job, engine: Engine) -> None:
    engine.set_tags(job, [("red", START + 1)])
    assert job.extra is not None
    job.extra.tags = ["green"]


@pytest.mark.parametrize(
    "damage", [_remove_entry, _add_wrong_entry, _add_entry_of_missing_job, _change_tags]
)
def test_damage_to_the_index_is_found_and_repaired(scene: Scene, damage) -> None:
    job = scene.push(tags=["red"])
    damage(job, scene.engine)
    found = consistency.check_engine(scene.engine)
    assert [problem.what for problem in found.problems] == ["tag"]
    consistency.repair(scene.engine, scene.now)
    assert consistency.check_engine(scene.engine).total == 0
