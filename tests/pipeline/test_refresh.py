"""The derived Delta tables against the oracle: in one window, in arbitrary parts, and through kills
between any two steps.
"""

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from engine_history import START, collect
from oracle_sql import QUERIES
from pyspark.sql import SparkSession

from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER, NewJob
from millrace.engine.leases import FRONT_RANK, put_in_front
from millrace.pipeline import delta, tables, window_tables
from millrace.pipeline import refresh as refresh_module
from millrace.pipeline.errors import LakeBusy, NoLake, PipelineError
from millrace.pipeline.refresh import Step, TableRefresh, steps
from millrace.pipeline.tables import DERIVED
from millrace.protocols.registry import FAKTORY, HTTP, QLESS
from millrace.protocols.spec import protocol_rules
from support.oracle import TableOracle, paths
from support.shipped_history import Rows, ship

EVENTS = 6_000


class Killed(Exception):
    pass


class Past(NamedTuple):
    rows: Rows

    @property
    def end(self) -> dict[str, int]:
        return {server: len(rows) for server, rows in self.rows.items()}


@pytest.fixture(scope="module")
def past() -> Past:
    return Past(collect(EVENTS)[1])


@pytest.fixture(scope="module")
def lake(past: Past, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with tables that were computed in one window per flush."""
    root = tmp_path_factory.mktemp("lake")
    ship(root, past.rows, {}, past.end)
    assert TableRefresh(spark, root, 1).run() == sum(past.end.values())
    return root


@pytest.fixture(scope="module")
def oracle(lake: Path) -> TableOracle:
    return TableOracle(lake)


@pytest.mark.parametrize("name", QUERIES)
def test_a_table_has_the_rows_of_its_definition(oracle: TableOracle, name: str) -> None:
    assert paths(oracle.lake, name)
    assert oracle.differences(name) == []


def test_open_jobs_are_the_jobs_that_are_not_gone(oracle: TableOracle) -> None:
    assert oracle.rows("SELECT count(*) AS n FROM lives WHERE flush_time IS NOT NULL")[0]["n"] > 10
    assert oracle.open_differences() == []


def test_percentiles_are_within_one_percent(oracle: TableOracle) -> None:
    assert oracle.far_percentiles() == []


def test_the_oracle_finds_wrong_rows(oracle: TableOracle, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = QUERIES["kind_hour"].replace("count(*) AS events", "count(*) + 1 AS events")
    monkeypatch.setitem(QUERIES, "kind_hour", wrong)
    assert any("kind_hour.events" in line for line in oracle.differences("kind_hour"))


def test_a_refresh_without_new_events_has_no_effect(lake: Path, spark: SparkSession) -> None:
    before = {name: delta.create(lake, table).version() for name, table in DERIVED.items()}
    assert TableRefresh(spark, lake, 2).run() == 0
    assert before == {name: delta.create(lake, table).version() for name, table in DERIVED.items()}


def test_any_division_of_the_history_gives_the_same_tables(
    past: Past, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, done, run = Random(11), dict.fromkeys(past.rows, 0), 0
    while done != past.end:
        end = {
            server: min(past.end[server], last + random.randrange(past.end[server]))
            for server, last in done.items()
        }
        ship(tmp_path, past.rows, done, end)
        done, run = end, run + 1
        if random.random() < 0.7 or done == past.end:
            limit = random.choice([1_500, 1_000_000])
            # With 0, every table has its own query, as in a large refresh.
            monkeypatch.setattr(refresh_module, "MAX_COLLECTED_ROWS", random.choice([0, 500_000]))
            TableRefresh(spark, tmp_path, run, window_events=limit).run()
    assert TableOracle(tmp_path).all_differences() == []


def test_many_open_jobs_are_not_broadcast(
    past: Past, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_module, "MAX_COLLECTED_ROWS", 0)
    monkeypatch.setattr(window_tables, "MAX_BROADCAST_ROWS", 0)
    ship(tmp_path, past.rows, {}, dict.fromkeys(past.rows, 500))
    TableRefresh(spark, tmp_path, 1).run()
    oracle = TableOracle(tmp_path)
    assert oracle.rows("SELECT count(*) AS n FROM lives WHERE l.state <> 'gone'")[0]["n"] > 10
    assert oracle.all_differences() == []


def test_an_attempt_has_the_number_of_its_lease(spark: SparkSession, tmp_path: Path) -> None:
    """A lease that did not reach its holder does not count; a lease that its holder returned does."""
    assert tables.FRONT_RANK == FRONT_RANK
    engine, now = Engine(Random(1), protocol_rules()), START
    for actor, counted in ((FAKTORY, False), (HTTP, True), (QLESS, True), (QLESS, False)):
        engine.push(NewJob("", "send", b"", FAKTORY, "mail", 1, FOREVER), now)
        for last in (False, True):
            now += 1000
            job = engine.lease(["mail"], "w1", actor, now)
            assert job is not None
            if last:
                engine.complete(job, now + 1, actor)
                continue
            if counted and actor == QLESS:
                put_in_front(job)
            engine.release(job, now + 1, counted=counted)
    rows = {"a11ce0a11ce00001": list(engine.take_changes().events)}
    end = {server: len(each) for server, each in rows.items()}
    ship(tmp_path, rows, {}, end)
    TableRefresh(spark, tmp_path, 1).run()
    oracle = TableOracle(tmp_path)
    assert oracle.rows("SELECT count(*) AS n FROM events WHERE type = 'released'")[0]["n"] == 4
    assert oracle.differences("attempts") == []


def test_a_small_refresh_is_one_query(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    ship(tmp_path, past.rows, {}, dict.fromkeys(past.rows, 100))
    TableRefresh(spark, tmp_path, 1).run()
    ship(tmp_path, past.rows, dict.fromkeys(past.rows, 100), dict.fromkeys(past.rows, 120))
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = len(jobs(None))
    assert TableRefresh(spark, tmp_path, 2).run() == 20 * len(past.rows)
    assert len(jobs(None)) - before == 1
    assert TableOracle(tmp_path).all_differences() == []


def test_open_jobs_are_merged_and_days_are_compacted(
    past: Past, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(tmp_path, past.rows, {}, dict.fromkeys(past.rows, 500))
    TableRefresh(spark, tmp_path, 1, window_events=300).run()
    refresh = TableRefresh(spark, tmp_path, 2)
    assert not refresh.merge_open_jobs()
    before = len(paths(tmp_path, "jobs_open"))
    monkeypatch.setattr(refresh_module, "MERGE_ROWS", 10)
    assert refresh.merge_open_jobs()
    assert len(paths(tmp_path, "jobs_open")) == len(past.rows) < before
    monkeypatch.setattr(refresh_module, "COMPACT_FILES", 2)
    assert refresh.compact() > 0
    assert refresh.compact() == 0
    assert TableOracle(tmp_path).all_differences() == []
    assert refresh.run() == 0


def test_a_refresh_continues_after_a_kill_at_any_step(
    past: Past, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(tmp_path, past.rows, {}, past.end)
    killed: set[tuple[str, int]] = set()
    windows = 0

    def kill_once(point: str) -> None:
        if (point, windows) not in killed:
            killed.add((point, windows))
            raise Killed

    monkeypatch.setattr(delta, "reached", kill_once)
    for run in range(1, 1_000):
        refresh = TableRefresh(spark, tmp_path, run)
        try:
            refresh.run()
        except Killed:
            continue
        break
    assert len(killed) == 2 * len(DERIVED)
    assert TableOracle(tmp_path).all_differences() == []


def test_the_second_of_two_concurrent_runs_fails(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    end = dict.fromkeys(past.rows, 50)
    ship(tmp_path, past.rows, {}, end)
    first, second = (TableRefresh(spark, tmp_path, 1) for _ in range(2))
    first.run()
    with pytest.raises(LakeBusy, match="Another run changed the table attempts"):
        second.run()
    assert TableOracle(tmp_path).all_differences() == []


def test_a_folder_without_events_is_no_lake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoLake, match="No lake at"):
        TableRefresh(spark, tmp_path, 1)


def test_tables_that_are_behind_are_refreshed_first() -> None:
    positions = {"a": {"s": 5, "t": 2}, "b": {"s": 3, "t": 2}, "c": {"s": 5, "t": 2}}
    end = {"s": 9, "t": 4}
    assert list(steps(positions, end)) == [
        Step(("b",), {"s": 3, "t": 2}, {"s": 5, "t": 2}),
        Step(("a", "b", "c"), {"s": 5, "t": 2}, end),
    ]


def test_a_table_with_unknown_events_is_an_error() -> None:
    with pytest.raises(PipelineError, match="Restore all tables"):
        list(steps({"a": {"s": 5}}, {"s": 4}))
