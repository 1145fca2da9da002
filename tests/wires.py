"""What millrace.server.server and session do between connections and the engine, less the sockets,
on a clock that only we move: deliveries, time-outs and alarms go to their owners, a closing
connection is closed when its last reply is out, and jobs in replies that were never written are
given back.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.engine.states import LEASED
from millrace.protocols.connection import Connection

#: 2026-11-15T19:43:51Z
START = 1_794_771_831_000_000
SECOND = 1_000_000
#: Commands of one client in one go, as the server's sessions do.
SHARE = 64


class Dice(Random):
    """Always throws the same: back-off times can be written into tests."""

    throw = 0

    def randrange(self, *_: Any) -> int:  # type: ignore[override]
        return self.throw


class World:
    """One engine, a clock, and the connections made so far."""

    _holds_commits = False

    def __init__(self, dead_max: int = 100_000) -> None:
        self.now = START
        self.dice = Dice()
        self.engine = Engine(self.dice, dead_max=dead_max)
        self.clients: list[Wire] = []

    def hold_commits(self) -> None:
        """From now on no change is committed."""
        self.engine.durable = self._holds_commits = True

    def advance(self, microseconds: int) -> None:
        """Let time pass; what falls due on the way happens at its own moment."""
        until = self.now + microseconds
        while (when := self.engine.next_timer()) is not None and when <= until:
            self.now = max(self.now, when)
            self.engine.tick(self.now)
            self.tell()
        self.now = until

    def tell(self) -> None:
        """What the server does after commands: see Server._tell."""
        engine = self.engine
        while engine.deliveries or engine.outcomes or engine.timeouts or engine.alarms:
            deliveries, engine.deliveries = engine.deliveries, []
            outcomes, engine.outcomes = engine.outcomes, []
            timeouts, engine.timeouts = engine.timeouts, []
            alarms, engine.alarms = engine.alarms, []
            for waiter, job in deliveries:
                wire = waiter.owner.session
                if wire.closed:
                    engine.release(job, self.now)
                    continue
                waiter.owner.deliver(job, self.now)
                wire.waited_until = self.now
                wire.run()
            for waiter, outcome in outcomes:
                wire = waiter.owner.session
                waiter.owner.conclude(outcome, self.now)
                wire.waited_until = self.now
                wire.run()
            for waiter in timeouts:
                wire = waiter.owner.session
                waiter.owner.timed_out(self.now)
                wire.waited_until = self.now
                wire.run()
            for key in alarms:
                owner, what = key
                owner.alarm(what, self.now)
                if isinstance(owner, Connection):
                    owner.session.run()
        if not self._holds_commits:
            self.keep(engine.take_batch())

    def keep(self, batch: Batch) -> None:
        """A turn is over. Most tests have no store."""


class Wire:
    """A connection and what it has written, where the server has a Session and a socket."""

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
        self.reads = True
        self.closed = False
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

    def run(self) -> None:
        more = True
        while more and not self.closed:
            more = self.connection.run(self.world.now, SHARE)
            self.flush()

    def flush(self) -> None:
        connection = self.connection
        self.durable += [len(self.replies) + mark for mark in connection.marks]
        self.replies += connection.replies
        for reply in connection.replies:
            self.check(reply)
            self.heard += reply
        connection.replies, connection.marks = [], []
        if self.reads:
            connection.handed.clear()
        if connection.closing:
            self.lose()

    def end(self) -> None:
        """The client has closed its half: see Session.eof_received."""
        if self.closed:
            return
        if self.connection.ended(self.world.now):
            self.run()
            self.flush()
        else:
            self.lose()

    def lose(self) -> None:
        """The socket is gone: see Session.connection_lost."""
        if self.closed:
            return
        self.closed = True
        connection, world = self.connection, self.world
        connection.lost(world.now)
        for job, attempt in connection.handed:
            same = world.engine.jobs.get(job.seq) is job and job.attempt == attempt
            if same and job.state == LEASED:
                world.engine.release(job, world.now)
