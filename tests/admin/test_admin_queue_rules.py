"""Connections with a rule for queues, as the web process opens them with `[web] queues`."""

import msgspec
import pytest

from admin_room import Room, content
from millrace.admin.client import hello
from millrace.admin.connection import AdminConnection
from millrace.engine.queue_rules import rule_for
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.registry import QLESS
from millrace.store.records import encode
from wires import Wire, data_of


class LimitedRoom(Room):
    """`limited` may use only the queues `signup*`."""

    def __init__(self) -> None:
        super().__init__()
        self.limited = Wire(self, AdminConnection(self.hub), lambda line: None)
        self.clients.append(self.limited)
        self.limited.connection.receive(hello(("signup*",)), self.now, 1)
        self.limited.connection.replies = []

    def asks_limited(self, **request):
        """The last reply to the limited connection."""
        before = len(self.limited.replies)
        self.limited.receive(msgspec.json.encode(request) + b"\n")
        self.check()
        return content(self.limited.replies[before:][-1])

    def acts_limited(self, action, *jobs, **more):
        return self.asks_limited(act={"action": action, "jobs": jobs, **more})


@pytest.fixture
def room() -> LimitedRoom:
    return LimitedRoom()


def test_a_job_of_another_queue_cannot_be_untracked(room):
    room.push("b1", "billing")
    room.push("s1", "signup-a")
    room.act("track", "b1", "s1")
    acted = room.acts_limited("untrack", "b1", "s1")
    assert (acted["done"], acted["skipped"]) == (1, [{"job": "b1", "reason": "Job not found."}])
    assert list(room.engine.annotations.tracked) == ["b1"]


def test_a_jid_that_another_queue_has_too_cannot_be_tracked(room):
    room.push("a1", "billing")
    room.push("a1", "signup-a")
    room.push("a2", "signup-a")
    acted = room.acts_limited("track", "a1", "a2")
    reason = "the job is in a queue that is not allowed here"
    assert (acted["done"], acted["skipped"]) == (1, [{"job": "a1", "reason": reason}])
    assert list(room.engine.annotations.tracked) == ["a2"]


def test_why_does_not_name_a_blocker_of_another_queue(room):
    blockers = [room.push("b1", "billing").seq, room.push("s1", "signup-a").seq]
    room.push("first", "signup-a", blockers=blockers)
    room.push("second", "signup-a", blockers=blockers[:1])
    texts = {}
    for jid in ("first", "second"):
        (found,) = room.asks_limited(why=jid)["jobs"]
        texts[jid] = found["reasons"][0]["text"]
    assert texts == {"first": "Waits for s1 (ready) and 1 more.", "second": "Waits for 1 job."}
    (found,) = room.asks(why="second")["jobs"]
    assert found["reasons"][0]["text"] == "Waits for b1 (ready)."


# Operators on a server whose Qless port has a rule


@pytest.fixture
def subscribed() -> tuple[Room, QlessConnection]:
    """A room with a job in `billing` and one in `signup-a`, and a subscriber of a limited port."""
    room = Room()
    for jid, queue in (("b1", "billing"), ("s1", "signup-a")):
        room.put(jid, queue)
        room.act("track", jid)
    room.qless_hub.rule = rule_for(("signup*",))
    del room.qless.first_seen["billing"]  # as if the hub had its rule from the start
    subscriber = QlessConnection(room.qless_hub)
    subscriber.receive(b"*2\r\n$10\r\nPSUBSCRIBE\r\n$1\r\n*\r\n", room.now, 10)
    subscriber.replies = []
    return room, subscriber


ACTIONS = [
    ("cancel", {}),
    ("delete", {}),
    ("kill", {}),
    ("track", {}),
    ("untrack", {}),
    ("move", {"queue": "billing-2"}),
    ("timeout", {}),
]


@pytest.mark.parametrize(("action", "more"), ACTIONS)
def test_a_limited_port_publishes_no_actions_on_jobs_of_other_queues(subscribed, action, more):
    room, subscriber = subscribed
    if action == "timeout":
        room.lease("billing", QLESS, "w1")
    assert room.act(action, "b1", **more)["done"] == 1
    assert data_of(subscriber) == []


@pytest.mark.parametrize(("action", "more"), [*ACTIONS[:-2], ("move", {"queue": "signup-b"})])
def test_a_limited_port_publishes_actions_on_jobs_of_its_queues(subscribed, action, more):
    room, subscriber = subscribed
    assert room.act(action, "s1", **more)["done"] == 1
    assert b"s1" in b"".join(data_of(subscriber))


def test_a_limited_port_publishes_no_tracking_of_removed_jobs(subscribed):
    room, subscriber = subscribed
    room.act("delete", "b1")
    assert room.act("untrack", "b1")["done"] == 1
    assert data_of(subscriber) == []


def test_a_limited_port_publishes_options_of_its_queues(subscribed):
    room, subscriber = subscribed
    for value in ("77", None):
        room.asks(set_qless={"option": "billing-heartbeat", "value": value, "by": "ann"})
    assert data_of(subscriber) == []
    room.asks(set_qless={"option": "signup-a-heartbeat", "value": "78", "by": "ann"})
    assert b"78" in b"".join(data_of(subscriber))


def test_a_limited_client_flushes_after_an_operator_has_moved_a_job(subscribed):
    room, _ = subscribed
    room.act("move", "b1", queue="billing-2")
    client = QlessConnection(room.qless_hub)
    client.receive(b"*1\r\n$7\r\nFLUSHDB\r\n", room.now, 100)
    while client.run(room.now, 100):
        pass
    assert data_of(client) == [b"+OK\r\n"]
    assert [job.jid for job in room.engine.jobs.values()] == ["b1"]
    assert "qless/queue/billing-2" in room.engine.settings


# Requests with several jobs: all queues are checked before the first change


@pytest.mark.parametrize("query", [False, True])
def test_a_move_to_a_refused_queue_changes_no_job(room, query):
    for job in (
        room.put("s1", "signup-a"),
        room.put("s2", "signup-a"),
        room.push("s3", "signup-a"),
    ):
        assert job.queue == "signup-a"
    before = [encode(job) for job in room.engine.jobs.values()]
    settings = dict(room.engine.settings)
    target = {"query": {}} if query else {"jobs": ["s1", "s2", "s3"]}
    refused = room.asks_limited(act={"action": "move", "queue": "billing", **target})
    assert refused == {
        "error": "the queue billing is not allowed on this port",
        "code": "refused",
    }
    assert [encode(job) for job in room.engine.jobs.values()] == before
    assert dict(room.engine.settings) == settings
    assert room.audit() == []
    assert room.asks_limited(act={"action": "move", "queue": "signup-b", **target})["done"] == 3


def test_a_push_with_a_refused_queue_pushes_no_job(room):
    jobs = [{"kind": "k", "payload": "", "queue": queue} for queue in ("signup-a", "billing")]
    refused = room.asks_limited(push={"jobs": jobs})
    assert refused["code"] == "refused"
    assert not room.engine.jobs
    assert not room.engine.queues


def test_a_lease_from_a_refused_queue_leases_no_job(room):
    room.push("s1", "signup-a")
    lease = {"queues": ["signup-a", "billing"], "worker": "w", "limit": 2}
    refused = room.asks_limited(lease=lease)
    assert refused["code"] == "refused"
    assert [job.attempt for job in room.engine.jobs.values()] == [0]
