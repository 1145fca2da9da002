"""Conversations in Workq: as in conversation.py, and replayed with every CR and LF in different
segments.

    with Workq() as talk:
        client = talk.connect()
        client.adds(1).leases("ping").hears(...)
"""

import re
from typing import Any, Self

from conversation import (
    START,
    Client,
    Conversation,
    Step,
    Wire,
    World,
    bytewise,
    cr_and_lf_apart,
    pipelined,
)

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.protocols.spec import protocol_rules
from millrace.protocols.workq.connection import WorkqConnection
from millrace.protocols.workq.hub import WorkqHub
from millrace.store.records import decode_any, encode
from wires import Dice

OK = b"+OK\r\n"
TIMEOUT = b"-TIMEOUT\r\n"
NOT_FOUND = b"-NOT-FOUND\r\n"

_BLOCK = re.compile(rb"\+OK 1\r\n[0-9a-f-]{36} \S+(?: \d+)? (\d+)\r\n(.*)\r\n", re.DOTALL)
_ERROR = re.compile(rb"-(?:(?:CLIENT|SERVER)-ERROR [^\r\n]{3,300}|TIMEOUT|NOT-FOUND)\r\n")


def uid(number: int) -> bytes:
    """The id of the job with this number."""
    return b"6ba7b810-9dad-41d1-80b4-%012x" % number


class WorkqWorld(World):
    def __init__(self, options: dict[str, Any]) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = Engine(self.dice, protocol_rules())
        self.hub: Any = WorkqHub(self.engine, started_at=START, **options)
        self.clients = []

    def connect(self) -> Wire:
        wire = Wire(self, WorkqConnection(self.hub), assert_one_reply)
        self.clients.append(wire)
        wire.flush()
        return wire

    def snapshot(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in engine.jobs.items()},
            "queues": {q.name: list(q.counts) for q in engine.queues.values() if q.registered},
            "evicted": engine.timer_counts.evicted,
            "connections": len(self.hub.connections),
            "awaited": engine.waiters.awaited_job_count,
            "timers": len(engine.timers),
        }


def assert_one_reply(reply: bytes) -> None:
    """Every reply is complete, a block with its CRLF, and has the framing of go-workq."""
    assert reply.endswith(b"\r\n"), reply
    if reply[:1] == b"-":
        assert _ERROR.fullmatch(reply), reply
    elif reply[:3] == b"+OK" and (block := _BLOCK.fullmatch(reply)):
        assert len(block[2]) == int(block[1]), reply


class WorkqClient(Client):
    def hears_client_error(self, text: str) -> Self:
        return self.hears(b"-CLIENT-ERROR %b\r\n" % text.encode())

    def hears_timeout(self) -> Self:
        return self.hears(TIMEOUT)

    def hears_not_found(self) -> Self:
        return self.hears(NOT_FOUND)

    def hears_job(self, number: int, name: str = "ping", payload: bytes = b"pong") -> Self:
        line = b"%b %b %d" % (uid(number), name.encode(), len(payload))
        return self.hears(b"+OK 1\r\n%b\r\n%b\r\n" % (line, payload))

    def hears_result(self, number: int, *, succeeded: bool = True, result: bytes = b"done") -> Self:
        line = b"%b %d %d" % (uid(number), succeeded, len(result))
        return self.hears(b"+OK 1\r\n%b\r\n%b\r\n" % (line, result))

    # Common commands

    def adds(
        self,
        number: int,
        flags: str = "",
        *,
        name: str = "ping",
        ttr: int = 1000,
        ttl: int = 60_000,
        payload: bytes = b"pong",
    ) -> Self:
        return self.says(
            b"add %b %b %d %d %d%b\r\n%b\r\n"
            % (uid(number), name.encode(), ttr, ttl, len(payload), spaced(flags), payload)
        ).hears_ok()

    def schedules(
        self,
        number: int,
        time: str,
        flags: str = "",
        *,
        name: str = "ping",
        ttr: int = 1000,
        ttl: int = 60_000,
        payload: bytes = b"pong",
    ) -> Self:
        return self.says(
            b"schedule %b %b %d %d %b %d%b\r\n%b\r\n"
            % (
                uid(number),
                name.encode(),
                ttr,
                ttl,
                time.encode(),
                len(payload),
                spaced(flags),
                payload,
            )
        ).hears_ok()

    def runs(
        self, number: int, *, ttr: int = 1000, wait: int = 60_000, payload: bytes = b"pong"
    ) -> Self:
        return self.says(
            b"run %b ping %d %d %d\r\n%b\r\n" % (uid(number), ttr, wait, len(payload), payload)
        )

    def leases(self, *names: str, wait: int = 0) -> Self:
        return self.says(f"lease {' '.join(names or ('ping',))} {wait}\r\n".encode())

    def completes(self, number: int, result: bytes = b"done") -> Self:
        return self.says(b"complete %b %d\r\n%b\r\n" % (uid(number), len(result), result))

    def fails_job(self, number: int, result: bytes = b"done") -> Self:
        return self.says(b"fail %b %d\r\n%b\r\n" % (uid(number), len(result), result))

    def asks_result(self, number: int, wait: int = 0) -> Self:
        return self.says(b"result %b %d\r\n" % (uid(number), wait))

    def deletes(self, number: int) -> Self:
        return self.says(b"delete %b\r\n" % uid(number))

    def inspects(self, number: int) -> dict[str, str]:
        """inspect job: its keys and values."""
        self.says(b"inspect job %b\r\n" % uid(number)).hears(b"+OK 1\r\n")
        head = self._line()
        count = int(head.split(b" ")[1])
        assert head == b"%b %d" % (uid(number), count)
        pairs = [self._line().decode().split(" ", 1) for _ in range(count)]
        return {pair[0]: pair[1] for pair in pairs}

    def state_of(self, number: int) -> str:
        return self.inspects(number)["state"]


class Workq(Conversation):
    world_type = WorkqWorld
    client_type = WorkqClient

    def connect(self) -> WorkqClient:
        client = super().connect()
        assert isinstance(client, WorkqClient)
        return client

    def pass_ms(self, milliseconds: float) -> None:
        self.advance(milliseconds / 1000)

    def job(self, number: int) -> Job:
        job = self.engine.find(uid(number).decode())
        assert job is not None
        return job

    def playings(self, steps: list[Step]) -> list[tuple[str, list[Step]]]:
        return [
            ("byte by byte", bytewise(steps)),
            ("pipelined", pipelined(steps)),
            ("CR and LF apart", cr_and_lf_apart(steps)),
            ("pipelined, CR and LF apart", cr_and_lf_apart(pipelined(steps))),
        ]


def spaced(flags: str) -> bytes:
    return b" " + flags.encode() if flags else b""
