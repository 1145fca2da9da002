"""`millrace check` and `millrace backup`, with and without a running server."""

import json
import resource
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from raw_faktory import RawFaktory
from server_process import MILLRACE, ServerProcess, running_server


def millrace(*arguments: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [MILLRACE, *map(str, arguments)], capture_output=True, text=True, timeout=60, **how
    )


def jobs(count: int, start: int = 0) -> list[dict]:
    return [
        {"jid": f"job-{start + n:06d}", "jobtype": "SomeJob", "args": ["x" * 200]}
        for n in range(count)
    ]


def push(connection: RawFaktory, units: list[dict]) -> None:
    for unit in units:
        connection.push(unit)


@pytest.fixture
def data(server: ServerProcess) -> Path:
    """The folder of a running server with 50 jobs."""
    with RawFaktory(server.port) as connection:
        push(connection, jobs(50))
    return server.data


def test_the_folder_of_a_running_server_is_checked(server, data):
    ran = millrace("check", "--data", data)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"process {server.pid}" in ran.stdout
    assert "50: 50 ready" in ran.stdout
    assert "checksums, structure and indexes verified" in ran.stdout


def test_the_folder_of_a_stopped_server_is_checked_with_json_output(server, data):
    server.stop()
    ran = millrace("check", "--data", data, "--json")
    reports = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert reports["ok"] is True
    assert reports["jobs"] == {"ready": 50}
    assert (reports["queues"], reports["server"], reports["problems"]) == (1, "", [])


def test_the_folder_of_a_killed_server_is_checked(server, data):
    server.kill()
    ran = millrace("check", "--data", data, "--json")
    assert json.loads(ran.stdout)["jobs"] == {"ready": 50}
    server.start()


def test_a_problem_is_reported_with_a_remedy(server, data):
    server.stop()
    database = data / "millrace.db"
    content = database.read_bytes()
    database.write_bytes(content.replace(b"job-000017", b"job-000018"))  # free pages have copies
    ran = millrace("check", "--data", data)
    assert ran.returncode == 1
    assert "damaged" in ran.stdout
    assert str(database) in ran.stderr
    assert "restore the newest backup" in ran.stderr
    reports = json.loads(millrace("check", "--data", data, "--json").stdout)
    assert reports["ok"] is False
    assert reports["problems"]


def test_a_missing_folder_is_reported(tmp_path):
    ran = millrace("check", "--data", tmp_path / "nowhere")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "nowhere" in ran.stderr
    ran = millrace("check", "--data", tmp_path / "nowhere", "--json")
    assert json.loads(ran.stdout)["ok"] is False
    ran = millrace("backup", tmp_path / "backup", "--data", tmp_path / "nowhere")
    assert ran.returncode == 1
    assert "Backup failed" in ran.stderr


def test_an_invalid_configuration_is_reported(tmp_path):
    (tmp_path / "wrong.toml").write_text("[server]\nlog_level = 'loud'\n")
    for command in (["check"], ["backup", tmp_path / "backup"]):
        assert millrace(*command, "--config", tmp_path / "wrong.toml").returncode == 2


def test_a_server_starts_on_a_backup_with_all_acknowledged_jobs(server, data, tmp_path):
    stop, known, acknowledged = threading.Event(), 50, []

    def push_continuously() -> None:
        with RawFaktory(server.port) as connection:
            while not stop.is_set():
                push(connection, jobs(1, known + len(acknowledged)))
                acknowledged.append(True)

    traffic = threading.Thread(target=push_continuously)
    traffic.start()
    try:
        for name in ("one", "two"):
            before = known + len(acknowledged)
            ran = millrace("backup", tmp_path / name, "--data", data)
            assert ran.returncode == 0, ran.stderr
            assert "ok " in ran.stdout
            with running_server(tmp_path / name) as other, RawFaktory(other.port) as connection:
                enqueued = connection.info()["faktory"]["total_enqueued"]
            assert before <= enqueued <= known + len(acknowledged)
            assert millrace("check", "--data", tmp_path / name).returncode == 0
    finally:
        stop.set()
        traffic.join()
    assert server.alive
    with RawFaktory(server.port) as connection:
        assert connection.info()["faktory"]["total_enqueued"] == known + len(acknowledged)


def test_a_backup_does_not_overwrite_files(server, data, tmp_path):
    ran = millrace("backup", data, "--data", data)
    assert ran.returncode == 1
    assert "already exists" in ran.stderr


def test_unusable_folders_are_reported_in_one_line(server, data, tmp_path):
    endless = tmp_path / ("x" * 300)
    reports = [
        millrace("check", "--data", endless),
        millrace("backup", tmp_path / "backup", "--data", endless),
        millrace("backup", endless, "--data", data),
        millrace("backup", data / "millrace.db" / "backup", "--data", data),
    ]
    for ran in reports:
        assert (ran.returncode, ran.stdout) == (1, "")
        assert len(ran.stderr.splitlines()) == 1, ran.stderr


def test_an_unreadable_file_is_reported_in_one_line(server, data, tmp_path):
    server.stop()
    (data / "lock").unlink()
    (data / "lock").symlink_to("lock")  # no user can open this file, not even root
    for command in (["check"], ["backup", tmp_path / "backup"]):
        ran = millrace(*command, "--data", data)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert len(ran.stderr.splitlines()) == 1, ran.stderr
        assert str(data / "lock") in ran.stderr


def test_a_backup_into_the_current_folder_or_a_link(server, data, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    assert millrace("backup", ".", "--data", data, cwd=tmp_path / "empty").returncode == 0
    assert millrace("backup", tmp_path / "link", "--data", data).returncode == 0
    assert (tmp_path / "link").is_symlink()
    for name in ("empty", "elsewhere"):
        assert millrace("check", "--data", tmp_path / name).returncode == 0


def no_file_may_grow() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_an_unreadable_log_is_reported_with_a_remedy(server, data, tmp_path):
    server.kill()
    (data / "millrace.db-shm").unlink()
    for command in (["check"], ["backup", tmp_path / "backup"]):
        ran = millrace(*command, "--data", data, preexec_fn=no_file_may_grow)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert f"cannot read {data / 'millrace.db-wal'}" in ran.stderr
        assert "copy the folder" in ran.stderr
