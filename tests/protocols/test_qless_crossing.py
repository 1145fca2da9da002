"""Crossing jobs: how Qless shows other protocols' jobs, and the effects of other protocols on Qless
jobs. tests/conformance covers the rest of the life of crossing jobs.
"""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient

from millrace.engine.job import NewJob
from millrace.engine.states import DEAD, READY, SCHEDULED
from millrace.protocols.registry import FAKTORY, GOQUEUE, MASENKO, WORKQ

SECOND = 1_000_000


@pytest.fixture
def talk() -> Iterator[Qless]:
    conversation = Qless()
    yield conversation
    conversation.close()


@pytest.fixture
def c(talk: Qless) -> QlessClient:
    return talk.speaks("C")


def pushes(talk: Qless, origin: int, retries: int = 3, kind: str = "kind", **more: object) -> None:
    """Push the job `a` of another protocol to q."""
    fields = {"payload": b"[1]", "lease_duration": 60 * SECOND, **more}

    def push(world) -> None:
        world.engine.push(
            NewJob("a", kind, origin=origin, queue="q", retries=retries, **fields), world.now
        )

    talk.acts(push)


@pytest.mark.parametrize("origin", [FAKTORY, MASENKO, GOQUEUE])
def test_a_failure_follows_the_rules_of_the_origin(talk, c, origin):
    pushes(talk, origin)
    assert c.pop(1000) == ["a"]
    assert c("fail", 1001, "a", "w1", "group", "message", '{"new":1}') == "a"
    job = talk.job("a")
    assert (job.state, job.failures, job.inline_payload) == (SCHEDULED, 1, b"[1]")
    assert c.json("failed", 1002) == {}


def test_a_dead_job_is_in_a_failure_group(talk, c):
    pushes(talk, MASENKO, retries=0)
    assert c.pop(1000) == ["a"]
    c("fail", 1001, "a", "w1", "group", "message")
    assert talk.job("a").state == DEAD
    assert c.json("failed", 1002) == {"group": 1}
    assert c.get("a")["failure"] == {
        "group": "group",
        "message": "message",
        "when": 1001,
        "worker": "w1",
    }


@pytest.mark.parametrize("payload", [rb'"\ud800"', b"[" * 1200 + b"]" * 1200])
def test_data_that_cjson_cannot_read_can_be_returned(talk, c, payload):
    pushes(talk, WORKQ, payload=payload)
    c.pop(1000)
    data = payload.decode()
    assert c("heartbeat", 1001, "a", "w1", data) == 1061
    with pytest.raises(Exception, match="Expected"):
        c("complete", 1002, "a", "w1", "q", f"[{data}]")
    assert c("complete", 1002, "a", "w1", "q", data) == "complete"


def test_a_failure_can_return_data_that_cjson_cannot_read(talk, c):
    pushes(talk, MASENKO, payload=rb'"\ud800"')
    c.pop(1000)
    assert c("fail", 1001, "a", "w1", "group", "message", r'"\ud800"') == "a"


def test_a_heartbeat_keeps_the_payload(talk, c):
    pushes(talk, GOQUEUE, payload=b"\xff")
    c.pop(1000)
    assert c("heartbeat", 1001, "a", "w1", '"/w=="') == 1061
    assert talk.job("a").inline_payload == b"\xff"


@pytest.mark.parametrize("dialect", ["C", "spec"])
def test_a_job_without_a_kind_has_the_name_of_its_queue(talk, dialect):
    pushes(talk, GOQUEUE, kind="")
    client = talk.speaks(dialect)
    assert client.get("a")["klass"] == "q"


# Representation


@pytest.mark.parametrize("dialect", ["B", "C", "spec"])
def test_data_in_base64_is_flagged(talk, dialect):
    pushes(talk, GOQUEUE, payload=b"\xff")
    shown = talk.speaks(dialect).get("a")
    assert shown["encoding"] == "base64"
    assert shown["data"] == ("/w==" if dialect == "spec" else '"/w=="')


@pytest.mark.parametrize("dialect", ["B", "C", "spec"])
def test_other_data_is_not_flagged(talk, dialect):
    pushes(talk, GOQUEUE, payload=b"text")
    assert "encoding" not in talk.speaks(dialect).get("a")


def test_the_flag_is_in_the_hash_of_the_job(talk):
    pushes(talk, GOQUEUE, payload=b"\xff")
    client = talk.speaks("C")
    client.asks("HMGET", "ql:j:a", "data", "encoding")
    assert client.reply() == ['"/w=="', "base64"]


@pytest.mark.parametrize(("dialect", "priority"), [("C", -5), ("B", -5), ("spec", 5)])
def test_a_priority_has_the_sign_of_the_dialect(talk, dialect, priority):
    """A Go Job Queue priority of 5 is less urgent than 0; the sign depends on the dialect."""
    pushes(talk, GOQUEUE, rank=-5)
    assert talk.speaks(dialect).get("a")["priority"] == priority


def test_a_priority_of_zero_has_no_sign(talk):
    pushes(talk, GOQUEUE)
    assert str(talk.speaks("spec").get("a")["priority"]) == "0"


@pytest.mark.parametrize("dialect", ["C", "spec"])
def test_a_bound_lease_has_no_expiry(talk, dialect):
    pushes(talk, GOQUEUE)
    talk.acts(lambda world: world.engine.lease(["q"], "masenko-1", MASENKO, world.now))
    shown = talk.speaks(dialect).get("a")
    assert (shown["state"], shown["expires"], shown["worker"]) == ("running", 0, "masenko-1")


@pytest.mark.parametrize(
    ("origin", "retries", "expected_remaining"),
    [(GOQUEUE, 0, 0), (MASENKO, 2, 1), (MASENKO, 0, -1), (FAKTORY, 0, -1)],
)
def test_retry_returns_the_remaining_retries(talk, c, origin, retries, expected_remaining):
    """Negative only without a further retry: Go Job Queue does not count."""
    pushes(talk, origin, retries=retries)
    c.pop(1000)
    assert c("retry", 1001, "a", "q", "w1") == expected_remaining


def test_retry_can_have_a_delay(talk, c):
    pushes(talk, MASENKO)
    c.pop(1000)
    c("retry", 1001, "a", "q", "w1", 100)
    job = talk.job("a")
    assert (job.state, job.due_at) == (SCHEDULED, talk.now + 100 * SECOND)  # by the server's clock


# Effects of other protocols on Qless jobs


def does(talk: Qless, act, jid: str = "a") -> None:
    talk.acts(lambda world: act(world.engine, world.engine.find(jid), world.now))


def completes(engine, job, now) -> None:
    engine.lease(["q"], "somebody", FAKTORY, now)
    engine.complete(job, now, FAKTORY)


def test_tags_are_removed_with_a_job_that_another_protocol_cancels(talk, c):
    c.put(1000, "a", "tags", '["x","y"]')
    c.put(1000, "b", "tags", '["x"]')
    does(talk, lambda engine, job, now: engine.cancel(job, now, WORKQ))
    assert c.json("tag", 1001, "get", "x") == {"total": 1, "jobs": ["b"]}
    assert set(talk.world.api.qless.tags) == {"x"}
    does(talk, lambda engine, job, now: engine.cancel(job, now, WORKQ), "b")
    assert not talk.world.api.qless.tags


def test_a_job_that_another_protocol_completes_has_the_usual_retention(talk, c):
    c.put(1000, "a")
    does(talk, completes)
    c.put(1001, "b")
    c.pop(1002)
    c("complete", 1003, "b", "w1", "q", "{}")
    assert c.state("a") == "complete"
    assert c("jobs", 1004, "complete") == ["b", "a"]
    c.put(1000 + 604_799, "c")
    c.pop(1000 + 604_799)
    c("complete", 1000 + 604_799, "c", "w1", "q", "{}")
    assert c.state("a") == "complete"
    c.put(1000 + 604_801, "d")
    c.pop(1000 + 604_801)
    c("complete", 1000 + 604_801, "d", "w1", "q", "{}")
    assert c("get", 1000 + 604_801, "a") is None


def test_a_delayed_job_that_another_protocol_unblocks_is_due_by_the_clock_of_the_caller(talk, c):
    """The clock of the caller is about fifty years behind the server here."""
    c.put(1000, "a")
    c.put(1000, "b", "depends", '["a"]', delay=100)
    does(talk, completes)
    assert c.state("b") == "scheduled"
    assert c.pop(1099) == []
    assert c.pop(1100) == ["b"]


def test_a_delayed_job_is_due_by_the_clock_of_the_server_without_a_request(talk, c):
    c.put(1000, "a")
    c.put(1000, "b", "depends", '["a"]', delay=100)
    talk.advance(30)
    does(talk, completes)
    talk.advance(69)
    assert talk.job("b").state == SCHEDULED
    talk.advance(1)
    assert talk.job("b").state == READY


def test_unblocked_jobs_keep_their_order_by_the_clock_of_the_caller(talk, c):
    c.put(1000, "a")
    c.put(1000, "b", "depends", '["a"]')
    does(talk, completes)
    c.put(1000.5, "c")
    assert c.pop(1001, 2) == ["b", "c"]


def test_a_flush_by_another_protocol_leaves_no_trace(talk, c):
    c.put(1000, "a", "tags", '["x"]')
    c.put(1000, "b", "tags", '["x"]')
    c.pop(1001)
    talk.acts(lambda world: world.engine.flush(world.now))
    assert c.json("tag", 1002, "top") == {}
    qless = talk.world.api.qless
    deadlines = qless.engine.deadlines
    assert (qless.tags, deadlines.leases, deadlines.due) == ({}, {}, {})


def test_a_throttle_binds_the_workers_of_other_protocols(talk, c):
    talk.acts(lambda world: world.api.qless.throttles.set("t", 1, 0, world.now))
    c.put(1000, "a", "throttles", '["t"]', "priority", 3)
    c.put(1000, "b", "throttles", '["t"]', "priority", 2)
    assert c.pop(1001, 2) == ["a"]
    assert c.state("b") == "throttled"
    talk.acts(lambda world: world.engine.lease(["q"], "other", FAKTORY, world.now))
    assert c.state("b") == "throttled"
    c("complete", 1002, "a", "w1", "q", "{}")
    talk.acts(lambda world: world.engine.lease(["q"], "other", FAKTORY, world.now))
    assert (c.state("b"), talk.job("b").rank) == ("running", 2)
    c.put(1003, "c", "throttles", '["t"]')
    assert c.pop(1004) == []
    does(talk, lambda engine, job, now: engine.fail(job, now, FAKTORY, "Oops", "", []), "b")
    assert (c.state("b"), talk.job("b").rank) == ("waiting", 2)
    assert c.pop(1005) == ["b"]
