"""Jobs that cross: how Qless shows other protocols' jobs, and what they do to its own. What becomes
of jobs that cross, whoever works them, is in tests/conformance.
"""

from collections.abc import Iterator

import pytest
from qless_conversation import Qless, QlessClient

from millrace.engine.job import FAKTORY, GOQUEUE, MASENKO, WORKQ, Push
from millrace.engine.states import DEAD, READY, SCHEDULED

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
    """Somebody pushes the job `a` of another protocol to q."""
    fields = {"payload": b"[1]", "lease_for": 60 * SECOND, **more}

    def push(world) -> None:
        world.engine.push(
            Push("a", kind, origin=origin, queue="q", retries=retries, **fields), world.now
        )

    talk.acts(push)


@pytest.mark.parametrize("origin", [FAKTORY, MASENKO, GOQUEUE])
def test_a_failure_follows_the_rules_of_whoever_pushed_the_job(talk, c, origin):
    pushes(talk, origin)
    assert c.pop(1000) == ["a"]
    assert c("fail", 1001, "a", "w1", "group", "message", '{"new":1}') == "a"
    job = talk.job("a")
    assert (job.state, job.failures, job.payload) == (SCHEDULED, 1, b"[1]")
    assert c.json("failed", 1002) == {}


def test_a_job_is_in_a_failure_group_once_it_is_dead(talk, c):
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
def test_what_cjson_would_not_read_can_be_given_back(talk, c, payload):
    pushes(talk, WORKQ, payload=payload)
    c.pop(1000)
    data = payload.decode()
    assert c("heartbeat", 1001, "a", "w1", data) == 1061
    with pytest.raises(Exception, match="Expected"):
        c("complete", 1002, "a", "w1", "q", f"[{data}]")
    assert c("complete", 1002, "a", "w1", "q", data) == "complete"


def test_a_failure_gives_back_what_cjson_would_not_read(talk, c):
    pushes(talk, MASENKO, payload=rb'"\ud800"')
    c.pop(1000)
    assert c("fail", 1001, "a", "w1", "group", "message", r'"\ud800"') == "a"


def test_a_heartbeat_leaves_the_payload_alone(talk, c):
    pushes(talk, GOQUEUE, payload=b"\xff")
    c.pop(1000)
    assert c("heartbeat", 1001, "a", "w1", '"/w=="') == 1061
    assert talk.job("a").payload == b"\xff"


@pytest.mark.parametrize("dialect", ["C", "spec"])
def test_a_job_without_a_kind_is_known_by_its_queue(talk, dialect):
    pushes(talk, GOQUEUE, kind="")
    client = talk.speaks(dialect)
    assert client.get("a")["klass"] == "q"


# How they are shown


@pytest.mark.parametrize("dialect", ["B", "C", "spec"])
def test_data_in_base64_is_flagged(talk, dialect):
    pushes(talk, GOQUEUE, payload=b"\xff")
    shown = talk.speaks(dialect).get("a")
    assert shown["encoding"] == "base64"
    assert shown["data"] == ("/w==" if dialect == "spec" else '"/w=="')


@pytest.mark.parametrize("dialect", ["B", "C", "spec"])
def test_other_data_is_not(talk, dialect):
    pushes(talk, GOQUEUE, payload=b"text")
    assert "encoding" not in talk.speaks(dialect).get("a")


def test_the_flag_is_in_the_jobs_hash_too(talk):
    pushes(talk, GOQUEUE, payload=b"\xff")
    client = talk.speaks("C")
    client.asks("HMGET", "ql:j:a", "data", "encoding")
    assert client.reply() == ['"/w=="', "base64"]


@pytest.mark.parametrize(("dialect", "priority"), [("C", -5), ("B", -5), ("spec", 5)])
def test_a_priority_as_whoever_asks_would_say_it(talk, dialect, priority):
    """Go Job Queue's 5 is less urgent than 0: to some the higher number is, to others the lower."""
    pushes(talk, GOQUEUE, rank=-5)
    assert talk.speaks(dialect).get("a")["priority"] == priority


def test_a_priority_of_none_has_no_sign(talk):
    pushes(talk, GOQUEUE)
    assert str(talk.speaks("spec").get("a")["priority"]) == "0"


@pytest.mark.parametrize("dialect", ["C", "spec"])
def test_a_lease_that_lasts_as_long_as_a_connection_has_no_expiry(talk, dialect):
    pushes(talk, GOQUEUE)
    talk.acts(lambda world: world.engine.lease(["q"], "masenko-1", MASENKO, world.now))
    shown = talk.speaks(dialect).get("a")
    assert (shown["state"], shown["expires"], shown["worker"]) == ("running", 0, "masenko-1")


@pytest.mark.parametrize(
    ("origin", "retries", "told"),
    [(GOQUEUE, 0, 0), (MASENKO, 2, 1), (MASENKO, 0, -1), (FAKTORY, 0, -1)],
)
def test_retry_tells_how_many_tries_are_left(talk, c, origin, retries, told):
    """Less than none only when there is no other: Go Job Queue does not count."""
    pushes(talk, origin, retries=retries)
    c.pop(1000)
    assert c("retry", 1001, "a", "q", "w1") == told


def test_retry_may_say_how_much_later(talk, c):
    pushes(talk, MASENKO)
    c.pop(1000)
    c("retry", 1001, "a", "q", "w1", 100)
    job = talk.job("a")
    assert (job.state, job.due) == (SCHEDULED, talk.now + 100 * SECOND)  # by the server's clock


# What others do to jobs of Qless


def does(talk: Qless, act, jid: str = "a") -> None:
    talk.acts(lambda world: act(world.engine, world.engine.find(jid), world.now))


def completes(engine, job, now) -> None:
    engine.lease(["q"], "somebody", FAKTORY, now)
    engine.complete(job, now, FAKTORY)


def test_tags_go_with_a_job_that_another_protocol_takes_away(talk, c):
    c.put(1000, "a", "tags", '["x","y"]')
    c.put(1000, "b", "tags", '["x"]')
    does(talk, lambda engine, job, now: engine.cancel(job, now, WORKQ))
    assert c.json("tag", 1001, "get", "x") == {"total": 1, "jobs": ["b"]}
    assert set(talk.world.api.qless.tags) == {"x"}
    does(talk, lambda engine, job, now: engine.cancel(job, now, WORKQ), "b")
    assert not talk.world.api.qless.tags


def test_a_job_that_another_protocol_completes_is_kept_as_long_as_others(talk, c):
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


def test_a_delayed_job_is_due_by_the_callers_clock_whoever_has_unblocked_it(talk, c):
    """Their clock is some fifty years behind ours here."""
    c.put(1000, "a")
    c.put(1000, "b", "depends", '["a"]', delay=100)
    does(talk, completes)
    assert c.state("b") == "scheduled"
    assert c.pop(1099) == []
    assert c.pop(1100) == ["b"]


def test_and_by_the_servers_when_nobody_asks(talk, c):
    c.put(1000, "a")
    c.put(1000, "b", "depends", '["a"]', delay=100)
    talk.advance(30)
    does(talk, completes)
    talk.advance(69)
    assert talk.job("b").state == SCHEDULED
    talk.advance(1)
    assert talk.job("b").state == READY


def test_what_waits_keeps_its_order_by_the_callers_clock(talk, c):
    c.put(1000, "a")
    c.put(1000, "b", "depends", '["a"]')
    does(talk, completes)
    c.put(1000.5, "c")
    assert c.pop(1001, 2) == ["b", "c"]


def test_nothing_is_left_of_jobs_that_another_protocol_flushed(talk, c):
    c.put(1000, "a", "tags", '["x"]')
    c.put(1000, "b", "tags", '["x"]')
    c.pop(1001)
    talk.acts(lambda world: world.engine.flush(world.now))
    assert c.json("tag", 1002, "top") == {}
    qless = talk.world.api.qless
    assert (qless.tags, qless.locks, qless.schedule) == ({}, {}, {})


def test_a_job_that_was_set_aside_is_one_like_others_once_somebody_has_it(talk, c):
    """Throttles are between those who pop over Qless; others take the job, and its rank is its own."""
    talk.acts(lambda world: world.api.qless.throttles.set("t", 1, 0, world.now))
    c.put(1000, "a", "throttles", '["t"]', "priority", 3)
    c.put(1000, "b", "throttles", '["t"]', "priority", 2)
    assert c.pop(1001, 2) == ["a"]
    assert c.state("b") == "throttled"
    talk.acts(lambda world: world.engine.lease(["q"], "somebody", FAKTORY, world.now))
    assert (c.state("b"), talk.job("b").rank) == ("running", 2)
    does(talk, lambda engine, job, now: engine.fail(job, now, FAKTORY, "Oops", "", []), "b")
    assert (c.state("b"), talk.job("b").rank) == ("waiting", 2)
    c("complete", 1002, "a", "w1", "q", "{}")
    assert c.pop(1003) == ["b"]
