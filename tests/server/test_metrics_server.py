"""Metrics of a running server, and the statistics that survive a kill."""

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from millrace.cli.control import converse
from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server


def send_request(server: ServerProcess, **request: Any) -> dict[str, Any]:
    answer = json.loads(bytes(converse(server.data, request)[-1]))
    assert "error" not in answer, answer
    return answer


def work(server: ServerProcess) -> None:
    with RawFaktory(server.port, wid="worker-1") as client:
        for jid in ("good-job", "bad-job-1"):
            client.push({"jid": jid, "jobtype": "SomeJob", "args": [], "queue": "q"})
        assert client.fetch("q")
        assert client.command("ACK", {"jid": "good-job"}) == "OK"
        assert client.fetch("q")
        failed = {"jid": "bad-job-1", "errtype": "Oops", "message": "no 7", "backtrace": []}
        assert client.command("FAIL", failed) == "OK"


def test_commits_are_measured_and_statistics_survive_a_kill(tmp_path: Path):
    with running_server(tmp_path / "data") as server:
        work(server)
        metrics = send_request(server, overview=True)
        assert metrics["commit"]["count"] >= 4
        assert metrics["commit"]["p99"] > 0
        assert metrics["samples"][-1][1:4] == [2, 1, 1]
        assert [(day["processed"], day["failures"]) for day in metrics["days"]] == [(2, 1)]
        assert metrics["memory_mb"] > 0
        (group,) = send_request(server, failures={})["groups"]
        server.kill()
        server.start()
        again = send_request(server, overview=True)
        assert [(day["processed"], day["failures"]) for day in again["days"]] == [(2, 1)]
        assert again["samples"][-1][1:4] == [0, 0, 0]  # since the start
        assert send_request(server, failures={})["groups"] == [group]


def test_prometheus_metrics(tmp_path: Path):
    with running_server(tmp_path / "data") as server:
        work(server)
        with urlopen(f"http://127.0.0.1:{server.ports['web']}/metrics") as answer:
            metrics = answer.read().decode().splitlines()
        for line in (
            "millrace_pushed_total 2.0",
            "millrace_failed_total 1.0",
            'millrace_jobs{queue="q",state="scheduled"} 1.0',
            'millrace_commands_total{protocol="faktory"} 6.0',
            "millrace_job_run_seconds_count 1.0",
            "millrace_halted 0.0",
        ):
            assert line in metrics
        assert not any(line.startswith("millrace_store_bytes 0") for line in metrics)
