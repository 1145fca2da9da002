"""The state of a server's store at one event."""

import threading
from pathlib import Path
from typing import Any

import pytest

from millrace.engine.states import STATE_NAMES
from millrace.journal.snapshot import days_table, queues_table, snapshot
from millrace.store import SqliteStore, StoreError
from older_formats import downgrade
from scene import Scene, commit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def known(scene: Scene) -> list[dict[str, Any]]:
    jobs = sorted(scene.engine.jobs.values(), key=lambda job: job.seq)
    return [
        {"seq": job.seq, "jid": job.jid, "queue": job.queue, "state": STATE_NAMES[job.state]}
        for job in jobs
    ]


def some_jobs(scene: Scene) -> None:
    for number in range(6):
        scene.push(f"job-{number}", f"queue-{number % 2}")
    scene.fail(scene.lease("queue-0"))
    scene.advance(3)
    scene.complete(scene.lease("queue-1"))
    scene.lease("queue-1")


def test_a_snapshot_without_a_running_server(folder):
    scene, store = Scene(), SqliteStore(folder)
    store.load()
    some_jobs(scene)
    events = len(scene.engine.change_set.events)
    commit(scene.engine, store)
    store.close()
    before = sorted(path.name for path in folder.iterdir())
    found = snapshot(folder)
    assert found.event == events
    assert sorted(found.jobs.to_pylist(), key=lambda job: job["seq"]) == known(scene)
    assert found.days.equals(days_table(scene.engine.statistics.days.values(), events))
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_snapshot_of_a_running_server(folder):
    """It excludes uncommitted changes and includes folded, removed and repeatedly written jobs."""
    scene, store = Scene(), SqliteStore(folder)
    store.load()
    some_jobs(scene)
    commit(scene.engine, store)
    expected, events = known(scene), store.outbox.next_event - 1
    scene.push("another")
    batch = scene.engine.take_changes()
    store.prepare(batch, scene.engine)
    found = snapshot(folder)
    assert found.event == events
    assert sorted(found.jobs.to_pylist(), key=lambda job: job["seq"]) == expected
    committing = threading.Thread(target=store.commit)
    committing.start()
    committing.join()
    assert snapshot(folder).event == events + 1
    store.close()


def test_a_snapshot_of_an_older_format(folder):
    scene, store = Scene(), SqliteStore(folder)
    store.load()
    some_jobs(scene)
    commit(scene.engine, store)
    store.close()
    downgrade(folder, 2)
    with pytest.raises(StoreError, match="start a server of this version on it once"):
        snapshot(folder)


def test_counters_in_columns():
    scene = Scene()
    some_jobs(scene)
    days = days_table(scene.engine.current_statistics().days.values(), 17).to_pylist()
    first, second = sorted(days, key=lambda day: day["queue"])
    assert (first["queue"], first["event"], first["wait_n"], first["failures"]) == (
        "queue-0",
        17,
        1,
        1,
    )
    assert (second["wait_n"], second["wait_mean"], second["run_n"]) == (2, 3.0, 1)
    assert (len(second["wait_hist"]), second["wait_hist"][3]) == (148, 2)
    queues = [(queue.name, queue.counts) for queue in scene.engine.queues.values()]
    queue_rows = queues_table(queues, 17).to_pylist()
    assert queue_rows == [
        {"queue": "queue-0", "event": 17, "scheduled": 1, "blocked": 0, "ready": 2, "leased": 0, "done": 0, "dead": 0},
        {"queue": "queue-1", "event": 17, "scheduled": 0, "blocked": 0, "ready": 1, "leased": 1, "done": 0, "dead": 0},
    ]  # fmt: skip
