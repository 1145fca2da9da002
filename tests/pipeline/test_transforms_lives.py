"""Attempts, jobs and workers: what became of each lease and each job, and who was busy when."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from frames import DAY, TEN, at, ev, events, only, rows
from pyspark.sql import SparkSession

from millrace.pipeline.tables import ATTEMPTS, JOBS, WORKER_HOUR
from millrace.pipeline.transforms.attempts import attempts
from millrace.pipeline.transforms.flushes import flushes
from millrace.pipeline.transforms.jobs import jobs
from millrace.pipeline.transforms.workers import worker_hour

HOUR = 3_600_000_000
DAYS = 86_400
MOST = (1 << 63) - 1
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

ERROR = {"error_group": "E", "error_message": "it broke", "fingerprint": "f1"}
OTHER = {"error_group": "F", "error_message": "again", "fingerprint": "f2"}


def history() -> list[dict[str, Any]]:
    """One job each of most that can happen, all of one server but for the last."""
    return [
        # 1: fails, is renewed, and succeeds the next day by another protocol than leased it.
        ev("pushed", 0, tags=["red"]),
        ev("leased", 1, leased_at=1, ready_at=0, wait_us=1_000_000, attempt=1, worker="w1"),
        ev("failed", 3, leased_at=1, run_us=2_000_000, worker="w1", **ERROR),
        ev("due", 10, ready_at=10, leased_at=1),
        ev("leased", 13, leased_at=13, ready_at=10, wait_us=3_000_000, attempt=2, worker="w2"),
        ev("renewed", 14, leased_at=13, worker="w2"),
        ev("renewed", 15, leased_at=13, worker="w2"),
        ev("completed", DAYS, leased_at=13, run_us=5, actor="qless", worker="w2", state="done", queue="q2", priority=3.0),
        # 2: leased twice on a day, released without a word of how long; expired in grace, then taken.
        ev("pushed", 20, seq=2),
        ev("leased", 21, seq=2, leased_at=21, wait_us=0, attempt=1),
        ev("released", 24, seq=2, leased_at=21),
        ev("leased", 25, seq=2, leased_at=25, wait_us=0, attempt=1),
        ev("expired", 26, seq=2, leased_at=25, state="leased", actor=None),
        ev("expired", 27, seq=2, leased_at=25, actor=None, run_us=2_000_000, state="dead", **OTHER),
        ev("purged", 30, seq=2, leased_at=25, actor=None),
        # 3: still running.
        ev("pushed", 30, seq=3),
        ev("leased", 31, seq=3, leased_at=31, wait_us=MOST),
        ev("renewed", 32, seq=3, leased_at=31),
        # 4: of a server that is flushed while it runs; 5 was dead by then, 6 comes after.
        ev("pushed", 0, seq=4, server="b2"),
        ev("leased", 1, seq=4, server="b2", leased_at=1, wait_us=MOST),
        ev("pushed", 0, seq=5, server="b2"),
        ev("killed", 2, seq=5, server="b2"),
        ev("flushed", 9, server="b2"),
        ev("pushed", 10, seq=6, server="b2"),
        ev("advanced", 11, seq=6, server="b2", leased_at=10.5, run_us=1, before="leased", attempt=1),
        ev("moved", 12, seq=6, server="b2", before="done", state="ready", leased_at=10.5, queue="q3", source="q"),
        # 7: its client's clock is odd, and it waited for longer than there is, twice.
        ev("pushed", LONG_AGO, seq=7, server="b2", created=LONG_AGO),
        ev("leased", 5, seq=7, server="b2", leased_at=5, wait_us=MOST, created=LONG_AGO),
        ev("released", LONG_AGO, seq=7, server="b2", leased_at=5, created=LONG_AGO),
        ev("leased", LONG_AGO, seq=7, server="b2", leased_at=LONG_AGO, wait_us=MOST, created=LONG_AGO),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def leases(spark: SparkSession) -> dict[tuple[str, int, int], dict[str, Any]]:
    frame = events(spark, *history())
    found = rows(attempts(frame, flushes(frame)), ATTEMPTS)
    return {(row["server"], row["seq"], row["lease_event"]): row for row in found}


@pytest.fixture(scope="module")
def lives(spark: SparkSession) -> dict[int, dict[str, Any]]:
    frame = events(spark, *history()).repartition(3)
    return {row["seq"]: row for row in rows(jobs(frame, flushes(frame)), JOBS)}


def told(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_there_is_one_attempt_for_each_lease(leases):
    wanted = {(row["server"], row["seq"]) for row in history() if row["type"] == "leased"}
    assert {key[:2] for key in leases} == wanted
    assert len(leases) == sum(row["type"] == "leased" for row in history())


ENDS = ("outcome", "state", "ended_at", "run_us", "renewals", "ended_by", "end_event")


@pytest.mark.parametrize(
    ("lease", "wanted"),
    [
        (("a1", 1, 2), ("failed", "scheduled", at(3), 2_000_000, 0, "faktory", 3)),
        (("a1", 1, 5), ("completed", "done", at(DAYS), 5, 2, "qless", 8)),
        (("a1", 2, 10), ("released", "ready", at(24), 3_000_000, 0, "faktory", 11)),
        (("a1", 2, 12), ("expired", "dead", at(27), 2_000_000, 0, None, 14)),
        (("a1", 3, 17), ("running", "leased", None, None, 1, None, None)),
        (("b2", 4, 2), ("flushed", "gone", at(9), None, 0, None, None)),
        (("b2", 7, 10), ("released", "ready", LONG_AGO, 0, 0, "faktory", 11)),
    ],
)
def test_an_attempt_tells_how_it_ended(leases, lease, wanted):
    assert told(leases[lease], *ENDS) == wanted


def test_an_attempt_tells_how_it_began(leases):
    row = leases["a1", 1, 5]
    names = ("jid", "queue", "worker", "attempt", "protocol", "ready_at", "leased_at", "wait_us")
    wanted = ("job-1", "q", "w2", 2, "faktory", at(10), at(13), 3_000_000)
    assert told(row, *names) == wanted
    assert row["day"] == DAY


def test_an_attempt_has_the_error_that_ended_it(leases):
    assert told(leases["a1", 1, 2], *ERROR) == tuple(ERROR.values())
    assert told(leases["a1", 2, 12], *OTHER) == tuple(OTHER.values())
    assert told(leases["a1", 1, 5], *ERROR) == (None, None, None)


LIFE = ("state", "outcome", "ended_at", "leases", "failures", "expirations", "wait_us", "run_us")


@pytest.mark.parametrize(
    ("seq", "wanted"),
    [
        (1, ("done", "completed", at(DAYS), 2, 1, 0, 4_000_000, 2_000_005)),
        (2, ("gone", "expired", at(27), 2, 1, 2, 0, 2_000_000)),
        (3, ("leased", None, None, 1, 0, 0, MOST, 0)),
        (4, ("gone", "flushed", at(9), 1, 0, 0, MOST, 0)),
        (5, ("gone", "killed", at(2), 0, 0, 0, 0, 0)),
        (6, ("ready", None, None, 0, 0, 0, 0, 1)),
        (7, ("leased", None, None, 2, 0, 0, MOST, 0)),
    ],
)
def test_a_job_tells_its_life(lives, seq, wanted):
    assert told(lives[seq], *LIFE) == wanted


def test_a_job_has_what_it_was_first_and_what_it_was_last(lives):
    row = lives[1]
    assert told(row, "first_queue", "queue", "priority", "protocol", "worker", "tags") == (
        "q", "q2", 3.0, "qless", "w2", None,
    )  # fmt: skip
    assert told(row, "first_ready_at", "first_leased_at", "created") == (at(0), at(1), TEN)
    assert told(row, "events", "first_event", "last_event", "whole") == (8, 1, 8, True)
    assert told(row, *ERROR) == tuple(ERROR.values())
    assert told(lives[6], "moves", "first_queue", "queue") == (1, "q", "q3")
    assert lives[7]["day"] == date(1970, 1, 1)


def test_a_job_whose_push_is_not_in_the_lake_is_not_whole(spark: SparkSession) -> None:
    frame = events(spark, ev("leased", 1, leased_at=1, wait_us=0), ev("completed", 2, leased_at=1))
    assert not only(rows(jobs(frame, flushes(frame)), JOBS))["whole"]


def held(worker: str | None, start: float, end: float | None, outcome: str = "completed") -> tuple:
    ended = None if end is None else at(end)
    return ("a1", worker, "qless", at(start), ended, outcome)


def test_workers_are_busy_in_the_hours_that_they_held_a_job(spark: SparkSession) -> None:
    month = 31 * DAYS
    leased = [
        held("w", 1800, 3600 + 900),  # from half past ten to a quarter past eleven
        held("w", 0, 3600, "failed"),  # until eleven: it ends in the next hour
        held("w", 60, None, "running"),
        held(None, 10, 11, "expired"),
        held("back", 7200, 30),  # before it began
        held("long", 0, month),
        held("odd", 0, month + 1),
    ]
    ddl = "server STRING, worker STRING, protocol STRING, leased_at TIMESTAMP, ended_at TIMESTAMP, outcome STRING"
    found = rows(worker_hour(spark.createDataFrame(leased, ddl)), WORKER_HOUR)
    by = {(row["worker"], row["hour"]): row for row in found if row["worker"] != "long"}
    names = ("busy_us", "attempts", "completed", "failures")
    assert {key: told(row, *names) for key, row in by.items()} == {
        ("w", at(0)): (HOUR // 2 + HOUR, 0, 0, 0),
        ("w", at(3600)): (HOUR // 4, 2, 1, 1),
        ("", at(0)): (1_000_000, 1, 0, 1),
        ("back", at(0)): (0, 1, 1, 0),
        ("odd", at(month)): (0, 1, 1, 0),
    }
    assert by["w", at(0)]["utilisation"] == 1.5
    month_long = [row for row in found if row["worker"] == "long"]
    assert sum(row["busy_us"] for row in month_long) == month * 1_000_000
    assert {row["day"] for row in month_long} == {DAY + timedelta(days=n) for n in range(32)}
