"""Fixtures for every test. This file also puts tests/ on the import path."""

import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from certificates import Certificates, make_certificates
from lanes import CheckLane
from millrace import compiled
from raw_faktory import RawFaktory
from schedule import GroupScheduling
from server_process import ServerProcess, running_server

# Rewriting the assertions of all tests takes 10 s. Keep the result even if Python writes no bytecode.
sys.dont_write_bytecode = False

# An example has no deadline, because the machine may be busy.
settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane", choices=["check"], help="check: only the quick tests (tests/lanes.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sources_only(reason): the test needs features that compiled classes lack"
    )
    # A shell ignores SIGINT in background processes, and the processes of the tests inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--lane"):
        config.pluginmanager.register(CheckLane(), "check-lane")
        settings.register_profile("check", settings.get_profile("millrace"), max_examples=20)
        settings.load_profile("check")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Distribute files by tests/schedule.py, unless the command line selects another
    distribution.
    """
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that cannot run on the compiled modules. `make test` runs them on the sources."""
    if not compiled.is_in_use():
        return
    for item in items:
        mark = item.get_closest_marker("sources_only")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=mark.args[0]))


def pytest_collection_finish() -> None:
    """Exclude the collected tests from the garbage collection, which otherwise takes a seventh of
    the time of the quick tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_report_header() -> str:
    return f"millrace: {'compiled' if compiled.is_in_use() else 'pure Python'}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for this test only, with its default settings, on a free port."""
    with running_server(tmp_path / "data") as running:
        yield running


@pytest.fixture
def faktory(server: ServerProcess) -> Iterator[RawFaktory]:
    """A raw Faktory connection to `server`, as a worker that has sent HELLO."""
    with RawFaktory(server.port, wid="raw-worker") as connection:
        yield connection


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))
