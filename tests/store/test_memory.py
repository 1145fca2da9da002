"""The memory store: features beyond the store contract."""

import pytest

from millrace.store import MemoryStore
from scene import Scene, commit, durable_state, recover


def test_the_store_keeps_copies_of_jobs():
    scene, store = Scene(), MemoryStore()
    job = scene.push()
    commit(scene.engine, store)
    job.queue = "changed behind its back"
    assert store.load().jobs[1].queue == "default"
    assert store.load().jobs[1] is not store.load().jobs[1]


def test_the_store_returns_its_events():
    scene, store = Scene(), MemoryStore()
    scene.push("job-1")
    commit(scene.engine, store)
    scene.push("job-2")
    commit(scene.engine, store)
    scene.push("not committed")
    assert [(event[1], event[3]) for event in store.events()] == [
        ("pushed", "job-1"),
        ("pushed", "job-2"),
    ]


def test_the_store_can_always_be_written():
    assert MemoryStore().can_write()


def test_close_discards_a_prepared_change_set():
    scene, store = Scene(), MemoryStore()
    scene.push("committed")
    commit(scene.engine, store)
    before = durable_state(scene.engine)
    scene.push("begun")
    store.prepare(scene.engine.take_changes(), scene.engine)
    store.close()
    with pytest.raises(AssertionError, match="no change set was prepared"):
        store.commit()
    assert durable_state(recover(store)) == before
