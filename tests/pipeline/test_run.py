"""`millrace pipeline run`, `ingest` and `compact`: what they say, and with what they end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from landings import SERVER, event, land, life
from pyspark.sql import SparkSession

import millrace.cli.pipeline.compact as compact_command
import millrace.cli.pipeline.ingest as ingest_command
import millrace.cli.pipeline.run as run_command
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.ship import NotShipped
from millrace.config.sections import Config, LakeConfig, ServerConfig
from millrace.journal.landing import Landed
from millrace.pipeline import commit
from millrace.pipeline.errors import LakeBusy, NoLake
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger
from millrace.pipeline.reading import read
from millrace.pipeline.run import Outstanding, outstanding, run
from millrace.pipeline.tables import QUEUE_DAY
from millrace.records import ShippingStatus


@pytest.fixture
def config(tmp_path: Path) -> Config:
    lake = LakeConfig(path=str(tmp_path / "lake"))
    return Config(server=ServerConfig(data=tmp_path / "data"), lake=lake)


@pytest.fixture
def lake(config: Config) -> Lake:
    return Lake(config.lake_path)


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The commands use the session of the tests, and leave it running."""

    @contextmanager
    def started(config: Config, *, events: int = 0) -> Iterator[SparkSession]:
        yield spark

    for command in (run_command, ingest_command, compact_command):
        monkeypatch.setattr(command, "tables_session", started)
    return spark


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts Spark here fails."""
    for command in (run_command, ingest_command, compact_command):
        monkeypatch.setattr(command, "tables_session", None)


def test_a_lake_that_does_not_exist_is_an_error(config, lake, no_spark):
    for command in (run_command.run, ingest_command.ingest, compact_command.compact):
        with pytest.raises(NoLake, match=f"No lake at {lake.root}"):
            command(config)
    assert not lake.root.exists()


def test_a_server_without_events_needs_no_lake(config, no_spark, monkeypatch, capsys):
    monkeypatch.setattr(run_command, "has_store", lambda _: True)
    monkeypatch.setattr(run_command, "_ship", lambda _: None)
    assert run_command.run(config) == 0
    assert capsys.readouterr().out.startswith("No new events")


def test_nothing_new_is_told_without_spark(config, lake, no_spark, capsys):
    lake.landing.mkdir(parents=True)
    assert run_command.run(config) == 0
    assert ingest_command.ingest(config) == 0
    assert compact_command.compact(config) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"No new events in {lake.landing}.",
        f"No new events in {lake.landing}.",
        "All past days are compacted.",
    ]
    assert said.err == ""


def test_nothing_new_does_not_load_spark(config, lake):
    lake.landing.mkdir(parents=True)
    code = (
        "import sys\n"
        "from millrace.cli.app import app\n"
        f"app(['pipeline', 'run', '--lake', {str(lake.root)!r}], standalone_mode=False)\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"No new events in {lake.landing}.\n"), done.stderr


def test_a_run_and_another_with_nothing_to_do(config, lake, shared, capsys):
    land(lake, [*life(1, 1, 1), *life(4, 2, 25)])
    assert outstanding(lake) == Outstanding(6, 1, unfinished=False)
    assert run_command.run(config) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Ingested 6 events of 2 days and refreshed the tables in ")
    assert "`millrace pipeline report`" in said.out
    # Not a terminal: a line for each step.
    assert said.err.splitlines()[:2] == ["start Spark", "ingest: 0 of 6"]
    assert said.err.splitlines()[-1] == "check"
    assert [row["wait_n"] for row in read(lake, QUEUE_DAY).to_pylist()] == [1, 1]
    assert not outstanding(lake)
    assert run_command.run(config) == 0
    assert capsys.readouterr().out == f"No new events in {lake.landing}.\n"
    # What is interrupted between the steps is outstanding.
    (lake.ops / "quality" / "b-00000001.json").unlink()
    assert outstanding(lake) == Outstanding(0, 0, unfinished=True)
    assert run(lake, lambda _: shared).failed == []
    assert not outstanding(lake)


def test_a_check_that_fails_makes_it_end_with_1(config, lake, shared, capsys):
    land(lake, [event(1), event(2, type="jumped")])
    bad = lake.landing / Landed(SERVER, 3, 4).name
    bad.write_text("no Parquet")
    assert run_command.run(config) == 1
    said = capsys.readouterr()
    assert "Ingested 1 event of 1 day, 1 row in quarantine and" in said.out
    told = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert told[0].startswith(f"error: landing/{bad.name} was not taken: it cannot be read: ")
    assert told[1].startswith(
        "error: 1 row is no event: `type` is not known. See tables/quarantine"
    )
    # It is told once; and can be overridden.
    assert run_command.run(config) == 0
    capsys.readouterr()
    (lake.ops / "quality" / "b-00000001.json").unlink()
    assert run_command.run(config, fail=False) == 0
    assert "`type` is not known" in capsys.readouterr().err


def test_ingest_alone_says_what_is_wrong_too(config, lake, shared, capsys):
    land(lake, [event(1), event(2, type="jumped")])
    assert ingest_command.ingest(config) == 1
    assert "Ingested 1 event of 1 day in " in capsys.readouterr().out
    assert outstanding(lake).unfinished


def test_follow_takes_in_what_comes_until_ctrl_c(config, lake, shared, monkeypatch, capsys):
    land(lake, [event(1)])
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt
        if len(waits) == 1:
            land(lake, [event(2), event(3)])

    monkeypatch.setattr(ingest_command, "sleep", sleep)
    assert ingest_command.ingest(config, follow=30) == 0
    assert waits == [30, 30, 30]
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" in 0")[0].partition(" of ")[0] for line in said] == [
        "Ingested 1 event",
        "Ingested 2 events",
    ]
    assert Ledger(lake).last == 2


def test_compact_and_prune(config, lake, shared, capsys):
    land(lake, [event(1)])
    land(lake, [event(2)])
    ingest_command.ingest(config)
    capsys.readouterr()
    assert compact_command.compact(config, prune_landing=True) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Compacted 2 events of 1 day; 1 smaller file removed.",
        "Removed 1 landing file.",
    ]


def test_ctrl_c_says_that_nothing_is_lost(config, lake, shared, monkeypatch, capsys):
    land(lake, [event(1)])

    def stop(point: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(commit, "reached", stop)
        assert run_command.run(config) == 130
        assert "the next run resumes here" in capsys.readouterr().err
    assert Ledger(lake).interrupted() is not None
    assert ingest_command.ingest(config) == 0
    assert Ledger(lake).interrupted() is None


def test_a_lake_that_somebody_works_on(lake, monkeypatch):
    def taken(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(commit.fcntl, "flock", taken)
    with pytest.raises(LakeBusy, match="another run works on the lake"):
        run(lake, lambda _: None)


def test_what_is_not_shipped_yet_is_shipped_first(config, lake, no_spark, monkeypatch, capsys):
    monkeypatch.setattr(run_command, "has_store", lambda folder: folder == config.server.data)
    asked = []

    def shipped(given: Config) -> ShippingStatus:
        asked.append(given)
        return ShippingStatus(
            server="a1", lake=str(lake.root), next_event=1, next_shipped=1, events=0, bytes=0
        )

    monkeypatch.setattr(run_command, "shipped", shipped)
    assert run_command.run(config) == 0
    assert asked == [config]
    assert capsys.readouterr().err == ""
    assert run_command.run(config, ship=False) == 0
    assert len(asked) == 1


def test_what_cannot_be_shipped_does_not_stop_it(config, no_spark, monkeypatch, capsys):
    monkeypatch.setattr(run_command, "has_store", lambda _: True)

    def shipped(_: Config) -> ShippingStatus:
        raise NotShipped("the disk is full")

    monkeypatch.setattr(run_command, "shipped", shipped)
    assert run_command.run(config) == 0
    assert capsys.readouterr().err == "Warning: the disk is full\n"
    elsewhere = ShippingStatus(
        server="a1", lake="/other", next_event=1, next_shipped=1, events=0, bytes=0
    )
    monkeypatch.setattr(run_command, "shipped", lambda _: elsewhere)
    assert run_command.run(config) == 0
    assert "ships to /other, not to" in capsys.readouterr().err


def test_lines_where_there_is_no_terminal(capsys):
    with StepProgress() as steps:
        steps("ingest", 0, 2000)
        steps("ingest", 1000, 2000)
        steps("ingest", 2000, 2000)
        steps("check", 0, 0)
    assert capsys.readouterr().err == "ingest: 0 of 2,000\ncheck\n"
