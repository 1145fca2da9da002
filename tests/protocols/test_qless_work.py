"""Commands of producers and workers, in dialect C; test_qless_dialect_a.py covers the differences
of other dialects.
"""

import json
from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient, job_fields


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


# put


def test_put_shows_a_job_as_in_the_sheet(c: QlessClient) -> None:
    assert c("put", 12345, "worker", "queue", "jid", "klass", "{}", 0) == "jid"
    assert c.get("jid") == {
        "jid": "jid",
        "retries": 5,
        "data": "{}",
        "failure": {},
        "expires": 0,
        "remaining": 5,
        "spawned_from_jid": False,
        "dependencies": {},
        "klass": "klass",
        "tracked": False,
        "tags": {},
        "queue": "queue",
        "state": "waiting",
        "history": [{"when": 12345, "q": "queue", "what": "put"}],
        "dependents": {},
        "priority": 0,
        "worker": "",
    }


def test_put_takes_its_options(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", "priority", 2.5, "tags", '["x","y"]', "retries", 3, "depends", '["a"]')
    job = c.get("b")
    assert job_fields(job, "priority", "tags", "retries", "remaining") == (2.5, ["x", "y"], 3, 3)
    assert job_fields(job, "state", "dependencies") == ("depends", ["a"])
    assert c.get("a")["dependents"] == ["b"]
    c.put(3, "c", "nonsense", "is ignored", delay=5.5)
    assert job_fields(c.get("c"), "state", "expires") == ("scheduled", 0)


def test_a_put_without_an_id_returns_the_generated_id(c: QlessClient) -> None:
    jid = c("put", 1, "w", "q", "", "klass", "{}", 0)
    assert c.get(jid)["jid"] == jid
    assert c.pop(2, 2) == [jid]


def test_put_keeps_data_byte_for_byte(c: QlessClient) -> None:
    data = '{"z": [], "a":12345678901234567,\t"é/\\u00e9":1.50, "a":{} }'
    c("put", 1, "w", "q", "jid", "klass", data, 0)
    assert c.get("jid")["data"] == data


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Queue(): no queue name provided"),
        (("w",), "Queue(): no queue name provided"),
        (("w", "q"), 'Put(): Arg "jid" missing'),
        (("w", "q", "jid"), 'Put(): Arg "klass" missing'),
        (
            ("w", "q", "jid", "klass"),
            "bad argument #1 to 'decode' (string expected, got nil)",
        ),
        (
            ("w", "q", "jid", "klass", "[}"),
            "Expected value but found T_OBJ_END at character 2",
        ),
        (("w", "q", "jid", "klass", "{}"), 'Put(): Arg "delay" not a number: nil'),
        (("w", "q", "jid", "klass", "{}", "x"), 'Put(): Arg "delay" not a number: x'),
        (("w", "q", "jid", "klass", "{}", "inf"), 'Put(): Arg "delay" not a number: inf'),
        (("w", "q", "jid", "klass", "{}", "nan"), 'Put(): Arg "delay" not a number: nan'),
        (
            ("w", "q", "jid", "klass", "{}", 0, "retries"),
            "Odd number of additional args: table: 0x0",
        ),
        (
            ("w", "q", "jid", "klass", "{}", 0, "retries", "x"),
            'Put(): Arg "retries" not a number: x',
        ),
        (
            ("w", "q", "jid", "klass", "{}", 0, "priority", "x"),
            'Put(): Arg "priority" not a numberx',
        ),
        (
            ("w", "q", "jid", "klass", "{}", 0, "tags", "x"),
            "Expected value but found invalid token at character 1",
        ),
        (
            ("w", "q", "jid", "klass", "{}", 0, "depends", '["a"'),
            "Expected comma or array end but found T_END at character 5",
        ),
    ],
)
def test_a_refused_put_leaves_no_trace(
    c: QlessClient, talk: Qless, args: tuple[object, ...], error: str
) -> None:
    assert c.refused("put", 1, *args) == error
    assert c("get", 2, "jid") is None
    assert c.json("queues", 3) == {}
    assert not talk.engine.jobs


def test_put_with_invalid_tags(c: QlessClient) -> None:
    c.put(1, "a", "tags", "{}")
    assert c.get("a")["tags"] == {}
    words = 'Put(): Arg "tags" must be a JSON array of strings'
    assert c.refused("put", 2, "w", "q", "b", "klass", "{}", 0, "tags", "[true]") == words
    assert c("get", 3, "b") is None


def test_put_of_an_existing_job_moves_it(c: QlessClient) -> None:
    c.put(1, "a", "priority", 3, "tags", '["t"]', "retries", 2)
    assert c.pop(2, worker="w1") == ["a"]
    c("retry", 3, "a", "q", "w1", 0, "group", "message")
    assert c("put", 4, "other", "q2", "a", "klass2", "[1]", 0) == "a"
    job = c.get("a")
    assert job_fields(job, "queue", "klass", "data") == ("q2", "klass2", "[1]")
    assert job_fields(job, "priority", "tags", "retries", "remaining") == (3, ["t"], 2, 2)
    assert job["failure"]["group"] == "group"
    assert [stage["what"] for stage in job["history"]] == ["put", "popped", "put"]
    assert c.pop(5) == []
    assert c.pop(5, queue="q2") == ["a"]


def test_put_removes_the_lock_of_a_job(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c.put(3, "a")
    assert c.refused("heartbeat", 4, "a", "w1").endswith("not currently running: waiting")
    assert c.refused("complete", 4, "a", "w1", "q", "{}").endswith("running: waiting")
    assert c.json("workers", 5, "w1") == {"jobs": {}, "stalled": {}}
    assert job_fields(c.get("a"), "worker", "expires") == ("", 0)


def test_put_of_a_completed_job_starts_over(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("complete", 3, "a", "w1", "q", "{}")
    assert c("jobs", 4, "complete") == ["a"]
    c.put(5, "a", queue="q2")
    assert c("jobs", 6, "complete") == []
    assert job_fields(c.get("a"), "state", "queue") == ("waiting", "q2")


def test_put_of_a_failed_job_removes_it_from_its_group(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("fail", 3, "a", "w1", "group", "message")
    c.put(4, "a")
    assert c.json("failed", 5) == {}
    assert c.get("a")["failure"]["group"] == "group"
    assert c.json("stats", 6, "q", 3)["failed"] == 0
    c.pop(7)
    c("complete", 8, "a", "w1", "q", "{}")
    assert c.get("a")["failure"] == {}


# requeue


def test_requeue_is_a_put_of_an_existing_job(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("fail", 3, "a", "w1", "group", "message")
    assert c("requeue", 4, "w", "q2", "a", "klass", "{}", 0) == "a"
    assert job_fields(c.get("a"), "state", "queue") == ("waiting", "q2")
    assert c.refused("requeue", 5, "w", "q", "zz", "k", "{}", 0) == (
        "Requeue(): Job zz does not exist"
    )


# pop


def test_pop_returns_a_lock(c: QlessClient) -> None:
    c.put(1, "a")
    [job] = c.json("pop", 2, "q", "w1", 1)
    assert job_fields(job, "jid", "state", "worker", "expires") == ("a", "running", "w1", 62)
    assert job["history"][-1] == {"what": "popped", "when": 2, "worker": "w1"}
    assert c("pop", 3, "q", "w1", 1) == "{}"
    assert c("pop", 3, "unknown", "w1", 1) == "{}"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Queue(): no queue name provided"),
        (("q",), 'Pop(): Arg "worker" missing'),
        (("q", "w"), 'Pop(): Arg "count" missing or not a number: nil'),
        (("q", "w", "x"), 'Pop(): Arg "count" missing or not a number: x'),
    ],
)
def test_pop_refuses_invalid_requests(c: QlessClient, args: tuple[object, ...], error: str) -> None:
    assert c.refused("pop", 1, *args) == error


def test_pop_returns_the_requested_number_of_jobs(c: QlessClient) -> None:
    for number, jid in enumerate("abcde"):
        c.put(number, jid)
    assert c.pop(10, 0) == []
    assert c.pop(10, 2) == ["a", "b"]
    assert c.pop(10, " 2.0 ") == ["c", "d"]  # type: ignore[arg-type]
    assert c.pop(10, 10) == ["e"]


def test_pop_from_a_paused_queue_registers_no_worker(c: QlessClient) -> None:
    c.put(1, "a")
    c("pause", 2, "q")
    assert c.pop(3) == []
    assert c("workers", 4) == "{}"
    c("unpause", 5, "q")
    assert c.pop(6) == ["a"]


# peek


def test_peek_removes_no_job(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", "priority", 5)
    assert [job["jid"] for job in c.json("peek", 3, "q", 5)] == ["b", "a"]
    assert c.state("b") == "waiting"
    assert c("peek", 3, "empty", 1) == "{}"
    assert c.refused("peek", 3, "q") == 'Peek(): Arg "count" missing or not a number: nil'
    assert c.refused("peek", 3) == "Queue(): no queue name provided"


def test_peek_shows_jobs_with_an_expired_lock(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c("peek", 61, "q", 1) == "{}"
    [job] = c.json("peek", 62, "q", 1)
    assert job_fields(job, "jid", "state") == ("a", "running")


# complete


def test_complete_ends_a_job(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c("complete", 3, "a", "w1", "q", '{"done": 1}') == "complete"
    job = c.get("a")
    assert job_fields(job, "state", "queue", "worker", "expires") == ("complete", "", "", 0)
    assert job_fields(job, "data", "remaining") == ('{"done": 1}', 5)
    assert job["history"][-1] == {"what": "done", "when": 3}


def test_complete_with_a_next_queue(c: QlessClient) -> None:
    for jid in "abcd":
        c.put(1, jid)
    c.pop(2, 4)
    assert c("complete", 3, "a", "w1", "q", "{}", "next", "n") == "waiting"
    assert c("complete", 3, "b", "w1", "q", "{}", "next", "n", "delay", 5) == "scheduled"
    assert c("complete", 3, "c", "w1", "q", "{}", "next", "n", "depends", '["d"]') == "depends"
    assert c("complete", 3, "d", "w1", "q", "{}", "next", "n", "depends", '["gone"]') == "waiting"
    assert [c.state(jid) for jid in "abcd"] == ["waiting", "scheduled", "depends", "waiting"]
    job = c.get("a")
    assert job_fields(job, "queue", "worker", "expires", "remaining") == ("n", "", 0, 5)
    assert job["history"][-2:] == [
        {"what": "done", "when": 3},
        {"what": "put", "when": 3, "q": "n"},
    ]
    assert [queue["name"] for queue in c.json("queues", 4)] == ["q", "n"]
    assert c.pop(8, 5, queue="n") == ["a", "d", "b"]


def test_complete_with_delay_and_dependencies(c: QlessClient) -> None:
    for jid in "abc":
        c.put(1, jid)
    c.pop(2, 3)
    c("complete", 3, "a", "w1", "q", "{}", "next", "n", "delay", 10, "depends", '["b"]')
    c("complete", 4, "c", "w1", "q", "{}", "next", "n", "delay", 10, "depends", "[]")
    assert [c.state("a"), c.state("c")] == ["depends", "scheduled"]
    c("complete", 5, "b", "w1", "q", "{}")
    assert c.state("a") == "scheduled"
    assert c.pop(12, queue="n") == []
    assert c.pop(14, 2, queue="n") == ["a", "c"]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Job(): no jid provided"),
        (("a",), 'Complete(): Arg "worker" missing'),
        (("a", "w1"), 'Complete(): Arg "queue" missing'),
        (("a", "w1", "q"), "bad argument #1 to 'decode' (string expected, got nil)"),
        (
            ("a", "w1", "q", "{]"),
            "Expected object key string but found T_ARR_END at character 2",
        ),
        (("zz", "w1", "q", "{}"), "Complete(): Job zz does not exist"),
        (("b", "w1", "q", "{}"), "Complete(): Job b is not currently running: waiting"),
        (
            ("a", "w2", "q", "{}"),
            "Complete(): Job a has been handed out to another worker: w1",
        ),
        (("a", "w1", "q2", "{}"), "Complete(): Job a running in another queue: q"),
        (
            ("a", "w1", "q", "{}", "delay", 0),
            'Complete(): "delay" cannot be used without a "next".',
        ),
        (
            ("a", "w1", "q", "{}", "depends", "[]"),
            'Complete(): "depends" cannot be used without a "next".',
        ),
        (("a", "w1", "q", "{}", "next", "n", "delay", "x"), "assertion failed!"),
    ],
)
def test_complete_refuses_invalid_requests(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    c.put(1, "a")
    c.put(2, "b")
    c.pop(3)
    assert c.refused("complete", 4, *args) == error
    assert c.state("a") == "running"


# fail


def test_fail_keeps_the_job_in_a_group(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c("fail", 3.75, "a", "w1", "group", "message", '{ "x":1}') == "a"
    job = c.get("a")
    assert job_fields(job, "state", "worker", "expires", "queue") == ("failed", "", 0, "q")
    assert job["failure"] == {"group": "group", "message": "message", "when": 3, "worker": "w1"}
    assert job["history"][-1] == {"what": "failed", "when": 3, "worker": "w1", "group": "group"}
    assert job_fields(job, "data", "remaining") == ('{ "x":1}', 5)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Job(): no jid provided"),
        (("a",), 'Fail(): Arg "worker" missing'),
        (("a", "w1"), 'Fail(): Arg "group" missing'),
        (("a", "w1", "g"), 'Fail(): Arg "message" missing'),
        (("zz", "w1", "g", "m"), "Fail(): Job zzdoes not exist"),
        (("b", "w1", "g", "m"), "Fail(): Job bnot currently running: waiting"),
        (("a", "w2", "g", "m"), "Fail(): Job a running with another worker: w1"),
        (
            ("a", "w1", "g", "m", "nope"),
            "Expected value but found invalid token at character 1",
        ),
    ],
)
def test_fail_refuses_invalid_requests(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    c.put(1, "a")
    c.put(2, "b")
    c.pop(3)
    assert c.refused("fail", 4, *args) == error
    assert c.state("a") == "running"


# heartbeat


def test_heartbeat_renews_the_lock(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c("heartbeat", 10.75, "a", "w1", "[ ]") == 70
    assert job_fields(c.get("a"), "expires", "data") == (70.75, "[ ]")
    assert c("heartbeat", 11, "a", "w1") == 71


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Job(): no jid provided"),
        (("a",), 'Heatbeat(): Arg "worker" missing'),
        (("zz", "w1"), "Heartbeat(): Job zz does not exist"),
        (("b", "w1"), "Heartbeat(): Job b not currently running: waiting"),
        (("a", "w2"), "Heartbeat(): Job a given out to another worker: w1"),
    ],
)
def test_heartbeat_refuses_invalid_requests(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    c.put(1, "a")
    c.put(2, "b")
    c.pop(3)
    assert c.refused("heartbeat", 4, *args) == error


# retry


def test_retry_counts_against_the_retries(c: QlessClient) -> None:
    c.put(1, "a", "retries", 2)
    c.pop(2)
    assert c("retry", 3, "a", "q", "w1") == 1
    job = c.get("a")
    assert job_fields(job, "state", "remaining", "failure") == ("waiting", 1, {})
    assert job_fields(job, "worker", "expires") == ("w1", 62)  # as the original shows it
    c.pop(4)
    assert c("retry", 5, "a", "q", "w1", 10) == 0
    assert c.state("a") == "scheduled"
    assert c.pop(14) == []
    assert c.pop(15) == ["a"]
    assert c("retry", 16.5, "a", "q", "w1") == -1
    job = c.get("a")
    assert job_fields(job, "state", "worker", "expires") == ("failed", "", 0)
    assert job["failure"] == {
        "group": "failed-retries-q",
        "message": 'Job exhausted retries in queue "q"',
        "when": 16.5,
        "worker": "",
    }
    assert job["history"][-1] == {"what": "failed", "when": 16, "group": "failed-retries-q"}


def test_retry_stores_its_message(c: QlessClient) -> None:
    c.put(1, "a", "retries", 1)
    c.pop(2)
    assert c("retry", 3.5, "a", "q", "w1", 0, "group", "message") == 0
    expected_failure = {"group": "group", "message": "message", "when": 3, "worker": "w1"}
    assert job_fields(c.get("a"), "state", "failure") == ("waiting", expected_failure)
    assert c("failed", 4) == "{}"
    c.pop(5)
    assert c("retry", 6, "a", "q", "w1", 0, "group", "message") == -1
    assert c.json("failed", 7) == {"group": 1}


def test_a_retried_job_goes_behind_waiting_jobs(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b")
    assert c.pop(3) == ["a"]
    c("retry", 4, "a", "q", "w1")
    assert c.pop(5, 2) == ["b", "a"]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((), "Job(): no jid provided"),
        (("a",), 'Retry(): Arg "queue" missing'),
        (("a", "q"), 'Retry(): Arg "worker" missing'),
        (("a", "q", "w1", "x"), 'Retry(): Arg "delay" not a number: x'),
        (("zz", "q", "w1"), "Retry(): Job zz does not exist"),
        (("b", "q", "w1"), "Retry(): Job b is not currently running: waiting"),
        (("a", "q", "w2"), "Retry(): Job a has been given to another worker: w1"),
    ],
)
def test_retry_refuses_invalid_requests(
    c: QlessClient, args: tuple[object, ...], error: str
) -> None:
    c.put(1, "a")
    c.put(2, "b")
    c.pop(3)
    assert c.refused("retry", 4, *args) == error


# timeout


def test_timeout_removes_the_lock(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b", "priority", 100)
    c.pop(2, 2)
    c.put(3, "c", "priority", 1000)
    assert c("timeout", 4, "a", "b") is None
    job = c.get("a")
    assert job_fields(job, "state", "worker", "expires") == ("stalled", "w1", 0)
    assert job_fields(job, "remaining") == (5,)
    assert job["history"][-1] == {"what": "timed-out", "when": 4}
    assert c.json("workers", 5, "w1") == {"jobs": {}, "stalled": {}}
    assert c.pop(6, 3) == ["a", "b", "c"]  # first of all
    assert c.state("a") == "running"


def test_timeout_refuses_invalid_requests(c: QlessClient) -> None:
    c.put(1, "a")
    assert c.refused("timeout", 2, "zz") == "Timeout(): Job zz does not exist"
    assert c.refused("timeout", 2, "a") == "Timeout(): Job a not running"
    c.pop(3)
    assert c.refused("timeout", 4, "a", "zz") == "Timeout(): Job zz does not exist"
    assert c.state("a") == "running"


# cancel


def test_cancel_leaves_no_trace(c: QlessClient) -> None:
    c.put(1, "a", "tags", '["t"]')
    c.pop(2)
    assert c("cancel", 3, "a", "unknown") == ["a", "unknown"]
    assert c("get", 4, "a") is None
    assert c.refused("heartbeat", 4, "a", "w1") == "Heartbeat(): Job a does not exist"
    assert c.refused("complete", 4, "a", "w1", "q", "{}") == "Complete(): Job a does not exist"
    assert c.json("tag", 4, "get", "t") == {"total": 0, "jobs": {}}
    assert c("cancel", 5) == []


def test_cancel_requires_every_dependent_in_any_order(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b", "depends", '["a"]')
    c.put(1, "c", "depends", '["b"]')
    words = "Cancel(): a is a dependency of b but is not mentioned to be canceled"
    assert c.refused("cancel", 2, "a") == words
    assert c.refused("cancel", 2, "a", "b").startswith("Cancel(): b is a dependency of c")
    assert [c.state(jid) for jid in "abc"] == ["waiting", "depends", "depends"]
    assert c("cancel", 3, "b", "c", "a") == ["b", "c", "a"]
    assert c("multiget", 4, "a", "b", "c") == "{}"
    assert json.loads(c("queues", 5))[0]["depends"] == 0


def test_cancel_keeps_completed_jobs(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("complete", 3, "a", "w1", "q", "{}")
    assert c("cancel", 4, "a") == ["a"]
    assert c.state("a") == "complete"


def test_cancel_of_a_failed_job(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("fail", 3, "a", "w1", "group", "message")
    c("cancel", 4, "a")
    assert c("failed", 5) == "{}"
    stats = c.json("stats", 5, "q", 3)
    assert job_fields(stats, "failures", "failed") == (1, 0)


def test_a_lock_that_expires_during_a_pop_frees_capacity(c: QlessClient) -> None:
    c("config.set", 1, "q-max-concurrency", 1)
    c.put(1, "a")
    c.put(1, "b")
    assert c.pop(2) == ["a"]
    assert c.pop(3) == []
    assert c.pop(100) == ["b"]
