"""`millrace import` from a real redis-server and from log files into a running server."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millrace.cli.import_target import ImportTarget
from millrace.records import ImportedJob
from raw_faktory import RawFaktory
from server_process import MILLRACE, ServerProcess, StartedCommand

sys.path[:0] = [str(Path(__file__).parent.parent / each) for each in ("protocols", "migration")]

from redis_reference import SERVER, redis_server  # noqa: E402
from test_masenko_source import add, record, write  # noqa: E402


@pytest.fixture
def real() -> Iterator[redis.Redis]:
    if SERVER is None:
        pytest.skip("no redis-server here; install the Debian package redis-server")
    with redis_server() as connection:
        yield connection


def unit(jid: str) -> str:
    return json.dumps({"jid": jid, "jobtype": "T", "args": [jid], "queue": "mail"})


def millrace(server: ServerProcess, *arguments: str, code: int = 0) -> str:
    ran = subprocess.run(
        [MILLRACE, "import", *arguments, "--data", server.data],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
    return ran.stdout + ran.stderr


def url_of(real: redis.Redis) -> str:
    return f"unix://{real.connection_pool.connection_kwargs['path']}"


def content(real: redis.Redis) -> dict[bytes, Any]:
    return {key: real.dump(key) for key in real.scan_iter()}


def test_a_dry_run_an_import_and_a_repetition(
    server: ServerProcess, faktory: RawFaktory, real: redis.Redis
) -> None:
    real.sadd("queues", "mail")
    real.lpush("mail", *(unit(f"job-{number:06}") for number in range(1200)), "{")
    real.zadd("dead", {unit("dead-00001"): 1.0})
    before, url = content(real), url_of(real)

    reply = json.loads(millrace(server, "faktory", url, "--dry-run", "--json", code=3))
    assert (reply["dry_run"], reply["new"], reply["skipped"]) == (True, 1201, 1)
    assert reply["parts"] == {"queues": 1200, "dead": 1}
    assert faktory.fetch("mail") is None

    assert "Pass --yes" in millrace(server, "faktory", url, code=2)
    text = millrace(server, "faktory", url, "--yes", code=3)
    assert "imported jobs" in text
    assert "Skipped: 1 job.\n" in text
    fetched = faktory.fetch("mail")
    assert fetched is not None
    assert fetched["jid"] == "job-000000"
    faktory.command("ACK", {"jid": "job-000000"})

    reply = json.loads(millrace(server, "faktory", url, "--yes", "--json", code=3))
    assert (reply["new"], reply["already_imported"]) == (0, 1201)
    real.lpush("mail", unit("job-new01"))
    reply = json.loads(millrace(server, "faktory", url, "--yes", "--json", code=3))
    assert (reply["imported"], reply["already_imported"]) == (1, 1201)
    real.lpop("mail")
    assert content(real) == before


def test_a_crash_before_the_end_leaves_no_job(server: ServerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "masenko"
    folder.mkdir()
    write(folder, *(record(add(number)) for number in range(1, 50)))
    target = ImportTarget("masenko", server.data)
    target.begin()
    target.send("stage", [ImportedJob("half-done", "masenko", "default", "n", b"{}")])
    target.receive()
    server.kill()
    server.restart()
    with RawFaktory(server.port) as faktory:
        assert faktory.fetch("default") is None
    reply = json.loads(millrace(server, "masenko", str(folder), "--yes", "--json"))
    assert reply["imported"] == 49
    server.kill()
    server.restart()
    with RawFaktory(server.port) as faktory:
        assert faktory.info()["faktory"]["queues"]["default"] == 49
    reply = json.loads(millrace(server, "masenko", str(folder), "--yes", "--json"))
    assert (reply["new"], reply["already_imported"]) == (0, 49)


def test_a_terminal_requests_confirmation(server: ServerProcess, tmp_path: Path) -> None:
    write(tmp_path, record(add(1)))
    controller, terminal = pty.openpty()
    command = [MILLRACE, "import", "masenko", tmp_path, "--data", server.data]
    with StartedCommand(command, stdin=terminal, stdout=terminal, stderr=terminal) as asking:
        os.close(terminal)
        text = b""
        while b"Import 1 job?" not in text:
            text += os.read(controller, 4096)
        os.write(controller, b"n\n")
        assert asking.wait(30) == 1
    os.close(controller)
    assert "1" in millrace(server, "masenko", str(tmp_path), "--dry-run")


def test_errors_name_the_reason(server: ServerProcess, tmp_path: Path) -> None:
    assert "Cannot connect" in millrace(server, "qless", "unix:///none", code=1)
    assert "no command log" in millrace(server, "workq", str(tmp_path), code=1)
    assert "Use one of" in millrace(server, "sidekiq", "x", code=2)


def test_an_interrupted_import_leaves_no_job(
    server: ServerProcess, faktory: RawFaktory, real: redis.Redis
) -> None:
    real.sadd("queues", "mail")
    real.lpush("mail", *(unit(f"job-{number:06}") for number in range(20_000)))
    command = [MILLRACE, "import", "faktory", url_of(real), "--yes", "--data", server.data]
    with StartedCommand(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as importing:
        assert importing.stdout is not None
        assert importing.stderr is not None
        while not (line := importing.stdout.readline()).startswith("Settings"):
            assert line, "the command ended"  # the summary; the jobs follow
        importing.send_signal(signal.SIGINT)
        assert importing.wait(60) == 130
        assert importing.stderr.read() == "Interrupted. Nothing was imported.\n"
    assert faktory.fetch("mail") is None
    told = json.loads(millrace(server, "faktory", url_of(real), "--yes", "--json"))
    assert (told["imported"], told["already_imported"]) == (20_000, 0)
    assert faktory.info()["faktory"]["queues"]["mail"] == 20_000
