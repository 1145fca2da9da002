"""Looking at a data folder: what is found in it, what is wrong with it, and that it stays as it is."""

import sqlite3
from pathlib import Path

import pytest

from disk.crashes import read_folder
from millrace.engine.states import BLOCKED
from millrace.store import SqliteStore, StoreError
from millrace.store.examination import Findings, examine, held
from older_formats import downgrade
from scene import Scene, commit

pytestmark = pytest.mark.usefixtures("small_generations")


@pytest.fixture
def scene(filled, open_store) -> Scene:
    """The same, and one is leased, one queue paused."""
    filled.lease("a")
    filled.engine.pause("b", paused=True, now=filled.now)
    commit(filled.engine, open_store.opened)
    return filled


def all_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expected(findings: Findings) -> None:
    assert findings.jobs == {"ready": 29, "leased": 1}
    assert (findings.queues, findings.paused) == (2, 1)
    assert findings.turn == 31
    assert findings.events >= 31
    assert findings.bytes > 30_000
    assert findings.summed
    assert findings.problems == []


def test_what_is_in_a_folder_is_told_and_nothing_changed(scene, folder, open_store):
    open_store.close()
    before = all_of(folder)
    findings = examine(folder)
    expected(findings)
    assert findings.server == ""
    assert all_of(folder) == before


def test_a_server_goes_on_meanwhile(scene, folder, open_store):
    findings = examine(folder)
    expected(findings)
    assert findings.server
    scene.push("afterwards")
    commit(scene.engine, open_store.opened)
    assert examine(folder).jobs == {"ready": 30, "leased": 1}


def test_a_log_is_read_and_left(scene, folder, open_store, tmp_path):
    killed = tmp_path / "killed"
    killed.mkdir()
    for name, content in read_folder(folder).items():
        (killed / name).write_bytes(content)
    assert (killed / "millrace.db-wal").stat().st_size > 10_000
    before = all_of(killed)
    expected(examine(killed))
    assert all_of(killed) == before


def test_no_server_can_start_meanwhile(scene, folder, open_store):
    open_store.close()
    with held(folder, Findings(str(folder))), pytest.raises(StoreError, match="in use"):
        SqliteStore(folder, sync=False)
    SqliteStore(folder, sync=False).close()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damage_is_told_with_its_file_and_what_to_do(scene, folder, open_store):
    open_store.close()
    database = folder / "millrace.db"
    content = database.read_bytes()
    flip(database, content.index(b"job-17"))
    before = all_of(folder)
    findings = examine(folder)
    (problem,) = findings.problems
    assert str(database) in problem
    assert "backup" in problem
    assert not findings.summed
    assert all_of(folder) == before


def test_damage_of_the_structure_is_told_too(scene, folder, open_store):
    open_store.close()
    flip(folder / "millrace.db", 4096 * 3 + 3)
    assert examine(folder).problems


def test_turns_that_are_missing_are_told(scene, folder, open_store, tmp_path):
    older = read_folder(folder)  # with a log
    open_store.close()
    del older["millrace.db-wal"]
    for name, content in older.items():
        (folder / name).write_bytes(content)
    assert any(
        "was committed" in problem or "damaged" in problem for problem in examine(folder).problems
    )


@pytest.mark.parametrize(
    ("state", "told"), [(BLOCKED, "job-3: dependency: the job is blocked"), (9, "cannot be read")]
)
def test_jobs_that_cannot_be_so_are_told(scene, folder, open_store, state, told):
    job = scene.engine.find("job-3")
    job.state = state  # a defect of ours, well summed
    scene.engine.batch.changed[job.seq] = job
    commit(scene.engine, open_store.opened)
    open_store.close()
    (problem,) = examine(folder).problems
    assert told in problem


@pytest.mark.parametrize("version", [1, 2])
def test_of_an_older_format_the_structure_is_looked_at(scene, folder, open_store, version):
    open_store.close()
    downgrade(folder, version)
    findings = examine(folder)
    assert (findings.format, findings.summed, findings.problems) == (version, False, [])
    flip(folder / "millrace.db", 4096 * 2 + 3)
    assert examine(folder).problems


def test_where_nothing_is_there_is_nothing_to_look_at(tmp_path):
    with pytest.raises(StoreError, match="no data folder"):
        examine(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="nothing in"):
        examine(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_missing_database_is_told(scene, folder, open_store):
    open_store.close()
    (folder / "millrace.db").unlink()
    (problem,) = examine(folder).problems
    assert "missing" in problem


def test_a_database_in_the_making_is_told_to_be_that(scene, folder, open_store):
    open_store.close()
    (folder / "millrace.db-journal").write_bytes(b"")
    with pytest.raises(StoreError, match="not yet made"):
        examine(folder)


def test_something_else_is_told_to_be_that(folder):
    folder.mkdir()
    with sqlite3.connect(folder / "millrace.db") as db:
        db.execute("CREATE TABLE shopping (item)")
    db.close()
    (problem,) = examine(folder).problems
    assert "not Millrace's" in problem
