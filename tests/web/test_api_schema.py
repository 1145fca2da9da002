"""schemathesis with the OpenAPI document and a real server: no request causes a server error or an
undocumented response. The short form takes half a minute; `API_EXAMPLES=300` tries more requests
per operation.
"""

import itertools
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import qless
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode

from millrace.records import MAX_WAIT_SECONDS
from millrace.web.api.openapi import make
from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server

EXAMPLES = int(os.environ.get("API_EXAMPLES", "0"))
PASSWORD = "a password for tests"
HEADERS = {"Authorization": f"Bearer {PASSWORD}"}
RUN = "/api/v1/pipeline/run"

CONFIG = {
    "seed": 8,
    "generation": {"deterministic": not EXAMPLES, "max-examples": EXAMPLES or 5},
    "phases": {"coverage": {"unexpected-methods": ["DELETE", "OPTIONS", "TRACE"]}},
    "checks": {
        # It repeats every request without the password; tests/web/test_routing.py does this once.
        "ignored_auth": {"enabled": bool(EXAMPLES)},
        "negative_data_rejection": {
            "expected-statuses": ["400", "401", "403", "404", "405", "409", "413", "415", "422"]
        },
        # 400 is for valid fields that conflict.
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "400", "404", "409", "413", "503"]
        },
    },
}


def described(*, run: bool) -> schemathesis.BaseSchema:
    """All operations, or only the one that runs the pipeline. A server without a data folder
    answers it with 503; elsewhere a run would take a minute.
    """
    document, config = make(), msgspec.json.decode(msgspec.json.encode(CONFIG))
    document["paths"] = {
        path: item for path, item in document["paths"].items() if (path == RUN) == run
    }
    if run:
        config["checks"]["not_a_server_error"] = {"expected-statuses": ["2xx", "4xx", "503"]}
    return schemathesis.openapi.from_dict(document, config=schemathesis.Config.from_dict(config))


schema, run_schema = described(run=False), described(run=True)


class World:
    """A server and its objects."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = f"http://127.0.0.1:{server.ports['web']}"
        self.session = requests.Session()
        self.tried: set[str] = set()
        self._turns = itertools.count()
        self._known: dict[str, str] = {}

    def fill(self) -> None:
        """Create waiting, leased, failed and dead jobs, and a completed action."""
        turn = next(self._turns)
        jobs = [f"{name}{turn}" for name in ("fails", "dies", "runs", "waits/payload?#%\n")]
        queue = ("mail", "a/b ?#%", "ü\n")[turn % 3] + str(turn)
        pushed = [{"queue": queue, "id": name, "payload": [name], "tags": ["x"]} for name in jobs]
        pushed[1]["retries"] = 0
        self.post("/jobs", pushed)
        leases = self.post("/leases", {"queues": [queue], "worker": "w", "limit": 3})["leases"]
        for lease in leases[:2]:
            self.post(f"/leases/{lease['token']}/fail", {"group": "Gone", "message": "away"})
        action = self.post("/actions", {"action": "tag", "jobs": jobs[3:], "tags": ["y"]})
        failures = self.get("/failures")["failures"]
        self._known = {
            "name": queue,
            "id": jobs[turn % 4],
            "token": leases[2]["token"],
            "number": str(action["number"]),
            "fingerprint": failures[0]["fingerprint"],
            "protocol": "faktory",
            "wid": "worker-1",
        }

    def put(self, case: Case) -> None:
        """Use an existing name in most requests, and short waits."""
        recurring = "/recurring/" in case.path
        if next(self._turns) % 4 and case.meta.generation.mode is GenerationMode.POSITIVE:
            for name in case.path_parameters:
                known = "sweep" if recurring else self._known[name]
                case.path_parameters[name] = quote(known, safe="")
            if case.query:
                case.query.pop("number", None)
        wait = case.body.get("wait") if isinstance(case.body, dict) else None
        if isinstance(wait, int | float) and 0.05 < wait <= MAX_WAIT_SECONDS:
            case.body["wait"] = 0.05

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(f"{self.url}/api/v1{path}", headers=HEADERS))

    def post(self, path: str, body: Any) -> Any:
        headers = {**HEADERS, "Content-Type": "application/json"}
        return self._ask(
            urllib.request.Request(f"{self.url}/api/v1{path}", msgspec.json.encode(body), headers)
        )

    def _ask(self, request: urllib.request.Request) -> Any:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return msgspec.json.decode(answer.read())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("api") / "data"
    with (
        running_server(data, MILLRACE_WEB_PASSWORD=PASSWORD) as server,
        RawFaktory(server.port, wid="worker-1"),
    ):
        client = qless.Client(f"redis://127.0.0.1:{server.ports['qless']}")
        client.queues["imports"].recur("Sweep", {"keep": 7}, interval=3600, jid="sweep")
        yield World(server)


@schema.parametrize()
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_no_answer_is_undocumented(case: Case, world: World) -> None:
    label = case.operation.label
    if label not in world.tried:
        world.tried.add(label)
        world.fill()
    world.put(case)
    case.call_and_validate(base_url=world.url, session=world.session, headers=HEADERS, timeout=30)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without a data folder."""
    data: Path = tmp_path_factory.mktemp("forgetful") / "data"
    with running_server(
        data, MILLRACE_WEB_PASSWORD=PASSWORD, MILLRACE_SERVER_DURABILITY="memory"
    ) as server:
        yield f"http://127.0.0.1:{server.ports['web']}"


@run_schema.parametrize()
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_running_the_pipeline_is_documented(case: Case, forgetful: str) -> None:
    case.call_and_validate(base_url=forgetful, headers=HEADERS, timeout=30)
