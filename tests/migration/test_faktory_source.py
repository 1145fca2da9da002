"""Faktory's Redis, filled in the layout that Faktory documents, becomes the same set of jobs."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from import_source import read, run_import

from admin_room import Room
from millrace.engine.states import DEAD, READY, SCHEDULED
from millrace.migration.faktory import FaktorySource
from millrace.migration.redis import RedisReader, open_redis
from millrace.migration.source import SourceError
from millrace.protocols.faktory import work_unit
from millrace.protocols.registry import FAKTORY

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
MICROS = round(NOW.timestamp() * 1_000_000)


def stamp(delta: float) -> str:
    return (NOW + timedelta(seconds=delta)).isoformat().replace("+00:00", "Z")


def unit(jid: str, queue: str = "default", **more: Any) -> dict[str, Any]:
    base = {"jid": jid, "queue": queue, "jobtype": "SendEmail", "args": [jid, 1.50], "retry": 25}
    return base | {"created_at": stamp(-3600), "enqueued_at": stamp(-60)} | more


def fill(real: redis.Redis) -> None:
    """As the storage of Faktory 1.9 writes it."""
    real.sadd("queues", "default", "mail", "empty")
    real.sadd("paused", "mail")
    for number in range(3):
        real.lpush("default", json.dumps(unit(f"ready-{number:04}")))
    real.lpush(
        "mail", json.dumps(unit("mail-0001", "mail", custom={"locale": "fr"}, reserve_for=120))
    )
    reservation = {
        "job": unit("working-1"),
        "reserved_at": stamp(-10),
        "expires_at": stamp(1790),
        "wid": "w1",
    }
    real.zadd("working", {json.dumps(reservation): NOW.timestamp() + 1790})
    real.zadd(
        "scheduled",
        {json.dumps(unit("later-001", at=stamp(500.25))): NOW.timestamp() + 500.25},
    )
    failure = {
        "retry_count": 1,
        "failed_at": stamp(-50),
        "next_at": stamp(40),
        "message": "no route",
        "errtype": "TimeoutError",
        "backtrace": ["a.rb:1"],
        "remaining": 23,
    }
    real.zadd("retries", {json.dumps(unit("retry-001", failure=failure)): NOW.timestamp() + 40})
    dead = failure | {"retry_count": 25, "remaining": 0}
    real.zadd("dead", {json.dumps(unit("dead-0001", failure=dead)): NOW.timestamp() + 1e7})
    real.set("processed", 1200)
    real.set("failures", 70)
    real.set("processed:2026-10-31", 100)
    real.set("failures:2026-10-31", 9)
    real.set("processed:2026-10-30", 50)


@pytest.fixture
def source(real: redis.Redis, url: str) -> FaktorySource:
    fill(real)
    return FaktorySource(RedisReader(url), MICROS)


def content(real: redis.Redis) -> dict[bytes, Any]:
    return {key: real.dump(key) for key in real.scan_iter()}


def test_every_part_is_read(real: redis.Redis, source: FaktorySource) -> None:
    before = content(real)
    items, skipped = read(source)
    assert [(each.part, each.job.jid) for each in items] == [
        ("reservations", "working-1"),
        ("queues", "ready-0000"),
        ("queues", "ready-0001"),
        ("queues", "ready-0002"),
        ("queues", "mail-0001"),
        ("scheduled", "later-001"),
        ("retries", "retry-001"),
        ("dead", "dead-0001"),
    ]
    assert (skipped, source.notes()) == ([], [])
    assert source.count() == len(items)
    assert content(real) == before


def test_jobs_are_imported_unchanged(source: FaktorySource) -> None:
    room = Room()
    room.now = room.engine.last_known_time = MICROS
    assert run_import(room, source) == []
    jobs = {jid: room.engine.find(jid) for jid in list(room.engine.by_jid)}
    assert {jid: job.state for jid, job in jobs.items()} == {
        "working-1": READY,
        "ready-0000": READY,
        "ready-0001": READY,
        "ready-0002": READY,
        "mail-0001": READY,
        "later-001": SCHEDULED,
        "retry-001": SCHEDULED,
        "dead-0001": DEAD,
    }
    order = [room.engine.lease(["default"], "w", FAKTORY, room.now) for _ in range(4)]
    assert [job.jid for job in order] == ["working-1", "ready-0000", "ready-0001", "ready-0002"]
    payload = room.engine.payload
    sent = json.loads(work_unit.write(jobs["mail-0001"], payload(jobs["mail-0001"])))
    assert (sent["custom"], sent["reserve_for"]) == ({"locale": "fr"}, 120)
    assert sent["created_at"] == stamp(-3600)
    assert payload(jobs["ready-0000"]) == b'["ready-0000", 1.5]'
    assert jobs["later-001"].due_at == MICROS + 500_250_000
    retry = json.loads(work_unit.write(jobs["retry-001"], payload(jobs["retry-001"])))["failure"]
    assert (retry["retry_count"], retry["remaining"], retry["errtype"]) == (1, 24, "TimeoutError")
    assert (retry["message"], retry["backtrace"]) == ("no route", ["a.rb:1"])
    assert jobs["dead-0001"].failures == 26
    queues = room.engine.queues
    assert (queues["mail"].paused, queues["empty"].registered) == (True, True)
    assert (room.engine.totals.processed, room.engine.totals.failures) == (1200, 70)
    days = room.asks(overview=True)["days"]
    assert [(day["processed"], day["failures"]) for day in days[:2]] == [(50, 0), (100, 9)]


def test_a_damaged_item_is_skipped_and_named(real: redis.Redis, url: str) -> None:
    fill(real)
    real.lpush("default", "{broken", json.dumps({"jid": "short", "jobtype": "T", "args": []}))
    real.zadd("working", {"[]": 1})
    real.set("batches", 1)
    with open_redis(url) as reader:
        source = FaktorySource(reader, MICROS)
        items, skipped = read(source)
        assert len(items) == 8
        assert len(skipped) == 3
        assert any("reasonable jid" in each.reason for each in skipped)
        assert [each.name for each in source.notes()] == ["batches"]


def test_long_lists_are_read_in_pages(real: redis.Redis, url: str) -> None:
    real.sadd("queues", "q")
    real.lpush("q", *(json.dumps(unit(f"job-{n:06}", "q")) for n in range(1234)))
    with open_redis(url) as reader:
        items, _ = read(FaktorySource(reader, MICROS))
    assert [each.job.jid for each in items] == [f"job-{n:06}" for n in range(1234)]


@pytest.mark.parametrize(
    "wrong", ["http://localhost", "redis://localhost:99999", "redis://localhost/x", "unix:///none"]
)
def test_a_wrong_url_is_an_error(wrong: str) -> None:
    with pytest.raises(SourceError):
        RedisReader(wrong)


def test_a_password(real: redis.Redis, url: str) -> None:
    fill(real)
    real.config_set("requirepass", "se:cret")
    with pytest.raises(SourceError, match="NOAUTH"):
        FaktorySource(RedisReader(url), MICROS)
    with_password = url.replace("unix://", "unix://:se%3Acret@")
    assert FaktorySource(RedisReader(with_password), MICROS).count() == 8
