"""`[web] queues`: the pages and the HTTP API use only the queues of the rule."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.admin.connection import LIMITED, OPERATIONS
from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("rule") / "data"
    with running_server(folder, MILLRACE_WEB_QUEUES="signup* mail") as running:
        with RawFaktory(running.port) as faktory:
            for number, queue in enumerate(("signup-1", "billing", "billing")):
                unit = {"jid": f"job-{number}-xx", "jobtype": "t", "args": [1], "queue": queue}
                faktory.push(unit)
        yield running


def ask(server: ServerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.ports['web']}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            content = reply.read()
            status = reply.status
    except urllib.error.HTTPError as error:
        content, status = error.read(), error.code
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content.decode()


API = "/api/v1"


def test_pushes(server: ServerProcess) -> None:
    job = {"kind": "t", "payload": [1]}
    assert ask(server, "POST", f"{API}/jobs", {"queue": "mail", **job})[0] in {200, 201}
    status, reply = ask(server, "POST", f"{API}/jobs", {"queue": "billing", **job})
    assert status == 403
    assert "billing is not allowed" in json.dumps(reply)


def test_leases(server: ServerProcess) -> None:
    status, _ = ask(server, "POST", f"{API}/leases", {"queues": ["billing"], "worker": "w"})
    assert status == 403
    status, reply = ask(server, "POST", f"{API}/leases", {"queues": ["signup-1"], "worker": "w"})
    assert status == 200
    assert "job-0-xx" in json.dumps(reply)


def test_jobs_of_other_queues_are_not_visible(server: ServerProcess) -> None:
    assert ask(server, "GET", f"{API}/jobs/job-0-xx")[0] == 200
    assert ask(server, "GET", f"{API}/jobs/job-1-xx")[0] == 404
    assert ask(server, "GET", f"{API}/jobs/2")[0] == 404
    status, found = ask(server, "GET", f"{API}/jobs")
    assert status == 200
    assert "job-0-xx" in json.dumps(found)
    assert "billing" not in json.dumps(found)
    assert "billing" not in json.dumps(ask(server, "GET", f"{API}/queues")[1])
    assert ask(server, "GET", f"{API}/queues/billing")[0] in {403, 404}


def test_jobs_of_other_queues_cannot_be_changed(server: ServerProcess) -> None:
    for action in ("kill", "cancel", "move"):
        ask(server, "POST", f"{API}/jobs/job-1-xx/{action}", {"queue": "mail"})
        ask(server, "POST", f"{API}/jobs/{action}", {"queue": "billing"})
    assert ask(server, "POST", f"{API}/queues/billing/pause", {})[0] in {403, 404}
    with RawFaktory(server.port) as faktory:
        assert faktory.info()["faktory"]["queues"]["billing"] == 2
        fetched = faktory.fetch("billing")
        assert fetched is not None
        faktory.fail(fetched["jid"])


def test_the_whole_server_is_not_available(server: ServerProcess) -> None:
    for path in ("overview", "workers", "audit", "recurring"):
        assert ask(server, "GET", f"{API}/{path}")[0] in {403, 404}, path
    assert ask(server, "POST", f"{API}/flush", {"confirm": "flush"})[0] in {400, 403, 404}
    with RawFaktory(server.port) as faktory:
        assert "billing" in faktory.info()["faktory"]["queues"]


def test_pages(server: ServerProcess) -> None:
    status, page = ask(server, "GET", "/queues")
    assert status == 200
    assert "signup-1" in page
    assert "billing" not in page


def test_an_operation_is_limited_unless_it_is_listed() -> None:
    assert set(OPERATIONS) | {"lease"} > LIMITED
