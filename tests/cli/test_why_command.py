"""`millrace why` against running servers."""

import json
import stat
import subprocess
from pathlib import Path

import pytest

from raw_faktory import RawFaktory
from server_process import MILLRACE, DidNotStartError, ServerProcess, running_server


def why(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [MILLRACE, "why", *arguments, "--data", data]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_job_that_waits(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-0001", "jobtype": "Mail", "args": [], "queue": "mail"})
    ran = why(server.data, "job-0001")
    assert (ran.returncode, ran.stderr) == (0, "")
    head, unasked, queued = ran.stdout.splitlines()
    assert head == 'job-0001 is ready: job 1, Mail in queue "mail", of faktory'
    assert unasked == (
        '  - No worker of any protocol asks the server for jobs of the queue "mail". None has since '
        "its start. Start one."
    )
    assert queued.startswith("  - It became ready 20")


def test_for_programs(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-0001", "jobtype": "Mail", "args": [], "queue": "mail"})
    answer = json.loads(why(server.data, "1", "--json").stdout)
    assert [job["jid"] for job in answer["jobs"]] == ["job-0001"]


def test_a_job_that_is_not_there(server: ServerProcess) -> None:
    ran = why(server.data, "nobody")
    assert ran.returncode == 1
    assert ran.stdout.startswith("Job nobody not found.")


def test_a_job_that_was_there(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-0001", "jobtype": "Mail", "args": []})
    faktory.fetch("default")
    faktory.ack("job-0001")
    ran = why(server.data, "1")
    assert (ran.returncode, ran.stdout) == (1, "Job 1 has finished and is no longer retained.\n")


def test_no_server(tmp_path: Path) -> None:
    ran = why(tmp_path / "data", "job-0001")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"No server is running on data folder {tmp_path / 'data'}" in ran.stderr


def test_a_killed_server_and_its_successor(server: ServerProcess) -> None:
    server.kill()
    assert (server.data / "control").is_socket()
    ran = why(server.data, "job-0001")
    assert ran.returncode == 1
    assert "No server is running" in ran.stderr
    server.start()
    assert why(server.data, "job-0001").stdout.startswith("Job job-0001 not found")


def test_the_socket_is_for_the_owner_alone_and_goes_with_the_server(server: ServerProcess) -> None:
    path = server.data / "control"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.stop()
    assert not path.exists()


@pytest.mark.parametrize("length", [60, 200])
def test_a_data_folder_with_a_long_name(tmp_path: Path, length: int) -> None:
    data = tmp_path / ("x" * length) / "data"
    data.parent.mkdir()
    with running_server(data):
        assert why(data, "job-0001").stdout.startswith("Job job-0001 not found")


def test_what_a_client_wrote_is_one_line_and_no_order_to_the_terminal(
    server: ServerProcess, faktory: RawFaktory
) -> None:
    faktory.push({"jid": "red-\x1b[31m-\n-ü", "jobtype": "a\tb", "args": []})
    ran = why(server.data, "1")
    assert ran.stdout.splitlines()[0] == (
        r'red-\x1b[31m-\n-ü is ready: job 1, a\tb in queue "default", of faktory'
    )
    assert r"Job \x1b[2J not found." in why(server.data, "\x1b[2J").stdout


def test_names_that_no_job_has(server: ServerProcess) -> None:
    for name, told in (
        ("\udcff", r"Job \udcff not found. IDs are UTF-8"),
        ("x" * 70_000, "longer than"),
    ):
        ran = why(server.data, name)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert len(ran.stderr.splitlines()) == 1
        assert told in ran.stderr


def test_a_name_that_begins_as_flags_do(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "-job-0001", "jobtype": "a", "args": []})
    command = [MILLRACE, "why", "--data", server.data, "--", "-job-0001"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.stdout.startswith("-job-0001 is ready")


def test_a_file_where_the_socket_must_be(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "control").write_text("somebody's own")
    server = ServerProcess(tmp_path / "data")
    with pytest.raises(DidNotStartError, match=r"data/control is not a socket"):
        server.start()
    assert server.returncode == 1
    assert "Traceback" not in server.stderr
    assert (tmp_path / "data" / "control").read_text() == "somebody's own"
