"""Fixtures for every test; that this file is here also puts tests/ on the import path."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from certificates import Certificates, make_certificates
from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server

# An example may take as long as a busy machine makes it take.
settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of this test's own, with its default settings, on a free port."""
    with running_server(tmp_path / "data") as running:
        yield running


@pytest.fixture
def faktory(server: ServerProcess) -> Iterator[RawFaktory]:
    """A raw Faktory connection to `server`, as a worker that has said HELLO."""
    with RawFaktory(server.port, wid="raw-worker") as connection:
        yield connection


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))
