"""Direct accesses by the test suites of qless-core and reqless-core: keys of reqless that clients
write, times to live, and earlier command names.
"""

from collections.abc import Iterator

import pytest
from reqless_conversation import SCRIPT_T, Reqless, ReqlessClient
from resp_conversation import NIL, array, bulk

from millrace.protocols.qless import queue_patterns

IDENTIFIERS = "queueIdentifierPatterns"
PRIORITIES = "queuePriorityPatterns"
ANY = '{"default":"[\\"*\\"]"'
IN_TURN = '["{\\"fairly\\": false, \\"pattern\\": [\\"default\\"]}"]'
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@pytest.fixture
def talk() -> Iterator[Reqless]:
    with Reqless() as conversation:
        yield conversation


@pytest.fixture
def client(talk: Reqless) -> ReqlessClient:
    return talk.speaker()


# Patterns, written by clients


@pytest.mark.parametrize("key", ["ql:qp:identifiers", "qmore:dynamic"])
def test_identifiers_can_be_written_into_their_key_and_that_of_qmore(
    client: ReqlessClient, key: str
) -> None:
    client.asks("HSET", key, "a", '["x"]', "b", '["y"]').hears(b":2\r\n")
    client.asks("HSET", key, "a", '["z"]').hears(b":0\r\n")
    client.asks("HGETALL", key).hears(array(*map(bulk, ("a", '["z"]', "b", '["y"]'))))
    client.calls(f"{IDENTIFIERS}.getAll", 0).hears_text(ANY + ',"a":"[\\"z\\"]","b":"[\\"y\\"]"}')
    client.asks("DEL", key).hears(b":1\r\n").asks("DEL", key).hears(b":0\r\n")
    client.calls(f"{IDENTIFIERS}.getAll", 0).hears_text(ANY + "}")


@pytest.mark.parametrize("key", ["ql:qp:priorities", "qmore:priority"])
def test_priorities_can_be_written_into_their_key_and_that_of_qmore(
    client: ReqlessClient, key: str
) -> None:
    client.asks("RPUSH", key, "1", "2").hears(b":2\r\n")
    client.asks("LPUSH", key, "3", "4").hears(b":4\r\n")
    client.asks("LRANGE", key, 0, -1).hears(array(*map(bulk, "4312")))
    client.calls(f"{PRIORITIES}.getAll", 0).hears_text('["4","3","1","2"]')
    client.asks("DEL", key, "nope").hears(b":1\r\n")
    client.calls(f"{PRIORITIES}.getAll", 0).hears_text(IN_TURN)


def test_new_patterns_replace_those_of_qmore(client: ReqlessClient) -> None:
    client.asks("HSET", "qmore:dynamic", "old", '["x"]').hears(b":1\r\n")
    client.asks("HSET", "ql:qp:identifiers", "new", '["y"]').hears(b":1\r\n")
    client.calls(f"{IDENTIFIERS}.getAll", 0).hears_text(ANY + ',"new":"[\\"y\\"]"}')
    client.calls(f"{IDENTIFIERS}.setAll", 0).hears(NIL)
    client.asks("EXISTS", "qmore:dynamic").hears(b":0\r\n")
    client.asks("RPUSH", "qmore:priority", "old").hears(b":1\r\n")
    client.calls(f"{PRIORITIES}.setAll", 0).hears(NIL)
    client.asks("EXISTS", "qmore:priority").hears(b":0\r\n")
    client.calls(f"{PRIORITIES}.getAll", 0).hears_text(IN_TURN)


def test_patterns_of_different_types_do_not_mix(client: ReqlessClient) -> None:
    client.asks("HSET", "ql:qp:priorities", "a", "b").hears_resp_error(WRONG_TYPE)
    client.asks("RPUSH", "ql:qp:identifiers", "a").hears_resp_error(WRONG_TYPE)
    for command_words in (("HSET", "ql:qp:others", "a", "b"), ("DEL", "ql:qp:others")):
        client.asks(*command_words).hears_resp_error(
            "ERR 'ql:qp:others' belongs to Qless: only Qless commands can change it"
        )
    client.asks("EXISTS", "ql:qp:priorities", "ql:qp:identifiers").hears(b":0\r\n")


def test_written_patterns_are_settings_of_the_engine_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_patterns, "MAX_PATTERN_BYTES", 20)
    with Reqless() as talk:
        client = talk.speaker()
        client.asks("RPUSH", "ql:qp:priorities", "x" * 9).hears(b":1\r\n")
        client.asks("RPUSH", "ql:qp:priorities", "x" * 10).hears_resp_error(
            "OOM command not allowed: the patterns may use at most 20 bytes"
        )
        client.asks("LLEN", "ql:qp:priorities").hears(b":1\r\n")
        assert talk.engine.settings["qless/patterns/priorities"].endswith(b"x" * 9)


def test_patterns_are_not_written_while_the_store_fails(talk: Reqless) -> None:
    client = talk.speaker()
    client.asks("RPUSH", "ql:qp:priorities", "x").hears(b":1\r\n")
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "the disk is full"))
    refusal = "MISCONF the disk is full: nothing was changed, try again later"
    client.asks("RPUSH", "ql:qp:priorities", "y").hears_resp_error(refusal)
    client.asks("HSET", "ql:qp:identifiers", "a", "b").hears_resp_error(refusal)
    client.asks("DEL", "ql:qp:priorities").hears_resp_error(refusal)
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", ""))
    client.asks("LRANGE", "ql:qp:priorities", 0, -1).hears(array(bulk("x")))


# Times to live


def test_the_key_of_a_throttle_expires_with_its_limit(client: ReqlessClient) -> None:
    client.asks("TTL", "ql:th:t").hears(b":-2\r\n")
    client.calls("throttle.set", 1000, "t", 5).hears(NIL)
    client.asks("TTL", "ql:th:t").hears(b":-1\r\n")
    client.calls("throttle.set", 1000, "t", 5, 100).hears(NIL)
    client.asks("TTL", "ql:th:t").hears(b":100\r\n")
    client.calls("throttle.ttl", 1040, "t").hears(b":60\r\n")
    client.asks("TTL", "ql:th:t").hears(b":60\r\n")
    client.calls("throttle.ttl", 1100, "t").hears(b":-2\r\n")
    client.asks("TTL", "ql:th:t").hears(b":-2\r\n")


def test_other_qless_keys_do_not_expire(client: ReqlessClient) -> None:
    client.calls("queue.put", 0, "w", "q", "a", "k", "{}", 0).hears_text("a")
    client.asks("TTL", "ql:j:a").hears(b":-1\r\n")
    client.calls("throttle.set", 0, "t", 1, 9).hears(NIL)
    client.calls("queue.put", 0, "w", "q", "b", "k", "{}", 0, "throttles", ["t"]).hears_text("b")
    client.calls("queue.pop", 0, "q", "w", 2).hears_whatever()
    client.asks("TTL", "ql:th:t-locks").hears(b":-1\r\n")


def test_in_dialect_t_a_throttle_has_no_time_to_live(talk: Reqless) -> None:
    client = talk.speaker(SCRIPT_T)
    client.calls("throttle.set", 0, "t", 5, 100).hears(NIL)
    client.calls("throttle.get", 0, "t").hears_text('{"id":"t","maximum":5}')
    client.calls("throttle.get", 0, "u").hears_text('{"id":"u","maximum":0}')
    client.calls("throttle.ttl", 40, "t").hears(b":60\r\n")
    client.calls("queue.throttle.set", 0, "q", 2).hears(NIL)
    client.calls("queue.throttle.get", 0, "q").hears_text('{"id":"ql:q:q","maximum":2}')


# Earlier names of commands


def test_in_dialect_d_an_old_name_answers_like_the_new_one(client: ReqlessClient) -> None:
    client.calls("pop", 0, "q", "w", 1).hears_text("[]")
    client.calls("peek", 0, "q", 0, 1).hears_text("[]")
    client.calls("queues", 0).hears_text("[]")
    client.calls("multiget", 0, "a").hears_text("[]")
    client.calls("jobs", 0, "complete").hears_text("[]")
    client.calls("jobs", 0, "running", "q").hears_text("[]")
    client.calls("workers", 0).hears_json()
    client.calls("tag", 0, "top", 0, 9).hears_text("[]")
    client.calls("put", 1, "w", "q", "a", "k", "{}", 0).hears_text("a")
    client.calls("tag", 1, "add", "a", "x").hears_text('["x"]')
    client.calls("tag", 1, "remove", "a", "x").hears_text("[]")
    client.calls("get", 1, "a")
    assert client.hears_json()["history"] == [{"what": "put", "when": 1, "queue": "q"}]


def test_a_job_with_a_removed_lock_has_no_worker_under_both_names(
    client: ReqlessClient,
) -> None:
    for now, name in ((1, "job.timeout"), (2, "timeout")):
        client.calls("queue.put", now, "w", "q", name, "k", "{}", 0).hears_text(name)
        client.calls("queue.pop", now, "q", "w", 1).hears_whatever()
        client.calls(name, now, name).hears(NIL)
        client.calls("job.get", now, name)
        found = client.hears_json()
        assert (found["state"], found["worker"]) == ("stalled", "")
        client.calls("job.cancel", now, name).hears_words(name)
