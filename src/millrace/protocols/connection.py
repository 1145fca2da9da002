"""The interface between the server and the connections of all protocols."""

from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar, Final

from mypy_extensions import mypyc_attr

from millrace.engine.caller import Caller
from millrace.engine.cascades import STEP_LIMIT
from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.engine.payloads import MAX_DIRECT_READ, PayloadRead
from millrace.engine.queue_rules import QueueRule
from millrace.engine.states import LEASED
from millrace.engine.waiters import JobOutcome, Waiter

from .errors import StoreUnavailable
from .registry import PROTOCOL_LABELS, PROTOCOL_NAMES
from .web_clients import web_error

#: Cost of one slice of a long command. One slice uses up the client's whole share of a turn.
SLICE_COST: Final = 64
#: After a reply of this size the next command runs in the next turn, so that the reply is sent.
LARGE_REPLY: Final = 65_536
#: Replies and payloads up to this size are joined with others, which copies them.
MAX_JOINED_BYTES: Final = 1 << 20

#: Jobs that a reply leases to its client, each with the number of the attempt.
Leases = tuple[tuple[Job, int], ...]


class PendingDelivery:
    """Leased jobs that have not been sent yet: another thread reads their payloads, or this one
    encodes them in slices. A lost connection returns the leases.
    """

    __slots__ = ("deliver", "leases", "must_wait", "read")

    def __init__(
        self,
        read: PayloadRead | None,
        leases: Leases,
        must_wait: bool,
        deliver: Callable[[list[Job]], None],
    ) -> None:
        self.read = read
        self.leases = leases
        self.must_wait = must_wait
        self.deliver = deliver


class Reply:
    """One reply, or a message without a request. The server needs only these fields to send it."""

    __slots__ = ("data", "drop_if_refused", "leases", "must_wait")

    def __init__(
        self, data: bytes, must_wait: bool, leases: Leases = (), drop_if_refused: bool = False
    ) -> None:
        self.data = data
        #: Whether the reply waits for the commit of its turn. If the commit fails,
        #: `unavailable_reply` is sent instead. Later replies to the same client are sent after it.
        self.must_wait = must_wait
        #: Jobs that return to their queues if the reply cannot be written.
        self.leases = leases
        #: Whether the message is dropped if its change cannot be committed.
        self.drop_if_refused = drop_if_refused


class FixedReply:
    """A frequent reply whose bytes never change, for `reply_fixed`."""

    __slots__ = ("held", "immediate")

    def __init__(self, data: bytes) -> None:
        self.immediate = Reply(data, must_wait=False)
        self.held = Reply(data, must_wait=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class Hub:
    """The state shared by all connections of one protocol."""

    #: The code of the protocol in the registry. Compiled code finds the value of a subclass only
    #: because it is a class variable.
    code: ClassVar[int] = 0

    def __init__(self, engine: Engine, max_connections: int, rule: QueueRule | None = None) -> None:
        self.engine = engine
        #: The rule for the queues of the port, if it has one.
        self.rule = rule
        self.max_connections = max_connections
        self.connections: set[Connection] = set()
        #: The hubs of all protocols: `max_connections` limits their total number of connections.
        self.hubs: list[Hub] = [self]
        #: Whether the server is stopping. A stopping server leases no jobs.
        self.stopping = False
        #: Connections with messages caused by commands of other connections.
        self.connections_with_messages: set[Connection] = set()
        #: Counters since the start: valid commands, and error replies.
        self.commands = 0
        self.errors = 0

    @property
    def protocol(self) -> str:
        """The name of the protocol."""
        return PROTOCOL_NAMES[self.code]

    @property
    def label(self) -> str:
        """The display name of the protocol."""
        return PROTOCOL_LABELS[self.protocol]

    @property
    def full(self) -> bool:
        """Whether the maximum number of connections is reached."""
        return sum(len(hub.connections) for hub in self.hubs) >= self.max_connections

    def reload(self, settings: Any) -> None:
        """Apply the reloaded configuration section."""

    def stop(self) -> None:
        """The server is stopping: waiting clients get no job."""
        self.stopping = True
        self.engine.stop_offering()

    def allows(self, queue: str) -> bool:
        """Whether the clients of this port may use a queue."""
        return self.rule is None or self.rule.allows(queue)

    @property
    def delays_shutdown(self) -> bool:
        """Whether a stopping server should wait for clients of this protocol."""
        return False

    def handle_alarm(self, name: str, now: int) -> None:
        """Handle an alarm that was set with engine.set_alarm((self, name), when)."""
        raise NotImplementedError

    def queue_forgotten(self, name: str) -> None:
        """Called when the engine has removed an empty queue. Remove what this hub stores for it."""

    def original_metrics(self) -> dict[str, dict[str, int]]:
        """The metrics of the original server: for each metric name, a counter per label value."""
        return {}

    def wake(self, now: int) -> None:
        """Continue the work of this hub: the event that it waits for has happened."""

    def clock_moved(self, by: int) -> None:
        """The wall clock jumped by `by` microseconds; `by` is negative if it was set back."""
        for connection in self.connections:
            connection.clock_moved(by)


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """One client's connection, sans-IO.

    The server calls `receive` with input, then `run` until it returns False; after each call it
    sends `replies`.

    `run` executes the buffered commands of every protocol. A protocol implements `step`, which
    executes one command from the buffered input. A command replies at once, waits for a job
    (`waiter`), or continues as a generator in slices (`begin_long_command`). While it runs,
    `caller` is the caller of the engine: the engine sets `caller.must_wait`, and `reply` copies it
    into the reply.
    """

    def __init__(self, hub: Hub) -> None:
        self.engine = hub.engine
        self.caller = Caller(hub.engine, hub.code, rule=hub.rule)
        self.replies: list[Reply] = []
        #: Whether to close the connection after the replies are sent.
        self.closing = False
        #: The client may still be sending: the server reads and discards input for a while before
        #: it closes, so that a reset does not destroy the last reply.
        self.drains_input = False
        #: Set while a command waits for a job or for the end of one. Later commands wait.
        self.waiter: Waiter | None = None
        #: Set while another thread reads the payloads of leased jobs, in which case `waiter` is
        #: also set, or while they are encoded in slices.
        self.lease_read: PendingDelivery | None = None
        #: A command that takes several turns: each `next` does a slice of it. Later commands wait.
        self.long_command: Iterator[None] | None = None
        #: The size of the long command in bytes.
        self.long_command_size = 0
        #: The time of the current slice.
        self.slice_time = 0
        #: Whether the long command waits for a commit, a payload or a transaction. It continues
        #: after `wake`.
        self.long_command_waits = False
        #: The client's address, for the limit on wrong passwords; empty on a Unix socket.
        self.address = ""
        #: The session that owns the socket.
        self.session: Any = None
        #: Whether a first line has arrived that is neither an HTTP request line nor a TLS
        #: handshake.
        self.passed_web_check = False

    @property
    def awaits_commit(self) -> bool:
        """Whether a reply to this client waits for a commit."""
        return self.session is not None and bool(self.session.awaits_commit)

    @property
    def unprocessed_bytes(self) -> int:
        """The size of the commands that have arrived but have not been executed."""
        raise NotImplementedError

    @property
    def memory_used(self) -> int:
        """The memory used by commands that have not been executed, complete or not."""
        raise NotImplementedError

    def drop_input(self) -> None:
        """Drop the input that has not been executed: the connection is ending."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Buffer input without executing it."""
        raise NotImplementedError

    def receive(self, data: bytes, now: int, max_cost: int) -> bool:
        """Buffer input and execute commands."""
        self.feed(data)
        return self.run(now, max_cost)

    def run(self, now: int, max_cost: int) -> bool:
        """Execute commands up to this total cost. Return whether more commands are ready."""
        engine, caller = self.engine, self.caller
        engine.caller = caller
        engine.dependents_left = STEP_LIMIT
        try:
            while self.waiter is None and not self.closing:
                if max_cost <= 0 and (self.long_command is not None or self.has_input()):
                    return True
                if self.long_command is None:
                    caller.must_wait = False
                    cost = self.step(now)
                else:
                    self.slice_time = now
                    cost = self.run_slice()
                if not cost:
                    return False
                max_cost -= cost
                replies = self.replies
                if replies and len(replies[-1].data) > LARGE_REPLY:
                    max_cost = 0
            return False
        finally:
            engine.caller = engine.server_caller

    def dispatch(self, line: bytes, now: int) -> None:
        """Execute a command that arrived as one complete line, while no other is buffered."""
        engine, caller = self.engine, self.caller
        engine.caller, caller.must_wait = caller, False
        engine.dependents_left = STEP_LIMIT
        try:
            self.execute_line(line, now)
        finally:
            engine.caller = engine.server_caller

    def execute_line(self, line: bytes, now: int) -> None:
        """Execute the command in a line, for protocols that call `dispatch`."""
        raise NotImplementedError

    def notify(self, now: int, callback: Callable[..., None], *arguments: object) -> None:
        """Call a method of this connection with the result of a wait, or with an alarm."""
        engine, caller = self.engine, self.caller
        engine.caller = caller
        if self.long_command is None:
            caller.must_wait = False
        try:
            callback(*arguments, now)
        finally:
            engine.caller = engine.server_caller

    def has_input(self) -> bool:
        """Whether input is buffered that may contain a complete command."""
        raise NotImplementedError

    def step(self, now: int) -> int:
        """Execute the next command. Return its cost in commands, or 0 if it is incomplete."""
        raise NotImplementedError

    def store_problem(self, *, pushes: bool) -> str:
        """Return the reason why commands that make changes are refused, or an empty string."""
        return self.engine.unavailable_reason or (self.engine.push_refusal_reason if pushes else "")

    def require_store(self, *, pushes: bool = False) -> None:
        """Raise StoreUnavailable if a command that makes changes must be refused."""
        if reason := self.store_problem(pushes=pushes):
            raise StoreUnavailable(reason)

    def deliver(self, job: Job, now: int) -> None:
        """Called when the wait ends with a job. Reply with the job."""
        raise NotImplementedError

    def job_ended(self, outcome: JobOutcome, now: int) -> None:
        """Called when the awaited job has ended. Reply with its outcome."""
        raise NotImplementedError

    def end_wait(self, waiter: Waiter, job: Job, now: int) -> None:
        """The wait ends with a job, which may have uncommitted changes."""
        self.caller.must_wait = waiter.must_wait
        self.deliver(job, now)

    def reply(self, data: bytes) -> None:
        """Add a reply."""
        self.replies.append(Reply(data, self.caller.must_wait))

    def reply_fixed(self, reply: FixedReply) -> None:
        """Add a reply as `reply` does, without creating it."""
        self.replies.append(reply.held if self.caller.must_wait else reply.immediate)

    def reply_with_job(self, job: Job, data: bytes) -> None:
        """Add a reply with a job that was leased to this client."""
        self.replies.append(Reply(data, self.caller.must_wait, ((job, job.history.attempt),)))

    def reply_with_large_job(self, job: Job, head: bytes, payload: bytes, tail: bytes) -> None:
        """Add a reply with a leased job without a copy of its payload."""
        self.reply_in_pieces([head, payload, tail], ((job, job.attempt),))

    def reply_in_pieces(self, pieces: list[bytes], leases: Leases = ()) -> None:
        """Add a reply without joining its pieces."""
        must_wait = self.caller.must_wait
        self.replies.append(Reply(pieces[0], must_wait, leases))
        # If the commit is refused, one error replaces all pieces.
        for piece in pieces[1:]:
            self.replies.append(Reply(piece, must_wait, drop_if_refused=True))

    def reply_with_jobs(self, jobs: list[Job], data: bytes) -> None:
        """Add a reply with several jobs that were leased to this client."""
        leases = tuple([(job, job.attempt) for job in jobs])
        self.replies.append(Reply(data, self.caller.must_wait, leases))

    def start_payload_read(self, jobs: list[Job], deliver: Callable[[list[Job]], None]) -> bool:
        """If a payload is large, start a read in another thread, and call `deliver` with the jobs
        still leased at its end. Return whether a read was started.
        """
        fetch, fetched = self.engine.payloads.fetcher, self.engine.payloads.fetched
        seqs = [job.seq for job in jobs if job.stored_size > MAX_DIRECT_READ]
        if fetch is None or fetched.keys() >= set(seqs):
            return False
        read = PayloadRead(seqs, self)
        leases = tuple([(job, job.attempt) for job in jobs])
        self.lease_read = PendingDelivery(read, leases, self.caller.must_wait, deliver)
        self.waiter = Waiter((), "", self.caller.protocol, self)
        fetch(read)
        return True

    def handle_payloads_read(self, read: PayloadRead, now: int) -> None:
        """The payloads of leased jobs are in memory: deliver the jobs. Leases may have ended in the
        meantime. A job with a damaged payload dies.
        """
        lease_read = self.lease_read
        if lease_read is None or lease_read.read is not read or read.payloads is None:
            return
        if read.error is not None:
            raise read.error  # the server closes the connection and returns the leases
        if read.damaged:
            self.require_store()  # raises, with the same consequence
        self.lease_read = None
        self.caller.must_wait = lease_read.must_wait
        leased = self.still_leased(lease_read)
        for job in leased:
            if job.seq in read.damaged:
                self.engine.bury_damaged(job, now, str(read.damaged[job.seq]))
        if read.damaged:
            leased = self.still_leased(lease_read)
        if not leased:
            self.caller.wait()
            self.timed_out(now)
            return
        self.waiter = None
        fetched = self.engine.payloads.fetched
        added = [seq for seq in read.payloads if seq not in fetched]
        fetched.update(read.payloads)
        try:
            lease_read.deliver(leased)
        finally:
            for seq in added:  # the others belong to a long command
                fetched.pop(seq, None)

    def still_leased(self, lease_read: PendingDelivery) -> list[Job]:
        """The jobs whose leases have not ended in the meantime."""
        engine = self.engine
        return [
            job
            for job, attempt in lease_read.leases
            if job.attempt == attempt and job.state == LEASED and engine.job(job.seq) is job
        ]

    def add_message(self, data: bytes, *, must_wait: bool) -> None:
        """Add a message that a command of another client has caused."""
        self.replies.append(Reply(data, must_wait, drop_if_refused=True))

    def begin_long_command(self, work: Iterator[None], size: int = 0) -> None:
        """Execute the rest of a command in slices, so that other clients are served in between."""
        self.long_command, self.long_command_size = work, size

    def run_slice(self) -> int:
        """Run the next slice of the long command, and return its cost in commands."""
        assert self.long_command is not None
        self.long_command_waits = False
        payloads = self.engine.payloads
        payloads.awaited = None
        if next(self.long_command, self) is self:
            self.long_command, self.long_command_size = None, 0
        elif (read := payloads.take_awaited()) is not None:
            read.owner = self
            self.long_command_waits = True
        return SLICE_COST

    def await_commit(self) -> None:
        """The long command continues when the next commit has ended, successful or not."""
        self.engine.commit_waiters[self] = None
        self.long_command_waits = True

    def carry_out(self, name: str, now: int) -> Generator[None, None, bool]:
        """Carry out a sealed transaction in a long command before replying, so that no client sees
        only a part of it after the reply. Return whether the seal is durable.
        """
        engine, transactions = self.engine, self.engine.transactions
        turn, reverts = engine.turn, engine.revert_count
        while transactions.is_sealed(name) or engine.is_turn_uncommitted(turn):
            if not transactions.is_sealed(name):
                self.await_commit()
            yield
            if engine.revert_count != reverts:
                reverts = engine.revert_count
                if not transactions.is_sealed(name):
                    return False  # the commit of the seal was refused
            if engine.unavailable_reason:
                break  # the engine continues later
            if transactions.is_sealed(name):
                transactions.carry_out(name, now)
        return True

    def wake(self, now: int) -> None:
        """Continue the long command: the event that it waits for has happened."""
        self.long_command_waits = False
        if self.session is not None:
            self.session.wake()

    def drop_long_command(self) -> None:
        """Abandon a long command. Its `finally` clauses run here: those of an abandoned compiled
        generator never run.
        """
        work, self.long_command, self.long_command_size = self.long_command, None, 0
        if isinstance(work, Generator):
            work.close()

    def stop_waiting(self, now: int) -> None:
        """Answer the waiting command as if it had timed out, because the server is stopping."""

    def reject_web_client(self, hub: Hub) -> None:
        """Answer in HTTP and close: this client speaks HTTP or TLS (see web_clients.py)."""
        hub.errors += 1
        self.reply(web_error(hub.label))
        self.closing = self.drains_input = True

    def timed_out(self, now: int) -> None:
        """Called when the wait ends without a result. Send the protocol's timeout reply."""
        raise NotImplementedError

    def handle_alarm(self, name: str, now: int) -> None:
        """Handle an alarm that was set with engine.set_alarm((self, name), when)."""
        raise NotImplementedError

    def clock_moved(self, by: int) -> None:
        """The wall clock jumped by `by` microseconds."""

    def handshake_overdue(self) -> bool:
        """Whether the handshake is overdue; checked once after the handshake timeout."""
        return False

    def input_closed(self, now: int) -> bool:
        """Called when the client has closed its sending side. Return whether its commands are still
        answered.
        """
        return self.waiter is None

    def unavailable_reply(self, reason: str) -> bytes:
        """The reply to a change that could not be made durable."""
        raise NotImplementedError

    def connection_lost(self, now: int) -> None:
        """Called when the connection is lost. End its waits and leases."""
        raise NotImplementedError
