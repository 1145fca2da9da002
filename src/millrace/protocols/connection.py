"""The interface between the server and the connections of all protocols."""

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
    """The state shared by all connections of one protocol."""

    #: The name of the protocol.
    protocol = ""
    #: The name in messages.
    label = ""

    def __init__(self, engine: Engine, max_connections: int) -> None:
        self.engine = engine
        self.max_connections = max_connections
        self.connections: set[Connection] = set()
        #: The hubs of all protocols: `max_connections` limits the sum.
        self.hubs: list[Hub] = [self]
        #: The server stops: no job is leased.
        self.stopping = False
        #: Connections with messages caused by commands of other connections.
        self.touched: set[Connection] = set()
        #: Counters since the start: valid commands, and error replies.
        self.commands = 0
        self.errors = 0

    @property
    def full(self) -> bool:
        """Whether the maximum number of connections is reached."""
        return sum(len(hub.connections) for hub in self.hubs) >= self.max_connections

    def stop(self) -> None:
        """The server stops: waiting clients get no job."""
        self.stopping = True
        self.engine.deafen_all()

    @property
    def busy(self) -> bool:
        """Whether a server that stops should wait for clients of this protocol."""
        return False

    def job_tagged(self, job: Job, now: int) -> None:
        """A client of another protocol has pushed a job with tags."""

    def alarm(self, what: str, now: int) -> None:
        """A time set with engine.alarm((self, what), when) has come."""
        raise NotImplementedError

    def holds_back(self, job: Job, now: int) -> list[Reason]:
        """The protocol's reasons why a ready job is not running."""
        return []

    def original_metrics(self) -> dict[str, dict[str, int]]:
        """Counters under the names that the original server exports, by label."""
        return {}

    def clock_moved(self, by: int) -> None:
        """The clock was set forward by `by` microseconds."""
        for connection in self.connections:
            connection.clock_moved(by)


class Connection:
    """One client's connection, sans-IO.

    The server calls `receive` with input, then `run` until it returns False; after each call it
    sends `replies`. `marks` are the indexes of replies that announce a change: these replies, and
    all later ones, are sent after the change is durable, or become `refusal`.
    """

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.marks: list[int] = []
        #: The connection ends after the replies.
        self.closing = False
        #: The client may still be sending: the server reads and discards input for a while before
        #: it closes, so that a reset does not destroy the last reply.
        self.drains_input = False
        #: Set while a command waits for a job or for the end of one. Later commands wait.
        self.waiter: Waiter | None = None
        #: A command that takes several turns: each `next` does a slice of it. Later commands wait.
        self.work: Iterator[None] | None = None
        #: The size of that command in bytes.
        self.work_size = 0
        #: Jobs leased to this client by replies that are not written yet, each with its attempt: if
        #: the replies cannot be written, the jobs return to their queues.
        self.handed: list[tuple[Job, int]] = []
        #: The client's address, for the limit on wrong passwords; empty on a Unix socket.
        self.address = ""
        #: The session that owns the socket.
        self.session: Any = None
        #: The first line was neither an HTTP request line nor a TLS handshake.
        self.is_native = False

    @property
    def backlog(self) -> int:
        """The size of the commands that have arrived and are not executed."""
        raise NotImplementedError

    @property
    def held(self) -> int:
        """The memory used by commands that are not executed, complete or not."""
        raise NotImplementedError

    def discard(self) -> None:
        """Drop the input that is not executed: the connection ends."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Buffer input without executing it."""
        raise NotImplementedError

    def receive(self, data: bytes, now: int, most: int) -> bool:
        """Buffer input and execute commands: `feed`, then `run`."""
        raise NotImplementedError

    def run(self, now: int, most: int) -> bool:
        """Execute at most `most` commands. True: more commands are ready to run."""
        raise NotImplementedError

    def deliver(self, job: Job, now: int) -> None:
        """The wait ends with a job."""
        raise NotImplementedError

    def conclude(self, outcome: JobOutcome, now: int) -> None:
        """The wait ends because the awaited job has ended."""
        raise NotImplementedError

    def hand(self, job: Job, reply: bytes, engine: Engine) -> None:
        """Reply with a job that was leased to this client."""
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
        """Hold the next reply until all earlier changes are committed."""
        if engine.has_uncommitted:
            self.marks.append(len(self.replies))

    def timed_out(self, now: int) -> None:
        """The wait ends without a result."""
        raise NotImplementedError

    def alarm(self, what: str, now: int) -> None:
        """A time set with engine.alarm((self, what), when) has come."""
        raise NotImplementedError

    def clock_moved(self, by: int) -> None:
        """The clock was set."""

    def overdue(self) -> bool:
        """Whether the handshake is overdue; checked once after the handshake timeout."""
        return False

    def ended(self, now: int) -> bool:
        """The client has closed its sending side. True: its commands are still answered."""
        return self.waiter is None

    def refusal(self, reason: str) -> bytes:
        """The reply to a change that could not be made durable."""
        raise NotImplementedError

    def refused(self, reply: bytes, reason: str) -> bytes:
        """The replacement of a reply whose change could not be made durable."""
        return self.refusal(reason)

    def lost(self, now: int) -> None:
        """The connection was lost."""
        raise NotImplementedError
