"""faktory-worker, as published on npm."""

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from client_suite import Client, ClientSuite, Endpoint, WorkerLoop

import node_packages
from raw_faktory import RawFaktory

STATES = {"OK": "running", "quiet": "quiet", "terminate": "terminate"}

pytestmark = [
    pytest.mark.skipif(bool(node_packages.MISSING), reason=node_packages.WHY_SKIPPED),
    pytest.mark.usefixtures("installed"),
]


class CallFailedError(Exception):
    """The library's promise was rejected."""


@pytest.fixture(scope="session")
def installed() -> None:
    node_packages.install()


def environment(endpoint: Endpoint) -> dict[str, str]:
    ca = {"FAKTORY_CA": str(endpoint.ca)} if endpoint.tls else {}
    return {**os.environ, "FAKTORY_URL": endpoint.url, **ca}


class Node(Client):
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def call(self, *call: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise CallFailedError(answer["error"])
        return answer["ok"]

    def push(self, jid, queue, jobtype, args, at):
        unit = {"jid": jid, "queue": queue, "jobtype": jobtype, "args": args}
        assert self.call("push", {**unit, "at": at.isoformat() if at else None}) == jid

    def fetch(self, queue):
        return self.call("fetch", queue)

    def ack(self, jid):
        assert self.call("ack", jid) == "OK"

    def fail(self, jid, message):
        assert self.call("fail", jid, message) == "OK"
        return "ESTUMBLE"

    def beat(self):
        return STATES[self.call("beat")]


class TestNodeFaktoryWorker(ClientSuite):
    refusals = (CallFailedError,)
    quiet_line = "quieted"

    @contextlib.contextmanager
    def connect(self, endpoint: Endpoint, wid: str) -> Iterator[Client]:
        with subprocess.Popen(
            ["node", node_packages.NODE / "drive.js", wid],
            env=environment(endpoint),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                client = Node(process)
                client.call("connect")
                yield client
                client.call("close")
            finally:
                process.kill()

    def work(self, endpoint: Endpoint, queue: str, wid: str) -> WorkerLoop:
        return WorkerLoop(
            ["node", node_packages.NODE / "loop.js", queue, wid], environment(endpoint)
        )

    def test_push_bulk_returns_the_refused_jobs(
        self, client: Node, raw: RawFaktory, queue: str
    ) -> None:
        good = [
            {"jid": uuid.uuid4().hex, "queue": queue, "jobtype": "echo", "args": [n]}
            for n in range(3)
        ]
        bad = {"jid": "short", "queue": queue, "jobtype": "echo", "args": []}
        refused = client.call("pushBulk", [good[0], bad, *good[1:]])
        assert refused.keys() == {"short"}
        assert refused["short"]["reason"] == "jobs must have a reasonable jid parameter"
        for unit in good:
            assert client.fetch(queue)["jid"] == unit["jid"]
            client.ack(unit["jid"])

    def test_info(self, client: Node) -> None:
        info = client.call("info")
        assert info["server"]["faktory_version"].startswith("1.")
        assert info["faktory"]["sets"].keys() == {"scheduled", "retries", "dead", "working"}

    def test_mutations(self, client: Node, raw: RawFaktory, queue: str) -> None:
        jid = uuid.uuid4().hex
        client.push(jid, queue, "echo", [], None)
        client.fetch(queue)
        client.fail(jid, "once")
        dead = raw.set_size("dead")
        assert client.call("mutate", "retries", "kill", jid) == "OK"
        assert raw.set_size("dead") == dead + 1
        assert client.call("mutate", "dead", "requeue", jid) == "OK"
        assert client.fetch(queue)["jid"] == jid
        client.ack(jid)


def test_the_lock_file_names_no_registry() -> None:
    lock = (node_packages.NODE / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in lock
    assert "://" not in lock
