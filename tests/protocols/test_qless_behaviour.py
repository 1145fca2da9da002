"""The behaviour of Qless, by the points of the sheet: order, locks, grace, retries, dependencies,
retention, limits; in dialect C.
"""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient, job_fields

from millrace.protocols.qless.attempts import RETIRE_BATCH_SIZE


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


# Order


def test_higher_priority_first_then_by_time(c: QlessClient) -> None:
    c.put(3, "a")
    c.put(2, "b")
    c.put(4, "c", "priority", 0.5)
    c.put(5, "d", "priority", -1)
    assert c.pop(10, 4) == ["c", "b", "a", "d"]


def test_ties_are_first_in_first_out(c: QlessClient) -> None:
    for jid in "acb":
        c.put(5, jid)
    assert c.pop(6, 3) == ["a", "c", "b"]


def test_the_time_of_a_delayed_job_is_its_due_time(c: QlessClient) -> None:
    c.put(0, "delayed", delay=10)
    c.put(5, "first")
    c.put(15, "last")
    assert c.pop(20, 3) == ["first", "delayed", "last"]


def test_the_order_of_a_pop(c: QlessClient) -> None:
    """Expired locks first, then recurring and due jobs, up to the limit."""
    c("config.set", 0, "grace-period", 0)
    c.put(1, "lost")
    c.pop(2, worker="w0")
    c.put(3, "plain")
    c.put(3, "due", "priority", 9, delay=10)
    c("recur", 3, "q", "r", "klass", "{}", "interval", 1000, 10, "priority", 5)
    assert c.pop(100) == ["lost"]
    assert c.state("due") == "scheduled"
    assert c.pop(100, 3) == ["due", "r-1", "plain"]


# Locks


def test_heartbeat_of_a_queue_by_both_names(c: QlessClient) -> None:
    for jid in "abc":
        c.put(1, jid)
    c("config.set", 2, "heartbeat", 30)
    assert c.json("pop", 10, "q", "w", 1)[0]["expires"] == 40
    c("config.set", 11, "heartbeat-q", 20)
    assert c.json("pop", 20, "q", "w", 1)[0]["expires"] == 40
    c("config.set", 21, "q-heartbeat", 5)
    assert c.json("pop", 30, "q", "w", 1)[0]["expires"] == 35
    assert c("heartbeat", 31, "a", "w") == 36


def test_a_negative_heartbeat_expires_immediately(c: QlessClient) -> None:
    c("config.set", 0, "heartbeat", -10)
    c("config.set", 0, "grace-period", 0)
    c.put(1, "a")
    assert c.pop(10, worker="w1") == ["a"]
    assert c.pop(10, worker="w2") == ["a"]
    assert c.refused("heartbeat", 11, "a", "w1").endswith("another worker: w2")


def test_an_expired_lock_is_valid_until_the_next_pop(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c("heartbeat", 1000, "a", "w1") == 1060
    assert c("complete", 5000, "a", "w1", "q", "{}") == "complete"


def test_the_server_clock_ends_no_lock(c: QlessClient, talk: Qless) -> None:
    c.put(1, "a")
    c.pop(2)
    talk.advance(100_000)
    assert job_fields(c.get("a"), "state", "worker") == ("running", "w1")


# Grace


def test_a_worker_has_a_grace_period(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c.pop(62, worker="w2") == []
    job = c.get("a")
    assert job_fields(job, "state", "worker", "expires", "remaining") == ("running", "w1", 62, 5)
    assert job["history"][-1] == {"what": "timed-out", "when": 62}
    counts = c.json("queues", 63, "q")
    assert job_fields(counts, "running", "stalled") == (1, 0)
    assert c.json("workers", 63, "w1") == {"jobs": {}, "stalled": {}}
    assert c.json("stats", 63, "q", 63)["retries"] == 1
    assert c.pop(71, worker="w2") == []
    assert c.pop(72, worker="w2") == ["a"]
    job = c.get("a")
    assert job_fields(job, "worker", "expires", "remaining") == ("w2", 132, 4)
    assert c.json("stats", 73, "q", 73)["retries"] == 1


@pytest.mark.parametrize("command", ["heartbeat", "complete", "fail", "retry"])
def test_in_the_grace_period_the_worker_holds_its_job(c: QlessClient, command: str) -> None:
    c.put(1, "a")
    c.pop(2)
    c.pop(62, worker="w2")
    args = {
        "heartbeat": ("a", "w1"),
        "complete": ("a", "w1", "q", "{}"),
        "fail": ("a", "w1", "group", "message"),
        "retry": ("a", "q", "w1"),
    }[command]
    assert c(command, 65, *args) in {125, "complete", "a", 4}


def test_a_heartbeat_restarts_the_grace_period(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c.pop(62, worker="w2")
    c("heartbeat", 65, "a", "w1")
    assert c.json("workers", 66, "w1")["jobs"] == ["a"]
    assert c.pop(125, worker="w2") == []
    assert c.pop(135, worker="w2") == ["a"]


def test_a_lock_that_expired_at_zero(c: QlessClient) -> None:
    c("config.set", 0, "heartbeat", -10)
    c.put(1, "a")
    assert c.pop(10, worker="w1") == ["a"]
    assert c.get("a")["expires"] == 0
    assert c.pop(10, worker="w2") == []
    assert c.pop(20, worker="w2") == ["a"]


def test_without_grace(c: QlessClient) -> None:
    c("config.set", 0, "grace-period", 0)
    c.put(1, "a", "retries", 1)
    c.pop(2)
    assert c.pop(62, worker="w2") == ["a"]
    job = c.get("a")
    whats = [stage["what"] for stage in job["history"]]
    assert whats == ["put", "popped", "timed-out", "popped"]
    assert c.pop(122, worker="w3") == []
    job = c.get("a")
    assert job_fields(job, "state", "worker", "queue") == ("failed", "", "q")
    assert job["failure"] == {
        "group": "failed-retries-q",
        "message": 'Job exhausted retries in queue "q"',
        "when": 122,
        "worker": "",
    }
    assert job["history"][-1] == {"what": "failed", "when": 122, "group": "failed-retries-q"}
    stats = c.json("stats", 123, "q", 123)
    assert job_fields(stats, "retries", "failures", "failed") == (2, 1, 1)


# Retries


def test_n_retries_are_n_plus_one_attempts(c: QlessClient) -> None:
    c.put(1, "a", "retries", 2)
    remaining = []
    for number in range(3):
        assert c.pop(10 + number) == ["a"]
        remaining.append(c("retry", 10.5 + number, "a", "q", "w1"))
    assert remaining == [1, 0, -1]
    assert c.pop(20) == []


def test_remaining_is_reset(c: QlessClient) -> None:
    c.put(1, "a", "retries", 1)
    c.pop(2)
    c("retry", 3, "a", "q", "w1")
    assert c.get("a")["remaining"] == 0
    c.pop(4)
    c("complete", 5, "a", "w1", "q", "{}", "next", "q")
    assert c.get("a")["remaining"] == 1
    for now in (6, 8):
        c.pop(now)
        c("retry", now + 1, "a", "q", "w1")
    assert c.state("a") == "failed"
    c("unfail", 10, "q", "failed-retries-q")
    assert c.get("a")["remaining"] == 1
    c.pop(11)
    c("retry", 12, "a", "q", "w1")
    c.put(13, "a")
    assert c.get("a")["remaining"] == 1


def test_a_retried_job_stays_in_its_queue(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    assert c("retry", 3, "a", "another", "w1") == 4
    assert c.get("a")["queue"] == "q"
    assert c.pop(4, queue="another") == []
    assert c.pop(4) == ["a"]


# Dependencies


def test_dependents_wait_for_the_final_completion(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", "depends", '["a", "a", "unknown"]')
    assert c.get("b")["dependencies"] == ["a"]
    c.pop(3)
    c("complete", 4, "a", "w1", "q", "{}", "next", "q2")
    assert c.state("b") == "depends"
    c.pop(5, queue="q2")
    c("complete", 6, "a", "w1", "q2", "{}")
    assert job_fields(c.get("b"), "state", "dependencies") == ("waiting", {})


def test_only_jobs_that_are_not_complete_count(c: QlessClient) -> None:
    c.put(1, "a")
    c.pop(2)
    c("complete", 3, "a", "w1", "q", "{}")
    c.put(4, "b", "depends", '["a"]')
    c.put(4, "c", "depends", '["a"]', delay=10)
    assert [c.state("b"), c.state("c")] == ["waiting", "scheduled"]


def test_a_delay_starts_at_the_put_and_not_at_the_release(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b", "depends", '["a"]', delay=100)
    c.pop(2)
    c("complete", 3, "a", "w1", "q", "{}")
    assert c.state("b") == "scheduled"
    assert c.pop(100) == []
    assert c.pop(101) == ["b"]


def test_a_failed_dependency_blocks_its_dependents(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", "depends", '["a"]')
    c.pop(3)
    c("fail", 4, "a", "w1", "group", "message")
    assert c.state("b") == "depends"
    assert c.refused("cancel", 5, "a").startswith("Cancel(): a is a dependency of b")
    c.put(6, "c", "depends", '["a"]')
    assert c.state("c") == "depends"
    c("unfail", 7, "q", "group")
    c.pop(8)
    c("complete", 9, "a", "w1", "q", "{}")
    assert c.pop(10, 5) == ["b", "c"]


def test_put_replaces_dependencies_if_it_has_some(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(1, "b")
    c.put(2, "z", "depends", '["a"]')
    c.put(3, "z")
    assert job_fields(c.get("z"), "state", "dependencies") == ("depends", ["a"])
    c.put(3, "z", "depends", "[]")
    assert job_fields(c.get("z"), "state", "dependencies") == ("depends", ["a"])
    c.put(4, "z", "depends", '["b"]')
    assert c.get("z")["dependencies"] == ["b"]
    assert job_fields(c.get("a"), "dependents") == ({},)


def test_a_job_can_depend_on_itself(c: QlessClient) -> None:
    c.put(1, "a", "depends", '["a"]')
    job = c.get("a")
    assert job_fields(job, "state", "dependencies", "dependents") == ("depends", ["a"], ["a"])
    assert c("length", 2, "q") == 0
    c("depends", 3, "a", "off", "a")
    assert c.pop(4) == ["a"]
    c("complete", 5, "a", "w1", "q", "{}", "next", "q", "depends", '["a"]')
    assert c.state("a") == "depends"
    assert c("cancel", 6, "a") == ["a"]


def test_a_timeout_uses_an_attempt(c: QlessClient) -> None:
    """Otherwise two leases have one attempt number, and the first holder could end the second
    lease.
    """
    c.put(1, "a")
    c.pop(2)
    c("timeout", 3, "a")
    c.pop(4)
    assert c._talk.engine.find("a").attempt == 2


def test_a_job_that_depends_on_itself_is_never_ready(c: QlessClient) -> None:
    """Otherwise it is ready temporarily, and a waiting worker of another protocol receives it."""
    c.put(1, "a", "depends", '["a"]')
    assert c._talk.engine.find("a").ready_at == 0


def test_cancelling_a_dependent_unblocks_the_cancellation_of_its_dependency(c: QlessClient) -> None:
    c.put(1, "a")
    c.put(2, "b", "depends", '["a"]')
    c("cancel", 3, "b")
    assert c.get("a")["dependents"] == {}
    assert c("cancel", 4, "a") == ["a"]


# Retention


def test_completed_jobs_are_retained_for_a_time(c: QlessClient) -> None:
    c("config.set", 0, "jobs-history", 100)
    for number, jid in enumerate("abc"):
        c.put(number, jid, "tags", '["t"]')
    c.pop(5, 3)
    c("complete", 10, "a", "w1", "q", "{}")
    c("complete", 109, "b", "w1", "q", "{}")
    assert c.state("a") == "complete"
    assert c("jobs", 500, "complete") == ["b", "a"]  # only a completion removes jobs
    c("complete", 110, "c", "w1", "q", "{}")
    assert c("get", 111, "a") is None
    assert c("jobs", 111, "complete") == ["c", "b"]
    assert c.json("tag", 111, "get", "t")["jobs"] == ["b", "c"]


def test_a_limited_number_of_completed_jobs_is_retained(c: QlessClient) -> None:
    c("config.set", 0, "jobs-history-count", 2)
    for number, jid in enumerate("abcd"):
        c.put(number, jid)
        c.pop(number)
        c("complete", number, jid, "w1", "q", "{}")
    assert c("jobs", 10, "complete") == ["d", "c"]
    assert c("multiget", 10, "a", "b") == "{}"
    c("config.set", 11, "jobs-history-count", 0)
    c.put(12, "e")
    c.pop(12)
    assert c("complete", 12, "e", "w1", "q", "{}") == "complete"
    assert c("get", 13, "e") is None
    assert c("jobs", 13, "complete") == []


def test_lowering_the_number_of_retained_jobs_removes_a_few_per_command(c: QlessClient) -> None:
    surplus = RETIRE_BATCH_SIZE + 5
    for number in range(surplus):
        c.put(1, f"j{number}")
    c.pop(2, surplus)
    for number in range(surplus):
        c("complete", 3, f"j{number}", "w1", "q", "{}")
    c("config.set", 4, "jobs-history-count", 0)
    for left in (6, 0):
        c.put(5, "last")
        c.pop(5)
        c("complete", 6, "last", "w1", "q", "{}")
        assert len(c._talk.engine.done_untrimmed) == left


def test_the_history_keeps_the_first_and_the_newest_entries(c: QlessClient) -> None:
    c.put(0, "a")
    for number in range(1, 150):
        c("log", number, "a", f"m{number}")
    whens = [stage["when"] for stage in c.get("a")["history"]]
    assert whens == [0, *range(51, 150)]


@pytest.mark.parametrize(("most", "kept"), [(1, [0]), (2, [0, 9]), (4, [0, 7, 8, 9])])
def test_history_of_another_length(c: QlessClient, most: int, kept: list[int]) -> None:
    c("config.set", 0, "max-job-history", most)
    c.put(0, "a")
    for number in range(1, 10):
        c("log", number, "a", "message")
    assert [stage["when"] for stage in c.get("a")["history"]] == kept


def test_a_history_without_a_limit(c: QlessClient) -> None:
    c("config.set", 0, "max-job-history", 0)
    c.put(0, "a")
    for number in range(1, 150):
        c("log", number, "a", "message")
    assert len(c.get("a")["history"]) == 150


# Limits


def test_max_concurrency(c: QlessClient) -> None:
    c("config.set", 0, "q-max-concurrency", 2)
    for number, jid in enumerate("abcde"):
        c.put(number, jid)
    assert c.pop(10, 1) == ["a"]
    assert c.pop(10, 5) == ["b"]
    assert c.pop(11, 5) == []
    c("complete", 12, "a", "w1", "q", "{}")
    assert c.pop(13, 5) == ["c"]
    c("config.set", 14, "q-max-concurrency", 1)
    assert [c.state("b"), c.state("c")] == ["running", "running"]
    c("complete", 15, "b", "w1", "q", "{}")
    assert c.pop(16) == []
    c("complete", 17, "c", "w1", "q", "{}")
    assert c.pop(18) == ["d"]


def test_stalled_jobs_do_not_count_against_the_limit(c: QlessClient) -> None:
    c("config.set", 0, "q-max-concurrency", 1)
    c("config.set", 0, "grace-period", 0)
    c.put(1, "a")
    c.put(2, "b")
    assert c.pop(10) == ["a"]
    assert c.pop(70, 5) == []  # a lock that expires now is still valid
    assert c.pop(71, 5) == ["a"]


# Other protocols' jobs


def test_a_job_of_another_protocol(c: QlessClient, talk: Qless) -> None:
    talk.pushes_faktory("0123456789", payload=b'[1, {"x":[]}]')
    talk.pushes_faktory("text-job", payload=b"no json")
    talk.pushes_faktory("byte-job", payload=b"\xff\x00")
    jobs = {job["jid"]: job for job in c.json("pop", 2_000_000_000, "q", "w1", 5)}
    assert jobs["0123456789"]["data"] == '[1, {"x":[]}]'
    assert jobs["text-job"]["data"] == '"no json"'
    assert jobs["byte-job"]["data"] == '"/wA="'
    assert job_fields(jobs["text-job"], "klass", "state", "retries") == ("SomeJob", "running", 3)
    for jid in jobs:
        assert c("complete", 2_000_000_001, jid, "w1", "q", jobs[jid]["data"]) == "complete"
    assert not talk.engine.jobs


def test_failing_a_job_of_another_protocol(c: QlessClient, talk: Qless) -> None:
    talk.pushes_faktory("0123456789")
    c.pop(2_000_000_000)
    assert c("fail", 2_000_000_001, "0123456789", "w1", "group", "message") == "0123456789"
    assert c.state("0123456789") == "scheduled"  # by the rules of Faktory
    assert c.json("failed", 2_000_000_002) == {}
