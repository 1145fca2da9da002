"""Files of a running server that are deleted: no second server, and no acknowledged loss."""

import shutil
from pathlib import Path

import pytest

from raw_faktory import ClosedError, RawFaktory
from server_process import DidNotStartError, ServerProcess, running_server, server_process


def push(server: ServerProcess, jid: str) -> bool:
    """Push a job; return whether the server acknowledged it."""
    with RawFaktory(server.port) as client:
        try:
            client.push({"jid": jid, "jobtype": "t", "args": []})
        except (ClosedError, OSError):
            return False
    return True


def test_without_the_lock_file_a_second_server_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data) as server, server_process(data) as second:
        assert push(server, "job-00000001")
        (data / "lock").unlink()
        with pytest.raises(DidNotStartError):
            second.start()
        assert "is in use by another process" in second.stderr
        assert push(server, "job-00000002")
        server.restart()
        with RawFaktory(server.port) as client:
            assert client.info()["faktory"]["total_enqueued"] == 2


@pytest.mark.parametrize("removed", ["folder", "millrace.db", "millrace.db-wal"])
def test_a_server_without_its_files_acknowledges_no_command(tmp_path: Path, removed: str) -> None:
    data = tmp_path / "data"
    with running_server(data) as server:
        assert push(server, "job-00000001")
        if removed == "folder":
            shutil.rmtree(data)
        else:
            (data / removed).unlink()
        assert not push(server, "job-00000002")
        assert server.wait() == 3
        assert "was deleted while the server was running" in server.stderr


def test_a_replaced_folder_is_detected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data) as server, server_process(data) as second:
        assert push(server, "job-00000001")
        data.rename(tmp_path / "moved")
        second.start()
        assert push(second, "job-00000002")
        assert not push(server, "job-00000003")
        assert server.wait() == 3
