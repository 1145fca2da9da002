"""The keys under `ql:` for clients that read them directly."""

from collections.abc import Generator, Iterator
from math import inf
from random import Random
from typing import Any

import pytest
from resp_conversation import OK, Resp, RespClient, RespWorld, array, bulk

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.qless.redis_view import RedisView
from millrace.protocols.registry import FAKTORY, MASENKO, WORKQ
from millrace.protocols.spec import protocol_rules
from millrace.store.records import decode_any, encode

#: 2012-11-08T11:46:49Z, and the midnight before it.
T = 1352375209
MIDNIGHT = 1352332800


def whole(slices: Generator[None, None, Any]) -> Any:
    """The result of all slices."""
    while True:
        try:
            next(slices)
        except StopIteration as ended:
            return ended.value


class Keys:
    """Executes commands of dialect C and reads keys."""

    def __init__(self) -> None:
        self.engine = Engine(Random(1), protocol_rules())
        self.hub = QlessHub(self.engine, started_at=T * 1_000_000)
        self.api = QlessApi(self.hub)
        self.virtual = self.hub.redis_view
        assert isinstance(self.virtual, RedisView)

    def do(self, command: str, now: float, *args: object, dialect: str = "C") -> Any:
        words = [
            key_bytes if isinstance(key_bytes, bytes) else str(key_bytes).encode()
            for key_bytes in (now, *args)
        ]
        return self.api.call(dialect, command, [], words, T * 1_000_000)

    def reqless(self, command: str, now: float, *args: object) -> Any:
        return self.do(command, now, *args, dialect="D")

    def put(self, jid: str, now: float = T, queue: str = "q", *options: object) -> None:
        self.do("put", now, "", queue, jid, "K", "{}", 0, *options)

    def scores(self, key: str) -> dict[str, float]:
        assert self.virtual.key_type(key.encode()) == "zset"
        found = self.virtual.scores(key.encode())
        assert whole(self.virtual.length(key.encode())) == len(found)
        for member, score in found:
            assert whole(self.virtual.score(key.encode(), member)) == score
        assert [score for _, score in found] == sorted(score for _, score in found)
        return {member.decode(): score for member, score in found}

    def fields(self, key: str) -> dict[str, str]:
        assert self.virtual.key_type(key.encode()) == "hash"
        return {k.decode(): v.decode() for k, v in self.virtual.fields(key.encode())}

    def items(self, key: str) -> list[str]:
        assert self.virtual.key_type(key.encode()) == "list"
        found = self.virtual.items(key.encode())
        assert whole(self.virtual.length(key.encode())) == len(found)
        return [item.decode() for item in found]

    def members(self, key: str) -> list[str]:
        assert self.virtual.key_type(key.encode()) == "set"
        return sorted(member.decode() for member in self.virtual.members(key.encode()))

    def names(self) -> set[str]:
        """All names; each has an existing key, and their number is the count."""
        found = [name for name in self.virtual.names() if name]
        assert len(set(found)) == len(found)
        assert all(self.virtual.key_type(name) for name in found)
        return {name.decode() for name in found}


@pytest.fixture
def keys() -> Iterator[Keys]:
    made = Keys()
    yield made
    made.names()


# Queues


def test_waiting_jobs_are_scored_by_priority_and_time(keys: Keys) -> None:
    keys.put("a", T)
    keys.put("b", T + 1)
    keys.put("c", T + 2, "q", "priority", 10)
    scores = keys.scores("ql:q:q-work")
    assert list(scores) == ["b", "a", "c"], "the highest score is popped first"
    assert scores["c"] == pytest.approx(10 - (T + 2) / 1e10, abs=1e-15)
    assert scores["a"] == pytest.approx(-T / 1e10, abs=1e-15)


def test_a_job_with_a_removed_lock_is_first(keys: Keys) -> None:
    keys.put("a")
    keys.put("b", T + 1, "q", "priority", 1000)
    keys.do("pop", T + 1, "q", "w", 2)
    keys.do("timeout", T + 2, "a")
    assert keys.scores("ql:q:q-work") == {"a": inf}


def test_locks_have_their_expiry_and_scheduled_jobs_their_due_time(keys: Keys) -> None:
    keys.put("a")
    keys.do("put", T, "", "q", "b", "K", "{}", 12.5)
    keys.do("pop", T + 1, "q", "w", 1)
    assert keys.scores("ql:q:q-locks") == {"a": T + 61}
    assert keys.scores("ql:q:q-scheduled") == {"b": T + 12.5}
    assert keys.virtual.key_type(b"ql:q:q-work") == ""


def test_dependent_jobs_are_scored_by_the_time_of_their_put(keys: Keys) -> None:
    keys.put("a")
    keys.put("b", T + 3, "q", "depends", '["a"]')
    assert keys.scores("ql:q:q-depends") == {"b": T + 3}
    assert keys.members("ql:j:b-dependencies") == ["a"]
    assert keys.members("ql:j:a-dependents") == ["b"]
    assert {"ql:j:b-dependencies", "ql:j:a-dependents"} <= keys.names()
    assert "ql:j:a-dependencies" not in keys.names()


def test_a_queues_lengths_are_read_from_its_counters(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.put("a")
    keys.put("b")
    keys.do("put", T, "", "q", "c", "K", "{}", 10)
    keys.put("d", T, "q", "depends", '["a"]')
    keys.do("pop", T, "q", "w", 1)

    def scan(*_: object) -> None:
        raise AssertionError("jobs were looked at")

    monkeypatch.setattr(keys.api.qless, "queue_jobs", scan)
    monkeypatch.setattr(keys.engine.queues["q"].ready.__class__, "first", scan)
    for name in ("work", "locks", "scheduled", "depends"):
        key = f"ql:q:q-{name}".encode()
        assert (keys.virtual.key_type(key), whole(keys.virtual.length(key))) == ("zset", 1)
    assert whole(keys.virtual.score(b"ql:q:q-scheduled", b"c")) == T + 10
    assert whole(keys.virtual.score(b"ql:q:q-scheduled", b"a")) is None


def test_queues_are_in_the_order_of_their_first_use(keys: Keys) -> None:
    keys.put("a", T, "second-work")
    keys.put("b", T + 1, "first")
    assert keys.scores("ql:queues") == {"second-work": T, "first": T + 1}
    assert list(keys.scores("ql:q:second-work-work")) == ["a"]
    keys.do("queue.forget", T, "second-work")
    assert list(keys.scores("ql:queues")) == ["first"]


def test_paused_queues(keys: Keys) -> None:
    keys.do("pause", T, "q", "r")
    keys.do("unpause", T, "q")
    assert keys.members("ql:paused_queues") == ["r"]


# Jobs


def test_a_job_is_a_hash(keys: Keys) -> None:
    keys.put("a", T, "q", "tags", '["x",1]', "priority", 2.5, "retries", 3)
    assert keys.fields("ql:j:a") == {
        "jid": "a",
        "klass": "K",
        "type": "K",
        "history": f'[{{"q":"q","put":{T}}}]',
        "data": "{}",
        "priority": "2.5",
        "tags": '["x",1]',
        "state": "waiting",
        "worker": "",
        "expires": "0",
        "queue": "q",
        "retries": "3",
        "remaining": "3",
        "time": f"{T}.00000000000000000000",
    }
    keys.do("pop", T + 1.5, "q", "w", 1)
    changed = {"state": "running", "worker": "w", "expires": f"{T + 61.5}"}
    assert changed.items() <= keys.fields("ql:j:a").items()
    assert keys.items("ql:j:a-history") == [
        f'[{T},"put",{{"q":"q"}}]',
        f'[{T + 1},"popped",{{"worker":"w"}}]',
    ]


def test_a_failed_job(keys: Keys) -> None:
    for jid in ("a", "b"):
        keys.put(jid)
    keys.do("pop", T, "q", "w", 2)
    keys.do("fail", T + 1, "a", "w", "group", "message")
    keys.do("fail", T + 2, "b", "w", "group", "message")
    failure = f'{{"group":"group","message":"message","when":{T + 1},"worker":"w"}}'
    shown = {"state": "failed", "failure": failure, "worker": "", "expires": ""}
    assert shown.items() <= keys.fields("ql:j:a").items()
    assert keys.members("ql:failures") == ["group"]
    assert keys.items("ql:f:group") == ["b", "a"], "the newest failure is first"
    assert keys.virtual.key_type(b"ql:f:other") == ""


def test_completed_jobs(keys: Keys) -> None:
    keys.put("a")
    keys.do("pop", T, "q", "w", 1)
    keys.do("complete", T + 7, "a", "w", "q", '{"n":1}')
    assert keys.scores("ql:completed") == {"a": T + 7}
    shown = {"state": "complete", "queue": "", "data": '{"n":1}', "failure": "{}"}
    assert shown.items() <= keys.fields("ql:j:a").items()


def test_grace_and_a_pending_delay_are_in_the_hash(keys: Keys) -> None:
    keys.put("a")
    keys.do("put", T, "", "q", "b", "K", "{}", 100, "depends", '["a"]')
    assert keys.fields("ql:j:b")["scheduled"] == str(T + 100)
    keys.do("pop", T, "q", "w", 1)
    assert keys.scores("ql:w:w:jobs") == {"a": T + 60}
    keys.do("pop", T + 61, "q", "w2", 1)
    assert keys.fields("ql:j:a")["grace"] == "1"
    assert keys.virtual.key_type(b"ql:w:w:jobs") == "", "its worker has been notified of the loss"


def test_a_jid_that_ends_like_a_part_of_another_key(keys: Keys) -> None:
    keys.put("a")
    keys.put("a-history")
    assert keys.fields("ql:j:a-history")["jid"] == "a-history"
    assert keys.items("ql:j:a-history-history")
    # In Redis these would be one key, and one of them would be lost.
    assert list(keys.virtual.names()).count(b"ql:j:a-history") == 2
    keys.do("cancel", T, "a-history")


def test_recurring_jobs(keys: Keys) -> None:
    keys.do("recur", T, "q", "r1", "K", '{"x":1}', "interval", 60, 5, "tags", '["t"]')
    assert keys.scores("ql:q:q-recur") == {"r1": T + 5}
    assert whole(keys.virtual.score(b"ql:q:other-recur", b"r1")) is None
    assert keys.fields("ql:r:r1") == {
        "jid": "r1",
        "klass": "K",
        "data": '{"x":1}',
        "priority": "0",
        "tags": '["t"]',
        "state": "recur",
        "queue": "q",
        "type": "interval",
        "count": "0",
        "interval": "60",
        "retries": "0",
        "backlog": "0",
    }
    keys.do("pop", T + 6, "q", "w", 1)
    assert keys.fields("ql:j:r1-1")["spawned_from_jid"] == "r1"
    assert keys.scores("ql:q:q-recur") == {"r1": T + 65}


# Tags, tracking, workers, options, numbers


def test_tags_are_scored_by_the_time_of_their_addition(keys: Keys) -> None:
    keys.put("a", T, "q", "tags", '["x","y"]')
    keys.put("b", T + 1, "q", "tags", '["x"]')
    assert keys.scores("ql:t:x") == {"a": T, "b": T + 1}
    assert keys.scores("ql:tags") == {"x": 2, "y": 1}
    keys.do("cancel", T + 2, "a")
    assert keys.scores("ql:tags") == {"x": 1}
    assert keys.virtual.key_type(b"ql:t:y") == ""


def test_a_job_cancelled_by_another_protocol_has_no_key(keys: Keys) -> None:
    keys.put("a", T, "q", "tags", '["x"]')
    job = keys.engine.find("a")
    assert job is not None
    keys.engine.cancel(job, T * 1_000_000, WORKQ)
    assert keys.names() == {"ql:queues"}


def test_tracked_jobs_workers_and_options(keys: Keys) -> None:
    keys.put("a")
    keys.do("track", T + 1, "track", "a")
    keys.do("pop", T + 2, "q", "w:1", 1)
    keys.do("config.set", T, "heartbeat", 30)
    assert keys.scores("ql:tracked") == {"a": T + 1}
    assert keys.scores("ql:workers") == {"w:1": T + 2}
    assert keys.scores("ql:w:w:1:jobs") == {"a": T + 62}
    assert keys.fields("ql:config") == {"heartbeat": "30"}


def test_statistics_by_day(keys: Keys) -> None:
    for number, wait in enumerate((0, 59, 60, 3599, 3600, 86399, 86400)):
        keys.put(f"j{number}", T)
        keys.do("pop", T + wait, "q", "w", 1)
        keys.do("fail", T + wait, f"j{number}", "w", "g", "m")
    today = keys.fields(f"ql:s:wait:{MIDNIGHT}:q")
    assert today.pop("mean").startswith("1463.59999")
    assert float(today.pop("vk")) == pytest.approx(
        sum((wait - 1463.6) ** 2 for wait in (0, 59, 60, 3599, 3600))
    )
    assert today == {"total": "5", "s0": "1", "s59": "1", "m1": "1", "m59": "1", "h1": "1"}
    tomorrow = keys.fields(f"ql:s:wait:{MIDNIGHT + 86400}:q")
    assert (tomorrow["total"], tomorrow["h23"], tomorrow["d1"]) == ("2", "1", "1")
    assert keys.fields(f"ql:s:stats:{MIDNIGHT}:q") == {"failures": "5", "failed": "5"}
    assert keys.virtual.key_type(b"ql:s:run:%d:q" % MIDNIGHT) == ""
    assert keys.virtual.key_type(b"ql:s:wait:%d:q" % (MIDNIGHT + 1)) == ""


# Additional keys of reqless


def test_throttles(keys: Keys) -> None:
    keys.reqless("throttle.set", T, "mail", 1)
    for jid in ("a", "b"):
        keys.reqless("queue.put", T, "w", "q", jid, "K", "{}", 0, "throttles", '["mail"]')
    keys.put("c")
    keys.reqless("queue.pop", T + 1, "q", "w", 2)
    assert keys.fields("ql:th:mail") == {"id": "mail", "maximum": "1"}
    assert keys.scores("ql:th:mail-locks") == {"a": 1}
    assert keys.scores("ql:th:mail-pending") == {"b": T + 1}
    assert keys.scores("ql:q:q-throttled") == {"b": T + 1}
    assert list(keys.scores("ql:q:q-work")) == ["c"]
    assert whole(keys.virtual.score(b"ql:q:q-work", b"b")) is None
    assert keys.virtual.key_type(b"ql:th:other") == keys.virtual.key_type(b"ql:th:mail-x") == ""
    assert keys.fields("ql:j:a")["throttles"] == '["mail"]'
    keys.reqless("queue.recurAtInterval", T, "q", "r", "K", "{}", 9, 9, "throttles", '["mail"]')
    assert "mail" in keys.fields("ql:r:r")["throttles"]
    assert {"ql:th:mail", "ql:th:mail-locks", "ql:q:q-throttled"} <= keys.names()
    for _ in keys.hub.flush(T * 1_000_000, b"", all_databases=True):
        pass
    assert keys.names() == set()


def test_patterns(keys: Keys) -> None:
    assert keys.virtual.key_type(b"ql:qp:identifiers") == ""
    keys.reqless("queueIdentifierPatterns.setAll", T, "mine", '["a","b"]')
    pattern = '{"fairly":true,"pattern":["default"]}'
    keys.reqless("queuePriorityPatterns.setAll", T, pattern)
    assert keys.fields("ql:qp:identifiers") == {"mine": '["a","b"]', "default": '["*"]'}
    assert keys.items("ql:qp:priorities") == [pattern]
    assert keys.names() == {"ql:qp:identifiers", "ql:qp:priorities"}


# All keys


@pytest.mark.parametrize(
    "key",
    [
        "ql:",
        "ql:x",
        "ql:x:y",
        "ql:q:q",
        "ql:q:q-x",
        "ql:j:",
        "ql:j:a-x",
        "ql:w:w",
        "ql:s:wait",
        "ql:s:wait:x:q",
        "ql:r:a",
        "ql:t:x",
        "ql:s:wait:9999999999999:q",
        "ql:config:x",
        "ql:ÿ",
    ],
)
def test_unknown_keys(keys: Keys, key: str) -> None:
    keys.put("a")
    key_bytes = key.encode("latin-1")
    assert (keys.virtual.key_type(key_bytes), whole(keys.virtual.length(key_bytes))) == ("", 0)
    assert (
        keys.virtual.scores(key_bytes)
        == keys.virtual.fields(key_bytes)
        == keys.virtual.items(key_bytes)
        == []
    )
    assert keys.virtual.members(key_bytes) == []
    assert whole(keys.virtual.score(key_bytes, b"a")) is None


def test_jobs_of_other_protocols_have_keys(keys: Keys) -> None:
    push = NewJob("f", "kind", b"[1]", FAKTORY, "q", 3, 60_000_000, blockers=[])
    keys.engine.push(push, T * 1_000_000)
    twin = NewJob("f", "kind", b"\xff", MASENKO, "q", 3, 60_000_000)
    keys.engine.push(twin, T * 1_000_000)
    keys.engine.lease(("q",), "c1", MASENKO, T * 1_000_000)
    assert keys.fields("ql:j:f")["data"] == "[1]"
    assert list(keys.scores("ql:q:q-locks")) == ["f"]
    assert list(keys.scores("ql:q:q-work")) == ["f"]
    wait = f"ql:s:wait:{MIDNIGHT}:q"
    found = {"ql:queues", "ql:j:f", "ql:j:f-history", "ql:q:q-work", "ql:q:q-locks", wait}
    assert keys.names() == found


def test_flushdb_removes_all_keys(keys: Keys) -> None:
    test_tracked_jobs_workers_and_options(keys)
    test_recurring_jobs(keys)
    keys.put("d", T, "q", "depends", '["a"]', "tags", '["x"]')
    keys.do("pause", T, "q")
    assert len(keys.names()) > 20
    for _ in keys.hub.flush(T * 1_000_000, b"", all_databases=True):
        pass
    assert keys.names() == set()


# Over the wire


class QlessWorld(RespWorld):
    """A world with the commands of Qless."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        QlessApi(self.hub)

    def snapshot(self) -> dict[str, Any]:
        jobs = {seq: decode_any(encode(job)) for seq, job in self.engine.jobs.items()}
        return {"jobs": jobs, "keys": sorted(filter(None, self.hub.redis_view.names()))}


class QlessKeys(Resp):
    world_type = QlessWorld


def put(client: RespClient, jid: str, *options: object) -> None:
    client.asks("QLESS.PUT", 1, "q", jid, "K", "{}", T, 0, *options).hears(bulk(jid))


def test_clients_read_keys_with_redis_commands() -> None:
    with QlessKeys() as talk:
        client = talk.connect()
        put(client, "a", "tags", '["x"]')
        put(client, "b", "depends", '["a"]')
        client.asks("ZCARD", "ql:q:q-work").hears(b":1\r\n")
        client.asks("ZCARD", "ql:q:q-locks").hears(b":0\r\n")
        client.asks("ZRANGE", "ql:tags", 0, -1).hears(array(bulk("x")))
        client.asks("ZSCORE", "ql:t:x", "a").hears(bulk(str(T)))
        client.asks("SMEMBERS", "ql:j:b-dependencies").hears(array(bulk("a")))
        client.asks("HMGET", "ql:j:b", "state", "nothing").hears(array(bulk("depends"), b"$-1\r\n"))
        client.asks("LRANGE", "ql:j:a-history", 0, -1)
        client.hears(array(bulk(f'[{T},"put",{{"q":"q"}}]')))
        client.asks("TYPE", "ql:queues").hears(b"+zset\r\n")
        client.asks("ZCARD", "ql:j:a")
        client.hears_resp_error("WRONGTYPE Operation against a key holding the wrong kind of value")
        client.asks("DBSIZE").hears(b":11\r\n")
        client.asks("FLUSHDB").hears(OK)
        client.asks("KEYS", "*").hears(b"*0\r\n")
        client.asks("DBSIZE").hears(b":0\r\n")


def test_the_length_of_a_queue_as_the_ruby_client_reads_it() -> None:
    with QlessKeys() as talk:
        client = talk.connect()
        put(client, "a")
        client.asks("MULTI").hears(OK)
        for name in ("locks", "work", "scheduled", "depends"):
            client.asks("ZCARD", f"ql:q:q-{name}").hears(b"+QUEUED\r\n")
        client.asks("EXEC").hears(array(b":0\r\n", b":1\r\n", b":0\r\n", b":0\r\n"))
