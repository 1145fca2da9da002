"""The environment of the control socket, without sockets, on a virtual clock:

    room = Room()
    room.push("a1")
    assert room.act("kill", "a1")["done"] == 1

It contains the engine and the hubs of Faktory and Qless. After every request the indexes of the
engine and of Qless are compared with the jobs.
"""

from typing import Any

import msgspec

import wires
from millrace.admin.client import hello
from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.engine import consistency
from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.job import Job, NewJob
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.consistency import check
from millrace.protocols.qless.hub import QlessHub
from millrace.protocols.registry import FAKTORY
from wires import SECOND, START, Wire


class Room(wires.World):
    def __init__(self, *, qless: bool = True, engine: Engine | None = None) -> None:
        super().__init__()
        if engine is not None:
            self.engine = engine
        self.kept: list[ChangeSet] = []
        self.faktory = FaktoryHub(
            self.engine, started_at=START, challenge=lambda: (1, ""), memory_mb=lambda: 7
        )
        self.qless_hub = QlessHub(self.engine, started_at=START)
        if qless:
            self.api = QlessApi(self.qless_hub)
            self.qless = self.api.qless
        self.hub = AdminService(self.engine, 100)
        self.hub.hubs = [self.faktory, *([self.qless_hub] if qless else []), self.hub]
        self.wire = self.connect()

    def connect(self) -> Wire:
        wire = Wire(self, AdminConnection(self.hub), _is_a_line)
        self.clients.append(wire)
        greet(wire)
        return wire

    def keep(self, batch: ChangeSet) -> None:
        if batch:
            self.kept.append(batch)

    # Requests

    def says(self, wire: Wire | None = None, **request: Any) -> list[dict[str, Any]]:
        """All replies to a request."""
        wire = wire or self.wire
        before = len(wire.replies)
        wire.receive(msgspec.json.encode(request) + b"\n")
        self.check()
        return [content(reply) for reply in wire.replies[before:]]

    def asks(self, **request: Any) -> dict[str, Any]:
        """The last reply, which must not be an error."""
        *_, answer = self.says(**request)
        assert "error" not in answer, answer
        return answer

    def refused(self, **request: Any) -> tuple[str, str]:
        """The last reply, which must be an error: its code and its message."""
        *_, answer = self.says(**request)
        assert "error" in answer, answer
        return answer["code"], answer["error"]

    def act(self, action: str, *jobs: str, **more: Any) -> dict[str, Any]:
        return self.asks(act={"action": action, "jobs": jobs, "by": "ann", **more})

    def unfit(self, action: str, jid: str, **more: Any) -> str:
        """The reason why the action is not possible for this job."""
        acted = self.act(action, jid, **more)
        assert acted["done"] == 0
        (refusal,) = acted["skipped"]
        assert refusal["job"] == jid
        return str(refusal["reason"])

    def act_on_all(self, action: str, query: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        return self.says(act={"action": action, "query": query, "by": "ann", **more})

    def audit(self) -> list[tuple[str, str, str, int]]:
        """The audit log as (by, action, target, count); the newest entry first."""
        told = self.asks(audit={})["audit"]
        return [(each["by"], each["action"], each["target"], each["count"]) for each in told]

    def check(self) -> None:
        if self.hub.qless is None:
            assert consistency.check_engine(self.engine).problems == []
        else:
            assert check(self.hub.qless).problems == []

    # Jobs

    def push(self, jid: str = "a1", queue: str = "q", **fields: Any) -> Job:
        given = {"kind": "Kind", "payload": b"[1]", "origin": FAKTORY, "retries": 25} | fields
        push = NewJob(jid=jid, queue=queue, lease_duration=1800 * SECOND, **given)
        return self.engine.push(push, self.now)

    def lease(self, queue: str = "q", actor: int = FAKTORY, holder: str = "w1") -> Job:
        job = self.engine.lease((queue,), holder, actor, self.now)
        assert job is not None
        return job

    def dead(self, jid: str = "a1", queue: str = "q", **fields: Any) -> Job:
        job = self.push(jid, queue, **fields)
        self.engine.kill(job, self.now)
        return job

    def speaks_qless(self, command: str, *args: object) -> Any:
        """A command of Qless, in dialect C, at the time of the virtual clock."""
        words = [str(self.now / SECOND), *map(str, args)]
        return self.api.call("C", command, [], [word.encode() for word in words], self.now)

    def put(self, jid: str, queue: str = "q", *options: object, delay: int = 0) -> Job:
        self.speaks_qless("put", "putter", queue, jid, "klass", "{}", delay, *options)
        job = self.engine.find(jid)
        assert job is not None
        return job

    def pop(self, queue: str = "q", worker: str = "w1") -> Any:
        return self.speaks_qless("pop", queue, worker, 1)

    def faktory_worker(self, wid: str) -> Wire:
        wire = Wire(self, FaktoryConnection(self.faktory))
        self.clients.append(wire)
        wire.receive(b'HELLO {"v":2,"wid":"%b"}\r\n' % wid.encode())
        return wire


def greet(wire: Wire) -> None:
    """Send the hello, and drop the reply to it."""
    connection = wire.connection
    connection.receive(hello(), wire.world.now, 1)
    assert connection.replies[-1].data.startswith(b'{"result":{"version":')
    connection.replies = []


def content(line: bytes) -> dict[str, Any]:
    """The result or progress of a reply; of an error the text as `error`, and the code."""
    ((member, value),) = msgspec.json.decode(line).items()
    if member == "error":
        return {"error": value["detail"], "code": value["code"]}
    assert member == (
        "progress" if value.get("finished") is False or value.get("more") is True else "result"
    )
    return value


def _is_a_line(reply: bytes) -> None:
    assert reply.endswith(b"\n")
    assert reply.count(b"\n") == 1
