"""`millrace pipeline run`: its output, its exit code, and the record of a run."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_history import SERVERS, collect
from pyspark.sql import SparkSession

import millrace.cli.pipeline.refresh as refresh_command
import millrace.cli.pipeline.run as run_command
from millrace.cli.pipeline.progress import StepProgress
from millrace.cli.ship import NotShipped
from millrace.config.sections import Config, LakeConfig, ServerConfig
from millrace.journal.location import EVENTS
from millrace.pipeline import delta
from millrace.pipeline import lake as lakes
from millrace.pipeline.backlog import outstanding
from millrace.pipeline.checks import check
from millrace.pipeline.errors import LakeBusy, NoLake
from millrace.pipeline.lake import Lake
from millrace.pipeline.run import run
from millrace.pipeline.snapshot import Snapshot, last_run
from millrace.pipeline.tables import DERIVED, QUEUE_DAY, QUEUE_MINUTE
from millrace.records import ShippingStatus
from support.oracle import TableOracle
from support.shipped_history import Rows, rows_of, ship

FIRST = {SERVERS[0]: 400, SERVERS[1]: 0}
SECOND = {SERVERS[0]: 700, SERVERS[1]: 200}


@pytest.fixture(scope="module")
def rows() -> Rows:
    return collect(2_000)[1]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    lake = LakeConfig(path=str(tmp_path / "lake"))
    return Config(server=ServerConfig(data=tmp_path / "data"), lake=lake)


@pytest.fixture
def lake(config: Config) -> Lake:
    return Lake(config.lake_path)


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The command uses the session of the tests, and does not stop it."""

    @contextmanager
    def started(config: Config, *, events: int = 0) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(refresh_command, "tables_session", started)
    return spark


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that starts Spark fails."""
    monkeypatch.setattr(refresh_command, "tables_session", None)


def test_a_lake_that_does_not_exist_is_an_error(config, lake, no_spark):
    with pytest.raises(NoLake, match=f"No lake at {lake.root}"):
        run_command.run(config)
    assert not lake.root.exists()


def test_a_server_without_events_needs_no_lake(config, no_spark, monkeypatch, capsys):
    monkeypatch.setattr(run_command, "_ship", lambda _: True)
    config.server.data.mkdir()
    assert run_command.run(config) == 0
    assert capsys.readouterr().out.startswith("No new events")


def test_two_runs_and_another_without_new_events(config, lake, rows, shared, capsys):
    ship(lake.root, rows, {}, FIRST)
    assert outstanding(lake.root).events == 400
    assert run_command.run(config) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Run 1: refreshed the tables with 400 events in ")
    assert "`millrace pipeline report`" in output.out
    # Not a terminal: one line per step.
    assert output.err.splitlines() == ["start Spark", "refresh: 0 of 400", "check"]
    old = Snapshot(lake.root)
    pushed = sum(rows_of(old, QUEUE_DAY)["pushed"].to_pylist())
    assert pushed == sum(row[1] == "pushed" for row in rows[SERVERS[0]][:400])

    ship(lake.root, rows, FIRST, SECOND)
    assert outstanding(lake.root).events == 500
    assert run_command.run(config) == 0
    capsys.readouterr()
    assert not outstanding(lake.root)
    last = last_run(lake.root)
    assert last is not None
    assert (last.run, last.events, last.failed, last.findings) == (2, 500, 0, [])
    assert last.position == SECOND
    assert last.versions.keys() == {"events", *DERIVED}
    assert TableOracle(lake.root).all_differences() == []
    # A reader keeps its snapshot.
    again = Snapshot(lake.root, old.run)
    assert rows_of(again, QUEUE_MINUTE).equals(rows_of(old, QUEUE_MINUTE))
    assert Snapshot(lake.root).extent(QUEUE_MINUTE).rows > old.extent(QUEUE_MINUTE).rows

    assert run_command.run(config) == 0
    assert capsys.readouterr().out == f"No new events in {lake.root}.\n"
    code = (
        "import sys\n"
        "from millrace.cli import main\n"
        f"sys.argv = ['millrace', 'pipeline', 'run', '--lake', {str(lake.root)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "slow = {'pyspark', 'pyarrow', 'rich', 'asyncio', 'prometheus_client', 'sqlite3'}\n"
        "loaded = slow & {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"No new events in {lake.root}.\n"), done.stderr


def test_checks_find_wrong_tables(lake, rows, spark):
    ship(lake.root, rows, {}, SECOND)
    result = run(lake, lambda _: spark)
    assert len(result.checks) > 10
    assert result.failed == []
    tables = {name: delta.create(lake.root, table) for name, table in DERIVED.items()}
    events = delta.open_table(lake.root, EVENTS)
    assert events is not None
    days = {name: [day.isoformat() for day in Snapshot(lake.root).days(DERIVED[name])]
            for name in ("queue_minute", "kind_hour", "latency_day")}  # fmt: skip
    day = days["latency_day"][0]
    # The rows of one day are removed, and the rows of another are doubled.
    name = "latency_day"
    nothing = delta.Change(None, [day], {}, 3)
    delta.commit(lake.root, DERIVED[name], tables[name], nothing)
    name = "kind_hour"
    files = delta.files(tables[name], lake.root, name)
    staged = lake.root / name / "_staging-double"
    for file in files:
        folder = staged / file.path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{file.path.name}").write_bytes(file.path.read_bytes())
    doubled = delta.Change(staged, None, {}, 3)
    delta.commit(lake.root, DERIVED[name], tables[name], doubled)
    found = [each for each in check(lake.root, events, tables, days) if each.failed]
    text = "\n".join(sentence for each in found for sentence in each.found)
    assert f"latency_day.n is queue_minute.started: 0 on {day}, expected" in text
    assert "kind_hour.events is the number of events of jobs: " in text
    assert "keys more than once" in text


def test_a_failed_check_makes_the_exit_code_1(config, lake, rows, shared, monkeypatch, capsys):
    ship(lake.root, rows, {}, {SERVERS[0]: 40})
    from millrace.pipeline import run as runs
    from millrace.pipeline.checks import Check

    monkeypatch.setattr(runs, "check", lambda *_: [Check("sums", "error", ["Sums differ."])])
    assert run_command.run(config) == 1
    assert "error: Sums differ." in capsys.readouterr().err
    last = last_run(lake.root)
    assert last is not None
    assert (last.failed, last.findings) == (1, ["Sums differ."])


def test_an_interrupted_run_is_continued(config, lake, rows, shared, monkeypatch, capsys):
    ship(lake.root, rows, {}, FIRST)

    def stop(point: str) -> None:
        if point == "kind_hour:committed":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(delta, "reached", stop)
        assert run_command.run(config) == 130
        assert "the next run resumes here" in capsys.readouterr().err
    assert last_run(lake.root) is None
    assert run_command.run(config) == 0
    assert TableOracle(lake.root).all_differences() == []


def test_a_lake_in_use(lake, monkeypatch):
    def taken(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(lakes.fcntl, "flock", taken)
    with pytest.raises(LakeBusy, match="Another run is using the lake"):
        run(lake, lambda _: None)


def test_pending_events_are_shipped_first(config, lake, rows, shared, monkeypatch, capsys):
    config.server.data.mkdir()
    monkeypatch.setattr(refresh_command, "has_store", lambda folder: folder == config.server.data)
    asked = []

    def shipped(given: Config) -> ShippingStatus:
        asked.append(given)
        return ShippingStatus(
            server="a1", lake=str(lake.root), next_event=1, next_shipped=1, events=0, bytes=0
        )

    monkeypatch.setattr(refresh_command, "shipped", shipped)
    assert run_command.run(config) == 0
    assert asked == [config]
    assert capsys.readouterr().err == ""
    with pytest.raises(NoLake):
        run_command.run(config, ship=False)
    assert len(asked) == 1


def test_a_failed_shipment_does_not_stop_the_run(config, no_spark, monkeypatch, capsys):
    config.server.data.mkdir()
    monkeypatch.setattr(refresh_command, "has_store", lambda _: True)

    def shipped(_: Config) -> ShippingStatus:
        raise NotShipped("the disk is full")

    monkeypatch.setattr(refresh_command, "shipped", shipped)
    assert run_command.run(config) == 0
    assert capsys.readouterr().err == "Warning: the disk is full\n"
    elsewhere = ShippingStatus(
        server="a1", lake="/other", next_event=1, next_shipped=1, events=0, bytes=0
    )
    monkeypatch.setattr(refresh_command, "shipped", lambda _: elsewhere)
    assert run_command.run(config) == 0
    assert "ships to /other, not to" in capsys.readouterr().err


def test_lines_where_there_is_no_terminal(capsys):
    with StepProgress() as steps:
        steps("refresh", 0, 2000)
        steps("refresh", 1000, 2000)
        steps("refresh", 2000, 2000)
        steps("check", 0, 0)
    assert capsys.readouterr().err == "refresh: 0 of 2,000\ncheck\n"
