"""`millrace why` against running servers."""

import json
import re
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
    assert head == 'job-0001 is ready: job 1, Mail in queue "mail", pushed over faktory'
    assert unasked == (
        '  - No worker is fetching from queue "mail"; no worker has fetched since the server started. Start a worker.'
    )
    assert queued.startswith("  - Ready since 20")


def test_json_output(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-0001", "jobtype": "Mail", "args": [], "queue": "mail"})
    answer = json.loads(why(server.data, "1", "--json").stdout)
    assert [job["jid"] for job in answer["jobs"]] == ["job-0001"]


def test_over_http(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-0001", "jobtype": "Mail", "args": [], "queue": "mail"})
    expected = why(server.data, "job-0001").stdout
    command = [MILLRACE, "why", "job-0001", "--url", f"http://127.0.0.1:{server.ports['web']}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    age = re.compile(r"\d+ s ago")
    assert (ran.returncode, age.sub("", ran.stdout)) == (0, age.sub("", expected))
    command[2] = "nobody"
    assert subprocess.run(command, capture_output=True, timeout=30).returncode == 4


def test_an_unknown_job(server: ServerProcess) -> None:
    ran = why(server.data, "missing")
    assert ran.returncode == 4
    assert ran.stdout.startswith("Job missing not found.")


def test_a_removed_job(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "job-0001", "jobtype": "Mail", "args": []})
    faktory.fetch("default")
    faktory.ack("job-0001")
    ran = why(server.data, "1")
    assert (ran.returncode, ran.stdout) == (4, "Job 1 has finished and is no longer retained.\n")


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


def test_the_socket_is_private_and_removed_with_the_server(server: ServerProcess) -> None:
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


def test_client_text_is_escaped_and_on_one_line(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "red-\x1b[31m-\n-ü", "jobtype": "a\tb", "args": []})
    ran = why(server.data, "1")
    assert ran.stdout.splitlines()[0] == (
        r'red-\x1b[31m-\n-ü is ready: job 1, a\tb in queue "default", pushed over faktory'
    )
    assert r"Job \x1b[2J not found." in why(server.data, "\x1b[2J").stdout


def test_names_that_no_job_has(server: ServerProcess) -> None:
    for name, expected_reason in (
        ("\udcff", r"Job \udcff not found. IDs are UTF-8"),
        ("x" * 70_000, "at most 65,536 characters"),
    ):
        ran = why(server.data, name)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert len(ran.stderr.splitlines()) == 1
        assert expected_reason in ran.stderr


def test_a_jid_that_starts_with_a_hyphen(server: ServerProcess, faktory: RawFaktory) -> None:
    faktory.push({"jid": "-job-0001", "jobtype": "a", "args": []})
    command = [MILLRACE, "why", "--data", server.data, "--", "-job-0001"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.stdout.startswith("-job-0001 is ready")


def test_a_file_in_the_place_of_the_socket(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "control").write_text("somebody's own")
    server = ServerProcess(tmp_path / "data")
    with pytest.raises(DidNotStartError, match=r"data/control is not a socket"):
        server.start()
    assert server.returncode == 1
    assert "Traceback" not in server.stderr
    assert (tmp_path / "data" / "control").read_text() == "somebody's own"
