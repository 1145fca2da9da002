"""Derived tables in an object store: a run, a second one, readers, and a lost mirror."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import deltalake.fs
import pytest
from engine_history import collect
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from millrace.cli.app import app
from millrace.journal.location import parse_location
from millrace.pipeline import delta, remote
from millrace.pipeline.backlog import outstanding
from millrace.pipeline.errors import LakeBusy, NoLake
from millrace.pipeline.lake import Lake, open_lake
from millrace.pipeline.refresh import TableRefresh
from millrace.pipeline.run import run
from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import DERIVED, KIND_HOUR
from millrace.pipeline.views import query
from pyspark_millrace.lake_reader import folder, table_files
from pyspark_millrace.lake_reader import rows as file_rows
from pyspark_millrace.options import Options
from support.object_store import new_lake, object_store
from support.oracle import TableOracle
from support.shipped_history import rows_of, ship


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with object_store() as endpoint:
        yield remote.local_root(new_lake(endpoint, monkeypatch, "tables"))


def test_deltalake_copies_single_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror of a lake needs `deltalake.fs`. If a version lacks it, this test fails first."""
    assert "DeltaStorageHandler" in deltalake.fs.__all__
    monkeypatch.setattr(remote, "origin", lambda _: str(tmp_path / "store"))
    for folder_ in ("store", "mirror"):
        (tmp_path / folder_ / "jobs").mkdir(parents=True)
    path, content = tmp_path / "mirror" / "jobs" / "a.parquet", bytes(range(256)) * 80_000
    path.write_bytes(content)
    remote.upload(tmp_path / "mirror", path)
    assert (tmp_path / "store" / "jobs" / "a.parquet").read_bytes() == content
    path.unlink()
    remote.fetch(tmp_path / "mirror", [path])
    assert path.read_bytes() == content


def fetched(root: Path) -> Path:
    """The mirror with all files of the newest versions, for the oracle."""
    for name in ("events", *DERIVED):
        table = delta.open_table(root, name)
        remote.fetch(root, [file.path for file in delta.files(table, root, name)])
    return root


def test_tables_in_an_object_store(root: Path, spark: SparkSession) -> None:
    uri = remote.origin(root)
    assert uri is not None
    with pytest.raises(NoLake, match=f"No lake at {uri}"):
        open_lake(root)
    rows = collect(1_500)[1]
    half = {server: len(some) // 2 for server, some in rows.items()}
    end = {server: len(some) for server, some in rows.items()}
    ship(parse_location(uri), rows, {}, half)
    first = run(open_lake(root), lambda _: spark)
    assert first.run is not None
    assert (first.run.events, first.failed) == (sum(half.values()), [])
    assert not outstanding(root)
    # A mirror has no files of events after a run, and it can be lost.
    assert list((root / "events").glob("**/*.parquet")) == []
    before = Snapshot(root)
    counted = rows_of(before, KIND_HOUR)["events"].to_pylist()
    shutil.rmtree(root)
    assert remote.local_root(uri) == root
    ship(parse_location(uri), rows, half, end)
    assert outstanding(root).events == sum(end.values()) - sum(half.values())
    late = TableRefresh(spark, root, 2)
    second = run(Lake(root), lambda _: spark)
    assert second.run is not None
    assert (second.run.run, second.failed) == (2, [])
    with pytest.raises(LakeBusy, match="Another run changed the table"):
        late.run()
    found = query(spark.newSession(), root, "SELECT count(*) AS n FROM events", 5)
    assert found.rows == [{"n": sum(end.values())}]
    # The actions of the data source in its own process, with the environment of Spark's start.
    of_source = table_files(folder(Options({"lake": uri})), "kind_hour", None)
    read = sum(batch.num_rows for file in of_source for batch in file_rows(file, ["events"]))
    assert read == Snapshot(root).extent(KIND_HOUR).rows
    files = CliRunner().invoke(app, ["pipeline", "files", "kind_hour", "--lake", uri])
    (listed, *_) = files.stdout.splitlines()
    assert listed.startswith(f"{uri}/kind_hour/day=")
    again = CliRunner().invoke(app, ["pipeline", "run", "--lake", uri])
    assert again.stdout == f"No new events in {uri}.\n"
    as_json = CliRunner().invoke(app, ["pipeline", "run", "--lake", uri, "--json"])
    assert json.loads(as_json.stdout)["run"] is None
    assert rows_of(Snapshot(root, before.run), KIND_HOUR)["events"].to_pylist() == counted
    assert TableOracle(fetched(root)).all_differences() == []


def test_a_local_lake_is_its_own_folder(tmp_path: Path) -> None:
    assert remote.local_root(str(tmp_path)) == tmp_path
    assert remote.local_root(f"file://{tmp_path}") == tmp_path
    assert remote.origin(tmp_path) is None
    assert remote.table_uri(tmp_path, "jobs") == str(tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.parquet").touch()
    remote.discard(tmp_path, [])
    assert (tmp_path / "jobs" / "a.parquet").exists()
