"""The commit marker: its contents, its limits, and its failures, which never stop the server."""

import logging
from pathlib import Path

import pytest

from millrace.store.sqlite import commit_marker as subject
from millrace.store.sqlite.commit_marker import CommitMarker, read_commit_marker


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The boot id of the machine, as a file that a test can change."""
    path = tmp_path / "boot_id"
    path.write_text("first-boot\n")
    monkeypatch.setattr(subject, "_BOOT", path)
    return path


def written(folder: Path, *turns: int, sync: bool = True) -> Path:
    mark = CommitMarker(folder, sync=sync)
    for turn in turns:
        mark.write(turn)
    mark.close()
    return folder / "mark"


def test_the_last_turn_is_read_back(tmp_path):
    assert read_commit_marker(tmp_path) == 0
    written(tmp_path, 1, 2, 17)
    assert read_commit_marker(tmp_path) == 17
    written(tmp_path, 1 << 60)
    assert read_commit_marker(tmp_path) == 1 << 60
    assert (tmp_path / "mark").stat().st_mode & 0o777 == 0o600


def test_the_marker_is_readable_text(tmp_path):
    assert written(tmp_path, 17).read_text().startswith("turn 00000000000000000017 synced ")


@pytest.mark.parametrize("damage", [b"x", b"turn 5", bytes(96), b"turn x synced 00000000"])
def test_a_damaged_marker_counts_as_zero_and_is_logged(tmp_path, caplog, damage):
    written(tmp_path, 17).write_bytes(damage)
    assert read_commit_marker(tmp_path) == 0
    assert "damaged" in caplog.text


def test_a_truncated_or_longer_marker_is_damaged_until_the_next_write(tmp_path):
    path = written(tmp_path, 17)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_commit_marker(tmp_path) == 0
    path.write_bytes(path.read_bytes() * 3)
    assert read_commit_marker(tmp_path) == 0
    written(tmp_path, 18)
    assert read_commit_marker(tmp_path) == 18


def test_an_empty_marker_counts_as_not_written(tmp_path, caplog):
    (tmp_path / "mark").touch()
    assert read_commit_marker(tmp_path) == 0
    assert not caplog.text


def test_an_unsynced_marker_counts_until_the_next_boot(tmp_path, boot, caplog):
    caplog.set_level(logging.INFO)
    written(tmp_path, 17, sync=False)
    assert read_commit_marker(tmp_path) == 17
    boot.write_text("second-boot\n")
    assert read_commit_marker(tmp_path) == 0
    assert "it was written before the last boot" in caplog.text
    written(tmp_path, 18, sync=True)
    boot.write_text("third-boot\n")
    assert read_commit_marker(tmp_path) == 18


def test_an_unsynced_marker_without_a_boot_id_never_counts(tmp_path, boot):
    boot.unlink()
    written(tmp_path, 17, sync=False)
    assert read_commit_marker(tmp_path) == 0
    written(tmp_path, 17, sync=True)
    assert read_commit_marker(tmp_path) == 17


def test_a_marker_that_cannot_be_written_is_logged_once(tmp_path, caplog):
    mark = CommitMarker(tmp_path / "nowhere", sync=True)
    mark.write(1)
    mark.write(2)
    assert caplog.text.count("Cannot write") == 1
    (tmp_path / "nowhere").mkdir()
    mark.write(3)
    mark.close()
    assert read_commit_marker(tmp_path / "nowhere") == 3


def test_an_unreadable_marker_counts_as_zero_and_is_logged(tmp_path, caplog):
    (tmp_path / "mark").mkdir()
    assert read_commit_marker(tmp_path) == 0
    assert "Cannot read" in caplog.text
