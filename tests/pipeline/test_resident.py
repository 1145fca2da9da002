"""The resident Spark process: requests of commands, failures, and its end."""

import os
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from engine_history import SERVERS, collect
from pyspark.sql import SparkSession

import millrace.cli.pipeline.refresh as refresh_command
import millrace.cli.pipeline.sql as sql_command
from millrace.cli.pipeline.run import run
from millrace.config.sections import Config, LakeConfig, PipelineConfig, ServerConfig
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.resident import (
    NotResident,
    Request,
    ResidentServer,
    Settings,
    ensure,
    request,
    socket_path,
)
from millrace.pipeline.snapshot import last_run
from support.oracle import TableOracle
from support.shipped_history import ship

MEMORY = 1 << 30


class SharedSession:
    """The session of the tests, which the process must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = tmp_path / "data"
    data.mkdir()
    return Config(
        server=ServerConfig(data=data),
        lake=LakeConfig(path=str(tmp_path / "lake")),
        pipeline=PipelineConfig(memory=MEMORY),
    )


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that starts its own session fails."""
    monkeypatch.setattr(refresh_command, "tables_session", None)
    monkeypatch.setattr(sql_command, "tables_session", None)


@pytest.fixture
def resident(config: Config, spark: SparkSession) -> Iterator[Path]:
    path = socket_path(config.server.data)
    server = ResidentServer(
        path,
        Settings(str(MEMORY), ""),
        lambda: SharedSession(spark),
        idle=20.0,  # type: ignore[arg-type, return-value]
    )
    thread = Thread(target=server.serve)
    thread.start()
    yield path
    server.stop()
    thread.join()
    assert not path.exists()


def asked(config: Config, operation: str = "sql", query: str = "") -> Request:
    return Request(operation, str(config.lake_path), str(MEMORY), "", query, 10)


@pytest.mark.usefixtures("no_session")
def test_commands_use_it_and_a_failure_leaves_it_usable(
    config: Config, resident: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat.S_IMODE(resident.stat().st_mode) == 0o600
    rows = collect(600)[1]
    ship(config.lake_path, rows, {}, {server: len(some) for server, some in rows.items()})
    with pytest.raises(PipelineError, match="has no tables yet"):
        request(resident, asked(config, query="SELECT 1"), lambda *_: None)
    assert run(config, ship=False) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Run 1: refreshed the tables with ")
    assert "refresh: 0 of" in output.err
    assert last_run(config.lake_path) is not None
    assert TableOracle(config.lake_path).all_differences() == []

    assert sql_command.print_query(config, "SELECT count(*) AS n FROM events", 5, json=True) == 0
    assert capsys.readouterr().out == f'{{"n":{sum(map(len, rows.values()))}}}\n'
    for wrong in ("SELECT nothing", "SELECT", "SELECT raise_error('no') FROM events"):
        with pytest.raises(PipelineError):
            sql_command.print_query(config, wrong, 5, json=True)
    with pytest.raises(PipelineError, match="Unknown operation 'x'"):
        request(resident, asked(config, "x"), lambda *_: None)
    # Views and settings of a query do not remain.
    request(resident, asked(config, query="SET spark.sql.ansi.enabled=false"), lambda *_: None)
    found = request(resident, asked(config, query="SET spark.sql.ansi.enabled"), lambda *_: None)
    assert found[1] == [{"key": "spark.sql.ansi.enabled", "value": "true"}]
    assert SERVERS[0] in str(
        request(resident, asked(config, query="SELECT DISTINCT server FROM jobs"), lambda *_: None)
    )


def test_other_settings_and_no_process(config: Config, resident: Path, tmp_path: Path) -> None:
    other = Request("sql", str(config.lake_path), "5", "", "SELECT 1", 1)
    with pytest.raises(NotResident):
        request(resident, other, lambda *_: None)
    for path in (tmp_path / "spark.sock", tmp_path / "nothing" / "spark.sock"):
        with pytest.raises(NotResident):
            request(path, other, lambda *_: None)
    # A client that sends no request, and one that sends something else.
    for text in (b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(resident))
            client.sendall(text)
    with pytest.raises(NotResident):
        request(resident, other, lambda *_: None)


def test_it_stops_without_requests(config: Config) -> None:
    path = socket_path(config.server.data)
    ResidentServer(path, Settings("1", ""), lambda: pytest.fail("a session"), idle=0.01).serve()
    assert not path.exists()


def test_a_process_ends_with_its_parent(config: Config) -> None:
    """Without a request it does not start Spark."""
    path = socket_path(config.server.data)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        ensure(path, "1", "", parent.pid)
        first = path.stat().st_ino
        ensure(path, "1", "", parent.pid)
        assert path.stat().st_ino == first
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            process = os.pidfd_open(int.from_bytes(credentials[:4], sys.byteorder))
        assert os.getpriority(os.PRIO_PROCESS, int.from_bytes(credentials[:4], sys.byteorder)) >= 10
        parent.kill()
    assert select.select([process], [], [], 60)[0], "it still runs"
    with pytest.raises(NotResident):
        request(path, asked(config), lambda *_: None)
