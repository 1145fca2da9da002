"""Connections with a rule for queues, as the web process opens them with `[web] queues`."""

import msgspec
import pytest

from admin_room import Room, content
from millrace.admin.client import hello
from millrace.admin.connection import AdminConnection
from wires import Wire


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
