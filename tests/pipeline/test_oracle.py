"""The oracle against the engine: what DuckDB makes of the landing files is what the server itself
knows of its queues, days and jobs. Then the pipeline against the oracle.
"""

import os
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_history import DAY, History, land
from oracle import Oracle

from millrace.engine.states import TRANSITIONS
from millrace.engine.stats import QueueDay

#: `MILLRACE_ORACLE_EVENTS=10000000` is the long form.
EVENTS = int(os.environ.get("MILLRACE_ORACLE_EVENTS", "1000000"))
STATES = ("ready", "scheduled", "blocked", "leased", "dead")


class Past(NamedTuple):
    lake: Path
    histories: list[History]
    oracle: Oracle


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    lake = tmp_path_factory.mktemp("past")
    histories = land(lake, EVENTS)
    return Past(lake, histories, Oracle(files(lake)))


def files(lake: Path) -> str:
    return f"{lake}/landing/ev-*.parquet"


def since_flush(past: Past, history: History) -> Oracle:
    """What of a server's events its engine knows."""
    found = past.oracle.rows(f"FROM flushes WHERE server = '{history.server}'")
    last = found[0]["ids"][-1] if found else 0
    return Oracle(files(past.lake), f"server = '{history.server}' AND event_id > {last}")


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
