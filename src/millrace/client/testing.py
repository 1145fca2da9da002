"""A server in memory for users' tests: the real engine and protocol, without sockets or a disk.

    with app.testing() as server:
        send.push_later("ada@example.org", delay=60)
        server.advance(60)
        (outcome,) = server.run()
        assert outcome.failure is None

Only `advance` moves the clock, so tests of retries and schedules need not wait.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from millrace.engine.engine import Engine
from millrace.engine.states import STATE_NAMES
from millrace.protocols.faktory.connection import FaktoryConnection
from millrace.protocols.faktory.hub import FaktoryHub
from millrace.protocols.spec import protocol_rules

from . import wire
from .errors import TimedOut
from .exchange import AsyncTransport, Transport
from .jobs import Job, read_job
from .wire import Reply, ReplyBuffer
from .worker.execution import Outcome, execute
from .worker.reports import report_command

if TYPE_CHECKING:
    from .app import Millrace

SECOND: Final = 1_000_000
#: Commands that a connection executes before it returns.
COMMAND_BATCH_SIZE: Final = 1000
#: If a run executes more jobs than this, it counts as an endless loop.
MAX_JOBS_PER_RUN: Final = 10_000
SEED: Final = 1


class StoredJob(NamedTuple):
    """A job that the server holds: waiting, scheduled, or dead."""

    id: str
    name: str
    queue: str
    #: "ready", "scheduled", "blocked", "leased", "done" or "dead".
    state: str
    failures: int
    #: Message of the last failure.
    error: str


class TestingServer:
    """A server in memory. Use it as a context manager; `Millrace.testing()` creates it."""

    __test__ = False  # otherwise pytest collects it as a test class

    def __init__(self, app: "Millrace", *, run_immediately: bool = False) -> None:
        self._app = app
        self._run_immediately = run_immediately
        self._running = False
        self._now = round(time.time() * SECOND)
        self._engine = Engine(Random(SEED), protocol_rules())
        self._hub = FaktoryHub(
            self._engine, started_at=self._now, challenge=lambda: (1, ""), memory_mb=lambda: 0
        )
        self._connection = FaktoryConnection(self._hub)
        self._buffer = ReplyBuffer()
        self._request([wire.command("HELLO", {"v": wire.PROTOCOL_VERSION})], greeting=True)
        self._former: tuple[Transport | None, AsyncTransport | None] = (None, None)
        #: Every attempt that ran here, in order.
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> Self:
        self._former = self._app.use_transport(self, _AsyncAdapter(self))
        self._app.now = self.now
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._app.use_transport(*self._former)
        self._app.now = time.time

    # Time

    def now(self) -> float:
        """The time of the server's clock, as seconds since 1970."""
        return self._now / SECOND

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock; scheduled jobs and retries become ready in their order."""
        span = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        until = self._now + round(span * SECOND)
        while (due := self._engine.next_timer()) is not None and due <= until:
            self._now = max(self._now, due)
            self._engine.tick(self._now)
        self._now = until
        if self._run_immediately:
            self.run()

    # Jobs

    def jobs(self, state: str = "") -> list[StoredJob]:
        """The jobs that the server holds, or those in one state, in the order of their pushes."""
        return [
            job
            for job in (
                StoredJob(
                    each.jid,
                    each.kind,
                    each.queue,
                    STATE_NAMES[each.state],
                    each.failures,
                    "" if each.failure is None else each.failure.message,
                )
                for each in self._engine.jobs.values()
            )
            if state in {"", job.state}
        ]

    def run(self, *queues: str, limit: int = MAX_JOBS_PER_RUN) -> list[Outcome]:
        """Run ready jobs, and the jobs that they push, until none is ready. Return the outcomes."""
        outcomes: list[Outcome] = []
        self._running = True
        try:
            while (job := self._fetch(queues)) is not None:
                if len(outcomes) == limit:
                    raise RuntimeError(f"{limit} jobs have run. Do they push each other forever?")
                outcome = execute(self._app, job)
                self._request([report_command(outcome)])
                outcomes.append(outcome)
        finally:
            self._running = False
        self.outcomes += outcomes
        return outcomes

    def _fetch(self, queues: Sequence[str]) -> Job | None:
        names = queues or [name for name, queue in self._engine.queues.items() if queue.ready]
        if not names:
            return None
        (reply,) = self._request([wire.command("FETCH", " ".join(names))])
        return read_job(reply) if isinstance(reply, bytes) else None

    # Transport

    def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        replies = self._request(commands)
        if self._run_immediately and not self._running:
            self.run()
        return replies

    def close(self) -> None:
        """Do not close the server: it exists until its context ends."""

    def _request(self, commands: Sequence[bytes], *, greeting: bool = False) -> list[Reply]:
        connection = self._connection
        more = connection.receive(b"".join(commands), self._now, COMMAND_BATCH_SIZE)
        while more:
            more = connection.run(self._now, COMMAND_BATCH_SIZE)
        if connection.waiter is not None:  # a FETCH that found no job, or a wait for a result
            waiter = connection.waiter
            self._engine.cancel_wait(waiter)
            connection.timed_out(self._now)
            if waiter.seq:
                self._clear_replies()
                return self._request_after_run(commands)
        self._engine.take_changes()
        self._buffer.feed(b"".join([reply.data for reply in connection.replies]))
        self._clear_replies()
        return self._buffer.take()[1 if greeting else 0 :]

    def _request_after_run(self, commands: Sequence[bytes]) -> list[Reply]:
        """Answer a wait for the end of a job: run the ready jobs first."""
        if self._running or not self.run():
            raise TimedOut("The job is not ready to run. Advance the clock of the test.")
        return self._request(commands)

    def _clear_replies(self) -> None:
        self._connection.replies.clear()


class _AsyncAdapter:
    """The same server for asyncio. No command waits."""

    def __init__(self, server: TestingServer) -> None:
        self._server = server

    async def request_many(self, commands: Sequence[bytes]) -> list[Reply]:
        return self._server.request_many(commands)

    async def close(self) -> None:
        """Do not close the server: it exists until its context ends."""
