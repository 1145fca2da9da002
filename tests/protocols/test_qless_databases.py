"""Databases: 0 is the namespace of all protocols, 1 to 15 are separate namespaces."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from qless_conversation import Qless, QlessClient

from millrace.protocols.registry import QLESS


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


def in_database(talk: Qless, number: int, dialect: str = "C") -> QlessClient:
    client = talk.speaks(dialect)
    client.asks("SELECT", number)
    assert client.reply() == "OK"
    return client


def plain(client: QlessClient, *words: object) -> Any:
    client.asks(*words)
    return client.reply()


def test_equal_names_in_two_databases_are_two_jobs(talk: Qless) -> None:
    zero, five = in_database(talk, 0), in_database(talk, 5)
    zero.put(1, "job", "tags", '["red"]')
    five.put(1, "job", "tags", '["blue"]')
    assert zero.get("job")["tags"] == ["red"]
    assert five.get("job")["tags"] == ["blue"]
    assert talk.job("db5:job").queue == "db5:q"
    [popped] = five.json("pop", 2, "q", "w1", 10)
    assert (popped["jid"], popped["queue"]) == ("job", "q")
    assert popped["history"][0]["q"] == "q"
    assert zero.state("job") == "waiting"
    assert five("complete", 3, "job", "w1", "q", "{}", "next", "n") == "waiting"
    assert five.get("job")["queue"] == "n"


def test_lists_show_one_database(talk: Qless) -> None:
    zero, five = in_database(talk, 0), in_database(talk, 5)
    zero.put(1, "a", "tags", '["t"]', queue="zero")
    five.put(1, "b", "tags", '["t"]', queue="five")
    five.put(1, "c", "tags", '["t"]', "depends", '["b"]', queue="five")
    assert five.pop(2, queue="five", worker="w5") == ["b"]
    assert [row["name"] for row in five.json("queues", 3)] == ["five"]
    assert [row["name"] for row in zero.json("queues", 3)] == ["zero"]
    assert [row["name"] for row in five.json("workers", 3)] == ["w5"]
    assert zero.json("workers", 3) == {}
    assert five.json("workers", 3, "w5")["jobs"] == ["b"]
    assert five.json("tag", 3, "get", "t") == {"total": 2, "jobs": ["b", "c"]}
    assert five.get("c")["dependencies"] == ["b"]
    assert five.get("b")["dependents"] == ["c"]
    five("fail", 4, "b", "w5", "group", "message")
    assert (five.json("failed", 5), zero.json("failed", 5)) == ({"group": 1}, {})
    assert five.json("failed", 5, "group")["jobs"] == ["b"]
    five("track", 5, "track", "b")
    assert [job["jid"] for job in five.json("track", 5)["jobs"]] == ["b"]
    assert zero.json("track", 5)["jobs"] == {}
    assert "Job a does not exist" in five.refused("heartbeat", 6, "a", "w5")


def test_settings_recurring_jobs_and_keys_belong_to_one_database(talk: Qless) -> None:
    zero, five = in_database(talk, 0), in_database(talk, 5)
    five("config.set", 1, "heartbeat", 10)
    five("config.set", 1, "q-max-concurrency", 1)
    assert zero.json("config.get", 1)["heartbeat"] == 60
    assert five.json("config.get", 1)["heartbeat"] == "10"
    five("recur", 1, "q", "r", "klass", "{}", "interval", 60, 0)
    assert zero("recur.get", 1, "r") is None
    assert five.json("recur.get", 1, "r")["queue"] == "q"
    assert five.pop(2, 5) == ["r-1"]
    assert five.get("r-1")["expires"] == 12
    assert five.get("r-1")["spawned_from_jid"] == "r"
    five("pause", 3, "p")
    five.put(3, "x", queue="p")
    assert five.pop(4, queue="p") == []
    assert plain(zero, "KEYS", "*") == []
    assert set(plain(five, "KEYS", "ql:q:*")) == {"ql:q:q-locks", "ql:q:q-recur", "ql:q:p-work"}
    assert plain(five, "ZRANGE", "ql:q:p-work", 0, -1) == ["x"]
    assert plain(five, "HMGET", "ql:j:x", "jid", "queue") == ["x", "p"]
    assert plain(five, "SMEMBERS", "ql:paused_queues") == ["p"]


def test_other_protocols_work_on_the_queue_with_its_prefix(talk: Qless) -> None:
    five = in_database(talk, 5)
    talk.pushes_faktory("from-faktory", "db5:q")
    five.put(1, "own")
    assert sorted(five.pop(2, 5)) == ["from-faktory", "own"]
    assert five("complete", 3, "from-faktory", "w1", "q", "[]") == "complete"


def test_select_inside_a_transaction(talk: Qless) -> None:
    client = talk.connect()
    client.asks("MULTI").asks("SELECT", 3).asks("SET", "key", "3").asks("EXEC")
    client.asks("GET", "key").asks("SELECT", 0).asks("GET", "key")
    replies = client.wire.replies
    assert list(replies)[-4:] == [
        b"*2\r\n+OK\r\n+OK\r\n",
        b"$1\r\n3\r\n",
        b"+OK\r\n",
        b"$-1\r\n",
    ]
    client._taken = len(client.wire.heard)


def test_flushdb_removes_the_qless_jobs_of_one_database(talk: Qless) -> None:
    zero, five = in_database(talk, 0), in_database(talk, 5)
    talk.pushes_faktory("kept", "q")
    zero.put(1, "a")
    zero.put(1, "b", "depends", '["a"]')
    five.put(1, "a")
    zero("config.set", 1, "heartbeat", 10)
    assert plain(five, "FLUSHDB") == "OK"
    assert five("get", 2, "a") is None
    assert zero.state("a") == "waiting"
    assert plain(zero, "FLUSHDB") == "OK"
    assert zero.json("config.get", 2)["heartbeat"] == 60
    assert [job.jid for job in talk.engine.jobs.values()] == ["kept"]
    assert zero.pop(3, 5) == ["kept"]


def test_flushall_removes_the_qless_jobs_of_all_databases(talk: Qless) -> None:
    zero, five = in_database(talk, 0), in_database(talk, 5)
    talk.pushes_faktory("kept", "q")
    zero.put(1, "a")
    five.put(1, "a")
    assert plain(five, "FLUSHALL") == "OK"
    assert [job.jid for job in talk.engine.jobs.values()] == ["kept"]
    assert not any(job.origin == QLESS for job in talk.engine.jobs.values())


def test_a_flush_removes_statistics(talk: Qless) -> None:
    five = in_database(talk, 5)
    five.put(1, "a")
    five.pop(2)
    five("complete", 3, "a", "w1", "q", "{}")
    assert five.json("stats", 3, "q", 0)["run"]["count"] == 1
    assert plain(five, "FLUSHDB") == "OK"
    assert five.json("stats", 3, "q", 0)["run"]["count"] == 0
    assert json.loads(five("queues", 3)) == {}


def test_the_age_of_workers_belongs_to_a_database(talk: Qless) -> None:
    zero, three = in_database(talk, 0), in_database(talk, 3)
    zero.put(1, "a")
    zero.pop(100)
    three("config.set", 200, "max-worker-age", 1)
    assert three("workers", 200) == "{}"
    three.pop(300)
    assert [worker["name"] for worker in zero.json("workers", 101)] == ["w1"]


@pytest.mark.parametrize("command", ["workers", "worker.deregister"])
def test_no_setting_of_a_worker_changes_while_the_store_fails(talk: Qless, command: str) -> None:
    zero = in_database(talk, 0)
    zero.put(1, "a")
    zero.pop(100)
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "disk full"))
    before = dict(talk.engine.settings)
    reply = zero._ask(command, (10_000_000, "w1"))
    assert str(reply).startswith("MISCONF disk full" if command != "workers" else "{")
    assert talk.engine.settings == before
