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
from millrace.pipeline.run import run

EVENTS = 1_500
#: Crash after every write there is, and look at many ways, which takes minutes.
EVERY = os.environ.get("PIPELINE") == "all"
WAYS = 10 if EVERY else 1


class Crash(BaseException):
    """As a kill, nothing catches it."""


@pytest.fixture(scope="module")
def history() -> dict[str, pa.Table]:
    """The journals of two servers, one of them emptied on its second day."""
    _, rows = collect(EVENTS)
    return {server: columns.table(server, 1, EVENT_VERSION, each) for server, each in rows.items()}


@pytest.fixture(scope="module")
def landed(history, tmp_path_factory) -> Lake:
    """A lake with nothing but the journals, and some of the rows once more, to be put aside."""
    lake = Lake(tmp_path_factory.mktemp("landed"))
    for table in history.values():
        sealing.seal(lake.root, table)
        sealing.seal(lake.root, table.slice(1, 20))
    return lake


@pytest.fixture
def lake(landed, tmp_path) -> Lake:
    shutil.copytree(landed.root, tmp_path / "lake")
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
def undisturbed(landed, history, tmp_path_factory, spark) -> tuple[Rows, list[str]]:
    """The tables as they must be, and every point on the way there."""
    lake = Lake(tmp_path_factory.mktemp("whole") / "lake")
    shutil.copytree(landed.root, lake.root)
    points = Points()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "reached", points)
        ran = run(lake, lambda _: spark)
    assert ran.failed == []
    told = dump(lake)
    assert [name for name, rows in told.items() if not rows] == ["audit_seq", "audit_jobs"]
    assert len(told["events"]) == sum(table.num_rows for table in history.values())
    return told, points.reached


def crashed(points: Points, point: str, act: Callable[[], object]) -> None:
    points.crash = point
    with pytest.raises(Crash):
        act()
    points.crash = ""


def test_every_write_of_the_ingest(spark, lake, undisturbed, points):
    """One crash after another on the same lake: each run is killed one point later."""
    told, reached = undisturbed
    on_the_way = [point for point in reached if point.startswith("ingest:")]
    assert {"ingest:intent", "ingest:hot:1", "ingest:quarantine", "ingest:ledger"} <= {*on_the_way}
    for point in on_the_way if EVERY else dict.fromkeys([*on_the_way[:3], *on_the_way[-2:]]):
        crashed(points, point, lambda: ingest(spark, lake))
        assert bool(Ledger(lake).interrupted()) == (point != "ingest:ledger")
    assert ingest(spark, lake).batches == []
    after = {**dump(lake), **{name: rows for name, rows in told.items() if name != "events"}}
    assert differences(after, told) == []


@pytest.mark.long
def test_writes_of_the_refresh(spark, lake, undisturbed, points):
    told, reached = undisturbed
    of_refresh = [point for point in reached if point.startswith("refresh:")]
    assert of_refresh[-1] == "refresh:mark"
    chosen = of_refresh if EVERY else [Random(3).choice(of_refresh), of_refresh[-1]]
    for point in chosen:
        crashed(points, point, lambda: run(lake, lambda _: spark))
    ran = run(lake, lambda _: spark)
    assert ran.failed == []
    assert differences(dump(lake), told) == []


@pytest.mark.long
def test_a_real_kill(spark, lake, undisturbed):
    """The whole process, and its Java with it."""
    command = [
        str(Path(sys.executable).with_name("millrace")),
        "pipeline",
        "run",
        "--lake",
        str(lake.root),
    ]
    environment = os.environ | {"CRASH_MILLRACE": "refresh:latency_hist:0"}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert Ledger(lake).last == 1
    assert run(lake, lambda _: spark).failed == []
    assert differences(dump(lake), undisturbed[0]) == []


def deliveries(history: dict[str, pa.Table], random: Random) -> Iterator[list[pa.Table]]:
    """The journals, cut into files anywhere, in any order, some stretches twice; in two parts."""
    files = []
    for table in history.values():
        cuts = sorted(random.sample(range(1, table.num_rows), 6))
        for first, last in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
            files.append(table.slice(first, last - first))
        start = random.randrange(table.num_rows - 50)
        files.append(table.slice(start, 50))
    random.shuffle(files)
    yield files[::2]
    yield files[1::2]


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
        if part == 0:
            compact.compact(spark, lake, everything=True)
    assert differences(dump(lake), undisturbed[0]) == []
    assert quality.check(lake) == []
