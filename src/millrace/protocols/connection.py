"""What the server and any protocol's connection say to each other."""

from collections.abc import Iterator
from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.waiters import JobOutcome, Waiter
from millrace.engine.why import Reason

from .web_clients import web_error

#: A slice of a long command counts as this many commands in a client's share of a turn.
SLICE_COST: Final = 16


class Hub:
    """What all connections of one protocol share."""

    #: Its name.
    protocol = ""
    #: Its name in messages for people.
    label = ""

    def __init__(self, engine: Engine, max_connections: int) -> None:
        self.engine = engine
        self.max_connections = max_connections
        self.connections: set[Connection] = set()
        #: Of all protocols that are served; the limit is for all together.
        self.hubs: list[Hub] = [self]
        #: The server is about to stop: nothing is handed out any more.
        self.stopping = False
        #: Connections that another one's command has given something to say.
        self.touched: set[Connection] = set()
        #: Since the start: commands that were understood, and errors that were answered.
        self.commands = 0
        self.errors = 0

    @property
    def full(self) -> bool:
        """Are there as many connections as there may be?"""
        return sum(len(hub.connections) for hub in self.hubs) >= self.max_connections

    def stop(self) -> None:
        """The server is about to stop; those who wait are given nothing."""
        self.stopping = True
        self.engine.deafen_all()

    @property
    def busy(self) -> bool:
        """Is there a client for whose work a stopping server should wait?"""
        return False

    def job_tagged(self, job: Job, now: int) -> None:
        """A client of another protocol has pushed a job with tags."""

    def alarm(self, what: str, now: int) -> None:
        """A moment has come that was asked for with engine.alarm((self, what), when)."""
        raise NotImplementedError

    def holds_back(self, job: Job, now: int) -> list[Reason]:
        """What the protocol knows that keeps a ready job from running."""
        return []

    def original_metrics(self) -> dict[str, dict[str, int]]:
        """Counters under the names that the original server exports, by label."""
        return {}

    def clock_moved(self, by: int) -> None:
        """The clock was set: what was measured by it until now is so much later."""
        for connection in self.connections:
            connection.clock_moved(by)


class Connection:
    """One client's side of a conversation, sans-IO.

    The server calls `receive` with the bytes that came, then `run` until it returns False; after
    each call it takes `replies`. `marks` has the indexes of the replies that must wait: they, and
    all that follow them, are sent after the commit of the turn, and become `refusal` if the commit
    fails.

    A reply waits if its command changed something, or if any change is not committed yet: a read,
    an error or an "already done" may depend on another client's change. The exceptions are leases,
    which wait only for earlier changes of the job (`hand`), and commands whose replies depend on no
    durable state, such as handshakes and statistics.
    """

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.marks: list[int] = []
        #: Nothing more will be said after the replies.
        self.closing = False
        #: The client may still be sending: the server reads and discards input for a while before
        #: it closes, so that a reset does not destroy the last reply.
        self.drains_input = False
        #: Set while a command waits, for a job or for the end of one; later ones wait behind it.
        self.waiter: Waiter | None = None
        #: A command that takes several turns: each `next` does a slice of it. Later commands wait.
        self.work: Iterator[None] | None = None
        #: How many bytes that command had.
        self.work_size = 0
        #: Jobs leased to this client by replies that are not written yet, each with its attempt: if
        #: they cannot be written, the jobs are given back.
        self.handed: list[tuple[Job, int]] = []
        #: Where the client is, for the limit on wrong passwords; empty on a Unix socket.
        self.address = ""
        #: Whoever moves the bytes; a waiter's owner leads there.
        self.session: Any = None
        #: The first line has come, and it is not an HTTP request line or a TLS handshake.
        self.is_native = False

    @property
    def backlog(self) -> int:
        """How many bytes of commands have come that are not done yet."""
        raise NotImplementedError

    @property
    def held(self) -> int:
        """How many bytes this client's commands take that are not done, all there or not."""
        raise NotImplementedError

    def discard(self) -> None:
        """Forget what has come and is not done: this client will not be heard any more."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Take in bytes, in whatever pieces they come, without doing anything yet."""
        raise NotImplementedError

    def receive(self, data: bytes, now: int, most: int) -> bool:
        """Take in bytes and do what they say; as `feed` and `run`."""
        raise NotImplementedError

    def run(self, now: int, most: int) -> bool:
        """Do at most so many commands. True: there is more that could be done at once."""
        raise NotImplementedError

    def deliver(self, job: Job, now: int) -> None:
        """The wait is over: here is a job."""
        raise NotImplementedError

    def conclude(self, outcome: JobOutcome, now: int) -> None:
        """The wait is over: a job has ended."""
        raise NotImplementedError

    def hand(self, job: Job, reply: bytes, engine: Engine) -> None:
        """Answer with a job that was just leased to this client."""
        if job.seq in engine.unsettled:
            self.marks.append(len(self.replies))
        self.handed.append((job, job.attempt))
        self.replies.append(reply)

    def begin_work(self, work: Iterator[None], size: int = 0) -> None:
        """Execute the rest of a command in slices, so that other clients are served in between."""
        self.work, self.work_size = work, size

    def work_slice(self) -> int:
        """Do the next slice of the long command; the cost in commands."""
        assert self.work is not None
        if next(self.work, self) is self:
            self.work, self.work_size = None, 0
        return SLICE_COST

    def stop_waiting(self, now: int) -> None:
        """The server stops: answer a command that waits as if its time were over."""

    def reject_web_client(self, hub: Hub) -> None:
        """Answer in HTTP and close: this client speaks HTTP or TLS (see web_clients.py)."""
        hub.errors += 1
        self.replies.append(web_error(hub.label))
        self.closing = self.drains_input = True

    def wait_for_commit(self, engine: Engine) -> None:
        """Hold the next reply back until everything is committed that it may depend on."""
        if engine.has_uncommitted:
            self.marks.append(len(self.replies))

    def timed_out(self, now: int) -> None:
        """The wait is over: nothing came."""
        raise NotImplementedError

    def alarm(self, what: str, now: int) -> None:
        """A moment has come that was asked for with engine.alarm((self, what), when)."""
        raise NotImplementedError

    def clock_moved(self, by: int) -> None:
        """The clock was set."""

    def overdue(self) -> bool:
        """Asked once, a moment after connecting: is the client too late to introduce itself?"""
        return False

    def ended(self, now: int) -> bool:
        """The client will say no more. Shall what it asked for still be answered?"""
        return self.waiter is None

    def refusal(self, reason: str) -> bytes:
        """The reply to a change that could not be made durable."""
        raise NotImplementedError

    def refused(self, reply: bytes, reason: str) -> bytes:
        """What is said instead of a reply whose change could not be made durable."""
        return self.refusal(reason)

    def lost(self, now: int) -> None:
        """The client is gone."""
        raise NotImplementedError
