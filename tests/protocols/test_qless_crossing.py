"""Jobs that cross: what becomes of other protocols' jobs that a Qless worker fails or loses."""

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


def test_a_task_goes_to_its_dead_queue(talk, c):
    pushes(talk, MASENKO, retries=0, dead_queue="late")
    c.pop(1000)
    c("fail", 1001, "a", "w1", "group", "message")
    job = talk.job("a")
    assert (job.state, job.queue, job.failures) == (READY, "late", 0)


def test_a_heartbeat_leaves_the_payload_alone(talk, c):
    pushes(talk, GOQUEUE, payload=b"\xff")
    c.pop(1000)
    assert c("heartbeat", 1001, "a", "w1", '"/w=="') == 1061
    assert talk.job("a").payload == b"\xff"


def test_a_lost_lock_is_no_failure_of_a_workq_job(talk, c):
    pushes(talk, WORKQ, retries=0)
    assert c.pop(1000) == ["a"]
    assert c.pop(1100, worker="w2") == []  # the first worker has a time of grace
    assert c.pop(1200, worker="w2") == ["a"]
    assert talk.job("a").failures == 0


@pytest.mark.parametrize("dialect", ["C", "spec"])
def test_a_job_without_a_kind_is_known_by_its_queue(talk, dialect):
    pushes(talk, GOQUEUE, kind="")
    client = talk.speaks(dialect)
    assert client.get("a")["klass"] == "q"
