"""The data folder and its files are private to the user of the server."""

import os
import stat
from pathlib import Path

import pytest

from millrace.store.sqlite.backup import back_up
from millrace.store.sqlite.folder import make_private
from raw_faktory import RawFaktory
from server_process import running_server


def modes(folder: Path) -> dict[str, str]:
    """Files and folders that another user could read or write."""
    found = [folder, *folder.rglob("*")]
    return {
        str(path.relative_to(folder.parent)): oct(path.stat().st_mode & 0o777)
        for path in found
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    }


def work(data: Path, **environment: str) -> None:
    with running_server(data, **environment) as server:
        with RawFaktory(server.port) as client:
            client.push({"jid": "job-00000001", "jobtype": "t", "args": []})
        assert server.stop() == 0


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_folder_is_private_with_its_lake_and_backup(tmp_path: Path) -> None:
    data = tmp_path / "data"
    work(data, MILLRACE_LAKE_SHIP_EVERY="100ms")
    assert list(data.glob("lake/**/*.parquet"))
    assert modes(data) == {}
    back_up(data, tmp_path / "backup")
    assert modes(tmp_path / "backup") == {}


def test_an_existing_folder_becomes_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    work(data)
    data.chmod(0o755)
    (data / "millrace.db").chmod(0o644)
    work(data)
    assert modes(data) == {}


def test_a_folder_with_other_contents_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").write_text("not of Millrace")
    (tmp_path / "notes.txt").chmod(0o644)
    make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "notes.txt").stat().st_mode) == 0o644
    assert [record.getMessage() for record in caplog.records] == [
        f"Other users can read the data folder {tmp_path} (mode 0755). Run: chmod 700 {tmp_path}"
    ]
