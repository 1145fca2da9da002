"""The memory limit: new jobs are refused in each protocol's form, and everything else continues."""

import http.client
import json
import socket
import time
from pathlib import Path
from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.states import READY
from millrace.protocols.spec import protocol_rules
from millrace.server import memory_watch
from millrace.server.memory_watch import MemoryWatch, available_memory, effective_limit
from millrace.server.push_gate import PushGate
from millrace.store import MemoryStore
from raw_faktory import RawFaktory, RefusedError
from server_process import ServerProcess, running_server

LIMIT = 1 << 30


def test_the_log_names_a_cause_that_remains(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    engine = Engine(Random(0), protocol_rules())
    gate = PushGate(engine)
    gate.add_cause("disk full", "the disk is full")
    gate.add_cause("memory", "the memory is full")
    gate.remove_cause("disk full")
    assert engine.push_refusal_reason == "the memory is full"
    assert not any("accepted again" in message for message in caplog.messages)
    assert caplog.messages[-1] == (
        "Removed cause: disk full. New jobs are still refused: the memory is full."
    )
    gate.remove_cause("memory")
    assert caplog.messages[-1] == "New jobs are accepted again. Removed cause: memory."
    assert not engine.push_refusal_reason


class Process:
    """A process whose memory and number of jobs a test sets."""

    def __init__(self) -> None:
        self.engine = Engine(Random(0), protocol_rules())
        self.memory_mb = 0
        self.store = MemoryStore()
        self.store.max_inline_payload = 4096
        self.watch = MemoryWatch(
            self.engine, PushGate(self.engine), lambda: self.memory_mb, LIMIT, self.store
        )

    def inline_limit(self, memory_mb: int, jobs: int) -> int:
        self.refuses(memory_mb, jobs)
        return self.store.max_inline_payload

    def refuses(self, memory_mb: int, jobs: int) -> bool:
        self.memory_mb = memory_mb
        job = Job(1, "job", "work", b"", 1, 0, 0, 0, b"", "default", READY, 0, 0, 0)
        self.engine.jobs = JobsBySeq()
        for seq in range(jobs):
            self.engine.jobs.put(seq, job)
        self.watch.check()
        return bool(self.engine.push_refusal_reason)


def test_new_jobs_are_refused_above_the_limit_and_accepted_below_it() -> None:
    process = Process()
    assert not process.refuses(1000, 100)
    assert process.refuses(1024, 100)
    assert process.refuses(1000, 100)
    assert not process.refuses(900, 100)


def test_above_half_of_the_limit_new_payloads_live_in_the_store() -> None:
    process = Process()
    assert process.inline_limit(500, 100) == 4096
    assert process.inline_limit(512, 100) == memory_watch.MAX_PAYLOAD_WHILE_PAGING
    assert process.inline_limit(470, 100) == memory_watch.MAX_PAYLOAD_WHILE_PAGING
    assert process.inline_limit(400, 100) == 4096


def test_new_payloads_live_in_memory_again_after_the_backlog() -> None:
    process = Process()
    assert process.inline_limit(600, 100) == memory_watch.MAX_PAYLOAD_WHILE_PAGING
    assert process.inline_limit(600, 89) == 4096
    assert process.inline_limit(600, 99) == 4096
    assert process.inline_limit(600, 100) == memory_watch.MAX_PAYLOAD_WHILE_PAGING


def test_ended_jobs_free_capacity_although_the_process_keeps_its_memory() -> None:
    process = Process()
    assert process.refuses(1024, 100)
    assert process.refuses(1024, 96)
    assert not process.refuses(1024, 90)
    assert not process.refuses(1030, 99)
    assert process.refuses(1030, 100)


def test_ended_jobs_free_capacity_after_an_overshoot() -> None:
    process = Process()
    assert process.refuses(1400, 100)
    assert not process.refuses(1400, 0)


def test_far_above_the_limit_the_number_of_jobs_has_no_effect() -> None:
    process = Process()
    assert process.refuses(1024, 100)
    assert process.refuses(1200, 1)


def test_the_limit_is_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert effective_limit(5) == 5
    total = available_memory()
    assert effective_limit(0) == int(total * 0.75)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory_watch, "_CGROUP_LIMITS", (limit,))
    limit.write_text("1000000\n")
    assert available_memory() == 1_000_000
    limit.write_text("max\n")
    assert available_memory() >= total


PAYLOAD = "x" * 50_000


def fill(client: RawFaktory) -> str:
    """Push until the server refuses, and return its error; 250 MB of jobs do not fit. The members
    of `custom` stay in memory, unlike payloads.
    """
    for number in range(5000):
        custom = {"text": PAYLOAD}
        try:
            client.push({"jid": f"fill-{number:08}", "jobtype": "t", "args": [], "custom": custom})
        except RefusedError as error:
            return str(error)
    raise AssertionError("no push was refused")


def exchange(server: ServerProcess, protocol: str, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.ports[protocol]), 10) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def test_payloads_beyond_the_limit_are_accepted_and_delivered(tmp_path: Path) -> None:
    """140 MB of payloads, which are small enough to stay in memory otherwise."""
    with (
        running_server(
            tmp_path / "data",
            MILLRACE_SERVER_DURABILITY="os",
            MILLRACE_SERVER_MAX_MEMORY="128MiB",
            MILLRACE_SERVER_MAX_INLINE_PAYLOAD="1MiB",
        ) as server,
        RawFaktory(server.port, wid="worker") as client,
    ):
        for number in range(2800):
            args = [f"{number} {PAYLOAD}"]
            client.push({"jid": f"large-{number:08}", "jobtype": "t", "args": args})
        for number in range(2800):
            job = client.fetch("default")
            assert job is not None
            assert job["args"] == [f"{number} {PAYLOAD}"]
            client.ack(job["jid"])


def test_every_protocol_refuses_new_jobs_and_serves_other_commands(tmp_path: Path) -> None:
    with (
        running_server(
            tmp_path / "data",
            MILLRACE_SERVER_MAX_MEMORY="128MiB",
            MILLRACE_SERVER_MAX_INLINE_PAYLOAD="1MiB",
        ) as server,
        RawFaktory(server.port, wid="worker") as client,
    ):
        client.push({"jid": "first-000", "jobtype": "t", "args": [], "queue": "first"})
        assert "memory limit reached (128 MiB): nothing was changed" in fill(client)
        workq = exchange(
            server,
            "workq",
            b"add 6ba7b810-9dad-11d1-80b4-00c04fd430c4 j 1000 60000 1\r\nx\r\n",
        )
        assert workq.startswith(b"-SERVER-ERROR memory limit reached")
        masenko = exchange(server, "masenko", b'PUSH {"name":"n","queue":"q","payload":{}}\r\n')
        assert masenko.startswith(b'ERR {"msg":"memory limit reached')
        qless = exchange(
            server, "qless", _resp("QLESS.PUT", "1", "q", "jid", "klass", "{}", "1800000000", "0")
        )
        assert qless.startswith(b"-MISCONF memory limit reached")
        status, problem = _post(server, "/api/v1/jobs", {"queue": "q", "kind": "k", "payload": 1})
        assert status == 503, problem
        assert "memory limit reached" in problem
        # Everything else continues.
        job = client.fetch("first")
        assert job is not None
        client.ack(job["jid"])
        client.mutate("clear", "dead")
        client.command("FLUSH")
        deadline = time.monotonic() + 10
        while True:
            try:
                client.push({"jid": "after-00000001", "jobtype": "t", "args": []})
                break
            except RefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert client.info()["faktory"]["total_enqueued"] >= 1


def _resp(*words: str) -> bytes:
    parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


def _post(server: ServerProcess, path: str, body: object) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["web"], timeout=20)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found
