"""Decisions about differences between the spec, the code of Qless and Millrace."""

import json
from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient

from millrace.engine.waiters import Waiter
from millrace.protocols.registry import FAKTORY


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


@pytest.fixture
def spec(talk: Qless) -> QlessClient:
    return talk.speaks("spec")


def put(spec: QlessClient, now: float, jid: str, *options: object, queue: str = "q") -> None:
    assert spec("Put", 1, queue, jid, "klass", "{}", now, 0, *options) == jid


def pop(spec: QlessClient, now: float, count: int = 1, worker: str = "w1") -> list[str]:
    return [json.loads(job)["jid"] for job in spec("Pop", 1, "q", worker, count, now)]


# Locks


def test_the_spec_has_no_grace_period(spec: QlessClient) -> None:
    put(spec, 1, "a")
    assert pop(spec, 2) == ["a"]
    assert pop(spec, 100, worker="w2") == ["a"]
    assert spec("Heartbeat", 0, "a", "w1", 101) is None


def test_newer_dialects_have_a_grace_period(c: QlessClient) -> None:
    c.put(1, "a")
    assert c.pop(2) == ["a"]
    assert c.pop(100, worker="w2") == []
    assert c.pop(111, worker="w2") == ["a"]


# Ending


def test_the_spec_completes_a_job_with_any_queue_name(spec: QlessClient) -> None:
    put(spec, 1, "a")
    pop(spec, 2)
    assert spec("Complete", 0, "a", "w1", "another", 3, "{}") == "complete"


@pytest.mark.parametrize("before", ["complete", "failed"])
def test_an_ended_job_can_fail(spec: QlessClient, before: str) -> None:
    put(spec, 1, "a")
    pop(spec, 2)
    if before == "complete":
        spec("Complete", 0, "a", "w1", "q", 3, "{}")
    else:
        spec("Fail", 0, "a", "w1", "first", "one", 3)
    assert spec("Fail", 0, "a", "w2", "second", "two", 4) == "a"
    assert spec.json("Failed", 0) == {"second": 1}
    job = spec.json("Get", 0, "a")
    assert (job["state"], job["failure"]["message"]) == ("failed", "two")
    assert pop(spec, 5) == []
    assert spec("Unfail", 0, 6, "second", "q") == 1
    assert pop(spec, 7) == ["a"]


def test_a_stage_names_the_worker_that_popped(spec: QlessClient) -> None:
    put(spec, 1, "a")
    pop(spec, 2)
    spec("Fail", 0, "a", "another", "group", "message", 3)
    [stage] = spec.json("Get", 0, "a")["history"]
    assert stage == {"q": "q", "put": 1, "popped": 2, "worker": "w1", "failed": 3}


# Many jobs


def test_a_pop_has_no_limit(talk: Qless, c: QlessClient) -> None:
    for number in range(1500):
        c.put(1, f"j{number}")
    assert len(c.json("peek", 2, "q", 5000)) == 1500
    assert len(c.pop(2, 1400)) == 1400
    assert len(c.pop(2, 5000)) == 100
    talk.failed = True  # the 1,500 puts are not replayed byte by byte


# Dependencies


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("depends", "5", "bad argument #1 to 'ipairs' (table expected, got number)"),
        ("depends", '"a"', "bad argument #1 to 'ipairs' (table expected, got string)"),
        ("tags", "null", "bad argument #1 to 'ipairs' (table expected, got userdata)"),
        ("tags", "true", "bad argument #1 to 'ipairs' (table expected, got boolean)"),
        ("depends", "[[1]]", "Lua redis() command arguments must be strings or integers"),
        ("depends", "[null]", "Lua redis() command arguments must be strings or integers"),
    ],
)
def test_a_wrong_type_is_refused(c: QlessClient, option: str, value: str, problem: str) -> None:
    assert c.refused("put", 1, "w", "q", "a", "klass", "{}", 0, option, value) == problem
    assert c("get", 2, "a") is None


def test_a_job_that_depends_on_itself_is_never_delivered(talk: Qless, c: QlessClient) -> None:
    waiter = Waiter(("q",), "worker", FAKTORY, None)
    talk.engine.add_waiter(waiter, 1 << 60)
    c.put(1, "a", "depends", '["a"]')
    assert not talk.engine.waiters.deliveries
    assert c.state("a") == "depends"
    talk.failed = True  # the waiter is not part of the conversation


# Queues


def test_a_paused_queue_is_listed_after_the_first_put(c: QlessClient) -> None:
    c("pause", 1, "q")
    assert c.json("queues", 1) == {}
    assert c.json("queues", 1, "q")["paused"] is True
    c.put(2, "a")
    assert [(row["name"], row["paused"]) for row in c.json("queues", 3)] == [("q", True)]
    assert c.pop(4) == []
    c("unpause", 5, "q")
    assert c.pop(6) == ["a"]


def test_a_queue_unpaused_before_the_first_put_is_not_paused(c: QlessClient) -> None:
    c("pause", 1, "q")
    c("unpause", 1, "q")
    c.put(2, "a")
    assert c.pop(3) == ["a"]


def test_queues_are_listed_by_the_time_of_their_first_job(c: QlessClient) -> None:
    c.put(5, "a", queue="late")
    c.put(3, "b", queue="early")
    assert c.pop(6, queue="late") == ["a"]
    c("fail", 7, "a", "w1", "group", "message")
    c("unfail", 8, "unfailed", "group")
    names = ["early", "late", "unfailed"]
    assert [row["name"] for row in c.json("queues", 9)] == names
    c.asks("ZRANGE", "ql:queues", 0, -1, "WITHSCORES")
    assert c.reply() == ["early", "3", "late", "5", "unfailed", "8"]


# Tags and tracking


def test_a_put_without_tags_counts_as_tagging_again(c: QlessClient) -> None:
    c.put(1, "a", "tags", '["t"]')
    c.put(2, "b", "tags", '["t"]')
    c.put(3, "a")
    assert c.json("tag", 4, "get", "t")["jobs"] == ["b", "a"]


@pytest.mark.parametrize("dialect", ["C", "spec"])
def test_untracking_an_unknown_job_changes_nothing(talk: Qless, dialect: str) -> None:
    client = talk.speaks(dialect)
    if dialect == "C":
        assert client("track", 1, "untrack", "nothing") == "0"
    else:
        assert client("Track", 0, "untrack", "nothing", 1) == 0


# Options, statistics, recurring jobs


def test_an_option_has_its_default(spec: QlessClient) -> None:
    assert spec("GetConfig", 0, "heartbeat") == 60
    assert spec("GetConfig", 0, "max-worker-age") == 86400
    assert spec("GetConfig", 0, "nothing") is None


def test_statistics_cover_the_configured_number_of_days(spec: QlessClient) -> None:
    day = 86400
    put(spec, 1, "a")
    pop(spec, 2)
    spec("Complete", 0, "a", "w1", "q", 3, "{}")
    assert sum(spec.json("Stats", 0, "q", 0)["run"]["histogram"]) == 1
    spec("Queues", 0, 8 * day)
    stats = spec.json("Stats", 0, "q", 0)["run"]
    assert (stats["count"], sum(stats["histogram"])) == (1, 0)
    spec("Queues", 0, 31 * day)
    assert spec.json("Stats", 0, "q", 0)["run"]["count"] == 0
    spec("SetConfig", 0, "stats-history", 60)
    assert spec.json("Stats", 0, "q", 0)["run"]["count"] == 1


def test_the_engine_keeps_statistics_as_long_as_configured(talk: Qless, c: QlessClient) -> None:
    c("config.set", 1, "stats-history", 60)
    assert talk.engine.statistics.keep_days == 60
    c("config.set", 1, "stats-history", 5)
    assert talk.engine.statistics.keep_days == 30


def test_recur_get_decodes_the_data(spec: QlessClient) -> None:
    data = '{"a":[1.50]}'
    spec("Recur", 0, "on", "q", "r", "klass", data, 1, "interval", 60, 0)
    assert b'"data":{"a":[1.50]}' in spec("Recur", 0, "get", "r").encode()


def test_recur_update_of_an_unknown_job_is_nil(spec: QlessClient, c: QlessClient) -> None:
    assert spec("Recur", 0, "update", "nothing", "priority", 1) is None
    assert c.refused("recur.update", 1, "nothing", "priority", 1) == (
        "Recur(): No recurring job nothing"
    )


def test_the_hash_of_a_job_has_its_type_and_history(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c.asks("HMGET", "ql:j:a", "type", "history")
    kind, history = c.reply()
    assert kind == "klass"
    assert json.loads(history) == [{"q": "q", "put": 1, "popped": 2, "worker": "w1"}]


# Throttles as keys


def test_a_throttle_can_be_written_as_a_key(c: QlessClient) -> None:
    def plain(*words: object) -> object:
        c.asks(*words)
        return c.reply()

    assert plain("HSET", "ql:th:mail", "id", "mail", "maximum", 3) == 2
    assert plain("HGETALL", "ql:th:mail") == ["id", "mail", "maximum", "3"]
    assert plain("HSET", "ql:th:mail", "maximum", 5) == 0
    assert plain("HGET", "ql:th:mail", "maximum") == "5"
    assert plain("DEL", "ql:th:mail", "ql:th:none") == 1
    assert plain("EXISTS", "ql:th:mail") == 0
