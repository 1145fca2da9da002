"""Conversations in Go Job Queue's protocol: as in conversation.py, and replayed in segments of
seven bytes, so that every field is split.

    with Goqueue() as talk:
        client = talk.connect()
        client.adds(1, b"zero").reserves().hears_job(1, b"zero").deletes(1).hears_ok()
"""

from struct import pack, unpack_from
from typing import Any, Self

from conversation import START, Client, Conversation, Step, Wire, World, bytewise, pipelined

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.protocols.goqueue.connection import GoqueueConnection
from millrace.protocols.goqueue.hub import GoqueueHub
from millrace.protocols.spec import protocol_rules
from millrace.store.records import decode_any, encode
from wires import Dice

OK = b"OK\0"
TIMEOUT = b"TIMEOUT\0"
MAX_UINT32 = 2**32 - 1


def add(
    data: bytes = b"", queue: str | bytes = "q1", priority: int = 0, ttp: int = 60, size: int = -1
) -> bytes:
    """ADD; with `size` as the length field, which may differ from the length of the data."""
    length = len(data) if size < 0 else size
    return b"ADD\0%b\0" % name(queue) + pack("<III", priority, ttp, length) + data


def reserve(queue: str | bytes = "q1", timeout: int = 1) -> bytes:
    return b"RESERVE\0%b\0" % name(queue) + pack("<I", timeout)


def delete(seq: int) -> bytes:
    return b"DELETE\0" + pack("<Q", seq)


def added(seq: int) -> bytes:
    return b"ADDED\0" + pack("<Q", seq)


def reserved(seq: int, data: bytes = b"", priority: int = 0, ttp: int = 60) -> bytes:
    head = b"RESERVED\0" + pack("<QII", seq, priority, ttp)
    return head + b"reserved\0" + pack("<I", len(data)) + data


def error(text: str) -> bytes:
    return b"ERROR\0%b\0" % text.encode()


def name(queue: str | bytes) -> bytes:
    return queue.encode() if isinstance(queue, str) else queue


class GoqueueWorld(World):
    def __init__(self, options: dict[str, Any]) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = Engine(self.dice, protocol_rules())
        self.hub: Any = GoqueueHub(self.engine, **options)
        self.clients = []

    def connect(self) -> Wire:
        connection = GoqueueConnection(self.hub)
        assert isinstance(connection, GoqueueConnection)
        wire = Wire(self, connection, assert_one_reply)
        self.clients.append(wire)
        wire.flush()
        return wire

    def snapshot(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in engine.jobs.items()},
            "queues": {q.name: (q.registered, list(q.counts)) for q in engine.queues.values()},
            "connections": len(self.hub.connections),
            "waiters": len(engine.waiters),
            "timers": len(engine.timers),
        }


def assert_one_reply(reply: bytes) -> None:
    """Every reply is complete, and has the length of its fields."""
    word, _, rest = reply.partition(b"\0")
    if word in {b"OK", b"TIMEOUT"}:
        assert rest == b"", reply
    elif word == b"ADDED":
        assert len(rest) == 8, reply
    elif word == b"RESERVED":
        assert rest[16:25] == b"reserved\0", reply
        assert len(rest) == 29 + unpack_from("<I", rest, 25)[0], reply[:100]
    else:
        assert word == b"ERROR", reply
        assert rest.index(b"\0") == len(rest) - 1, reply
        assert 5 < len(rest) < 300, "an error must not echo without bound"
        rest.decode()


class GoqueueClient(Client):
    def hears_ok(self) -> Self:
        return self.hears(OK)

    def hears_timeout(self) -> Self:
        return self.hears(TIMEOUT)

    def hears_error(self, text: str) -> Self:
        return self.hears(error(text))

    def hears_job(self, seq: int, data: bytes = b"", priority: int = 0, ttp: int = 60) -> Self:
        return self.hears(reserved(seq, data, priority, ttp))

    # Common commands

    def adds(
        self,
        seq: int,
        data: bytes = b"",
        queue: str | bytes = "q1",
        priority: int = 0,
        ttp: int = 60,
    ) -> Self:
        """ADD; `seq` is the expected id."""
        return self.says(add(data, queue, priority, ttp)).hears(added(seq))

    def reserves(self, queue: str | bytes = "q1", timeout: int = 1) -> Self:
        return self.says(reserve(queue, timeout))

    def deletes(self, seq: int) -> Self:
        return self.says(delete(seq))


class Goqueue(Conversation):
    world_type = GoqueueWorld
    client_type = GoqueueClient

    def connect(self) -> GoqueueClient:
        client = super().connect()
        assert isinstance(client, GoqueueClient)
        return client

    def job(self, seq: int) -> Job:
        return self.engine.jobs[seq]

    def playings(self, steps: list[Step]) -> list[tuple[str, list[Step]]]:
        return [
            ("byte by byte", bytewise(steps)),
            ("pipelined", pipelined(steps)),
            ("pipelined, in sevens", in_sevens(pipelined(steps))),
        ]


def in_sevens(steps: list[Step]) -> list[Step]:
    result = []
    for step in steps:
        data, size = step.data, 7 if len(step.data) < 100_000 else 65_537
        pieces = [data[n : n + size] for n in range(0, len(data), size)] or [data]
        result += [step._replace(data=piece) for piece in pieces]
    return result
