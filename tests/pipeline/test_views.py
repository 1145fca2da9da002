"""`millrace pipeline sql`, its views, and `millrace pipeline files`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from oracle_sql import OPEN_JOBS
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import millrace.cli.pipeline.sql as sql_command
from millrace.cli.app import app
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run
from support.oracle import TableOracle
from support.shipped_history import ship_all


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("views")
    ship_all(root, 2_000)
    run(Lake(root), lambda _: spark)
    return root


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(sql_command, "tables_session", started)


def query(lake: Path, sql: str, *arguments: str) -> list[dict[str, Any]]:
    command = ["pipeline", "sql", sql, "--lake", str(lake), "--json", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("shared")
def test_views_combine_the_tables(lake: Path) -> None:
    oracle = TableOracle(lake)
    wanted = {(row["server"], row["seq"]): row["state"] for row in oracle.rows(OPEN_JOBS)}
    found = query(lake, "SELECT server, seq, state FROM jobs_all WHERE state <> 'gone'")
    assert {(row["server"], row["seq"]): row["state"] for row in found} == wanted
    (counts,) = query(lake, "SELECT count(*) AS n, count_if(outcome = 'running') AS running "
                            "FROM attempts_all")  # fmt: skip
    leases = oracle.rows("SELECT count(*) AS n FROM events WHERE type = 'leased'")[0]["n"]
    assert counts == {"n": leases, "running": sum(state == "leased" for state in wanted.values())}
    depths = query(lake, "SELECT sum(ready) AS n FROM (SELECT max_by(ready, minute) AS ready "
                         "FROM queue_depth GROUP BY server, queue)")  # fmt: skip
    assert depths == [{"n": sum(state == "ready" for state in wanted.values())}]
    (events,) = query(lake, "SELECT sum(events) AS n FROM protocol_day")
    (cost,) = query(lake, "SELECT sum(started) AS n FROM cost_day")
    assert events == oracle.rows("SELECT count(*) AS n FROM events WHERE type <> 'flushed'")[0]
    assert cost == {"n": leases}


@pytest.mark.usefixtures("shared")
def test_the_output_is_limited_and_errors_are_one_line(lake: Path) -> None:
    assert len(query(lake, "SELECT * FROM events", "--limit", "3")) == 3
    wrong = CliRunner().invoke(app, ["pipeline", "sql", "SELECT nothing", "--lake", str(lake)])
    assert wrong.exit_code == 1
    table = CliRunner().invoke(app, ["pipeline", "sql", "SELECT 1 AS n", "--lake", str(lake)])
    assert table.stdout.split() == ["n", "1"]


def test_files_are_the_files_of_the_last_run(lake: Path) -> None:
    result = CliRunner().invoke(app, ["pipeline", "files", "queue_day", "--lake", str(lake)])
    assert result.exit_code == 0
    files = result.stdout.splitlines()
    as_json = CliRunner().invoke(
        app, ["pipeline", "files", "queue_day", "--lake", str(lake), "--json"]
    )
    assert json.loads(as_json.stdout) == files
    listed = CliRunner().invoke(
        app, ["pipeline", "export", "--list", "--lake", str(lake), "--json"]
    )
    assert {"queue_day", "events"} <= {each["table"] for each in json.loads(listed.stdout)}
    found = duckdb.sql(f"SELECT sum(pushed) FROM read_parquet({files}, hive_partitioning = true)")
    pushed = TableOracle(lake).rows("SELECT count(*) AS n FROM events WHERE type = 'pushed'")
    assert found.fetchall() == [(pushed[0]["n"],)]
    unknown = CliRunner().invoke(app, ["pipeline", "files", "nothing", "--lake", str(lake)])
    assert unknown.exit_code == 1
    assert "Unknown table 'nothing'" in unknown.stderr
