"""`millrace pipeline enqueue`, `drain` and `loads`: files to jobs, and back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from millrace.cli.pipeline import app
from millrace.pipeline import session
from raw_faktory import RawFaktory
from server_process import ServerProcess, running_server


class Kept:
    """The tests' session, which a command does not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        self._spark.sparkContext.setLogLevel("ERROR")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("enqueue") / "data"
    with running_server(data, MILLRACE_LAKE_SHIP_EVERY="0") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RawFaktory]:
    with RawFaktory(server.port) as connected:
        assert connected.command("FLUSH") == "OK"
        yield connected


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "start", lambda *_, **__: Kept(spark))


@pytest.fixture
def no_spark_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes long to start, so detectable errors must be reported before."""
    monkeypatch.setattr(session, "start", lambda *_, **__: pytest.fail("Spark was started"))


def run(server: ServerProcess, *arguments: str | Path) -> Result:
    where = {"MILLRACE_FAKTORY_PORT": str(server.port)}
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=where)


@pytest.mark.usefixtures("shared_spark")
def test_files_become_jobs_and_jobs_become_files(
    server: ServerProcess, client: RawFaktory, tmp_path: Path
) -> None:
    rows = pa.table({"user": [f"user-{n:06}" for n in range(1500)], "amount": list(range(1500))})
    pq.write_table(rows, tmp_path / "rows.parquet")
    result = run(
        server, "enqueue", "--from", tmp_path / "*.parquet", "--kind", "bill", "--queue", "money",
        "--jid", "user", "--args", "user,amount", "--load", "L",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Pushed 1,500 jobs in ")
    assert result.output.endswith(" s as load L.\n")
    assert client.queue_size("money") == 1500
    job = client.fetch("money")
    assert job is not None
    assert (job["jobtype"], job["jid"], job["args"]) == ("bill", "user-000000", ["user-000000", 0])
    client.fail(job["jid"], 'no "money"')
    client.mutate("kill", "retries", job["jid"])  # else it becomes ready again meanwhile

    result = run(server, "drain", "--to", tmp_path / "out", "--queue", "money")
    assert result.output.startswith(f"Wrote 1,500 jobs to {tmp_path / 'out'} in "), result.output
    drained = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["jid"] for row in drained) == rows["user"].to_pylist()
    assert {row["state"] for row in drained} == {"ready", "dead"}

    result = run(server, "drain", "--to", tmp_path / "csv", "--format", "csv", "--state", "dead")
    assert result.output.startswith("Wrote 1 jobs"), result.output
    (part,) = (tmp_path / "csv").glob("part-*.csv")
    (row,) = pyarrow.csv.read_csv(part).to_pylist()
    assert (row["payload"], row["error_message"]) == ('["user-000000",0]', 'no "money"')
    assert row["backtrace"] == '["here"]'

    result = run(server, "drain", "--to", tmp_path / "csv", "--state", "dead")
    assert result.exit_code == 1
    assert "already exists" in result.output
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("shared_spark")
def test_invalid_rows_give_a_one_line_error(
    server: ServerProcess, client: RawFaktory, tmp_path: Path
) -> None:
    ids = [*(f"job-{n:06}" for n in range(600)), "short"]  # earlier rows are staged by then
    lines = [json.dumps({"jid": jid, "x": 1}) for jid in ids]
    (tmp_path / "rows.json").write_text("\n".join(lines))
    result = run(
        server, "enqueue", "--from", tmp_path / "rows.json", "--format", "json", "--kind", "k",
        "--load", "L",
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.output == (
        "No jobs pushed: the server rejected 1 of the jobs of load L; 'short': "
        "jobs must have a reasonable jid parameter\n"
    )
    assert client.command("MILLRACE", {"loads": True}) == b'{"loads":[]}'
    assert client.command("MILLRACE", {"read": {}}) == b'{"cursor":null,"jobs":[]}'
    result = run(server, "enqueue", "--from", tmp_path / "none.json", "--format", "json")
    assert result.exit_code == 1
    assert "Path does not exist" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.usefixtures("no_spark_start")
def test_a_load_that_was_released_is_not_added_again(
    server: ServerProcess, client: RawFaktory
) -> None:
    client.command("MILLRACE", {"open": "L"})
    client.command("MILLRACE", {"release": "L"})
    result = run(server, "enqueue", "--from", "rows.parquet", "--kind", "k", "--load", "L")
    assert (result.exit_code, result.output) == (
        0,
        "Load L was already released; no jobs added.\n",
    )


def test_loads_are_shown_released_and_discarded(server: ServerProcess, client: RawFaktory) -> None:
    for load in ("one", "two"):
        client.command("MILLRACE", {"open": load})
        job = {"jid": f"job-of-{load}", "jobtype": "k", "args": []}
        client.command("MILLRACE", {"stage": load, "jobs": [job]})
    shown = run(server, "loads").output.splitlines()
    assert [line.split()[:3] for line in shown] == [
        ["one", "open", "since"],
        ["two", "open", "since"],
    ]
    assert shown[0].endswith(" UTC  1 jobs, 1 of them staged")
    assert run(server, "loads", "--release", "one").output == "Released 1 jobs of one.\n"
    assert run(server, "loads", "--discard", "two").output == "Discarded 1 jobs of two.\n"
    assert client.queue_size("default") == 1
    refused = run(server, "loads", "--release", "three")
    assert refused.exit_code == 1
    assert refused.output.endswith(" refused the request: no such load: three\n")
    both = run(server, "loads", "--release", "one", "--discard", "one")
    assert (both.exit_code, both.output) == (1, "Use either --release or --discard.\n")


@pytest.mark.usefixtures("no_spark_start")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["enqueue", "--from", "x", "--url", "tcp://127.0.0.1:1"], "Cannot connect to a server at tcp://127.0.0.1:1: "),
        (["drain", "--to", "x", "--url", "tcp://:hush@127.0.0.1:1"], "Cannot connect to a server at tcp://127.0.0.1:1: "),
        (["enqueue", "--from", "x", "--url", "http://x"], "The URL must be tcp://"),
        (["enqueue", "--from", "x", "--format", "xml"], "--format must be one of parquet, json, csv, not xml"),
    ],
)  # fmt: skip
def test_invalid_options_are_reported_before_spark_starts(
    server: ServerProcess, arguments: list[str], message: str
) -> None:
    result = run(server, *arguments)
    assert result.exit_code == 1
    assert result.output.startswith(message)
    assert len(result.output.splitlines()) == 1


def test_without_a_port_the_url_is_required() -> None:
    result = CliRunner().invoke(app, ["loads"], env={"MILLRACE_FAKTORY_PORT": "off"})
    assert result.output == "The configured Faktory port is off. Pass the port with --url.\n"
