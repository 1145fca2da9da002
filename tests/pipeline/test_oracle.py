"""The oracle against the engine: the results of DuckDB from the events are the numbers that the
engine itself has of its queues, days and jobs. test_refresh.py compares the tables with the oracle.
"""

import os
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_history import DAY, START, History
from msgspec.structs import asdict
from oracle_sql import AUDIT_JOBS, AUDIT_SEQ, OPEN_JOBS, QUERIES
from pyspark.sql import SparkSession

from millrace.engine.states import TRANSITIONS
from millrace.engine.statistics import QueueDay
from millrace.pipeline.audit.chains import audit_jobs, audit_seq
from millrace.pipeline.events import read
from millrace.pipeline.job_states import State
from millrace.pipeline.lake import Lake
from support.oracle import TableOracle
from support.shipped_history import ship_all

#: `make pipeline` uses a million.
EVENTS = int(os.environ.get("PIPELINE_EVENTS", "100000"))
STATES = ("ready", "scheduled", "blocked", "leased", "dead")


class Past(NamedTuple):
    lake: Path
    histories: list[History]
    oracle: TableOracle


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    lake = tmp_path_factory.mktemp("past")
    histories = ship_all(lake, EVENTS)
    return Past(lake, histories, TableOracle(lake))


def since_flush(past: Past, history: History) -> TableOracle:
    """The oracle of the events that the engine of a server knows."""
    found = past.oracle.rows(f"FROM flushes WHERE server = '{history.server}'")
    last = found[0]["ids"][-1] if found else 0
    return TableOracle(past.lake, f"server = '{history.server}' AND event_id > {last}")


def test_the_end_of_a_lease_and_of_a_job_carries_the_totals(past):
    assert past.oracle.wrong_totals() == []


def test_the_history_has_all_types_of_events(past: Past) -> None:
    counted = past.oracle.rows(AUDIT_SEQ)
    assert {row["server"]: row["events"] for row in counted} == {
        history.server: history.events for history in past.histories
    }
    assert all(row["missing"] == row["duplicates"] == 0 for row in counted)
    assert sum(row["events"] for row in counted) >= EVENTS
    types = past.oracle.rows("SELECT DISTINCT type FROM events")
    assert {row["type"] for row in types} == {*TRANSITIONS, "flushed"}
    assert len(past.oracle.rows("SELECT DISTINCT type, before, state FROM events")) > 50


def test_the_events_of_a_job_follow_from_each_other(past: Past) -> None:
    assert past.oracle.rows(AUDIT_JOBS) == []


def test_queue_days_are_the_live_statistics(past: Past) -> None:
    for history in past.histories:
        made = since_flush(past, history).rows(QUERIES["queue_day"])
        mine = {(row["queue"], row["day"]): row for row in made}
        live = history.statistics.days.values()
        assert len(live) > 20
        for day in live:
            assert_equal(mine.pop((day.queue, date_of(day))), day)
        for row in mine.values():  # days of which only pushes are known
            assert row["started"] == row["completed"] == row["failures"] == row["expired"] == 0


def date_of(day: QueueDay) -> date:
    return datetime.fromtimestamp(day.day * DAY / 1_000_000, UTC).date()


def assert_equal(row: dict[str, Any], day: QueueDay) -> None:
    counts = (row["failures"], row["failed"], row["expired"])
    assert counts == (day.failures, day.failed, day.retries)
    for name, spread in (("wait", day.wait), ("run", day.run)):
        assert row[f"{name}_n"] == spread.count
        assert row[f"{name}_mean"] == pytest.approx(spread.mean, rel=1e-9, abs=1e-12)
        assert row[f"{name}_var"] == pytest.approx(spread.variance, rel=1e-9, abs=1e-12)
        assert list(row[f"{name}_hist"]) == [spread.histogram.get(i, 0) for i in range(148)]


def test_jobs_end_where_the_engine_has_them(past: Past) -> None:
    jobs = past.oracle.rows(OPEN_JOBS)
    for history in past.histories:
        mine = {
            row["seq"]: (row["state"], row["queue"])
            for row in jobs
            if row["server"] == history.server
        }
        assert mine == history.jobs
        assert len(mine) > 20


def test_depths_are_the_engines(past: Past) -> None:
    minutes = past.oracle.rows(QUERIES["queue_minute"])
    for history in past.histories:
        depths: Counter[tuple[str, str]] = Counter()
        for row in minutes:
            if row["server"] == history.server:
                for state in STATES:
                    depths[row["queue"], state] += row[state]
        live = Counter(
            (known.queue, known.state) for known in history.jobs.values() if known.state != "done"
        )
        assert +depths == live
        assert -depths == Counter()


def test_the_audit_has_no_findings(past: Past, spark: SparkSession) -> None:
    events = read(spark, past.lake)
    assert audit_jobs(events).collect() == []
    found = [row.asDict(recursive=True) for row in audit_seq(events).collect()]
    assert all(row.pop("gaps") == [] for row in found)
    assert sorted(found, key=by_server) == sorted(past.oracle.rows(AUDIT_SEQ), key=by_server)


@pytest.mark.parametrize("after", [1.9, 1e5])
def test_the_state_at_a_time_matches_the_oracle(
    past: Past, spark: SparkSession, after: float
) -> None:
    """Once soon after the flush, and once at the end."""
    moment = datetime.fromtimestamp(START / 1_000_000, UTC) + timedelta(days=after)
    told = {
        (depth.server, depth.queue): asdict(depth)
        for depth in State(spark, Lake(past.lake), moment).depths()
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
