"""A Redis that the real scripts of reqless filled, and a Millrace server after the import, send the
same replies.
"""

import json
from importlib.resources import files
from typing import Any

import pytest
import redis
from import_source import read, run_import
from redis_reference import Reference, alike, plain, word

from admin_room import Room
from millrace.migration.qless import QlessSource
from millrace.migration.redis import open_redis

T = 1_790_000_000
NOW = T + 200


@pytest.fixture
def original(real: redis.Redis) -> Reference:
    script = files("reqless").joinpath("lua/qless.lua").read_bytes()
    reference = Reference(real, script)
    fill(reference)
    return reference


def fill(q: Reference) -> None:
    def put(after: float, queue: str, jid: str, *options: object, delay: int = 0) -> None:
        q.call("put", T + after, "w0", queue, jid, "Klass", '{"n":1.50}', delay, *options)

    q.call("config.set", T, "heartbeat", 90)
    q.call("throttle.set", T, "api", 2, 0)
    put(0, "mail", "a", "tags", ["red", "blue"], "priority", 3)
    put(1, "mail", "b", "retries", 2)
    put(2, "mail", "c", delay=10_000)
    put(3, "mail", "d", "depends", ["a", "e"])
    put(4, "mail", "e", "depends", ["b"])
    put(5, "other", "f", "throttles", ["api"])
    put(6, "other", "g")
    put(7, "done", "h")
    q.call("pop", T + 10, "done", "w1", 1)
    q.call("complete", T + 12, "h", "w1", "done", "{}")
    q.call("pop", T + 13, "mail", "w1", 1)
    q.call("retry", T + 14, "a", "mail", "w1", 0, "oops", "tried once")
    q.call("pop", T + 15, "other", "w2", 1)
    q.call("fail", T + 16, "f", "w2", "crash", "it broke", "{}")
    q.call("pop", T + 17, "other", "w2", 1)
    q.call("recur", T + 18, "mail", "tick", "Tick", "{}", "interval", 60, 5000, "priority", 2)
    q.call("track", T + 19, "track", "c")
    q.call("pause", T + 20, "other")


@pytest.fixture
def room(original: Reference, url: str) -> Room:
    room = Room()
    room.now = room.engine.last_known_time = NOW * 1_000_000
    with open_redis(url) as reader:
        assert run_import(room, QlessSource(reader, room.now)) == []
    return room


def ours(room: Room, command: str, *args: object) -> Any:
    words = [repr(NOW).encode(), *(word(arg).encode() for arg in args)]
    return plain(room.api.call("T", command, [], words, room.now))


def test_the_source_does_not_change(original: Reference, real: redis.Redis, url: str) -> None:
    before = {key: real.dump(key) for key in real.scan_iter()}
    with open_redis(url) as reader:
        source = QlessSource(reader, NOW * 1_000_000)
        items, skipped = read(source)
        source.settings()
        assert skipped == []
        assert source.count() == len(items)
        assert [each.name for each in source.notes()] == ["ql:completed", "ql:workers"]
    assert {key: real.dump(key) for key in real.scan_iter()} == before
    parts = {each.job.jid: each.part for each in items}
    assert parts == {
        "g": "reservations",
        "a": "queues",
        "b": "queues",
        "c": "scheduled",
        "d": "dependencies",
        "e": "dependencies",
        "f": "failures",
    }


@pytest.mark.parametrize("jid", ["a", "b", "c", "d", "e", "f"])
def test_a_job_is_the_same(room: Room, original: Reference, jid: str) -> None:
    found, expected = alike(ours(room, "get", jid)), alike(original.call("get", NOW, jid))
    if expected["state"] == "waiting":  # the scripts leave the lock of an earlier attempt there
        expected |= {"worker": "", "expires": 0}
    assert found == expected


def test_a_running_job_waits_again(room: Room, original: Reference) -> None:
    found, before = ours(room, "get", "g"), original.call("get", NOW, "g")
    assert (found["state"], before["state"]) == ("waiting", "running")
    for name in ("klass", "data", "priority", "retries", "remaining", "history", "queue"):
        assert found[name] == before[name]


def test_lists_and_settings_are_the_same(room: Room, original: Reference) -> None:
    for command, args in (
        ("failed", ()),
        ("failed", ("crash", 0, 25)),
        ("tag", ("get", "red", 0, 10)),
        ("recur.get", ("tick",)),
        ("config.get", ("heartbeat",)),
        ("throttle.get", ("api",)),
        ("stats", ("mail", T)),
    ):
        expected = alike(original.call(command, NOW, *args))
        assert alike(ours(room, command, *args)) == expected, command
    tracked = ours(room, "track")
    assert [job["jid"] for job in tracked["jobs"]] == ["c"]
    names = [each["name"] for each in ours(room, "queues")]
    assert names == [each["name"] for each in original.call("queues", NOW)]
    assert room.qless.is_paused("other")
    assert room.engine.recurring.by_id["tick"].next == (T + 18 + 5000) * 1_000_000


def test_work_continues_in_the_same_order(room: Room, original: Reference) -> None:
    ours(room, "unpause", "other")
    original.call("unpause", NOW, "other")
    popped = [job["jid"] for job in ours(room, "pop", "mail", "w9", 10)]
    assert popped == [job["jid"] for job in original.call("pop", NOW, "mail", "w9", 10)]
    for jid in ("b", "e", "a", "d"):
        if jid in {"e", "d"}:
            ours(room, "pop", "mail", "w9", 10)
        ours(room, "complete", jid, "w9", "mail", "{}")
        assert ours(room, "get", jid)["state"] == "complete"


def test_the_names_of_another_database(original: Reference, real: redis.Redis, url: str) -> None:
    for key in real.scan_iter():
        real.move(key, 3)
    with open_redis(url) as reader:
        reader.command("SELECT", 3)
        reader.database = 3
        items, _ = read(QlessSource(reader, NOW * 1_000_000))
    assert {each.job.jid for each in items} == {f"db3:{name}" for name in "abcdefg"}
    assert {each.job.queue for each in items} == {"db3:mail", "db3:other"}


@pytest.mark.parametrize("list_remains", [False, True])
def test_the_history_of_early_scripts(
    original: Reference, real: redis.Redis, url: str, list_remains: bool
) -> None:
    """They kept the history in a field of the job, as one record per stage."""
    stages = [
        {"q": "old", "put": T - 90.5, "popped": T - 80.25, "worker": "w9", "failed": T - 70},
        {"q": "old", "put": T - 60, "popped": T - 50, "worker": "w8", "done": T - 40},
        {"q": "other", "put": T - 30},
    ]
    for jid in ("b", "f"):
        real.hset(f"ql:j:{jid}", "history", json.dumps(stages))
        if not list_remains:
            real.delete(f"ql:j:{jid}-history")
    room = Room()
    room.now = room.engine.last_known_time = NOW * 1_000_000
    with open_redis(url) as reader:
        assert run_import(room, QlessSource(reader, room.now)) == []
    for jid in ("b", "f"):
        theirs = original.call("get", NOW, jid)["history"]
        assert len(theirs) >= 7
        assert ours(room, "get", jid)["history"] == theirs
