"""The bench: its events are possible ones, and it measures refreshes."""

import resource
import shutil
from pathlib import Path

import plain_sql
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from generate import SERVERS, Generator, named, plan
from measure import STEPS, ship_more
from oracle_sql import AUDIT_JOBS, AUDIT_SEQ
from pyspark.sql import SparkSession
from table_bench import amount, as_line

from millrace.journal import schema
from millrace.pipeline import delta
from millrace.pipeline.progress import silent
from millrace.pipeline.refresh import TableRefresh
from support.oracle import TableOracle

# The events


@pytest.mark.parametrize("events", [10_000, 200_000, 999_999, 50_000_000])
def test_the_number_of_events_is_at_least_the_requested_one(events: int) -> None:
    planned = plan(events)
    assert events <= planned.events < events * 1.13
    assert planned.files % 8 == 0
    assert planned.per_file <= 800_000


def test_files_follow_each_other_on_two_servers() -> None:
    planned = plan(50_000_000)
    files = [named(planned, number) for number in range(planned.files)]
    for server in {each.server for each in files}:
        mine = [each for each in files if each.server == server]
        assert [each.first for each in mine] == [1, *(each.last + 1 for each in mine[:-1])]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("made")
    planned = plan(60_000)
    Generator(planned, seed=7).ship(lake, range(planned.files), silent)
    return lake


def test_events_have_the_schema_of_the_journal() -> None:
    found = Generator(plan(10_000), seed=1).table(0).schema
    plain = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in found}
    wanted = {f.name: f.type for f in schema.arrow()}
    assert {n: k for n, k in plain.items() if n != "tags"} == {
        n: k for n, k in wanted.items() if n != "tags"
    }


def test_events_are_possible(made: Path) -> None:
    oracle = TableOracle(made)
    assert oracle.wrong_totals() == []
    assert oracle.rows(AUDIT_JOBS) == []
    assert [(row["missing"], row["duplicates"]) for row in oracle.rows(AUDIT_SEQ)] == [
        (0, 0),
        (0, 0),
    ]
    moves = oracle.rows("SELECT DISTINCT type, before, state FROM events")
    assert {tuple(row.values()) for row in moves} <= schema.LEGAL
    assert len(moves) == 8
    odd = oracle.rows(
        "SELECT count(*) AS n FROM events WHERE time < created OR leased_at > time "
        "OR ready_at > time OR wait_us < 0 OR run_us < 0 "
        "OR (type = 'leased' OR before = 'leased') <> (wait_us IS NOT NULL)"
    )
    assert odd == [{"n": 0}]
    queues = oracle.rows("SELECT queue, count(*) AS n FROM events GROUP BY ALL ORDER BY n DESC")
    assert queues[0]["n"] > 20 * queues[-1]["n"]


def test_equal_seeds_give_equal_events() -> None:
    planned = plan(10_000)
    first = Generator(planned, seed=1).table(3)
    assert first.equals(Generator(planned, seed=1).table(3))
    assert not first.equals(Generator(planned, seed=2).table(3))


# Measuring


def test_the_steps_measure_the_lake(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """The steps with Spark normally run in separate processes; here they share the session."""
    planned = plan(60_000)
    lake = shutil.copytree(made, tmp_path / "lake")
    address_space = resource.getrlimit(resource.RLIMIT_AS)
    for name in ("duckdb", "datafusion", "job"):
        cost = STEPS[name](lake, "1g", planned)
        # Chromium, in a later test of this process, cannot start with a limit.
        assert resource.getrlimit(resource.RLIMIT_AS) == address_space
        assert cost.seconds > 0
        assert cost.name in as_line(60_000, name, cost)
    rows = {
        (engine, name): pq.read_metadata(tmp_path / f"output/{engine}-{name}.parquet").num_rows
        for engine in ("duckdb", "datafusion")
        for name in plain_sql.QUERIES
    }
    assert TableRefresh(spark, lake, 1).run() == planned.events
    for name in ("attempts", "jobs", "jobs_open", "queue_minute", "kind_hour", "failure_groups"):
        table = delta.open_table(lake, name)
        expected = sum(file.rows for file in delta.files(table, lake, name))
        assert (rows["duckdb", name], rows["datafusion", name]) == (expected, expected), name
    assert ship_more(lake, planned, 140).before == planned.events // 2
    end = planned.events // 2 + 70
    assert delta.position(delta.open_table(lake, "events"), SERVERS) == dict.fromkeys(SERVERS, end)


@pytest.mark.parametrize(
    ("text", "events"),
    [("200k", 200_000), ("50M", 50_000_000), ("1.5m", 1_500_000), ("10000", 10_000)],
)
def test_amounts(text: str, events: int) -> None:
    assert amount(text) == events


@pytest.mark.parametrize("text", ["", "M", "50 M", "-1M", "5T", "10"])
def test_an_invalid_amount_is_an_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"number of events|too few"):
        amount(text)
