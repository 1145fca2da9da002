"""Killed after any write, the next run ends with the tables of one that was never disturbed; and
however the journal is divided into files, and in whatever order they come, the tables are the same.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from engine_history import collect
from lake_dump import Rows, differences, dump
from pyspark.sql import SparkSession

from millrace.engine.events import EVENT_VERSION
from millrace.journal import columns, sealing
from millrace.journal.landing import Landed
from millrace.pipeline import commit, compact, quality, staging
from millrace.pipeline.ingest import ingest
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.refresh import refresh
from millrace.pipeline.run import run

EVENTS = 1_500
#: `all`: crash after every write there is, which takes minutes.
EVERY = os.environ.get("MILLRACE_PIPELINE_CRASHES") == "all"
WAYS = int(os.environ.get("MILLRACE_PIPELINE_WAYS", "1"))


class Crash(BaseException):
    """As a kill, nothing catches it."""


@pytest.fixture(scope="module")
def history() -> dict[str, pa.Table]:
    """The journals of two servers, one of them emptied on its second day."""
    _, rows = collect(EVENTS)
    return {server: columns.table(server, 1, EVENT_VERSION, each) for server, each in rows.items()}


@pytest.fixture(scope="module")
def first_half(history, tmp_path_factory, spark) -> Lake:
    """A lake with the tables of the older half, and the newer one landed."""
    lake = Lake(tmp_path_factory.mktemp("half"))
    halves = {server: table.num_rows // 2 for server, table in history.items()}
    for server, table in history.items():
        sealing.seal(lake.root, table.slice(0, halves[server]))
    run(lake, lambda _: spark)
    for server, table in history.items():
        sealing.seal(lake.root, table.slice(halves[server]))
    # And a file of which some rows are there already, so that there is a quarantine.
    again = next(iter(history.values())).slice(1, 20)
    sealing.seal(lake.root, again)
    return lake


@pytest.fixture
def half(first_half, tmp_path) -> Lake:
    shutil.copytree(first_half.root, tmp_path / "lake")
    return Lake(tmp_path / "lake")


class Points:
    """Which points were reached, and at which one to crash."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.crash = ""

    def __call__(self, point: str) -> None:
        self.reached.append(point)
        if point == self.crash:
            raise Crash


@pytest.fixture
def points(monkeypatch) -> Points:
    found = Points()
    monkeypatch.setattr(commit, "reached", found)
    return found


@pytest.fixture(scope="module")
def undisturbed(first_half, tmp_path_factory, spark) -> tuple[Rows, list[str]]:
    """The tables as they must be, and every point on the way there."""
    lake = Lake(tmp_path_factory.mktemp("whole") / "lake")
    shutil.copytree(first_half.root, lake.root)
    points = Points()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "reached", points)
        ran = run(lake, lambda _: spark)
    assert ran.failed == []
    told = dump(lake)
    assert [name for name, rows in told.items() if not rows] == ["audit_seq", "audit_jobs"]
    assert len(told["events"]) >= EVENTS
    return told, points.reached


def crashed(points: Points, point: str, act: Callable[[], object]) -> None:
    points.crash = point
    with pytest.raises(Crash):
        act()
    points.crash = ""


def test_every_write_of_the_ingest(spark, half, undisturbed, points):
    """One crash after another on the same lake: each run is killed one point later."""
    told, reached = undisturbed
    on_the_way = [point for point in reached if point.startswith("ingest:")]
    assert {"ingest:intent", "ingest:hot:1", "ingest:quarantine", "ingest:ledger"} <= {*on_the_way}
    for point in on_the_way if EVERY else dict.fromkeys([*on_the_way[:3], *on_the_way[-2:]]):
        crashed(points, point, lambda: ingest(spark, half))
        assert bool(Ledger(half).interrupted()) == (point != "ingest:ledger")
    assert ingest(spark, half).batches == []
    after = {**dump(half), **{name: rows for name, rows in told.items() if name != "events"}}
    assert differences(after, told) == []


def test_writes_of_the_refresh_and_the_compaction(spark, half, undisturbed, points):
    told, reached = undisturbed
    of_refresh = [point for point in reached if point.startswith("refresh:")]
    assert of_refresh[-1] == "refresh:mark"
    chosen = of_refresh if EVERY else [of_refresh[0], Random(3).choice(of_refresh), of_refresh[-1]]
    for point in chosen:
        crashed(points, point, lambda: run(half, lambda _: spark))
    ran = run(half, lambda _: spark)
    assert ran.failed == []
    assert differences(dump(half), told) == []
    # The same once more with all days compacted, and refreshed from that.
    crashed(
        points,
        f"compact:seal:{Ledger(half).days()[1]}",
        lambda: compact.compact(spark, half, everything=True),
    )
    assert differences(dump(half), told) == []
    compact.compact(spark, half, everything=True)
    (half.ops / "refreshed.json").unlink()
    refresh(spark, half)
    assert differences(dump(half), told) == []


def test_a_real_kill(spark, half, undisturbed):
    """The whole process, and its Java with it."""
    command = [
        str(Path(sys.executable).with_name("millrace")),
        "pipeline",
        "run",
        "--lake",
        str(half.root),
    ]
    environment = os.environ | {"MILLRACE_CRASH": "refresh:jobs:0"}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert Ledger(half).last == 2
    assert run(half, lambda _: spark).failed == []
    assert differences(dump(half), undisturbed[0]) == []


def deliveries(history: dict[str, pa.Table], random: Random) -> Iterator[list[pa.Table]]:
    """The journals, cut into files anywhere, in any order, some stretches twice; in three parts."""
    files = []
    for table in history.values():
        cuts = sorted(random.sample(range(1, table.num_rows), 6))
        for first, last in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
            files.append(table.slice(first, last - first))
        start = random.randrange(table.num_rows - 50)
        files.append(table.slice(start, 50))
    random.shuffle(files)
    for part in range(3):
        yield files[part::3]


@pytest.mark.parametrize("seed", range(WAYS))
def test_files_may_be_divided_ordered_and_repeated_in_any_way(
    spark: SparkSession, history, undisturbed, tmp_path, monkeypatch, seed
):
    monkeypatch.setattr(staging, "LARGE", 100)
    lake = Lake(tmp_path / "lake")
    random = Random(seed)
    for part, files in enumerate(deliveries(history, random)):
        for table in files:
            ids = table.column("event_id")
            name = Landed(table.column("server")[0].as_py(), ids[0].as_py(), ids[-1].as_py())
            if not (lake.landing / name.name).exists():
                sealing.seal(lake.root, table)
        ran = run(lake, lambda _: spark)
        assert ran.failed == []
        if part == 1:
            compact.compact(spark, lake, everything=True)
    assert differences(dump(lake), undisturbed[0]) == []
    assert quality.check(lake) == []
