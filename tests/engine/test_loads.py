"""Loads: staged jobs and what is known of them, in the journal, after a crash and after an undo."""

import pytest

from millrace.engine import consistency, loads
from millrace.engine.engine import Engine
from millrace.engine.job import FAKTORY
from millrace.engine.states import BLOCKED, GONE, NEW, READY, SCHEDULED
from millrace.store import MemoryStore
from scene import SECOND, START, Scene, commit, ready_jids, recover, undo, unit


@pytest.fixture
def scene() -> Scene:
    return Scene()


def stage(scene: Scene, *jids: str, load: str = "L", **fields: object) -> None:
    loads.begin(scene.engine, load, scene.now)
    for jid in jids:
        loads.stage(scene.engine, load, unit(jid, **fields), scene.now)


def release(engine: Engine, now: int, count: int = 100, load: str = "L") -> int:
    loads.seal(engine, load, now)
    return loads.release(engine, load, count, now)


def known(engine: Engine) -> dict[str, tuple[str, int, int]]:
    return {each.load: (each.state, each.total, each.staged) for each in loads.listed(engine)}


def restarted(store: MemoryStore) -> Engine:
    engine = recover(store)
    assert not consistency.check(engine).total
    return engine


def test_the_journal_tells_of_staged_jobs_as_of_all_that_wait(scene):
    stage(scene, "one")
    stage(scene, "two", due=START + 60 * SECOND)
    scene.advance(5)
    release(scene.engine, scene.now)
    told = [(e.type, e.jid, e.before, e.state, e.actor, e.queue) for e in scene.events()]
    assert told == [
        ("pushed", "one", NEW, BLOCKED, FAKTORY, "default"),
        ("pushed", "two", NEW, BLOCKED, FAKTORY, "default"),
        ("unblocked", "one", BLOCKED, READY, 0, "default"),
        ("unblocked", "two", BLOCKED, SCHEDULED, 0, "default"),
    ]
    scene.advance(1)
    assert scene.lease().jid == "one"
    assert scene.events()[-1].wait == SECOND, "it waited from its release on"


def test_what_is_discarded_was_cancelled(scene):
    stage(scene, "one")
    loads.discard(scene.engine, "L", 10, FAKTORY, scene.now)
    last = scene.events()[-1]
    assert (last.type, last.before, last.state, last.actor) == ("cancelled", BLOCKED, GONE, FAKTORY)


def test_a_load_is_as_it_was_after_a_crash(scene):
    store = MemoryStore()
    stage(scene, "c", "a", "b")
    commit(scene.engine, store)
    engine = restarted(store)
    assert known(engine) == {"L": ("open", 3, 3)}
    assert not loads.stage(engine, "L", unit("a"), scene.now), "it is there already"
    assert release(engine, scene.now, 2) == 2
    commit(engine, store)
    engine = restarted(store)
    assert known(engine) == {"L": ("releasing", 3, 1)}
    assert ready_jids(engine) == ["c", "a"], "the first first"
    assert release(engine, scene.now) == 1
    commit(engine, store)
    assert known(restarted(store)) == {"L": ("released", 3, 0)}


def test_a_release_that_could_not_be_written_is_undone(scene):
    store, engine = MemoryStore(), scene.engine
    stage(scene, "a", "b")
    commit(engine, store)
    release(engine, scene.now)
    undo(engine, store, [engine.take_batch()], "disk full")
    engine.halted = ""
    assert known(engine) == {"L": ("open", 2, 2)}
    assert not consistency.check(engine).total
    assert scene.lease() is None
    assert release(engine, scene.now) == 2
    assert ready_jids(engine) == ["a", "b"]


def test_jobs_that_could_not_be_written_are_staged_when_they_come_again(scene):
    store, engine = MemoryStore(), scene.engine
    loads.begin(engine, "L", scene.now)
    commit(engine, store)
    stage(scene, "a")
    undo(engine, store, [engine.take_batch()], "disk full")
    engine.halted = ""
    assert loads.stage(engine, "L", unit("a"), scene.now)
    assert known(engine) == {"L": ("open", 1, 1)}


def test_flush_forgets_loads_for_good_and_other_notes_of_its_turn_stay(scene):
    store, engine = MemoryStore(), scene.engine
    stage(scene, "a")
    commit(engine, store)
    engine.note("somebody/else", b"x")
    engine.flush(scene.now)
    commit(engine, store)
    engine = restarted(store)
    assert known(engine) == {}
    assert engine.notes == {"somebody/else": b"x"}


def test_a_refused_release_keeps_the_order_of_the_load(scene):
    store = MemoryStore()
    stage(scene, "one", "two", "three")
    commit(scene.engine, store)
    release(scene.engine, scene.now, count=2)
    undo(scene.engine, store, [scene.engine.take_batch()], "disk full")
    assert [job.jid for job in loads.first(scene.engine, "L", 10)] == ["one", "two", "three"]
