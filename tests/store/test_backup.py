"""Backups of a data folder: complete or absent, in all circumstances."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from disk.recording import WRITES, missing, recording_server
from millrace.store import SqliteStore, StoreDamaged, StoreError, StoreWriteFailed
from millrace.store.sqlite import backup
from millrace.store.sqlite.backup import back_up
from older_formats import downgrade
from scene import Scene, commit, durable_state, recover

pytestmark = pytest.mark.usefixtures("small_generations")


@pytest.fixture
def scene(filled) -> Scene:
    return filled


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def restored(target: Path) -> dict:
    store = SqliteStore(target, sync=False)
    try:
        return durable_state(recover(store))
    finally:
        store.close()


def partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def test_the_copy_contains_the_committed_state(scene, folder, target):
    findings = back_up(folder, target)
    assert findings.jobs == {"ready": 30}
    assert findings.folder == str(target)
    assert sorted(path.name for path in target.iterdir()) == ["mark", "millrace.db"]
    assert target.stat().st_mode & 0o777 == 0o700
    assert not partial(target).exists()
    assert restored(target) == durable_state(scene.engine)


def test_the_copy_is_consistent_while_the_server_continues(
    scene, folder, target, open_store, monkeypatch
):
    monkeypatch.setattr(backup, "PAGES_PER_STEP", 3)
    before = durable_state(scene.engine)

    def push_more(done: int, total: int) -> None:
        scene.push(f"meanwhile-{done}", payload=b"y" * 5000)
        commit(scene.engine, open_store.opened)

    back_up(folder, target, push_more)
    assert len(scene.engine.jobs) > len(before["jobs"]) + 5
    assert restored(target) == before
    assert durable_state(recover(open_store())) == durable_state(scene.engine)


def test_a_folder_without_a_server_is_copied_and_not_changed(scene, folder, target, open_store):
    open_store.close()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    back_up(folder, target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert restored(target) == durable_state(scene.engine)


def test_an_empty_folder_may_be_the_target(scene, folder, target):
    target.mkdir()
    back_up(folder, target)
    assert restored(target) == durable_state(scene.engine)


def test_existing_files_are_not_overwritten(scene, folder, target):
    target.mkdir()
    (target / "precious").write_text("mine")
    with pytest.raises(StoreError, match="already exists"):
        back_up(folder, target)
    (target.parent / "file").write_text("mine")
    with pytest.raises(StoreError, match="already exists"):
        back_up(folder, target.parent / "file")
    assert (target / "precious").read_text() == "mine"


def test_a_missing_data_folder_is_refused(tmp_path, target):
    with pytest.raises(StoreError, match="no data folder"):
        back_up(tmp_path / "nowhere", target)
    assert not target.exists()


class KilledError(BaseException):
    pass


def test_a_killed_backup_leaves_no_apparent_backup(scene, folder, target, monkeypatch):
    monkeypatch.setattr(backup, "PAGES_PER_STEP", 1)
    counts = []
    back_up(folder, target, lambda done, total: counts.append(done))
    shutil.rmtree(target)
    for last in counts[:-1]:

        def die(done: int, total: int, last: int = last) -> None:
            if done >= last:
                raise KilledError

        with monkeypatch.context() as killed:
            killed.setattr(shutil, "rmtree", lambda *_, **__: None)  # no cleanup runs
            with pytest.raises(KilledError):
                back_up(folder, target, die)
        assert not target.exists()
        with pytest.raises(StoreDamaged):
            restored(partial(target))
    back_up(folder, target)
    assert restored(target) == durable_state(scene.engine)
    assert not partial(target).exists()


def test_a_concurrent_backup_is_refused(scene, folder, target, monkeypatch):
    monkeypatch.setattr(backup, "PAGES_PER_STEP", 5)
    refused = []

    def another(*_: int) -> None:
        with pytest.raises(StoreError, match="another backup"):
            back_up(folder, target)
        refused.append(True)

    back_up(folder, target, another)
    assert refused
    assert restored(target) == durable_state(scene.engine)


def test_insufficient_space_is_reported_before_the_copy(scene, folder, target, monkeypatch):
    usage = shutil.disk_usage(folder)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreWriteFailed, match="free"):
        back_up(folder, target)
    assert not target.exists()
    assert not partial(target).exists()


@pytest.mark.parametrize("after", [0, 1, 5, 20])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_failure_during_the_copy_leaves_no_files(
    scene, folder, target, tmp_path, after, error
):
    if reason := missing():
        pytest.skip(reason)
    code = (
        "import sys; from pathlib import Path; from millrace.store.sqlite.backup import back_up\n"
    )
    code += "back_up(Path(sys.argv[1]), Path(sys.argv[2]))"
    recorded = recording_server(partial(target), tmp_path / "log")
    ran = subprocess.run(
        [sys.executable, "-c", code, folder, target],
        env={**os.environ, **recorded, "DISK_FAIL": f"{WRITES} {error} {after} -1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1
    assert "millrace.store.errors.Store" in ran.stderr.splitlines()[-1]
    assert not target.exists()
    assert not partial(target).exists()


def test_a_damaged_folder_is_not_copied(scene, folder, target, open_store):
    open_store.close()
    database = folder / "millrace.db"
    content = database.read_bytes()
    at = content.index(b"job-17")
    database.write_bytes(content[:at] + b"k" + content[at + 1 :])
    with pytest.raises(StoreError, match="damaged"):
        back_up(folder, target)
    assert not target.exists()
    assert not partial(target).exists()


def test_an_older_format_is_not_copied(scene, folder, target, open_store):
    open_store.close()
    downgrade(folder, 2)
    with pytest.raises(StoreError, match="older format"):
        back_up(folder, target)
    assert not target.exists()


def test_a_finished_backup_leaves_the_folder_of_the_next_one(target):
    """Another backup may start as soon as the folder has its final name."""
    with backup._temporary_folder(target) as aside:
        aside.rename(target)
        aside.mkdir()
    assert aside.is_dir()
