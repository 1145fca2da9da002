"""Statistics per queue and day, compared with numbers computed here."""

import math
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from qless_conversation import Qless, QlessClient, job_fields

DAY = 86_400


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


def slot(seconds: float) -> int | None:
    """60 seconds, 59 minutes, 23 hours, 6 days."""
    if seconds < 60:
        return math.floor(seconds)
    if seconds < 3600:
        return 59 + math.floor(seconds / 60)
    if seconds < DAY:
        return 118 + math.floor(seconds / 3600)
    return 141 + math.floor(seconds / DAY) if seconds < 7 * DAY else None


def expected(spans: list[float]) -> dict[str, Any]:
    histogram = [0] * 148
    for span in spans:
        where = slot(span)
        if where is not None:
            histogram[where] += 1
    variance = statistics.variance(spans) if len(spans) > 1 else 0
    return {
        "count": len(spans),
        "total": len(spans),
        "mean": pytest.approx(statistics.fmean(spans) if spans else 0),
        "variance": pytest.approx(variance),
        "std": pytest.approx(math.sqrt(variance)),
        "histogram": histogram,
    }


def test_empty_statistics(c: QlessClient) -> None:
    empty = expected([])
    assert c.json("stats", 1, "unknown", 1) == {
        "run": empty,
        "wait": empty,
        "failed": 0,
        "failures": 0,
        "retries": 0,
    }


def test_wait_and_run(c: QlessClient) -> None:
    start = 100 * DAY
    waits = [0, 0.5, 1.25, 59, 60, 61.5, 3599, 3600, 7200, 20_000]
    runs = [3, 0, 59.75, 120, 3000, 3700, 10, 11, 12, 2]
    for number, (wait, run) in enumerate(zip(waits, runs, strict=True)):
        c.put(start, f"j{number}", queue=f"put{number}")
        c.json("pop", start, f"put{number}", "w1", 1)
        now = start + 1
        c("complete", now, f"j{number}", "w1", f"put{number}", "{}", "next", "q")
        popped = now + wait
        assert c.pop(popped) == [f"j{number}"]
        c("complete", popped + run, f"j{number}", "w1", "q", "{}")
    stats = c.json("stats", start, "q", start + 5000)
    assert stats["wait"] == expected(waits)
    assert stats["run"] == expected(runs)


def test_spans_of_days(c: QlessClient) -> None:
    spans = [DAY - 1, DAY, 2 * DAY, 6 * DAY + 100, 7 * DAY, 30 * DAY]
    at = 50 * DAY
    for number, span in enumerate(spans):
        c.put(at - span, f"j{number}")
        assert c.pop(at) == [f"j{number}"]
    assert c.json("stats", at, "q", at)["wait"] == expected([float(span) for span in spans])


def test_a_wait_starts_with_the_put_even_for_a_delayed_job(c: QlessClient) -> None:
    c.put(100, "a", delay=50)
    c.put(110, "b")
    c.put(120, "c", "depends", '["b"]')
    assert c.pop(160, 5) == ["b", "a"]
    c("complete", 170, "b", "w1", "q", "{}")
    assert c.pop(180) == ["c"]
    assert c.json("stats", 200, "q", 200)["wait"] == expected([50, 60, 60])


def test_after_a_pop_waits_start_at_the_pop(c: QlessClient) -> None:
    c.put(100, "a")
    c.pop(110)
    c("retry", 120, "a", "q", "w1")
    c.pop(140)
    c("fail", 150, "a", "w1", "group", "message")
    c("unfail", 160, "q", "group")
    c.pop(200)
    assert c.json("stats", 300, "q", 200)["wait"] == expected([10, 30, 60])


def test_durations_count_on_the_day_of_their_end(c: QlessClient) -> None:
    c.put(DAY - 5, "a")
    c.pop(DAY + 5)
    c("complete", 2 * DAY + 5, "a", "w1", "q", "{}")
    days = [c.json("stats", 3 * DAY, "q", day * DAY + 7) for day in range(4)]
    assert [day["wait"]["count"] for day in days] == [0, 1, 0, 0]
    assert [day["run"]["count"] for day in days] == [0, 0, 1, 0]


def test_failures_failed_and_retries(c: QlessClient) -> None:
    for number, jid in enumerate("abcd"):
        c.put(number, jid, "retries", 0)
    c.pop(10, 4)
    for jid in "abc":
        c("fail", 20, jid, "w1", "group", "message")
    c("retry", 21, "d", "q", "w1")
    stats = c.json("stats", 30, "q", 30)
    assert job_fields(stats, "failures", "failed", "retries") == (4, 4, 0)
    c.put(40, "a", queue="elsewhere")
    c("cancel", 40, "b")
    c("unfail", 40, "elsewhere", "group")
    stats = c.json("stats", 50, "q", 50)
    assert job_fields(stats, "failures", "failed") == (4, 1)
    elsewhere = c.json("stats", 50, "elsewhere", 50)
    assert job_fields(elsewhere, "failures", "failed") == (0, 0)


def test_retries_are_locks_that_ran_out(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("retry", 3, "a", "q", "w1")
    c.pop(4)
    c.pop(100, worker="w2")
    assert c.json("stats", 101, "q", 101)["retries"] == 1
    c.pop(111, worker="w2")
    c.pop(200, worker="w3")
    assert c.json("stats", 201, "q", 201)["retries"] == 2


def test_old_days_are_forgotten(c: QlessClient) -> None:
    c.put(0, "a")
    c.pop(5)
    full = c.json("stats", DAY, "q", 0)["wait"]
    assert full == expected([5.0])
    assert c.json("stats", 7 * DAY - 1, "q", 0)["wait"] == full
    flat = c.json("stats", 7 * DAY, "q", 0)["wait"]
    assert flat == {**full, "histogram": [0] * 148}
    assert c.json("stats", 30 * DAY - 1, "q", 0)["wait"] == flat
    assert c.json("stats", 30 * DAY, "q", 0)["wait"] == expected([])


def test_days_are_kept_as_configured(c: QlessClient) -> None:
    c("config.set", 0, "stats-history", 2)
    c("config.set", 0, "histogram-history", 1)
    c.put(0, "a")
    c.pop(5)
    assert c.json("stats", DAY - 1, "q", 0)["wait"] == expected([5.0])
    assert c.json("stats", DAY, "q", 0)["wait"]["histogram"] == [0] * 148
    assert c.json("stats", DAY, "q", 0)["wait"]["count"] == 1
    assert c.json("stats", 2 * DAY, "q", 0)["wait"]["count"] == 0


def test_stats_refuses_invalid_requests(c: QlessClient) -> None:
    assert c.refused("stats", 1) == "Queue(): no queue name provided"
    words = 'Stats(): Arg "date" missing or not a number: '
    assert c.refused("stats", 1, "q") == words + "nil"
    assert c.refused("stats", 1, "q", "x") == words + "x"
