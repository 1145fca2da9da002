"""The mark: what it says, what it does not say, and that it never stands in the way."""

import logging
from pathlib import Path

import pytest

from millrace.store import mark as subject
from millrace.store.mark import Mark, read_mark


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's boot, as a file that a test may change."""
    path = tmp_path / "boot_id"
    path.write_text("first-boot\n")
    monkeypatch.setattr(subject, "_BOOT", path)
    return path


def written(folder: Path, *turns: int, sync: bool = True) -> Path:
    mark = Mark(folder, sync=sync)
    for turn in turns:
        mark.write(turn)
    mark.close()
    return folder / "mark"


def test_the_last_turn_is_read_back(tmp_path):
    assert read_mark(tmp_path) == 0
    written(tmp_path, 1, 2, 17)
    assert read_mark(tmp_path) == 17
    written(tmp_path, 1 << 60)
    assert read_mark(tmp_path) == 1 << 60
    assert (tmp_path / "mark").stat().st_mode & 0o777 == 0o600


def test_it_can_be_read_by_people(tmp_path):
    assert written(tmp_path, 17).read_text().startswith("turn 00000000000000000017 synced ")


@pytest.mark.parametrize("damage", [b"x", b"turn 5", bytes(96), b"turn x synced 00000000"])
def test_a_damaged_mark_says_nothing_but_that(tmp_path, caplog, damage):
    written(tmp_path, 17).write_bytes(damage)
    assert read_mark(tmp_path) == 0
    assert "damaged" in caplog.text


def test_one_that_was_cut_or_grew_is_damaged_until_it_is_written_anew(tmp_path):
    path = written(tmp_path, 17)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_mark(tmp_path) == 0
    path.write_bytes(path.read_bytes() * 3)
    assert read_mark(tmp_path) == 0
    written(tmp_path, 18)
    assert read_mark(tmp_path) == 18


def test_an_empty_one_is_one_that_was_not_written_yet(tmp_path, caplog):
    (tmp_path / "mark").touch()
    assert read_mark(tmp_path) == 0
    assert not caplog.text


def test_without_syncs_it_counts_until_the_machine_is_started_again(tmp_path, boot, caplog):
    caplog.set_level(logging.INFO)
    written(tmp_path, 17, sync=False)
    assert read_mark(tmp_path) == 17
    boot.write_text("second-boot\n")
    assert read_mark(tmp_path) == 0
    assert "does not count" in caplog.text
    written(tmp_path, 18, sync=True)
    boot.write_text("third-boot\n")
    assert read_mark(tmp_path) == 18


def test_without_syncs_and_a_boot_to_name_it_never_counts(tmp_path, boot):
    boot.unlink()
    written(tmp_path, 17, sync=False)
    assert read_mark(tmp_path) == 0
    written(tmp_path, 17, sync=True)
    assert read_mark(tmp_path) == 17


def test_one_that_cannot_be_written_is_told_once(tmp_path, caplog):
    mark = Mark(tmp_path / "nowhere", sync=True)
    mark.write(1)
    mark.write(2)
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "nowhere").mkdir()
    mark.write(3)
    mark.close()
    assert read_mark(tmp_path / "nowhere") == 3


def test_one_that_cannot_be_read_says_nothing_but_that(tmp_path, caplog):
    (tmp_path / "mark").mkdir()
    assert read_mark(tmp_path) == 0
    assert "cannot be read" in caplog.text
