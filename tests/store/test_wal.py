"""Reading SQLite's log without SQLite: up to the same last frame, and with the position of any
damage.
"""

import sqlite3
from pathlib import Path

import pytest

from millrace.store.sqlite.wal import WalReport, describe_damage, examine

FRAME = 24 + 4096


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Three commits in a log of a killed process."""
    path = tmp_path / "live.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (b)")
    for _ in range(3):
        db.execute("INSERT INTO t VALUES (?)", (bytes(9000),))
    for suffix in ("", "-wal"):
        content = (tmp_path / f"live.db{suffix}").read_bytes()
        (tmp_path / f"killed.db{suffix}").write_bytes(content)
    db.close()
    return tmp_path / "killed.db"


@pytest.fixture
def log(database: Path) -> bytes:
    return database.with_name("killed.db-wal").read_bytes()


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes((content[at] ^ 4,)) + content[at + 1 :]


def test_a_complete_log_is_read_to_its_end(log):
    assert examine(log) == WalReport((len(log) - 32) // FRAME, None)


def test_a_truncated_log_is_read_to_its_last_frame(log):
    for frames in range((len(log) - 32) // FRAME + 1):
        assert examine(log[: 32 + frames * FRAME]).frames == frames


@pytest.mark.parametrize("within", [0, 5, 9, 17, 30, 4000])
def test_damage_is_located(log, within):
    for frame in range((len(log) - 32) // FRAME - 2):
        at = 32 + frame * FRAME
        assert examine(flipped(log, at + within)) == WalReport(frame, at)


def test_a_damaged_header_is_damage(log):
    for at in (0, 9, 13, 17, 25, 31):
        assert examine(flipped(log, at)) == WalReport(0, 0)


def test_a_torn_end_after_a_crash_is_not_damage(log):
    frames = (len(log) - 32) // FRAME
    assert examine(log[:-100]) == WalReport(frames - 1, None)
    assert examine(flipped(log, len(log) - 50)) == WalReport(frames - 1, None)
    assert examine(log + bytes(3 * FRAME)) == WalReport(frames, None)


def test_frames_of_the_previous_round_are_not_damage(log):
    other = bytearray(log)
    for at in range(32, len(log), FRAME):
        other[at + 8 : at + 16] = b"\1" * 8  # other salts
    assert examine(log + bytes(other[32:])) == WalReport((len(log) - 32) // FRAME, None)


def test_a_file_that_is_not_a_log_has_no_frames():
    assert examine(b"") == WalReport(0, None)
    assert examine(bytes(31)) == WalReport(0, None)
    assert examine(bytes(5000)) == WalReport(0, 0)


def test_only_a_damaged_log_is_reported(database, log):
    path = database.with_name("killed.db-wal")
    assert describe_damage(database) == ""
    path.write_bytes(flipped(log, 32 + FRAME + 100))
    assert describe_damage(database) == f"Its log {path} is damaged near byte {32 + FRAME}. "
    path.unlink()
    assert describe_damage(database) == ""
    path.mkdir()
    assert "cannot be read" in describe_damage(database)
