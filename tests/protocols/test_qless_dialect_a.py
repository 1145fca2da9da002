"""The first dialect, a script for each command, and QLESS.<COMMAND>, the form of the spec: their
differences from the newest dialect. Every test runs in both.
"""

import json
from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient, job_fields

COMMANDS = [
    "cancel",
    "complete",
    "config",
    "depends",
    "fail",
    "failed",
    "get",
    "getconfig",
    "heartbeat",
    "jobs",
    "peek",
    "pop",
    "pause",
    "priority",
    "put",
    "queues",
    "recur",
    "retry",
    "setconfig",
    "stats",
    "tag",
    "track",
    "unfail",
    "unpause",
    "workers",
]


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture(params=["A", "spec"])
def a(request: pytest.FixtureRequest, talk: Qless) -> QlessClient:
    return talk.speaks(request.param, *COMMANDS)


def put(a: QlessClient, now: float, jid: str, *options: object, delay: float = 0) -> None:
    assert a("put", 1, "q", jid, "klass", '{"n": [] }', now, delay, *options) == jid


def pop(a: QlessClient, now: float, count: int = 1, worker: str = "w1") -> list[str]:
    return [json.loads(job)["jid"] for job in a("pop", 1, "q", worker, count, now)]


def get(a: QlessClient, jid: str) -> dict[str, object]:
    job = a.json("get", 0, jid)
    assert isinstance(job, dict)
    return job


# put, pop, peek, get


def test_the_representation_of_a_job(a: QlessClient) -> None:
    put(a, 12, "jid", "priority", 3, "tags", '["t"]', "retries", 2)
    assert get(a, "jid") == {
        "jid": "jid",
        "klass": "klass",
        "state": "waiting",
        "queue": "q",
        "worker": "",
        "tracked": False,
        "priority": 3,
        "expires": 0,
        "retries": 2,
        "remaining": 2,
        "data": {"n": []},
        "tags": ["t"],
        "history": [{"q": "q", "put": 12}],
        "failure": {},
        "dependents": {},
        "dependencies": {},
    }
    assert a("get", 0, "unknown") is None


def test_pop_and_peek_answer_with_an_array(a: QlessClient) -> None:
    assert a("pop", 1, "q", "w1", 1, 1) == []
    assert a("peek", 1, "q", 1, 1) == []
    put(a, 1, "a")
    put(a, 2, "b")
    assert [json.loads(job)["jid"] for job in a("peek", 1, "q", 5, 3)] == ["a", "b"]
    [job] = a("pop", 1, "q", "w1", 1, 4)
    shown = json.loads(job)
    assert job_fields(shown, "jid", "state", "worker", "expires") == ("a", "running", "w1", 64)
    assert shown["history"] == [{"q": "q", "put": 1, "popped": 4, "worker": "w1"}]


def test_dependencies_are_not_shown_in_lists(a: QlessClient) -> None:
    put(a, 1, "a")
    put(a, 2, "b", "depends", '["a"]')
    assert get(a, "b")["dependencies"] == ["a"]
    [job] = a("peek", 1, "q", 5, 3)
    assert job_fields(json.loads(job), "dependents", "dependencies") == (["b"], {})


def test_lower_numbers_run_sooner(a: QlessClient) -> None:
    put(a, 1, "later", "priority", 5)
    put(a, 2, "plain")
    put(a, 3, "sooner", "priority", -5)
    assert pop(a, 4, 3) == ["sooner", "plain", "later"]
    assert a("priority", 0, "plain", 7) == 7


@pytest.mark.parametrize("dialect", ["A", "spec"])
def test_higher_numbers_run_sooner_as_in_the_original(dialect: str) -> None:
    with Qless(dialect="original") as talk:
        a = talk.speaks(dialect, "put", "pop")
        put(a, 1, "later", "priority", -5)
        put(a, 2, "plain")
        put(a, 3, "sooner", "priority", 5)
        assert pop(a, 4, 3) == ["sooner", "plain", "later"]


def test_put_refuses_invalid_requests(a: QlessClient) -> None:
    assert a.refused("put", 1, "q", "a", "k", "{}", "soon", 0).startswith('Arg "now" missing')
    assert a.refused("put", 1, "q", "a", "k", "{}", 1, "x") == 'Put(): Arg "delay" not a number: x'
    assert a.refused("put", 0) == 'Arg "now" missing or not a number: nil'


# The newest dialect refuses these requests; this one returns nil


def test_complete(a: QlessClient) -> None:
    put(a, 1, "a")
    assert a("complete", 0, "a", "w1", "q", 2, "{}") is None
    pop(a, 3)
    assert a("complete", 0, "a", "w2", "q", 4, "{}") is None
    assert a("complete", 0, "zz", "w1", "q", 4, "{}") is None
    assert a("complete", 0, "a", "w1", "q", 5, "{}", "next", "q", "delay", 0) == "waiting"
    pop(a, 6)
    assert a("complete", 0, "a", "w1", "q", 7, '{"x": 1}') == "complete"
    job = get(a, "a")
    assert job_fields(job, "state", "queue", "data") == ("complete", "", {"x": 1})
    stage = {"q": "q", "put": 5, "popped": 6, "worker": "w1", "done": 7}
    assert job["history"][-1] == stage  # type: ignore[index]
    words = 'Complete(): "delay" cannot be used without a "next".'
    assert a.refused("complete", 0, "a", "w1", "q", 8, "{}", "delay", 1) == words


def test_fail(a: QlessClient) -> None:
    put(a, 1, "a")
    assert a("fail", 0, "zz", "w1", "group", "message", 2) is None
    pop(a, 3)
    assert a("fail", 0, "a", "somebody", "group", "message", 4, '{"y":2}') == "a"
    job = get(a, "a")
    assert job_fields(job, "state", "data") == ("failed", {"y": 2})
    assert job["failure"]["group"] == "group"  # type: ignore[index]
    assert a("heartbeat", 0, "a", "w1", 5) is None
    assert a("complete", 0, "a", "w1", "q", 5, "{}") is None


def test_failed(a: QlessClient) -> None:
    for number, jid in enumerate("ab"):
        put(a, number, jid)
        pop(a, number)
        a("fail", 0, jid, "w1", "group", f"message {jid}", 10 + number)
    assert a.json("failed", 0) == {"group": 2}
    found = a.json("failed", 0, "group", 0, 1)
    assert found["total"] == 2
    [job] = found["jobs"]
    assert job_fields(job, "jid", "message", "type") == ("b", "message b", "group")
    assert job["failure"] == {"group": "group", "message": "message b", "when": 11, "worker": "w1"}
    assert a.json("failed", 0, "none") == {"total": 0, "jobs": {}}


def test_heartbeat(a: QlessClient) -> None:
    put(a, 1, "a")
    assert a("heartbeat", 0, "a", "w1", 2) is None
    assert a("heartbeat", 0, "zz", "w1", 2) is None
    pop(a, 3)
    assert a("heartbeat", 0, "a", "w2", 4) is None
    assert a("heartbeat", 0, "a", "w1", 10, '{"z":[]}') == 70
    assert job_fields(get(a, "a"), "expires", "data") == (70, {"z": []})


def test_retry(a: QlessClient) -> None:
    put(a, 1, "a", "retries", 1)
    assert a("retry", 0, "a", "q", "w1", 2) is None
    pop(a, 3)
    assert a("retry", 0, "a", "q", "w2", 4) is None
    assert a("retry", 0, "a", "q", "w1", 5) == 0
    pop(a, 6)
    assert a("retry", 0, "a", "q", "w1", 7, 10) == -1
    assert get(a, "a")["state"] == "failed"


def test_depends(a: QlessClient) -> None:
    put(a, 1, "a")
    put(a, 2, "b", "depends", '["a"]')
    assert a("depends", 0, "a", "on", "b") is None
    assert a("depends", 0, "zz", "on", "b") is None
    assert a("depends", 0, "b", "on", "a") == 1
    assert a("depends", 0, "b", "off", "all") == 1
    assert get(a, "b")["state"] == "waiting"


def test_priority_of_an_unknown_job(a: QlessClient) -> None:
    assert a("priority", 0, "zz", 1) is None


def test_cancel(a: QlessClient) -> None:
    put(a, 1, "a")
    put(a, 2, "b", "depends", '["a"]')
    assert a.refused("cancel", 0, "a").startswith("Cancel(): a is a dependency of b")
    assert a("cancel", 0, "b") is None
    assert a("cancel", 0, "a") is None
    assert a("get", 0, "a") is None


# Other commands


def test_jobs(a: QlessClient) -> None:
    put(a, 1, "a")
    put(a, 1, "b", delay=10)
    pop(a, 2)
    assert a("jobs", 0, "running", 3, "q") == ["a"]
    assert a("jobs", 0, "stalled", 100, "q") == ["a"]
    assert a("jobs", 0, "scheduled", 3, "q") == ["b"]
    assert a("jobs", 0, "depends", 3, "q") == []
    a("complete", 0, "a", "w1", "q", 4, "{}")
    assert a("jobs", 0, "complete") == ["a"]
    assert a("jobs", 0, "complete", 1, 5) == []
    assert a.refused("jobs", 0, "foo", 3, "q") == 'Jobs(): Unknown type "foo"'


def test_queues_and_workers(a: QlessClient) -> None:
    assert a("queues", 0, 1) == "{}"
    assert a("workers", 0, 1) == "{}"
    put(a, 1, "a")
    pop(a, 2)
    [queue] = a.json("queues", 0, 3)
    assert job_fields(queue, "name", "running", "depends", "recurring") == ("q", 1, 0, 0)
    assert a.json("queues", 0, 3, "q") == queue
    assert a.json("workers", 0, 3) == [{"name": "w1", "jobs": 1, "stalled": 0}]
    assert a.json("workers", 0, 100, "w1") == {"jobs": {}, "stalled": ["a"]}


def test_tags(a: QlessClient) -> None:
    put(a, 1, "a", "tags", '["t"]')
    put(a, 2, "b")
    assert json.loads(a("tag", 0, "add", "b", 3, "t", "u")) == ["t", "u"]
    assert json.loads(a("tag", 0, "remove", "b", 4, "u")) == ["t"]
    assert a("tag", 0, "add", "zz", 4, "u") is None
    assert a.json("tag", 0, "get", "t", 0, 1) == {"total": 2, "jobs": ["a"]}
    assert a.json("tag", 0, "top") == ["t"]


def test_track(a: QlessClient) -> None:
    assert a.json("track", 0) == {"jobs": {}, "expired": {}}
    put(a, 1, "a")
    assert a("track", 0, "track", "a", 2, "tag") == 1
    assert a("track", 0, "track", "a", 3) == 0
    assert a("track", 0, "track", "gone", 4) == 1
    found = a.json("track", 0)
    assert [job["jid"] for job in found["jobs"]] == ["a"]
    assert found["expired"] == ["gone"]
    assert a("track", 0, "untrack", "gone", 5) == 1
    assert a("track", 0, "untrack", "a", 6) == 1
    assert a.refused("track", 0, "foo", "a", 7) == 'Track(): Unknown action "foo"'


def test_unfail_takes_the_group_before_the_queue(a: QlessClient) -> None:
    put(a, 1, "a")
    pop(a, 2)
    a("fail", 0, "a", "w1", "group", "message", 3)
    assert a("unfail", 0, 4, "none", "q") == 0
    assert a("unfail", 0, 4, "group", "q2", 5) == 1
    assert job_fields(get(a, "a"), "state", "queue") == ("waiting", "q2")


def test_stats_have_the_keys_of_both(a: QlessClient) -> None:
    put(a, 1, "a")
    pop(a, 4)
    stats = a.json("stats", 0, "q", 4)
    assert stats.keys() == {"run", "wait", "failed", "failures", "retries"}
    assert job_fields(stats["wait"], "count", "total", "mean", "std", "variance") == (1, 1, 3, 0, 0)
    assert len(stats["wait"]["histogram"]) == 148


def test_config(a: QlessClient) -> None:
    assert a("config", 0, "get", "heartbeat") == 60
    assert a("config", 0, "set", "heartbeat", 10) is None
    assert a("config", 0, "get", "heartbeat") == "10"
    assert a.json("config", 0, "get")["heartbeat"] == "10"
    assert a("config", 0, "unset", "heartbeat") is None
    assert a.refused("config", 0, "foo").startswith("Config(): Unrecognized action")


def test_getconfig_and_setconfig(a: QlessClient) -> None:
    assert a("setconfig", 0, "heartbeat", 10) is None
    assert a("getconfig", 0, "heartbeat") == "10"
    assert a.json("getconfig", 0)["heartbeat"] == "10"
    assert a("setconfig", 0, "heartbeat") is None
    assert a("getconfig", 0, "heartbeat") == 60


def test_pause(a: QlessClient) -> None:
    put(a, 1, "a")
    assert a("pause", 0, "q") is None
    assert pop(a, 2) == []
    assert a("unpause", 0, "q") is None
    assert pop(a, 2) == ["a"]


def test_recur(a: QlessClient) -> None:
    args = ("q", "r", "klass", "{}", 1, "interval", 10, 0, "retries", 2)
    assert a("recur", 0, "on", *args) == "r"
    assert job_fields(a.json("recur", 0, "get", "r"), "interval", "retries") == (10, 2)
    assert pop(a, 12, 5) == ["r-1", "r-2"]
    assert a("recur", 0, "update", "r", "interval", 20) == 1
    assert json.loads(a("recur", 0, "tag", "r", "t")) == ["t"]
    assert a("recur", 0, "untag", "r", "t") == "{}"
    assert a("recur", 0, "off", "r") == 1
    assert a("recur", 0, "get", "r") is None
    words = "Recur(): First argument must be one of on, off, get, update, tag, untag"
    assert a.refused("recur", 0, "foo") == words


def test_consistency_check_is_not_part_of_dialect_a(talk: Qless) -> None:
    spec = talk.speaks("spec")
    spec.asks("QLESS.NONSENSE", 0)
    assert "unknown command" in str(spec.reply())


# Dialect B: put without a worker


def test_dialect_b(talk: Qless) -> None:
    b = talk.speaks("B")
    args = ("q", "a", "klass", "{}", 0, "priority", 1, "tags", "[]", "retries", 5, "depends", "[]")
    assert b("put", 1, *args) == "a"
    [job] = b.json("pop", 2, "q", "w1", 1)
    assert job_fields(job, "jid", "data", "priority") == ("a", "{}", 1)
    assert b("complete", 3, "a", "w1", "q", "{}") == "complete"
    assert b.refused("put", 4, "q") == 'Put(): Arg "jid" missing'


def test_a_priority_keeps_its_meaning_in_the_dialect_that_set_it(talk: Qless) -> None:
    a, c = talk.speaks("A", "put", "recur"), talk.speaks("C")
    put(a, 1, "soon", "priority", -5)
    put(a, 2, "late", "priority", 5)
    a(
        "recur",
        0,
        "on",
        "q",
        "r",
        "klass",
        "{}",
        3,
        "interval",
        1000,
        0,
        "priority",
        -9,
        "retries",
        5,
    )
    assert c.pop(4, 9) == ["r-1", "soon", "late"]
    c("timeout", 5, "r-1", "late", "soon")
    assert c.pop(6, 9) == ["soon", "late", "r-1"]  # first, by the time of their put
    for jid in ("late", "soon", "r-1"):
        c("retry", 7, jid, "q", "w1")
    assert c.pop(8, 9) == ["r-1", "soon", "late"]
    for jid in ("late", "soon", "r-1"):
        c.put(9, jid)  # which does not mention priorities
    assert c.pop(10, 9) == ["r-1", "soon", "late"]
    for jid in ("late", "soon", "r-1"):
        c.put(11, jid)
    c("priority", 12, "late", 7)
    assert c.pop(13, 9) == ["r-1", "late", "soon"]


def test_dialects_share_their_jobs(talk: Qless) -> None:
    a, b, c = talk.speaks("A", "put", "get", "pop"), talk.speaks("B"), talk.speaks("C")
    put(a, 1, "from-a", "priority", -1)
    b("put", 2, "q", "from-b", "klass", "{}", 0, "priority", 2)
    c.put(3, "from-c")
    assert c.pop(4, 5) == ["from-b", "from-a", "from-c"]
    assert get(a, "from-c")["history"] == [{"q": "q", "put": 3, "popped": 4, "worker": "w1"}]
    assert c.get("from-a")["priority"] == -1
