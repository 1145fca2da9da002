"""The check of a data folder: its findings, its problems, and no change to the folder."""

import sqlite3
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from disk.crashes import read_folder
from millrace.engine.engine import Engine
from millrace.engine.job import Extra
from millrace.engine.states import BLOCKED, STATE_NAMES
from millrace.protocols.spec import protocol_rules
from millrace.store import SqliteStore, StoreError
from millrace.store.sqlite import chunked_jobs, generations
from millrace.store.sqlite.check import CheckReport, check_folder, prevent_server_start
from older_formats import downgrade
from scene import START, Scene, commit, recover, unit

pytestmark = pytest.mark.usefixtures("small_generations")


@pytest.fixture
def scene(filled, open_store) -> Scene:
    """The filled store with one leased job and one paused queue."""
    filled.lease("a")
    filled.engine.pause("b", paused=True, now=filled.now)
    commit(filled.engine, open_store.opened)
    return filled


def all_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expected(findings: CheckReport) -> None:
    assert findings.jobs == {"ready": 29, "leased": 1}
    assert (findings.queues, findings.paused) == (2, 1)
    assert findings.turn == 31
    assert findings.events >= 31
    assert findings.bytes > 30_000
    assert findings.summed
    assert findings.problems == []


def test_the_check_reports_the_contents_and_changes_nothing(scene, folder, open_store):
    open_store.close()
    before = all_of(folder)
    findings = check_folder(folder)
    expected(findings)
    assert findings.server == ""
    assert all_of(folder) == before


def test_a_running_server_continues(scene, folder, open_store):
    findings = check_folder(folder)
    expected(findings)
    assert findings.server
    scene.push("afterwards")
    commit(scene.engine, open_store.opened)
    assert check_folder(folder).jobs == {"ready": 30, "leased": 1}


def test_a_log_is_read_and_left_unchanged(scene, folder, open_store, tmp_path):
    killed = tmp_path / "killed"
    killed.mkdir()
    for name, content in read_folder(folder).items():
        (killed / name).write_bytes(content)
    assert (killed / "millrace.db-wal").stat().st_size > 10_000
    before = all_of(killed)
    expected(check_folder(killed))
    assert all_of(killed) == before


def test_no_server_can_start_during_the_check(scene, folder, open_store):
    open_store.close()
    with (
        prevent_server_start(folder, CheckReport(str(folder))),
        pytest.raises(StoreError, match="in use"),
    ):
        SqliteStore(folder, sync=False)
    SqliteStore(folder, sync=False).close()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damage_is_reported_with_its_file_and_a_remedy(scene, folder, open_store):
    open_store.close()
    database = folder / "millrace.db"
    content = database.read_bytes()
    flip(database, content.index(b"job-17"))
    before = all_of(folder)
    findings = check_folder(folder)
    (problem,) = findings.problems
    assert str(database) in problem
    assert "backup" in problem
    assert not findings.summed
    assert all_of(folder) == before


def test_damage_to_the_structure_is_reported(scene, folder, open_store):
    open_store.close()
    flip(folder / "millrace.db", 4096 * 3 + 3)
    assert check_folder(folder).problems


def test_missing_turns_are_reported(scene, folder, open_store, tmp_path):
    older = read_folder(folder)  # with a log
    open_store.close()
    del older["millrace.db-wal"]
    for name, content in older.items():
        (folder / name).write_bytes(content)
    assert any(
        "was committed" in problem or "damaged" in problem
        for problem in check_folder(folder).problems
    )


@pytest.mark.parametrize(
    ("state", "expected_text"),
    [(BLOCKED, "job-3: dependency: the job is blocked"), (9, "cannot be read")],
)
def test_impossible_job_states_are_reported(scene, folder, open_store, state, expected_text):
    job = scene.engine.find("job-3")
    job.state = state  # simulates a defect of the server: the checksum is right
    scene.engine.change_set.changed[job.seq] = job
    commit(scene.engine, open_store.opened)
    open_store.close()
    (problem,) = check_folder(folder).problems
    assert expected_text in problem


@pytest.mark.parametrize("version", [1, 2])
def test_the_structure_of_an_older_format_is_checked(scene, folder, open_store, version):
    open_store.close()
    downgrade(folder, version)
    findings = check_folder(folder)
    assert (findings.format, findings.summed, findings.problems) == (version, False, [])
    flip(folder / "millrace.db", 4096 * 2 + 3)
    assert check_folder(folder).problems


def test_a_missing_or_empty_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no data folder"):
        check_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no database"):
        check_folder(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_missing_database_is_reported(scene, folder, open_store):
    open_store.close()
    (folder / "millrace.db").unlink()
    (problem,) = check_folder(folder).problems
    assert "missing" in problem


def test_an_unfinished_database_is_reported(scene, folder, open_store):
    open_store.close()
    (folder / "millrace.db-journal").write_bytes(b"")
    with pytest.raises(StoreError, match="incomplete"):
        check_folder(folder)


def test_a_foreign_database_is_reported(folder):
    folder.mkdir()
    with sqlite3.connect(folder / "millrace.db") as db:
        db.execute("CREATE TABLE shopping (item)")
    db.close()
    (problem,) = check_folder(folder).problems
    assert "is not a Millrace database" in problem


def test_a_job_that_waits_for_a_job_in_another_chunk_is_not_reported(
    scene, folder, open_store, monkeypatch
):
    monkeypatch.setattr(chunked_jobs, "CHUNK_JOBS", 2)
    store = open_store.opened
    blocker = scene.push("blocker")
    middle = scene.push("middle", blockers=[blocker.seq])
    for n in range(10):
        scene.push(f"between-{n}")
    scene.push("last", blockers=[blocker.seq, middle.seq])
    commit(scene.engine, store)
    findings = check_folder(folder)
    assert findings.problems == []
    assert findings.jobs == {"ready": 40, "leased": 1, "blocked": 2}


def test_a_job_that_waits_for_a_missing_job_is_reported(scene, folder, open_store, monkeypatch):
    monkeypatch.setattr(chunked_jobs, "CHUNK_JOBS", 2)
    job = scene.engine.find("job-3")
    job.state = BLOCKED
    job.extra = Extra(blockers=[987_654])
    scene.engine.change_set.changed[job.seq] = job
    commit(scene.engine, open_store.opened)
    (problem,) = check_folder(folder).problems
    assert "job-3: dependency: the job waits for job 987654, which does not exist" in problem


def test_changes_of_recent_turns_are_part_of_the_check(scene, folder, open_store, monkeypatch):
    """Jobs of the tables that the turns changed, replaced or removed, and new jobs."""
    store = open_store()  # the start folds everything
    scene = Scene(recover(store))
    monkeypatch.setattr(generations, "GENERATION_JOBS", 1000)
    monkeypatch.setattr(generations, "GENERATION_BYTES", 1 << 20)
    scene.complete(scene.lease("a"))
    held = scene.lease("a")
    scene.push("large", payload=b"x" * 9000)
    commit(scene.engine, store)
    scene.complete(held)
    scene.engine.cancel(scene.engine.find("job-20"), scene.now)
    scene.lease("a")
    commit(scene.engine, store)
    findings = check_folder(folder)
    assert findings.problems == []
    states = Counter(STATE_NAMES[job.state] for job in scene.engine.jobs.values())
    assert findings.jobs == dict(states)


def test_a_check_does_not_keep_all_jobs_in_memory(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(generations, "GENERATION_BYTES", 4 << 20)  # half of the usual size
    folder, jobs = tmp_path / "many", 40_000
    store, engine = SqliteStore(folder, sync=False), Engine(Random(1), protocol_rules())
    store.load()
    for number in range(jobs):
        engine.push(unit(f"job-{number:08}", "q", payload=b"x" * 500), START + number)
        if number % 1000 == 999:
            commit(engine, store)
    store.close()
    monkeypatch.setattr(chunked_jobs, "CHUNK_JOBS", 1000)
    tracemalloc.start()
    findings = check_folder(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert findings.jobs == {"ready": jobs}
    assert findings.problems == []
    # The turns that are not folded yet take 4 MiB in each of two generations.
    assert peak < 10 << 20, f"{peak:,} bytes for {jobs:,} jobs of 500 bytes"
