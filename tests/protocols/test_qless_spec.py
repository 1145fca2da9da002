"""The statements of the spec, tested with its command form QLESS.<COMMAND>."""

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
def q(talk: Qless) -> QlessClient:
    return talk.speaks("spec")


def put(q: QlessClient, now: float, jid: str, *options: object, queue: str = "testing") -> None:
    assert q("Put", 1, queue, jid, "foo.bar.FooJob", '{"hello": "how are you"}', now, 0, *options)


def pop(q: QlessClient, now: float, worker: str = "w1", queue: str = "testing") -> str:
    [job] = q("Pop", 1, queue, worker, 1, now)
    return str(json.loads(job)["jid"])


# API


def test_cancel_deletes_a_job_from_the_system(q: QlessClient) -> None:
    put(q, 1, "deadbeef")
    pop(q, 2)
    q("Cancel", 0, "deadbeef")
    assert q("Heartbeat", 0, "deadbeef", "w1", 3) is None
    assert q("Complete", 0, "deadbeef", "w1", "testing", 3, "{}") is None
    assert q("Get", 0, "deadbeef") is None


def test_complete_can_move_a_job_to_another_queue_with_delay_or_dependencies(
    q: QlessClient,
) -> None:
    for number, jid in enumerate("abcd"):
        put(q, number, jid)
        pop(q, number)
    complete = ("w1", "testing", 5, "{}")
    assert q("Complete", 0, "a", *complete, "next", "n") == "waiting"
    assert q("Complete", 0, "b", *complete, "next", "n", "delay", 60) == "scheduled"
    assert q("Complete", 0, "c", *complete, "next", "n", "depends", '["a","b"]') == "depends"
    assert q("Complete", 0, "d", *complete) == "complete"
    assert q("Complete", 0, "d", *complete) is None


def test_depends_on_and_off(q: QlessClient) -> None:
    for jid in "abc":
        put(q, 1, jid)
    assert q("Depends", 0, "a", "on", "b") is None  # it is not in the depends state
    put(q, 2, "d", "depends", '["a"]')
    assert q("Depends", 0, "d", "on", "b", "c") == 1
    assert q.json("Get", 0, "d")["dependencies"] == ["a", "b", "c"]
    assert q("Depends", 0, "d", "off", "b") == 1
    assert q.json("Get", 0, "d")["dependencies"] == ["a", "c"]
    assert q("Depends", 0, "d", "off", "all") == 1
    assert q.json("Get", 0, "d")["state"] == "waiting"


@pytest.mark.parametrize("state", ["waiting", "running", "scheduled", "depends"])
def test_a_job_in_any_state_can_be_marked_as_failed(q: QlessClient, state: str) -> None:
    put(q, 1, "other", queue="elsewhere")
    delay = 10 if state == "scheduled" else 0
    depends = ("depends", '["other"]') if state == "depends" else ()
    q("Put", 1, "testing", "a", "klass", "{}", 1, delay, *depends)
    if state == "running":
        pop(q, 2)
    assert q.json("Get", 0, "a")["state"] == state
    assert q("Fail", 0, "a", "w1", "upload error", "widget failure", 3, '{"new":1}') == "a"
    job = q.json("Get", 0, "a")
    assert job_fields(job, "state", "data") == ("failed", {"new": 1})
    assert q.json("Failed", 0) == {"upload error": 1}
    assert q("Heartbeat", 0, "a", "w1", 4) is None
    assert q("Complete", 0, "a", "w1", "testing", 4, "{}") is None
    assert q("Pop", 1, "testing", "w1", 5, 100) == []


def test_a_job_that_does_not_exist_cannot_fail(q: QlessClient) -> None:
    assert q("Fail", 0, "unknown", "w1", "type", "message", 4) is None


def test_failed(q: QlessClient) -> None:
    for number in range(3):
        put(q, number, f"j{number}")
        pop(q, number)
        q("Fail", 0, f"j{number}", "w1", "type1" if number else "type2", f"message {number}", 10)
    assert q.json("Failed", 0) == {"type1": 2, "type2": 1}
    found = q.json("Failed", 0, "type1", 0, 25)
    assert found["total"] == 2
    shown = [job_fields(job, "jid", "message", "type") for job in found["jobs"]]
    assert shown == [("j2", "message 2", "type1"), ("j1", "message 1", "type1")]
    assert found["jobs"][0]["data"] == {"hello": "how are you"}


def test_jobs_returns_all_jobs_in_a_state(q: QlessClient) -> None:
    names = [f"j{number:02}" for number in range(40)]
    for number, jid in enumerate(names):
        q("Put", 1, "testing", jid, "klass", "{}", number, 1000)
    assert q("Jobs", 0, "scheduled", 50, "testing") == names


def test_peek_removes_no_job(q: QlessClient) -> None:
    put(q, 1, "a")
    [job] = q("Peek", 1, "testing", 5, 2)
    assert json.loads(job)["state"] == "waiting"
    assert pop(q, 3) == "a"


def test_priority(q: QlessClient) -> None:
    put(q, 1, "a")
    put(q, 2, "b")
    assert q("Priority", 0, "unknown", 1) is None
    assert q("Priority", 0, "b", -10) == -10
    assert [pop(q, 3), pop(q, 3)] == ["b", "a"]


def test_put_moves_a_job_from_under_its_worker(q: QlessClient) -> None:
    put(q, 1, "a")
    pop(q, 2)
    put(q, 3, "a", queue="other")
    assert q("Heartbeat", 0, "a", "w1", 4) is None
    assert q("Complete", 0, "a", "w1", "testing", 4, "{}") is None


def test_queues(q: QlessClient) -> None:
    for number in range(4):
        put(q, number, f"j{number}")
    pop(q, 10)
    pop(q, 30)
    q("Put", 1, "testing", "later", "klass", "{}", 31, 1000)
    [queue] = q.json("Queues", 0, 75)
    shown = job_fields(queue, "name", "stalled", "waiting", "running", "scheduled")
    assert shown == ("testing", 1, 2, 1, 1)
    assert q.json("Queues", 0, 75, "testing") == queue


def test_retry(q: QlessClient) -> None:
    put(q, 1, "a", "retries", 1)
    assert q("Retry", 0, "a", "testing", "w1", 2) is None  # it is not running
    pop(q, 3)
    assert q("Retry", 0, "a", "testing", "w2", 4) is None  # w2 has no lock on it
    assert q("Retry", 0, "a", "testing", "w1", 5) == 0
    pop(q, 6)
    assert q("Retry", 0, "a", "testing", "w1", 7) < 0
    assert q.json("Get", 0, "a")["state"] == "failed"


def test_tag(q: QlessClient) -> None:
    put(q, 1, "a")
    assert json.loads(q("Tag", 0, "add", "a", 2, "testing", "experimental")) == [
        "testing",
        "experimental",
    ]
    assert q("Tag", 0, "add", "unknown", 2, "testing") is None
    assert q.json("Tag", 0, "get", "testing") == {"total": 1, "jobs": ["a"]}
    assert json.loads(q("Tag", 0, "remove", "a", 3, "testing")) == ["experimental"]


def test_track(q: QlessClient) -> None:
    put(q, 1, "a")
    put(q, 1, "deadbeef")
    q("Track", 0, "track", "a", 2, "tag")
    q("Track", 0, "track", "deadbeef", 3)
    q("Cancel", 0, "deadbeef")
    found = q.json("Track", 0)
    assert found["jobs"] == [q.json("Get", 0, "a")], "all the other details you'd get from 'get'"
    assert found["expired"] == ["deadbeef"]
    q("Track", 0, "untrack", "a", 4)
    assert q.json("Track", 0)["jobs"] == {}


def test_workers_by_the_recency_of_their_activity(q: QlessClient) -> None:
    put(q, 1, "a")
    put(q, 2, "b")
    pop(q, 3, "hostname1-pid1")
    pop(q, 4, "hostname2-pid2")
    assert [worker["name"] for worker in q.json("Workers", 0, 5)] == [
        "hostname2-pid2",
        "hostname1-pid1",
    ]
    assert q.json("Workers", 0, 5, "hostname1-pid1") == {"jobs": ["a"], "stalled": {}}


def test_unfail_moves_the_first(q: QlessClient) -> None:
    for number in range(3):
        put(q, number, f"j{number}")
        pop(q, number)
        q("Fail", 0, f"j{number}", "w1", "group", "message", 10 + number)
    assert q("Unfail", 0, 20, "group", "again", 2) == 2
    assert [pop(q, 21, queue="again"), pop(q, 21, queue="again")] == ["j0", "j1"]


# Features and philosophy


def test_a_lock_is_exclusive_and_renewed_by_its_owner_only(q: QlessClient) -> None:
    put(q, 1, "a")
    pop(q, 2, "w1")
    assert q("Pop", 1, "testing", "w2", 1, 3) == []
    assert q("Heartbeat", 0, "a", "w1", 4, '{"half": "done"}') == 64
    assert q.json("Get", 0, "a")["data"] == {"half": "done"}
    assert q("Heartbeat", 0, "a", "w2", 5) is None


def test_statistics_of_waiting_and_running(q: QlessClient) -> None:
    """Wait time is grouped by the day of the pop, completion time by that of the completion."""
    day = 86_400
    put(q, day - 10, "a")
    pop(q, day + 20)
    q("Complete", 0, "a", "w1", "testing", 2 * day + 5, "{}")
    first, second, third = (q.json("Stats", 0, "testing", n * day) for n in range(3))
    assert [stats["wait"]["total"] for stats in (first, second, third)] == [0, 1, 0]
    assert [stats["run"]["total"] for stats in (first, second, third)] == [0, 0, 1]
    assert second["wait"]["mean"] == 30
    assert third["run"]["mean"] == day - 15


def test_failures_are_summarised_by_type(q: QlessClient) -> None:
    for jid, group in (("a", "upload error"), ("b", "widget failure"), ("c", "upload error")):
        put(q, 1, jid)
        pop(q, 2)
        q("Fail", 0, jid, "w1", group, "message", 3)
    assert q.json("Failed", 0) == {"upload error": 2, "widget failure": 1}
    q("Cancel", 0, "b")
    assert q.json("Failed", 0) == {"upload error": 2}


# Configuration options


def test_defaults(q: QlessClient) -> None:
    options = ("heartbeat", "stats-history", "histogram-history", "jobs-history-count")
    assert [q("GetConfig", 0, option) for option in options] == [60, 30, 7, 50_000]
    assert q("GetConfig", 0, "jobs-history") == 7 * 24 * 60 * 60


def test_heartbeat_of_one_queue(q: QlessClient) -> None:
    put(q, 1, "a")
    q("SetConfig", 0, "heartbeat-testing", 10)
    [job] = q("Pop", 1, "testing", "w1", 1, 2)
    assert json.loads(job)["expires"] == 12
    q("SetConfig", 0, "heartbeat-testing")
    assert q("Heartbeat", 0, "a", "w1", 3) == 63


# Queues, and jobs of the same priority


def test_expired_locks_precede_waiting_jobs(q: QlessClient) -> None:
    q("SetConfig", 0, "grace-period", 0)
    put(q, 1, "a")
    pop(q, 2)
    put(q, 3, "b")
    assert [pop(q, 100, "w2"), pop(q, 100, "w2")] == ["a", "b"]


def test_jobs_of_one_priority_are_popped_in_order_of_insertion(q: QlessClient) -> None:
    for number in range(5):
        put(q, 1 + number / 1000, f"j{number}")
    assert [pop(q, 2) for _ in range(5)] == [f"j{number}" for number in range(5)]
