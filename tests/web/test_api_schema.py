"""schemathesis against the OpenAPI document and a real server: whatever is asked, no answer is a
defect, and none is of a form that the document does not tell of.

The short form takes half a minute; `API_EXAMPLES=300` tries more of each operation.
"""

import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, HookContext

from millrace.web.api.openapi import make
from server_process import ServerProcess, running_server

EXAMPLES = int(os.environ.get("API_EXAMPLES", "0"))
PASSWORD = "a password for tests"
HEADERS = {"Authorization": f"Bearer {PASSWORD}"}
QUEUES = ("mail", "a/b ?#%", "ü\n")
JOBS = ("one", "two/payload", "dr\u00fcb\u00f6n")

config = schemathesis.Config.from_dict(
    {
        "seed": 8,
        "generation": {"deterministic": not EXAMPLES, "max-examples": EXAMPLES or 5},
        "checks": {
            "negative_data_rejection": {
                "expected-statuses": ["400", "401", "403", "404", "405", "409", "413", "415", "422"]
            },
            # 400 is for what fits the schema, and does not fit together or is not in there.
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", "400", "404", "409", "413", "503"]
            },
        },
    }
)
schema = schemathesis.openapi.from_dict(make(), config=config)


@schema.hook
def map_path_parameters(context: HookContext, path_parameters: Any) -> Any:
    """Every other name is of something that there is."""
    known = {"name": QUEUES, "id": JOBS}
    for name, some in known.items():
        given = path_parameters.get(name) if path_parameters else None
        if isinstance(given, str) and len(given) % 2:
            path_parameters[name] = some[len(given) % len(some)]
    return path_parameters


@schema.hook
def map_body(context: HookContext, body: Any) -> Any:
    """Nobody waits long for a job."""
    if isinstance(body, dict) and isinstance(body.get("wait"), int | float):
        body["wait"] = min(body["wait"], 0.05)
    return body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("api") / "data"
    with running_server(data, MILLRACE_WEB_PASSWORD=PASSWORD) as server:
        yield server


filled: set[str] = set()


@schema.parametrize()
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_no_answer_is_undocumented(case: Case, server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.ports['web']}"
    if case.operation.label not in filled:
        filled.add(case.operation.label)
        fill(url)
    case.call_and_validate(base_url=url, headers=HEADERS, timeout=30)


def fill(url: str) -> None:
    """There are jobs, and one is with a worker."""
    jobs = [
        {"queue": queue, "id": f"{name}{'' if queue == 'mail' else queue}", "payload": [name]}
        for queue in QUEUES
        for name in JOBS
    ]
    _post(url + "/api/v1/actions", {"action": "delete", "jobs": [job["id"] for job in jobs]})
    _post(url + "/api/v1/jobs", jobs)
    _post(url + "/api/v1/leases", {"queues": ["mail"], "worker": "w"})


def _post(url: str, body: Any) -> None:
    headers = {**HEADERS, "Content-Type": "application/json"}
    request = urllib.request.Request(url, msgspec.json.encode(body), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status < 300
