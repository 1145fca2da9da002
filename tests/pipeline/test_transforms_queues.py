"""Latencies and queue statistics: to the event, those that the server keeps live."""

from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pytest
from frames import DAY, at, ev, events, rows
from pyspark.sql import DataFrame, SparkSession

from millrace.engine.states import STATE_NAMES
from millrace.engine.stats import SLOTS, Statistics
from millrace.pipeline.tables import LATENCY_HIST, QUEUE_DAY
from millrace.pipeline.transforms.latency import latency_hist
from millrace.pipeline.transforms.queues import queue_day

SECOND = 1_000_000
MINUTE, HOUR, WEEK = 60 * SECOND, 3600 * SECOND, 7 * 86_400 * SECOND
#: On both sides of every kind of border between slots, of no length, and of clocks gone wrong.
EDGES = [
    0, 1, SECOND - 1, SECOND, 59 * SECOND, MINUTE - 1, MINUTE, 2 * MINUTE - 1, HOUR - 1, HOUR,
    24 * HOUR - 1, 24 * HOUR, WEEK - 1, WEEK, 50 * 365 * 24 * HOUR, 9000 * 365 * 24 * HOUR,
    (1 << 63) - 1,
]  # fmt: skip


def spans_of(queue: str, spans: list[int]) -> list[dict[str, Any]]:
    waits = [ev("leased", n % 7, queue=queue, seq=n, wait_us=us) for n, us in enumerate(spans)]
    runs = [
        ev(("completed", "advanced")[n % 2], n, queue=queue, seq=n, run_us=us, kind=f"k{n % 3}")
        for n, us in enumerate(spans[::2])
    ]
    return [*waits, *runs]


def a_day() -> list[dict[str, Any]]:
    """Of several queues, each with something of its own."""
    random = Random(7)
    usual = [int(10 ** random.uniform(0, 11)) for _ in range(300)]
    # Long, and all but the same: where sums of squares of floating numbers would fail.
    alike = [30_000 * HOUR + n % 3 for n in range(50)]
    return [
        *spans_of("usual", usual),
        *spans_of("edges", EDGES),
        *spans_of("alike", alike),
        *spans_of("one", [5]),
        *spans_of("forever", [(1 << 63) - 1] * 40),
        ev("pushed", queue="pushed only"),
        ev("pushed", queue="usual", state="scheduled"),
        ev("failed", queue="fails"),
        ev("failed", queue="fails", state="dead"),
        ev("failed", queue="fails", state="gone"),
        ev("expired", queue="fails"),
        ev("expired", queue="fails", state="leased"),
        ev("expired", queue="fails", state="dead"),
        ev("doomed", queue="fails"),
        ev("killed", queue="fails"),
        ev("leased", datetime(1970, 1, 1, tzinfo=UTC), queue="fails", wait_us=0),
        ev("renewed", queue="quiet"),
        ev("flushed"),
    ]


def live(told: list[dict[str, Any]]) -> Statistics:
    """What the server would keep of them."""
    statistics = Statistics()
    statistics.fold(
        (
            int((row["time"] - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)),
            row["type"], 0, "", row["queue"], "", 0, 0, "", 0, STATE_NAMES.index(row["state"]),
            0, 0, 0, row.get("wait_us", 0), row.get("run_us", 0),
        )
        for row in told
        if row["type"] != "flushed"
    )  # fmt: skip
    return statistics


def made(frame: DataFrame) -> list[dict[str, Any]]:
    return rows(queue_day(frame, latency_hist(frame)), QUEUE_DAY)


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> list[dict[str, Any]]:
    return made(events(spark, *a_day()))


def test_queue_days_are_the_live_statistics(table):
    found = {(row["queue"], row["day"]): row for row in table}
    wanted = live(a_day()).days.values()
    assert len(wanted) == 7
    for day in wanted:
        row = found.pop((day.queue, date(1970, 1, 1) + timedelta(days=day.day)))
        assert (row["failures"], row["failed"], row["retries"]) == (
            day.failures,
            day.failed,
            day.retries,
        )
        for name, spread in (("wait", day.wait), ("run", day.run)):
            assert row[f"{name}_n"] == spread.count
            assert row[f"{name}_mean"] == pytest.approx(spread.mean, rel=1e-12)
            tolerance = 1e-3 if day.queue == "alike" else 1e-9  # of the live one: it adds floats
            assert row[f"{name}_var"] == pytest.approx(spread.variance, rel=tolerance, abs=1e-12)
            assert row[f"{name}_hist"] == [spread.histogram.get(n, 0) for n in range(SLOTS)]
    assert [queue for queue, _ in found] == ["pushed only"]


def test_jobs_that_died_include_those_that_were_discarded(table):
    (row,) = (row for row in table if row["queue"] == "fails" and row["day"].year > 1970)
    assert (row["failed"], row["died"], row["failures"]) == (3, 4, 5)


def test_spans_that_hardly_differ_vary_by_what_they_do(table):
    (row,) = (row for row in table if row["queue"] == "alike")
    values = [n % 3 for n in range(50)]
    mean = sum(values) / 50
    variance = sum((value - mean) ** 2 for value in values) / 49
    assert row["wait_var"] == pytest.approx(variance * 1e-12, rel=1e-12)


def test_a_queue_without_spans_has_none(table):
    (row,) = (row for row in table if row["queue"] == "pushed only")
    assert row["pushed"] == 1
    assert row["wait_n"] == row["wait_mean"] == row["wait_var"] == row["leased"] == 0
    assert row["wait_hist"] == [0] * SLOTS
    assert row["wait_p50_us"] is row["run_p99_us"] is None


def test_percentiles_are_within_one_percent(table):
    (row,) = (row for row in table if row["queue"] == "usual")
    waits = sorted(e["wait_us"] for e in a_day() if e["queue"] == "usual" and "wait_us" in e)
    for percent, rank in ((50, 150), (90, 270), (95, 285), (99, 297)):
        assert row[f"wait_p{percent}_us"] == pytest.approx(waits[rank - 1], rel=0.01)


def test_neither_order_nor_division_changes_a_digit(spark: SparkSession, table) -> None:
    shuffled = [row | {"event_id": n} for n, row in enumerate(a_day())]
    Random(1).shuffle(shuffled)
    assert made(events(spark, *shuffled).repartition(5)) == table


def test_latencies_by_kind_and_bucket(spark: SparkSession) -> None:
    frame = events(
        spark,
        ev("leased", kind="a", wait_us=1_000_000),
        ev("leased", kind="a", wait_us=1_005_000),
        ev("leased", kind="b", wait_us=0),
        ev("completed", kind="b", run_us=3),
        ev("advanced", kind="b", run_us=3),
        ev("failed", kind="b", run_us=3),
    )
    names = ("kind", "metric", "bucket", "n", "sum_us", "sumsq", "min_us", "max_us", "day")
    found = rows(latency_hist(frame), LATENCY_HIST, *names)
    assert [tuple(row.values()) for row in found] == [
        ("a", "wait", 697, 2, 2_005_000.0, 1e12 + 1_005_000.0**2, 1_000_000, 1_005_000, DAY),
        ("b", "run", 55, 2, 6.0, 18.0, 3, 3, DAY),
        ("b", "wait", 0, 1, 0.0, 0.0, 0, 0, DAY),
    ]
    assert at(0).date() == DAY
