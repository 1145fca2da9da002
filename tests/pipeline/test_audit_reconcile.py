"""The server's own state compared with its events."""

from datetime import timedelta
from typing import Any

import chains
import pytest
from chains import SERVER, START, events

from millrace.engine.statistics import QueueDay, Statistics
from millrace.journal.snapshot import days_table, queues_table
from millrace.pipeline.audit import reconcile
from millrace.pipeline.audit.results import Difference
from millrace.pipeline.audit.server import queue_days
from millrace.pipeline.tables import AUDIT_JOBS

TODAY = int(START.timestamp()) // 86_400
JOB = "seq BIGINT, jid STRING, queue STRING, state STRING"


def test_jobs(spark):
    reported = spark.createDataFrame(
        [
            (1, "one", "mail", "ready", 11),
            (2, "two", "mail", "leased", 12),
            (3, "three", "mail", "done", 13),
            (4, "four", "mail", "dead", 14),
        ],
        f"{JOB}, event_id BIGINT",
    )
    live = spark.createDataFrame(
        [
            (1, "one", "mail", "ready"),
            (2, "two", "mail", "ready"),
            (3, "three", "other", "done"),
            (5, "five", "mail", "blocked"),
        ],
        JOB,
    )
    found = reconcile.jobs(SERVER, reported, live, complete=True)
    assert found.columns == AUDIT_JOBS.columns
    assert sorted(map(tuple, found.collect())) == [
        (SERVER, 2, "two", "differs", 12, "its last event left it leased in mail, but the server has it ready in mail"),
        (SERVER, 3, "three", "differs", 13, "its last event left it done in mail, but the server has it done in other"),
        (SERVER, 4, "four", "lost", 14, "its last event left it dead in mail, and the server does not have it"),
        (SERVER, 5, "five", "unknown", 0, "the server has it blocked in mail, and no event mentions it"),
    ]  # fmt: skip
    partly = reconcile.jobs(SERVER, reported, live, complete=False)
    assert 5 not in {row.seq for row in partly.collect()}


def differences(frame: Any) -> set[tuple[Any, ...]]:
    assert frame.columns == list(Difference.__struct_fields__)
    return {tuple(row) for row in frame.collect()}


def test_depths_are_compared_at_their_own_event(spark):
    rows = [
        *events("1 pushed new>ready", "2 pushed new>scheduled", "1 leased ready>leased"),
        chains.event(4, "2 moved scheduled>ready", queue="other", source="mail"),
        *events("1 completed leased>done", "3 pushed new>ready", first=5),
        *events("4 pushed new>dead", first=7, queue="unnamed"),
    ]
    frame = chains.frame(spark, rows)
    right = [
        queues_table([("mail", [0, 0, 0, 0, 1, 0])], 5),  # before the last push
        queues_table([("other", [0, 0, 0, 0, 0, 0]), ("gone", [0] * 6)], 3),  # before the move
    ]
    live = spark.createDataFrame(right[0]).unionByName(spark.createDataFrame(right[1]))
    assert differences(reconcile.depths(frame, live, 6)) == set()
    wrong = spark.createDataFrame(queues_table([("mail", [1, 0, 1, 0, 1, 0])], 7))
    assert differences(reconcile.depths(frame, wrong, 7)) == {
        ("scheduled", "mail", None, "1", "0"),
        ("ready", "other", None, "0", "1"),
        ("dead", "unnamed", None, "0", "1"),
    }


@pytest.fixture(scope="module")
def spans() -> list[dict[str, Any]]:
    """Two leases and a completion today, one of each tomorrow."""
    lines = ["1 leased ready>leased", "2 leased ready>leased", "1 completed leased>done"]
    waits, runs = (2_500_000, 90_000_000, None), (None, None, 700_000)
    today = [
        chains.event(number, line, wait_us=wait, run_us=run, time=START)
        for number, (line, wait, run) in enumerate(zip(lines, waits, runs, strict=True), 1)
    ]
    later = START + timedelta(days=1)
    tomorrow = [
        chains.event(4, "2 expired leased>ready", time=later),
        chains.event(5, "2 leased ready>leased", wait_us=7_000_000, time=later),
    ]
    return [*today, *tomorrow]


def live_days(rows: list[dict[str, Any]]) -> dict[int, QueueDay]:
    """As the engine adds the same up."""
    statistics = Statistics()
    for row in rows:
        states = {"leased": 3, "ready": 2, "done": 4}
        time = int(row["time"].timestamp() * 1_000_000)
        made = (time, row["type"], row["seq"], "", row["queue"], "", 0, 0, "", 0)
        spent = (row["wait_us"] or 0, row["run_us"] or 0)
        statistics.add_events([(*made, states[row["state"]], 0, 0, 0, *spent)])
    return {day: found for (_, day), found in statistics.days.items()}


def test_statistics_are_compared_at_their_own_event(spark, spans):
    days = live_days(spans[:4])
    today, tomorrow = days_table([days[TODAY]], 3), days_table([days[TODAY + 1]], 4)
    live = spark.createDataFrame(today).unionByName(spark.createDataFrame(tomorrow))
    frame = chains.frame(spark, spans).selectExpr("*", "to_date(time) AS day").cache()
    counted = queue_days(reconcile.counted_by(frame, live, 3))
    assert differences(reconcile.statistics(counted, live, TODAY)) == set()
    everything, some = queue_days(frame), live.where(f"day > {TODAY}")
    assert differences(reconcile.statistics(everything, some, TODAY)) == {
        ("wait_n", "mail", TODAY + 1, "0", "1"),
        ("wait_hist", "mail", TODAY + 1, "7: 0", "7: 1"),
        ("wait_mean", "mail", TODAY + 1, "0.0", "7.0"),
        # The server reported no values for today.
        ("wait_n", "mail", TODAY, "0", "2"),
        ("wait_hist", "mail", TODAY, "2: 0, 60: 0", "2: 1, 60: 1"),
        ("wait_mean", "mail", TODAY, "0.0", "46.25"),
        ("wait_var", "mail", TODAY, "0.0", "3828.125"),
        ("run_n", "mail", TODAY, "0", "1"),
        ("run_hist", "mail", TODAY, "0: 0", "0: 1"),
        ("run_mean", "mail", TODAY, "0.0", "0.7"),
    }


def test_a_rounding_difference_is_ignored(spark, spans):
    day = live_days(spans)[TODAY]
    nearly = live_days(spans)[TODAY]
    nearly.wait.mean *= 1 + 1e-12
    nearly.wait.vk *= 1 - 1e-12
    counted = spark.createDataFrame(days_table([day], 5)).selectExpr(
        "*", "date_add(DATE'1970-01-01', CAST(day AS INT)) AS reported"
    )
    counted = counted.drop("day", "event").withColumnRenamed("reported", "day")

    def against(other: QueueDay) -> set[str]:
        live = spark.createDataFrame(days_table([other], 5))
        return {row[0] for row in differences(reconcile.statistics(counted, live, 0))}

    assert against(nearly) == set()
    nearly.wait.mean *= 1 + 1e-8
    nearly.wait.vk *= 1 - 1e-8
    assert against(nearly) == {"wait_mean", "wait_var"}
