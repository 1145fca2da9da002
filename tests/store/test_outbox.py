"""Commits remove shipped events from the outbox."""

from pathlib import Path

import pytest

import millrace.store.sqlite.store
from failing_stores import FailingSqliteStore
from millrace.engine.change_set import ChangeSet
from millrace.engine.statistics import QueueDay
from millrace.store import StoreWriteFailed
from millrace.store.sqlite.check import check_folder
from scene import Scene, commit
from support.plain import values


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
    store.prepare(ChangeSet(), scene.engine)
    store.commit()


def test_shipped_events_are_removed_with_the_next_commit(store, scene):
    store.outbox.mark_shipped(22)
    assert store.outbox.has_shipped_events
    assert len(ids(store)) == 10
    scene.push("another")
    commit(scene.engine, store)
    assert ids(store) == [22, 25, 28, 31]
    assert not store.outbox.has_shipped_events
    assert store.outbox.first_event == 22


def test_an_empty_change_set_is_enough(store, scene):
    store.outbox.mark_shipped(31)
    turn(store, scene)
    assert ids(store) == []
    assert (store.outbox.first_event, store.outbox.next_event, store.outbox.size) == (31, 31, 0)


def test_a_row_is_removed_when_all_of_it_is_shipped(store, scene):
    """The store does not wait for a row that is only partly shipped."""
    store.outbox.mark_shipped(24)
    turn(store, scene)
    assert ids(store)[0] == 22
    assert not store.outbox.has_shipped_events


def test_a_commit_removes_a_limited_number_of_bytes(store, scene, monkeypatch):
    monkeypatch.setattr(millrace.store.sqlite.store, "IDLE_TRIM_BYTES", 200)
    store.outbox.mark_shipped(31)
    turns = 0
    while store.outbox.has_shipped_events:
        turn(store, scene)
        turns += 1
    assert turns == 10
    assert ids(store) == []


def test_the_folder_is_intact_and_the_statistics_are_the_same(store, scene, open_store, folder):
    before = scene.engine.statistics.days
    store.outbox.mark_shipped(31)
    turn(store, scene)
    job = scene.pushed_and_leased("last")
    scene.complete(job)
    commit(scene.engine, store)
    assert ids(store) == [31]
    open_store.close()
    findings = check_folder(Path(folder))
    assert (findings.problems, findings.events) == ([], 3)
    again = open_store().load().statistics.days
    assert values(again) == values(before)
    ((key, day),) = again.items()
    assert isinstance(day, QueueDay)
    assert day.run.count == 11
    assert key[0] == "default"


def test_a_failed_commit_removes_no_events(store, scene):
    """The store tries again only after the next shipment."""
    store.outbox.mark_shipped(31)
    store.fail = "commit"
    store.prepare(ChangeSet(), scene.engine)
    with pytest.raises(StoreWriteFailed):
        store.commit()
    store.fail = ""
    store.load_jobs([])
    assert not store.outbox.has_shipped_events
    assert len(ids(store)) == 10
    store.outbox.mark_shipped(31)
    turn(store, scene)
    assert ids(store) == []


def test_a_flush_keeps_unshipped_events(store, scene):
    scene.engine.flush(scene.now)
    commit(scene.engine, store)
    store.outbox.mark_shipped(31)
    turn(store, scene)
    assert ids(store) == [31]


def test_events_dropped_before_their_shipment_are_counted(open_store, small_generations):
    store, scene = open_store(outbox_max=1000), Scene()
    store.load()
    for n in range(100):
        scene.push(f"job-{n}")
        commit(scene.engine, store)
        if n == 9:
            store.outbox.mark_shipped(11)
    assert store.outbox.dropped == store.outbox.first_event - 11
    assert store.outbox.dropped > 50
