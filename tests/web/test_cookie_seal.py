"""The key of the session cookies survives the server and is private."""

import os
import stat
from pathlib import Path

import pytest

from millrace.web.session_key import KEY_FILE, LENGTH, sealing_key


def test_the_key_file_is_private(tmp_path: Path):
    before = os.umask(0)
    try:
        key = sealing_key(tmp_path)
    finally:
        os.umask(before)
    assert len(key) == LENGTH
    assert sealing_key(tmp_path) == key
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


def test_a_readable_key_file_becomes_private(tmp_path: Path):
    key = sealing_key(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    assert sealing_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("rest", [b"", b"x", b"x" * 33])
def test_an_invalid_key_is_replaced(tmp_path: Path, rest: bytes):
    (tmp_path / KEY_FILE).write_bytes(rest)
    (tmp_path / f"{KEY_FILE}.new").write_bytes(b"of a process that was killed")
    key = sealing_key(tmp_path)
    assert len(key) == LENGTH
    assert sealing_key(tmp_path) == key


def test_without_a_folder_each_process_has_a_new_key():
    assert sealing_key(None) != sealing_key(None)


def test_without_a_writable_folder_the_log_has_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    nowhere = tmp_path / "nowhere"
    assert len(sealing_key(nowhere)) == LENGTH
    assert "Sessions will not survive a restart" in caplog.text
