"""How deep queues are, by day and by minute; what a FLUSH does to it."""

from datetime import timedelta

import pytest
from frames import DAY, at, ev, events, no_flushes, rows
from pyspark.sql import SparkSession

from millrace.pipeline.tables import DEPTH_DAY, THROUGHPUT_MINUTE
from millrace.pipeline.transforms.depths import depth_day, opening, throughput_minute
from millrace.pipeline.transforms.flushes import flushes, with_epoch

STATES = ("ready", "scheduled", "blocked", "leased", "dead")
TOMORROW = DAY + timedelta(days=1)
NEXT = 86_400


def two_days() -> list[dict]:
    return [
        ev("pushed", 0),
        ev("pushed", 1, seq=2, state="scheduled"),
        ev("pushed", 2, seq=3, state="blocked"),
        ev("leased", 61),
        ev("renewed", 62),
        ev("moved", 63, before="leased", queue="other", source="q"),
        ev("due", 64, seq=2),
        ev("killed", 65, seq=2),
        ev("completed", NEXT, before="ready", queue="other"),
        ev("unblocked", NEXT + 1, seq=3),
    ]


def a_flush() -> list[dict]:
    """In the middle of a minute, and of another server nothing."""
    return [
        ev("pushed", 0),
        ev("pushed", 70, seq=2),
        ev("flushed", 71),
        ev("pushed", 72, seq=3, queue="new"),
        ev("pushed", 150, seq=4),
        ev("pushed", 0, server="b2"),
        ev("pushed", 80, seq=2, server="b2"),
    ]


def told(found, *names):
    return [tuple(row[name] for name in names) for row in found]


def test_a_day_changes_depths_in_the_queue_and_where_the_job_came_from(spark: SparkSession) -> None:
    found = rows(depth_day(events(spark, *two_days()), no_flushes(spark)), DEPTH_DAY)
    assert told(found, "day", "queue", "epoch", *STATES) == [
        (DAY, "other", 0, 1, 0, 0, 0, 0),
        (DAY, "q", 0, 0, 0, 1, 0, 1),
        (TOMORROW, "other", 0, -1, 0, 0, 0, 0),
        (TOMORROW, "q", 0, 1, 0, -1, 0, 0),
    ]


def test_minutes_tell_what_happened_and_how_it_stood_at_their_end(spark: SparkSession) -> None:
    frame = events(spark, *two_days())
    before = opening(depth_day(frame.filter(f"day < '{TOMORROW}'"), no_flushes(spark)))
    later = throughput_minute(frame.filter(f"day >= '{TOMORROW}'"), before, no_flushes(spark))
    at_once = throughput_minute(
        frame, opening(depth_day(frame.limit(0), no_flushes(spark))), no_flushes(spark)
    )
    counts = ("pushed", "started", "completed", "failures", "died")
    found = rows(at_once, THROUGHPUT_MINUTE)
    assert told(found, "queue", "minute", *counts, "backlog", *STATES) == [
        ("other", at(60), 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0),
        ("q", at(0), 3, 0, 0, 0, 0, 3, 1, 1, 1, 0, 0),
        ("q", at(60), 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1),
        ("other", at(NEXT), 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
        ("q", at(NEXT), 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1),
    ]
    assert rows(later, THROUGHPUT_MINUTE) == [row for row in found if row["day"] == TOMORROW]


def test_after_a_flush_depths_begin_at_0(spark: SparkSession) -> None:
    frame = events(spark, *a_flush())
    ended = flushes(frame)
    days = depth_day(frame, ended)
    assert told(rows(days, DEPTH_DAY), "server", "queue", "epoch", "ready") == [
        ("a1", "new", 1, 1),
        ("a1", "q", 0, 2),
        ("a1", "q", 1, 1),
        ("b2", "q", 0, 2),
    ]
    minutes = throughput_minute(frame, opening(days.limit(0)), ended)
    names = ("server", "queue", "minute", "pushed", "ready")
    assert told(rows(minutes, THROUGHPUT_MINUTE), *names) == [
        ("a1", "new", at(60), 1, 1),
        ("a1", "q", at(0), 1, 1),
        ("a1", "q", at(60), 1, 0),
        ("a1", "q", at(120), 1, 1),
        ("b2", "q", at(0), 1, 1),
        ("b2", "q", at(60), 1, 2),
    ]


@pytest.mark.parametrize("with_any", [False, True])
def test_epochs_go_by_the_number_of_an_event(spark: SparkSession, with_any) -> None:
    frame = events(
        spark,
        ev("pushed", 100),
        ev("flushed", 50),
        ev("pushed", 10),
        ev("flushed", 200),
        ev("pushed", 0),
        ev("pushed", 0, server="b2"),
    )
    ended = flushes(frame) if with_any else no_flushes(spark)
    found = with_epoch(frame, ended).orderBy("server", "event_id").toArrow().to_pylist()
    if not with_any:
        assert {(row["epoch"], row["flush_event"]) for row in found} == {(0, None)}
        return
    assert told(found, "epoch", "flush_event", "flushed_at") == [
        (0, 2, at(50)),
        (0, 2, at(50)),
        (1, 4, at(200)),
        (1, 4, at(200)),
        (2, None, None),
        (0, None, None),
    ]
