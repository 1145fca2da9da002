"""Servers for third-party client libraries: with and without password and TLS."""

import uuid
from collections.abc import Iterator

import pytest
from client_suite import Endpoint

from certificates import Certificates
from server_process import running_server

PASSWORD = "open-sesame"


@pytest.fixture(scope="session", params=["plain", "password", "tls and password"])
def endpoint(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificates: Certificates,
) -> Iterator[Endpoint]:
    kind = request.param
    password = PASSWORD if "password" in kind else None
    tls = "tls" in kind
    with running_server(
        tmp_path_factory.mktemp("clients") / "data",
        MILLRACE_FAKTORY_PASSWORD=password,
        **(certificates.environment if tls else {}),
    ) as server:
        yield Endpoint(server.port, password, certificates.ca if tls else None)


@pytest.fixture
def queue() -> str:
    """A queue for this test only."""
    return f"queue-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def wid() -> str:
    return f"worker-{uuid.uuid4().hex[:12]}"
