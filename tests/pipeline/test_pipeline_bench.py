"""The bench: its events are possible ones, and it says what both took for each table."""

from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from generate import Generator, named, parts, plan
from measure import INGEST, STEPS, Benched, Cost, Measured, bench
from oracle_sql import QUERIES
from pyspark.sql import SparkSession
from table_bench import amount, as_document, as_text

from millrace.journal import schema
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.progress import silent
from support.oracle import Oracle

# The events


@pytest.mark.parametrize("events", [10_000, 200_000, 999_999, 50_000_000])
def test_there_are_as_many_as_wanted_or_a_few_more(events: int) -> None:
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
    quarter, second, half = parts(files)
    assert len(quarter) == len(second) == len(half) / 2 == planned.files / 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    Generator(plan(60_000), seed=7).write(folder, silent)
    return folder


def test_they_are_in_the_schema_of_the_journal(made: Path) -> None:
    for path in made.iterdir():
        found = pq.read_schema(path)
        assert [(f.name, f.type, f.nullable) for f in found if f.name != "tags"] == [
            (f.name, f.type, f.nullable) for f in schema.arrow() if f.name != "tags"
        ]


def test_they_are_what_could_have_happened(made: Path) -> None:
    oracle = Oracle(sorted(made.iterdir()))
    assert oracle.wrong_totals() == []
    assert oracle.table("audit_jobs") == []
    assert [(row["missing"], row["duplicates"]) for row in oracle.table("audit_seq")] == [
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


def test_a_seed_makes_the_same_again_and_another_others() -> None:
    planned = plan(10_000)
    first = Generator(planned, seed=1).table(3)
    assert first.equals(Generator(planned, seed=1).table(3))
    assert not first.equals(Generator(planned, seed=2).table(3))


# Measuring


def test_a_short_run_measures_both_at_three_sizes(spark: SparkSession, tmp_path: Path) -> None:
    told: list[Measured] = []
    tables = (INGEST, "protocol_day")
    found = bench(spark, tmp_path, 200_000, silent, tables=tables, on_measured=told.append)
    assert found.measured == told
    assert found.events >= 200_000
    quarter = found.events // 4
    assert [each.events for each in found.of(INGEST)] == [quarter, quarter, 2 * quarter]
    assert [each.events for each in found.of("protocol_day")] == [
        quarter,
        2 * quarter,
        4 * quarter,
    ]
    for each in found.measured:
        assert each.duckdb is not None
        for cost in (each.spark, each.duckdb):
            assert cost.seconds > 0
            assert cost.cpu > 0
            assert cost.peak > 1 << 20
    assert "protocol_day" in as_text(found)


def test_every_table_that_spark_makes_duckdb_makes_too() -> None:
    assert set(STEPS) - {INGEST} == QUERIES.keys()


def test_an_unknown_table_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no table nobody"):
        bench(spark, tmp_path, 10_000, silent, tables=("nobody",))
    assert list(tmp_path.iterdir()) == []


# What is said


def measured(table: str, events: int, seconds: float, other: float | None) -> Measured:
    duckdb = None if other is None else Cost(other, other, 1 << 29)
    return Measured(table, events, Cost(seconds, 2 * seconds, 1 << 30), duckdb)


def test_a_line_says_how_fast_at_each_size_and_what_the_largest_cost() -> None:
    sizes = ((1_000_000, 1.0, 0.5), (2_000_000, 2.0, 1.0), (4_000_000, 8.0, 2.0))
    found = Benched(4_000_000, 2, Cost(4, 4, 0), [measured("jobs", *each) for each in sizes])
    assert found.growth("jobs") == 2.0
    line = next(line for line in as_text(found).splitlines() if line.startswith("jobs"))
    assert line.split() == [
        "jobs", "1.00", "1.00", "0.50", "2.00", "4.0", "4.00", "0.50", "1.00", "0.50", "2.00",
    ]  # fmt: skip
    assert msgspec.json.decode(as_document(found), type=Benched) == found


def test_without_duckdb_a_line_is_of_spark_alone() -> None:
    sizes = ((1_000_000, 0.5), (2_000_000, 1.0), (4_000_000, 2.0))
    each = [measured("jobs", events, seconds, None) for events, seconds in sizes]
    found = Benched(4_000_000, 2, Cost(4, 4, 0), each)
    assert found.measured[0].ratio is None
    line = next(line for line in as_text(found).splitlines() if line.startswith("jobs"))
    assert line.split() == ["jobs", "2.00", "2.00", "2.00", "1.00", "1.00", "1.00"]


@pytest.mark.parametrize(
    ("text", "events"),
    [("200k", 200_000), ("50M", 50_000_000), ("1.5m", 1_500_000), ("10000", 10_000)],
)
def test_amounts(text: str, events: int) -> None:
    assert amount(text) == events


@pytest.mark.parametrize("text", ["", "M", "50 M", "-1M", "5T", "10"])
def test_what_is_no_amount_is_told(text: str) -> None:
    with pytest.raises(PipelineError, match=r"number of events|too few"):
        amount(text)
