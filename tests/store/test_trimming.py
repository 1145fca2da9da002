"""What is in the lake goes from the outbox, with the commits that come anyway."""

from pathlib import Path

import pytest

import millrace.store.sqlite
from failing_stores import FailingSqliteStore
from millrace.engine.batch import Batch
from millrace.engine.stats import QueueDay
from millrace.store import StoreFailing
from millrace.store.examination import examine
from scene import Scene, commit


@pytest.fixture
def store(open_store):
    opened = open_store()
    opened.load()
    return opened


@pytest.fixture
def scene(store):
    """Ten commits of three events each."""
    made = Scene()
    for n in range(10):
        job = made.pushed_and_leased(f"job-{n}")
        made.now += 5
        made.complete(job)
        commit(made.engine, store)
    return made


def ids(store: FailingSqliteStore) -> list[int]:
    """The first event of each row."""
    return [first for (first,) in store._db.execute("SELECT first FROM outbox ORDER BY first")]


def turn(store: FailingSqliteStore, scene: Scene) -> None:
    store.begin(Batch(), scene.engine)
    store.commit()


def test_what_is_shipped_goes_with_the_next_commit(store, scene):
    store.shipped(22)
    assert store.trims
    assert len(ids(store)) == 10
    scene.push("another")
    commit(scene.engine, store)
    assert ids(store) == [22, 25, 28, 31]
    assert not store.trims
    assert store.first_event == 22


def test_an_empty_batch_is_enough(store, scene):
    store.shipped(31)
    turn(store, scene)
    assert ids(store) == []
    assert (store.first_event, store.next_event, store.outbox_bytes) == (31, 31, 0)


def test_a_row_goes_when_all_of_it_is_shipped(store, scene):
    """And nobody waits for a row of which a part is not."""
    store.shipped(24)
    turn(store, scene)
    assert ids(store)[0] == 22
    assert not store.trims


def test_a_commit_removes_only_so_much(store, scene, monkeypatch):
    monkeypatch.setattr(millrace.store.sqlite, "TRIM_BYTES_ALONE", 200)
    store.shipped(31)
    turns = 0
    while store.trims:
        turn(store, scene)
        turns += 1
    assert turns == 10
    assert ids(store) == []


def test_the_folder_is_whole_and_the_statistics_are_the_same(store, scene, open_store, folder):
    before = scene.engine.statistics.days
    store.shipped(31)
    turn(store, scene)
    job = scene.pushed_and_leased("last")
    scene.complete(job)
    commit(scene.engine, store)
    assert ids(store) == [31]
    open_store.close()
    findings = examine(Path(folder))
    assert (findings.problems, findings.events) == ([], 3)
    again = open_store().load().statistics.days
    assert again == before
    ((key, day),) = again.items()
    assert isinstance(day, QueueDay)
    assert day.run.count == 11
    assert key[0] == "default"


def test_what_cannot_be_committed_is_not_removed(store, scene):
    """And it is not tried again and again: until the next time that something is shipped."""
    store.shipped(31)
    store.fail = "commit"
    store.begin(Batch(), scene.engine)
    with pytest.raises(StoreFailing):
        store.commit()
    store.fail = ""
    store.reread([])
    assert not store.trims
    assert len(ids(store)) == 10
    store.shipped(31)
    turn(store, scene)
    assert ids(store) == []


def test_a_flush_leaves_what_was_not_shipped(store, scene):
    scene.engine.flush(scene.now)
    commit(scene.engine, store)
    store.shipped(31)
    turn(store, scene)
    assert ids(store) == [31]


def test_events_that_had_to_go_before_they_were_shipped_are_counted(open_store, small_generations):
    store, scene = open_store(outbox_max=1000), Scene()
    store.load()
    for n in range(100):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
        if n == 9:
            store.shipped(11)
    assert store.dropped == store.first_event - 11
    assert store.dropped > 50
