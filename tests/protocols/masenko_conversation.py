"""Conversations in Masenko: as in conversation.py, in lines that end in LF.

with Masenko() as talk:
    client = talk.connect()
    task = client.pushes("register-user")
    assert client.fetches()["id"] == task
    client.acks(task)
"""

import json
from typing import Any, Self

from conversation import START, Client, Conversation, Wire, World, compact

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.protocols.masenko.connection import MasenkoConnection
from millrace.protocols.masenko.hub import MasenkoHub
from millrace.protocols.spec import protocol_rules
from millrace.store.records import decode_any, encode
from wires import Dice

OK = b"OK {}\n"
EMPTY = b"EMPTY {}\n"
PONG = b"PONG {}\n"


class MasenkoWorld(World):
    def __init__(self, options: dict[str, Any]) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = Engine(self.dice, protocol_rules())
        self.hub: Any = MasenkoHub(self.engine, **options)
        self.clients = []

    def connect(self) -> Wire:
        wire = Wire(self, MasenkoConnection(self.hub), assert_one_reply)
        self.clients.append(wire)
        wire.flush()
        return wire

    def snapshot(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in engine.jobs.items()},
            "queues": {q.name: list(q.counts) for q in engine.queues.values() if q.registered},
            "next": engine.next_seq,
            "holders": engine.leases.holders,
            "connections": len(self.hub.connections),
            "timers": len(engine.timers),
            "requests": self.hub.requests,
            "responses": self.hub.responses,
        }


def assert_one_reply(reply: bytes) -> None:
    """Every reply is one line with a verb and compact JSON that is safe in HTML."""
    assert reply.endswith(b"\n"), reply
    assert reply.count(b"\n") == 1, reply
    verb, space, body = reply[:-1].partition(b" ")
    assert verb in {b"OK", b"ERR", b"EMPTY", b"PONG"}, reply
    assert space, reply
    assert not set(body) & set(b"<>&"), reply
    assert "\u2028".encode() not in body, reply
    text = body.decode("utf-8", "replace")
    if text.count("[") < 500:  # the standard library's decoder does not read deeper values
        assert isinstance(json.loads(text), dict)


def error(text: str) -> bytes:
    """The reply with this error, without escapes that only Go writes."""
    return b'ERR {"msg":%b}\n' % compact(text)


class MasenkoClient(Client):
    def says(self, data: bytes | str) -> Self:
        """Text is one line; bytes are sent unchanged."""
        return super().says(f"{data}\n".encode() if isinstance(data, str) else data)

    def hears_ok(self) -> Self:
        return self.hears(OK)

    def hears_empty(self) -> Self:
        return self.hears(EMPTY)

    def hears_error(self, text: str) -> Self:
        return self.hears(error(text))

    def _line(self) -> bytes:
        end = self.wire.heard.find(b"\n", self._taken)
        if end < 0:
            self._talk.failed = True
        assert end >= 0, f"no reply left:{bytes(self.wire.heard[self._taken :])!r}"
        line = bytes(self.wire.heard[self._taken : end])
        self._taken = end + 1
        return line

    def hears_task(self) -> dict[str, Any]:
        """A task: the members of the reply."""
        line = self._line()
        assert line.startswith(b'OK {"id":'), line
        task = json.loads(line[3:])
        assert isinstance(task, dict)
        return task

    # Common commands

    def pushes(self, name: str = "a", **fields: Any) -> int:
        """PUSH; returns the id."""
        self.says(b"PUSH %b\n" % compact({"name": name, **fields}))
        task: int = self.hears_task()["id"]
        return task

    def asks(self, *queues: str, timeout: str | int = "1ms") -> Self:
        """FETCH."""
        fields = {"queues": queues or ["default"], "timeout": timeout}
        return self.says(b"FETCH %b\n" % compact(fields))

    def fetches(self, *queues: str) -> dict[str, Any]:
        """FETCH, and the task that is returned immediately."""
        return self.asks(*queues).hears_task()

    def finds_nothing(self, *queues: str) -> Self:
        """FETCH, and no task arrives."""
        self.asks(*queues).hears_nothing()
        self._talk.advance(0.001)
        return self.hears_empty()

    def acks(self, task: int) -> Self:
        return self.says(f'ACK {{"id":{task}}}').hears_ok()

    def nacks(self, task: int) -> Self:
        return self.says(f'NACK {{"id":{task}}}').hears_ok()

    def commits(self, *lines: str) -> Self:
        """A transaction of these lines."""
        return self.says("\n".join(("ATOMIC", *lines, "DONE")))

    def info(self) -> dict[str, Any]:
        self.says("INFO")
        line = self._line()
        assert line.startswith(b"OK "), line
        found: dict[str, Any] = json.loads(line[3:])
        return found

    def queues(self) -> dict[str, tuple[int, int, int]]:
        """The tasks of every queue: ready, delayed, not acknowledged."""
        return {q["name"]: (q["ready"], q["delayed"], q["to_ack"]) for q in self.info()["queues"]}


class Masenko(Conversation):
    world_type = MasenkoWorld
    client_type = MasenkoClient

    def connect(self) -> MasenkoClient:
        client = super().connect()
        assert isinstance(client, MasenkoClient)
        return client

    def job(self, task: int) -> Job:
        return self.engine.jobs[task]

    @property
    def dead(self) -> list[int]:
        return list(self.engine.dead)


def heard(*said: bytes | str, **options: Any) -> bytes:
    """The replies to a new client; the other runs are also checked."""
    with Masenko(**options) as talk:
        client = talk.connect()
        for piece in said:
            client.says(piece)
        reply = bytes(client.wire.heard)
        client.hears(reply).says("PING").hears(PONG).is_still_there()
    return reply
