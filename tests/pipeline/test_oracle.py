"""The oracle against the engine: what DuckDB makes of the landing files is what the server itself
knows of its queues, days and jobs. Then the pipeline against the oracle.
"""

import os
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_history import DAY, START, History, land
from msgspec.structs import asdict
from oracle_sql import QUERIES
from pyspark.sql import SparkSession

from millrace.engine.states import TRANSITIONS
from millrace.engine.stats import QueueDay
from millrace.pipeline.events import read
from millrace.pipeline.ingest import ingest
from millrace.pipeline.lake import Lake
from millrace.pipeline.progress import silent
from millrace.pipeline.reading import files
from millrace.pipeline.refresh import refresh
from millrace.pipeline.state import State
from millrace.pipeline.tables import TABLES
from millrace.pipeline.transforms.audit import audit_jobs, audit_seq
from millrace.pipeline.transforms.flushes import flushes
from support.oracle import Oracle

#: `make pipeline` has a million, or as many as you like.
EVENTS = int(os.environ.get("PIPELINE_EVENTS", "100000"))
STATES = ("ready", "scheduled", "blocked", "leased", "dead")


class Past(NamedTuple):
    lake: Path
    histories: list[History]
    oracle: Oracle


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    lake = tmp_path_factory.mktemp("past")
    histories = land(lake, EVENTS)
    return Past(lake, histories, Oracle(shipped(lake)))


def shipped(lake: Path) -> list[Path]:
    return sorted((lake / "landing").glob("ev-*.parquet"))


def since_flush(past: Past, history: History) -> Oracle:
    """What of a server's events its engine knows."""
    found = past.oracle.rows(f"FROM flushes WHERE server = '{history.server}'")
    last = found[0]["ids"][-1] if found else 0
    return Oracle(shipped(past.lake), f"server = '{history.server}' AND event_id > {last}")


# The totals of event version 3 against the oracle


def test_the_end_of_a_lease_and_of_a_job_carries_the_totals(past):
    assert past.oracle.wrong_totals() == []


# The oracle against the engine


def test_the_past_is_as_long_as_it_should_be_and_full_of_events(past: Past) -> None:
    counted = past.oracle.table("audit_seq")
    assert {row["server"]: row["events"] for row in counted} == {
        history.server: history.events for history in past.histories
    }
    assert all(row["missing"] == row["duplicates"] == 0 for row in counted)
    assert sum(row["events"] for row in counted) >= EVENTS
    types = past.oracle.rows("SELECT DISTINCT type FROM events")
    assert {row["type"] for row in types} == {*TRANSITIONS, "flushed"}
    assert len(past.oracle.rows("SELECT DISTINCT type, before, state FROM events")) > 50


def test_no_job_does_what_it_cannot(past: Past) -> None:
    assert past.oracle.table("audit_jobs") == []


def test_queue_days_are_the_live_statistics(past: Past) -> None:
    for history in past.histories:
        made = since_flush(past, history).table("queue_day")
        mine = {(row["queue"], row["day"]): row for row in made}
        live = history.statistics.days.values()
        assert len(live) > 20
        for day in live:
            assert_equal(mine.pop((day.queue, date_of(day))), day)
        for row in mine.values():  # days of which only pushes are known
            assert row["leased"] == row["completed"] == row["failures"] == row["retries"] == 0


def date_of(day: QueueDay) -> date:
    return datetime.fromtimestamp(day.day * DAY / 1_000_000, UTC).date()


def assert_equal(row: dict[str, Any], day: QueueDay) -> None:
    counts = (row["failures"], row["failed"], row["retries"])
    assert counts == (day.failures, day.failed, day.retries)
    for name, spread in (("wait", day.wait), ("run", day.run)):
        assert row[f"{name}_n"] == spread.count
        assert row[f"{name}_mean"] == pytest.approx(spread.mean, rel=1e-9, abs=1e-12)
        assert row[f"{name}_var"] == pytest.approx(spread.variance, rel=1e-9, abs=1e-12)
        assert list(row[f"{name}_hist"]) == [spread.histogram.get(i, 0) for i in range(148)]


def test_jobs_end_where_the_engine_has_them(past: Past) -> None:
    jobs = past.oracle.rows(
        f"SELECT server, seq, state, queue FROM ({past.oracle.query('jobs')}) WHERE state <> 'gone'"
    )
    for history in past.histories:
        mine = {
            row["seq"]: (row["state"], row["queue"])
            for row in jobs
            if row["server"] == history.server
        }
        assert mine == history.jobs
        assert len(mine) > 20


def test_depths_are_the_engines(past: Past) -> None:
    days = past.oracle.table("depth_day")
    for history in past.histories:
        mine = [row for row in days if row["server"] == history.server]
        current = max(row["epoch"] for row in mine)
        depths: Counter[tuple[str, str]] = Counter()
        for row in mine:
            if row["epoch"] == current:
                for state in STATES:
                    depths[row["queue"], state] += row[state]
        live = Counter(
            (known.queue, known.state) for known in history.jobs.values() if known.state != "done"
        )
        assert +depths == live
        assert -depths == Counter()


# The oracle finds what is wrong


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("SELECT * FROM right_ones", []),
        ("SELECT * FROM right_ones LIMIT 10", ["rows are missing"]),
        ("SELECT * REPLACE (queue || '!' AS queue) FROM right_ones", ["missing", "not wanted"]),
        ("SELECT * REPLACE (n + 1 AS n) FROM right_ones", [".n: "]),
        ("SELECT * REPLACE (sum_us * (1 + 1e-8) AS sum_us) FROM right_ones", [".sum_us: "]),
        ("SELECT * REPLACE (sum_us * (1 + 1e-13) AS sum_us) FROM right_ones", []),
        ("SELECT * REPLACE (NULL::DOUBLE AS sum_us) FROM right_ones", [".sum_us: "]),
        ("FROM right_ones UNION ALL (FROM right_ones LIMIT 1)", ["more than once"]),
    ],
)  # fmt: skip
def test_a_table_that_is_wrong_is_found(
    past: Past, tmp_path: Path, change: str, found: list[str]
) -> None:
    oracle = past.oracle
    oracle.db.execute(f"CREATE OR REPLACE TEMP TABLE right_ones AS {oracle.query('latency_hist')}")
    oracle.db.execute(f"COPY ({change}) TO '{tmp_path}/made.parquet'")
    told = oracle.differences("latency_hist", [tmp_path / "made.parquet"])
    assert bool(told) == bool(found)
    for words in found:
        assert any(words in line for line in told)


# The pipeline against the oracle


@pytest.fixture(scope="module")
def tables(past: Past, spark: SparkSession) -> Lake:
    """A lake in which everything has been taken in, and every table was made."""
    lake = Lake(past.lake)
    taken = ingest(spark, lake)
    assert taken.events == sum(history.events for history in past.histories)
    assert taken.quarantined == 0
    refresh(spark, lake, silent)
    return lake


@pytest.mark.parametrize("name", sorted(QUERIES.keys() - {"audit_seq", "audit_jobs"}))
def test_a_table_is_what_the_oracle_says(past: Past, tables: Lake, name: str) -> None:
    where = " OR ".join(f"{state} <> 0" for state in STATES) if name == "depth_day" else "true"
    assert TABLES[name].day
    assert past.oracle.differences(name, files(tables, name), where=where) == []


def test_percentiles_are_within_a_percent_of_the_true_ones(past: Past, tables: Lake) -> None:
    assert past.oracle.far_percentiles(files(tables, "queue_day")) == []


def test_the_audit_finds_nothing(past: Past, tables: Lake, spark: SparkSession) -> None:
    events = read(spark, tables)
    assert audit_jobs(events, flushes(events)).collect() == []
    found = [row.asDict(recursive=True) for row in audit_seq(events).collect()]
    assert sorted(found, key=by_server) == sorted(past.oracle.table("audit_seq"), key=by_server)


@pytest.mark.parametrize("after", [1.9, 1e5])
def test_the_state_at_a_moment_is_what_the_oracle_says(
    past: Past, tables: Lake, spark: SparkSession, after: float
) -> None:
    """Once between all those days, soon after the flush, and once when everything is over."""
    moment = datetime.fromtimestamp(START / 1_000_000, UTC) + timedelta(days=after)
    told = {
        (depth.server, depth.queue): asdict(depth)
        for depth in State(spark, tables, moment).depths()
    }
    wanted = past.oracle.rows(f"""
        WITH known AS (FROM events WHERE time <= TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}'),
        lives AS (
            SELECT server, max_by({{'queue': queue, 'state': state, 'id': event_id}}, event_id) AS l
            FROM known WHERE type <> 'flushed' GROUP BY server, seq
        ), ends AS (SELECT server, max(event_id) AS id FROM known WHERE type = 'flushed' GROUP BY ALL)
        SELECT lives.server, l.queue, l.state, count(*) AS n
        FROM lives LEFT JOIN ends USING (server)
        WHERE l.state <> 'gone' AND l.id > coalesce(ends.id, 0) GROUP BY ALL""")
    assert len(wanted) > 20
    for row in wanted:
        assert told[row["server"], row["queue"]][row["state"]] == row["n"]
    assert sum(row["n"] for row in wanted) == sum(
        depth[state] for depth in told.values() for state in (*STATES, "done")
    )
    if after > 1000:
        assert sum(row["n"] for row in wanted) == sum(len(each.jobs) for each in past.histories)


def by_server(row: dict[str, Any]) -> str:
    return str(row["server"])
