"""The Tiny protocol: `put QUEUE TEXT`, `get QUEUE`, `done ID` and `count NUMBER`.

Each command is answered by one line. `count` takes one slice for each number.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from millrace.engine.job import SECOND, Job, NewJob
from millrace.engine.policies import RetryDecision, RetryPolicy
from millrace.engine.states import DEAD, READY
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import Connection, Hub
from millrace.protocols.errors import ClientError, StoreUnavailable
from millrace.protocols.spec import HubContext, ProtocolSpec
from tiny.settings import TinyConfig

CODE: Final = 7


class TinyPolicy(RetryPolicy):
    """Ready again immediately, `retries` times."""

    def after_failure(self, job: Job, now: int, random: Random) -> RetryDecision:
        return RetryDecision(DEAD if job.failures > job.retries else READY)


class TinyHub(Hub):
    code = CODE

    def __init__(self, context: HubContext, retries: int) -> None:
        super().__init__(context.engine, context.max_connections, context.rule)
        self.max_line = context.max_line
        self.retries = retries


class TinyConnection(Connection):
    def __init__(self, hub: TinyHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self._lines = LineBuffer(hub.max_line)
        hub.connections.add(self)

    @property
    def unprocessed_bytes(self) -> int:
        return self._lines.size

    @property
    def memory_used(self) -> int:
        return self._lines.memory_used

    def drop_input(self) -> None:
        self._lines = LineBuffer(0)

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def has_input(self) -> bool:
        return bool(self._lines.pending)

    def step(self, now: int) -> int:
        if not self._lines.pending:
            return 0
        try:
            self._execute(self._lines.take_line().split(b" ", 2), now)
        except ClientError as problem:
            self.reply(b"error: %b\n" % str(problem).encode())
        return 1

    def unavailable_reply(self, reason: str) -> bytes:
        return b"error: %b\n" % str(StoreUnavailable(reason)).encode()

    def _execute(self, words: list[bytes], now: int) -> None:
        engine, queue = self.engine, words[1].decode()
        if words[0] == b"put":
            self.require_store(pushes=True)
            push = NewJob("", "", words[2], CODE, queue, self.hub.retries, 60 * SECOND)
            self.reply(b"put %d\n" % engine.push(push, now).seq)
        elif words[0] == b"count":
            self.begin_long_command(self._count(int(words[1])))
        elif words[0] == b"get":
            job = engine.lease((queue,), "", CODE, now)
            if job is None:
                self.reply(b"nothing\n")
            else:
                self.reply_with_job(job, b"job %d %b\n" % (job.seq, engine.payload(job)))
        else:
            engine.complete(engine.jobs[int(words[1])], now, CODE)
            self.reply(b"done\n")

    def _count(self, count: int) -> Iterator[None]:
        """A long command."""
        for _ in range(count):
            yield
        self.reply(b"counted\n")

    def connection_lost(self, now: int) -> None:
        self.closing = True
        self.hub.connections.discard(self)


def make_hub(settings: TinyConfig, context: HubContext) -> TinyHub:
    return TinyHub(context, settings.retries)


SPEC: Final = ProtocolSpec(TinyPolicy(), make_hub=make_hub, make_connection=TinyConnection)
