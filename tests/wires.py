"""The server's work between connections and the engine without sockets, on a virtual clock:
deliveries, timeouts and alarms go to their owners, a closing connection is closed after its last
reply, and jobs in unwritten replies are released.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.states import LEASED
from millrace.protocols.connection import Connection
from millrace.protocols.spec import protocol_rules
from millrace.protocols.web_clients import web_error

#: 2026-11-15T19:43:51Z
START = 1_794_771_831_000_000
SECOND = 1_000_000
#: Commands of one client per slice, as in the server's sessions.
SHARE = 64


class Dice(Random):
    """Always returns the same number, so that tests can use fixed back-off times."""

    throw = 0

    def randrange(self, *_: Any) -> int:  # type: ignore[override]
        return self.throw


def data_of(connection: Connection) -> list[bytes]:
    """The replies that were not taken yet."""
    return [reply.data for reply in connection.replies]


def waiting(connection: Connection) -> list[int]:
    """The indexes of the replies that must wait for the commit."""
    return [number for number, reply in enumerate(connection.replies) if reply.must_wait]


class World:
    """One engine, a clock, and its connections."""

    _holds_commits = False

    def __init__(self, dead_max: int = 100_000) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = Engine(self.dice, protocol_rules(), dead_max=dead_max)
        self.clients: list[Wire] = []

    def hold_commits(self) -> None:
        """From now on no change is committed."""
        self.engine.durable = self._holds_commits = True

    def advance(self, microseconds: int) -> None:
        """Advance the clock; timers run at their own times."""
        until = self.now + microseconds
        while (when := self.engine.next_timer()) is not None and when <= until:
            self.now = max(self.now, when)
            self.engine.tick(self.now)
            self.tell()
        self.now = until

    def tell(self) -> None:
        """The server's work after commands: see Server._tell."""
        engine = self.engine
        while (
            engine.waiters.deliveries
            or engine.waiters.outcomes
            or engine.waiters.timeouts
            or engine.alarms
        ):
            deliveries, engine.waiters.deliveries = engine.waiters.deliveries, []
            outcomes, engine.waiters.outcomes = engine.waiters.outcomes, []
            timeouts, engine.waiters.timeouts = engine.waiters.timeouts, []
            alarms, engine.alarms = engine.alarms, []
            for waiter, job in deliveries:
                wire = waiter.owner.session
                if wire.closed:
                    engine.release(job, self.now)
                    continue
                wire.connection.notify(self.now, wire.connection.end_wait, waiter, job)
                wire.waited_until = self.now
                wire.run()
            for waiter, outcome in outcomes:
                wire = waiter.owner.session
                wire.connection.notify(self.now, waiter.owner.job_ended, outcome)
                wire.waited_until = self.now
                wire.run()
            for waiter in timeouts:
                wire = waiter.owner.session
                wire.connection.notify(self.now, waiter.owner.timed_out)
                wire.waited_until = self.now
                wire.run()
            for key in alarms:
                owner, what = key
                if isinstance(owner, Connection):
                    owner.notify(self.now, owner.handle_alarm, what)
                    owner.session.run()
                else:
                    owner.handle_alarm(what, self.now)
        if not self._holds_commits:
            self.keep(engine.take_changes())

    def keep(self, batch: ChangeSet) -> None:
        """A turn is over. Most tests have no store."""


class Wire:
    """A connection and its output, in place of a Session and a socket."""

    def __init__(
        self, world: World, connection: Any, check: Callable[[bytes], None] | None = None
    ) -> None:
        self.world = world
        self.check = check or (lambda _: None)
        self.connection = connection
        connection.session = self
        self.heard = bytearray()
        #: The replies one by one, as they were handed over for writing.
        self.replies: list[bytes] = []
        #: Numbers of the replies that had to wait for the disk.
        self.durable: list[int] = []
        #: Numbers of the messages that are dropped if their change is refused.
        self.optional: list[int] = []
        self.reads = True
        #: Leases in replies that the client has not read.
        self.leases: list[tuple[Job, int]] = []
        self.closed = False
        #: A Wire records which replies wait for a commit, but hands over all replies at once.
        self.awaits_commit = False
        #: When its last wait for a job was over.
        self.waited_until = 0

    @property
    def waits(self) -> bool:
        return self.connection.waiter is not None

    def receive(self, data: bytes) -> None:
        if self.closed:
            return
        more = self.connection.receive(data, self.world.now, SHARE)
        self.flush()
        if more:
            self.run()
        self.world.tell()

    def wake(self) -> None:
        """A Session sleeps until here; `run` asks the connection again at once."""

    def run(self) -> None:
        more = True
        while more and not self.closed:
            more = self.connection.run(self.world.now, SHARE)
            self.flush()
            if more:  # the server does other work between two slices
                self.world.tell()

    def flush(self) -> None:
        connection = self.connection
        for reply in connection.replies:
            if reply.must_wait:
                self.durable.append(len(self.replies))
            if reply.drop_if_refused:
                self.optional.append(len(self.replies))
            self.replies.append(reply.data)
            if reply.data.startswith(b"HTTP/"):
                assert reply.data == web_error(connection.hub.label)
                assert connection.closing
            else:
                self.check(reply.data)
            self.heard += reply.data
            if not self.reads:
                self.leases += reply.leases
        connection.replies = []
        if connection.closing:
            self.lose()

    def end(self) -> None:
        """The client has closed its half: see Session.eof_received."""
        if self.closed:
            return
        if self.connection.input_closed(self.world.now):
            self.run()
            self.flush()
        else:
            self.lose()

    def lose(self) -> None:
        """The socket is closed: see Session.connection_lost."""
        if self.closed:
            return
        self.closed = True
        connection, world = self.connection, self.world
        if connection.waiter is not None:
            world.engine.cancel_wait(connection.waiter)
        for job, attempt in self.leases:
            same = world.engine.jobs.get(job.seq) is job and job.attempt == attempt
            if same and job.state == LEASED:
                world.engine.release(job, world.now)
        connection.connection_lost(world.now)
