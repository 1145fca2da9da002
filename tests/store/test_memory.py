"""The store without a disk: what it has beyond what every store has."""

import pytest

from millrace.store import MemoryStore
from scene import Scene, commit, durable_state, recover


def test_it_keeps_bytes_not_the_objects_it_was_given():
    scene, store = Scene(), MemoryStore()
    job = scene.push()
    commit(scene.engine, store)
    job.queue = "changed behind its back"
    assert store.load().jobs[1].queue == "default"
    assert store.load().jobs[1] is not store.load().jobs[1]


def test_it_gives_its_events_to_tests():
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


def test_it_can_always_be_written():
    assert MemoryStore().probe()


def test_closing_it_forgets_what_was_only_begun():
    scene, store = Scene(), MemoryStore()
    scene.push("committed")
    commit(scene.engine, store)
    before = durable_state(scene.engine)
    scene.push("begun")
    store.begin(scene.engine.take_batch(), scene.engine)
    store.close()
    with pytest.raises(AssertionError, match="nothing was begun"):
        store.commit()
    assert durable_state(recover(store)) == before
