"""Bulk loads: staged jobs and their records, in the journal, after a crash and after a revert."""

import pytest

from millrace.engine import bulk_loads, consistency
from millrace.engine.engine import Engine
from millrace.engine.states import BLOCKED, GONE, NEW, READY, SCHEDULED
from millrace.protocols.registry import FAKTORY
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, ready_jids, recover, undo, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def stage(scene: Scene, *jids: str, load: str = "L", **fields: object) -> None:
    bulk_loads.open_load(scene.engine, load, scene.now)
    for jid in jids:
        bulk_loads.stage(scene.engine, load, unit(jid, **fields), scene.now)


def release(engine: Engine, now: int, count: int = 100, load: str = "L") -> int:
    bulk_loads.start_release(engine, load, now)
    return bulk_loads.release(engine, load, count, now)


def summaries(engine: Engine) -> dict[str, tuple[str, int, int]]:
    return {
        each.load: (each.state, each.total, each.staged) for each in bulk_loads.list_loads(engine)
    }


def restarted(store: MemoryStore) -> Engine:
    engine = recover(store)
    assert not consistency.check_engine(engine).total
    return engine


def test_the_journal_records_staged_jobs_as_blocked_jobs(scene):
    stage(scene, "one")
    stage(scene, "two", due_at=START + 60 * SECOND)
    scene.advance(5)
    release(scene.engine, scene.now)
    recorded = [(e.type, e.jid, e.before, e.state, e.actor, e.queue) for e in scene.events()]
    assert recorded == [
        ("pushed", "one", NEW, BLOCKED, FAKTORY, "default"),
        ("pushed", "two", NEW, BLOCKED, FAKTORY, "default"),
        ("unblocked", "one", BLOCKED, READY, 0, "default"),
        ("unblocked", "two", BLOCKED, SCHEDULED, 0, "default"),
    ]
    scene.advance(1)
    assert scene.lease().jid == "one"
    assert scene.events()[-1].wait == SECOND, "the wait starts at the release"


def test_a_discarded_job_is_cancelled(scene):
    stage(scene, "one")
    bulk_loads.discard(scene.engine, "L", 10, FAKTORY, scene.now)
    last = scene.events()[-1]
    assert (last.type, last.before, last.state, last.actor) == ("cancelled", BLOCKED, GONE, FAKTORY)


def test_a_load_survives_a_crash(scene):
    store = MemoryStore()
    stage(scene, "c", "a", "b")
    commit(scene.engine, store)
    engine = restarted(store)
    assert summaries(engine) == {"L": ("open", 3, 3)}
    assert not bulk_loads.stage(engine, "L", unit("a"), scene.now), "the job is staged already"
    assert release(engine, scene.now, 2) == 2
    commit(engine, store)
    engine = restarted(store)
    assert summaries(engine) == {"L": ("releasing", 3, 1)}
    assert ready_jids(engine) == ["c", "a"], "the oldest job is released first"
    assert release(engine, scene.now) == 1
    commit(engine, store)
    assert summaries(restarted(store)) == {"L": ("released", 3, 0)}


def test_a_release_with_a_failed_commit_is_reverted(scene):
    store, engine = MemoryStore(), scene.engine
    stage(scene, "a", "b")
    commit(engine, store)
    release(engine, scene.now)
    undo(engine, store, [engine.take_changes()], "disk full")
    engine.unavailable_reason = ""
    assert summaries(engine) == {"L": ("open", 2, 2)}
    assert not consistency.check_engine(engine).total
    assert scene.lease() is None
    assert release(engine, scene.now) == 2
    assert ready_jids(engine) == ["a", "b"]


def test_jobs_with_a_failed_commit_can_be_staged_again(scene):
    store, engine = MemoryStore(), scene.engine
    bulk_loads.open_load(engine, "L", scene.now)
    commit(engine, store)
    stage(scene, "a")
    undo(engine, store, [engine.take_changes()], "disk full")
    engine.unavailable_reason = ""
    assert bulk_loads.stage(engine, "L", unit("a"), scene.now)
    assert summaries(engine) == {"L": ("open", 1, 1)}


def test_a_flush_removes_loads_and_keeps_other_settings_of_its_turn(scene):
    store, engine = MemoryStore(), scene.engine
    stage(scene, "a")
    commit(engine, store)
    engine.set_setting("somebody/else", b"x")
    engine.flush(scene.now)
    commit(engine, store)
    engine = restarted(store)
    assert summaries(engine) == {}
    assert engine.settings == {"somebody/else": b"x"}


def test_a_refused_release_keeps_the_order_of_the_load(scene):
    store = MemoryStore()
    stage(scene, "one", "two", "three")
    commit(scene.engine, store)
    release(scene.engine, scene.now, count=2)
    undo(scene.engine, store, [scene.engine.take_changes()], "disk full")
    assert [job.jid for job in bulk_loads.first_staged(scene.engine, "L", 10)] == [
        "one",
        "two",
        "three",
    ]
