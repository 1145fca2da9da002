"""One Masenko client's connection: framing, the heartbeat, then the commands in the spec's order.

A command is a line: a verb, and after a space its JSON. A connection holds a task from FETCH until
ACK or NACK. When the connection ends, the tasks that it holds fail.
"""

from collections.abc import Callable, Iterator
from typing import Final

from millrace.engine.errors import QueueRefused
from millrace.engine.job import Job
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.transactions import TRANSACTION_BATCH_SIZE
from millrace.engine.waiters import Waiter
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import Connection, FixedReply
from millrace.protocols.errors import ClientError, StoreUnavailable
from millrace.protocols.registry import MASENKO
from millrace.protocols.web_clients import is_web_request

from . import info, tasks
from .hub import MasenkoHub
from .replies import EMPTY, OK, PONG, error_reply
from .transaction import Transaction

OK_REPLY: Final = FixedReply(OK)
#: The heartbeat's name among the engine's alarms.
HEARTBEAT: Final = "heartbeat"
#: Maximum size of a reply with the ids of a transaction's tasks; a longer one becomes `OK {}`. The
#: Python client reads the reply with one recv.
MAX_IDS_REPLY_BYTES: Final = 4096
#: FETCH lines up to this size are remembered, because workers repeat them.
MAX_REMEMBERED_FETCH_BYTES: Final = 4096
#: Longer verbs are truncated.
MAX_VERB: Final = 1 << 14
#: A FETCH with up to this many queues is woken by a push. One with more looks for tasks after a
#: pause, in slices.
MAX_WAIT_QUEUES: Final = 1000
SCAN_BATCH_SIZE: Final = 1000
#: The minimum pause between two scans, and the pause for each queue, in microseconds.
MIN_SCAN_PAUSE: Final = 50_000
SCAN_PAUSE_PER_QUEUE: Final = 2
#: A longer line counts as several commands in a client's share of a turn.
LONG_LINE: Final = 1 << 12


class MasenkoConnection(Connection):
    def __init__(self, hub: MasenkoHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self._lines = LineBuffer(hub.max_line)
        #: The time of the last line; 0 until a call first passes the current time.
        self._last_input_at = 0
        self._transaction: Transaction | None = None
        self._last_fetch: bytes | None = None
        self._queues: tuple[str, ...] = ()
        self._timeout = 0
        #: The end of a FETCH with more than MAX_WAIT_QUEUES queues; see `_scan`.
        self._fetch_until = 0
        self._input_ended = False
        if hub.full:
            self.reply_error(error_reply("too many connections"))
            self.closing = True
        else:
            hub.connections.add(self)
            self.engine.set_alarm(self._alarm, 0)

    # Framing

    @property
    def unprocessed_bytes(self) -> int:
        return self._lines.size

    @property
    def memory_used(self) -> int:
        transaction = self._transaction
        return self._lines.memory_used + (0 if transaction is None else transaction.memory_used)

    def drop_input(self) -> None:
        self._lines, self._transaction = LineBuffer(0), None
        self.drop_long_command()

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, max_cost: int) -> bool:
        lines = self._lines
        if lines.empty and not self._busy:
            line, end, rest = data.partition(b"\n")  # faster than `find` and a slice
            if end and not rest and len(line) <= lines.limit:
                self._last_input_at = now
                self.dispatch(line, now)  # the usual case: one complete line
                return self.long_command is not None
        lines.feed(data)
        return self.run(now, max_cost)

    @property
    def _busy(self) -> bool:
        return self.waiter is not None or self.long_command is not None or self.closing

    def has_input(self) -> bool:
        return bool(self._lines.pending)

    def step(self, now: int) -> int:
        if not self._lines.pending:
            self._handle_incomplete_line()
            return 0
        line = self._lines.take_line()
        self._last_input_at = now
        self.execute_line(line, now)
        return 1 + len(line) // LONG_LINE

    def _handle_incomplete_line(self) -> None:
        """Handle input without a complete line: a TLS handshake, a line that is too long, or the
        end of the input.
        """
        if not self.passed_web_check and is_web_request(self._lines.partial_head):
            self.reject_web_client(self.hub)
        elif self._lines.too_long:
            self.reply_error(error_reply(f"line longer than {self.hub.max_line} bytes"))
            self.closing = self.drains_input = True
        elif self._input_ended:
            self.closing = True

    def execute_line(self, line: bytes, now: int) -> None:
        if not self.passed_web_check:
            if is_web_request(line):
                self.reject_web_client(self.hub)
                return
            self.passed_web_check = True
        verb, space, payload = line.partition(b" ")
        if not space and verb[-1:] == b"\r":
            verb = verb[:-1]
        if len(verb) > MAX_VERB:
            verb = verb[:MAX_VERB]
        if self._transaction is not None:
            self._collect(self._transaction, upper_case_verb(verb), payload, now)
            return
        do = COMMANDS.get(verb)
        if do is None:
            known = upper_case_verb(verb)
            do = COMMANDS.get(known)
            if do is None:
                if is_web_request(line):
                    self.reject_web_client(self.hub)
                    return
                text = verb.decode("utf-8", "surrogateescape")
                self.reply_error(error_reply(f"unknown verb {text}"))
                return
            verb = known
        if verb in COUNTED_ON_ARRIVAL:
            self.hub.requests[verb] += 1
        self.hub.commands += 1
        self._execute(do, payload, now)

    def _execute(
        self, do: Callable[["MasenkoConnection", bytes, int], None], payload: bytes, now: int
    ) -> None:
        if self.engine.durable and do not in NEVER_WAIT:
            self.caller.wait()
        try:
            do(self, payload, now)
        except ClientError as problem:
            self.reply_error(error_reply(str(problem)))

    def respond(self, verb: bytes, reply: bytes) -> None:
        """Count a reply and queue it for sending."""
        self.hub.responses[verb] += 1
        self.reply(reply)

    def respond_ok(self) -> None:
        """Count and queue the OK reply for a command without a result."""
        self.hub.responses[b"OK"] += 1
        self.reply_fixed(OK_REPLY)

    def reply_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self.respond(b"ERR", reply)

    def unavailable_reply(self, reason: str) -> bytes:
        return error_reply(str(StoreUnavailable(reason)))

    # Heartbeat

    @property
    def _alarm(self) -> tuple["MasenkoConnection", str]:
        return (self, HEARTBEAT)

    def handle_alarm(self, name: str, now: int) -> None:
        """Close the connection of a silent client, or set the alarm for the next check."""
        heartbeat = self.hub.heartbeat
        if not self._last_input_at:
            self._last_input_at = now  # a new connection
        if (self.long_command is not None or self.awaits_commit) and not self.closing:
            # A long command is being executed, or its reply waits for the disk. After the reply,
            # the client gets at least half of the heartbeat for its next line.
            self._last_input_at = now
            self.engine.set_alarm(self._alarm, now + heartbeat // 2)
            return
        until = self._last_input_at + heartbeat
        if self.waiter is not None or self._lines.pending:
            until = max(until, now + heartbeat // 2)  # the client waits for a reply
        if now > until and not self.closing:
            self.reply_error(error_reply("no heartbeat"))
            self.closing = True
        elif not self.closing:
            self.engine.set_alarm(self._alarm, min(until + 1, now + heartbeat // 2))

    def clock_moved(self, by: int) -> None:
        if self._last_input_at:
            self._last_input_at += by

    def _wait_ended(self, now: int) -> None:
        """A wait has ended. The client gets at least half of the heartbeat for its next line."""
        self.waiter = None
        self._last_input_at = max(self._last_input_at, now - self.hub.heartbeat // 2)

    # The end of a connection

    def input_closed(self, now: int) -> bool:
        """Called when the client has closed its sending side. Return True: all commands received so
        far are answered. The session detects whether the client has disconnected.
        """
        self._input_ended = True
        return True

    def stop_waiting(self, now: int) -> None:
        if self.waiter is not None:
            self.engine.cancel_wait(self.waiter)
            self._fetch_until = 0
            self.timed_out(now)

    def connection_lost(self, now: int) -> None:
        self.closing = True
        engine = self.engine
        engine.set_alarm(self._alarm, None)
        self.drop_input()  # a cancelled alarm keeps a reference to this connection for a while
        self.hub.connections.discard(self)
        if self.waiter is not None:
            engine.cancel_wait(self.waiter)
            self.waiter = None
        if self.hub.stopping:
            return  # its tasks are ready after the next start, without a failure
        if self.caller.holder:
            engine.leases.close(self.caller.holder, now)

    # Commands

    def _ping(self, payload: bytes, now: int) -> None:
        self.respond(b"PONG", PONG)

    def _push(self, payload: bytes, now: int) -> None:
        self.require_store(pushes=True)
        push = tasks.read_push(payload)
        engine = self.engine
        if push.blockers:
            if min(push.blockers) <= 0:
                raise ClientError("cannot use relative blocked by outside of a transaction")
            push.blockers = tasks.blocker_seqs(push.blockers, engine.next_seq)
        try:
            tasks.check_size(push, self.hub.max_payload)
        except ClientError as problem:
            engine.skip_seqs(1)
            text = f"cannot push to queue: wall append: serialize operation: {problem}"
            raise ClientError(text) from None
        job = engine.push(push, now)
        self.hub.requests[b"PUSH"] += 1
        self.respond(b"OK", b'OK {"id":%d}\n' % job.seq)

    def _fetch(self, payload: bytes, now: int) -> None:
        if payload != self._last_fetch:
            self._queues, self._timeout = tasks.read_fetch(payload, self.hub.heartbeat)
            self._last_fetch = payload if len(payload) <= MAX_REMEMBERED_FETCH_BYTES else None
        queues = self._queues
        if not queues:
            self.respond(b"EMPTY", EMPTY)
            return
        if not self.caller.holder:
            self.caller.holder = self.hub.new_holder_name(now)
            self.engine.leases.holders.add(self.caller.holder)
        if self.hub.stopping:
            queues = ()  # the server is stopping; it leases no more tasks
        if len(queues) > MAX_WAIT_QUEUES:
            self._fetch_until = now + self._timeout
            self.begin_long_command(self._scan(), len(payload))
            return
        job = self.engine.lease(queues, self.caller.holder, MASENKO, now)
        if job is not None:
            self._reply_with_job(job)
            return
        self.waiter = Waiter(queues, self.caller.holder, MASENKO, self)
        self.engine.add_waiter(self.waiter, now + self._timeout)

    def _scan(self) -> Iterator[None]:
        """Look for a task in a large number of queues in slices, and again after a pause, because
        waiting for each queue would be slow.
        """
        queues = self._queues
        for start in range(0, len(queues), SCAN_BATCH_SIZE):
            if self.hub.stopping:
                break  # the server is stopping; it leases no more tasks
            job = self.engine.lease(
                queues[start : start + SCAN_BATCH_SIZE],
                self.caller.holder,
                MASENKO,
                self.slice_time,
            )
            if job is not None:
                self._fetch_until = 0
                self._reply_with_job(job)
                return
            yield
        pause = max(MIN_SCAN_PAUSE, len(queues) * SCAN_PAUSE_PER_QUEUE)
        self.waiter = Waiter((), self.caller.holder, MASENKO, self)
        self.engine.add_waiter(self.waiter, min(self._fetch_until, self.slice_time + pause))

    def deliver(self, job: Job, now: int) -> None:
        self._wait_ended(now)
        self._reply_with_job(job)

    def _reply_with_first(self, jobs: list[Job]) -> None:
        self._reply_with_job(jobs[0])

    def _reply_with_job(self, job: Job) -> None:
        if job.stored_size > MAX_DIRECT_READ and self.start_payload_read(
            [job], self._reply_with_first
        ):
            return
        self.hub.requests[b"FETCH"] += 1
        self.hub.responses[b"OK"] += 1
        self.reply_with_job(job, tasks.fetch_reply(job, self.engine.payload(job)))

    def timed_out(self, now: int) -> None:
        self._wait_ended(now)
        if now < self._fetch_until:
            self.begin_long_command(self._scan())
            return
        self._end_fetch()

    def _end_fetch(self) -> None:
        """Reply to a FETCH that found no task."""
        self._fetch_until = 0
        self.respond(b"EMPTY", EMPTY)

    def _ack(self, payload: bytes, now: int) -> None:
        self.require_store()
        seq = tasks.read_id(payload, self.engine.next_seq, "ackRequest")
        self.engine.complete(self._require_acquired(seq, now), now, MASENKO)
        self.hub.requests[b"ACK"] += 1
        self.respond_ok()

    def _nack(self, payload: bytes, now: int) -> None:
        self.require_store()
        seq = tasks.read_id(payload, self.engine.next_seq, "nackRequest")
        job = self._require_acquired(seq, now)
        self.engine.fail(job, now, MASENKO, "Nack", "", [], remove_queue_if_empty=True)
        self.hub.requests[b"NACK"] += 1
        self.respond_ok()

    def _require_acquired(self, seq: int, now: int) -> Job:
        job = self._find(seq, now)
        if job is None:
            self.caller.wait()  # its end may not be committed yet
            raise ClientError("task not acquired")
        return job

    def _find(self, seq: int, now: int) -> Job | None:
        """The task with this id, if this connection holds it."""
        engine, holder = self.engine, self.caller.holder
        job = engine.job(seq) if engine.leases.holds(holder, seq) else None
        return job if job and engine.reclaim(job, holder, MASENKO, now) else None

    def _info(self, payload: bytes, now: int) -> None:
        """Write all queues in one step if there are few, otherwise in slices."""
        self.begin_long_command(self._send_info())
        if len(self.engine.tables.queues) < info.INFO_BATCH_SIZE:
            self.run_slice()

    def _send_info(self) -> Iterator[None]:
        pieces = yield from info.write_info(self.hub)
        self.hub.responses[b"OK"] += 1
        self.reply_in_pieces(pieces)

    def _quit(self, payload: bytes, now: int) -> None:
        self.respond_ok()
        self.closing = True

    # Transactions

    def _atomic(self, payload: bytes, now: int) -> None:
        self._transaction = Transaction(
            self.engine, self.caller.holder, self.hub.max_payload, self.hub.max_transaction
        )

    def _collect(self, transaction: Transaction, verb: bytes, payload: bytes, now: int) -> None:
        if verb == b"DONE":
            self._execute(MasenkoConnection._done, payload, now)
        else:
            transaction.add_command(verb, payload)

    def _done(self, payload: bytes, now: int) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        pushes = any(not isinstance(operation, int) for operation in transaction.operations)
        self.require_store(pushes=pushes)
        transaction.check()
        if len(transaction.operations) > TRANSACTION_BATCH_SIZE:
            self.begin_long_command(
                self._apply_in_slices(transaction, now), transaction.memory_used
            )
            return
        held: dict[int, Job] = {}
        for number, operation in enumerate(transaction.operations):
            if not isinstance(operation, int):
                transaction.check_rule(operation)  # a blocker may have moved since its command
                continue
            job = self._find(operation, now)
            if job is None:  # another client has ended it
                self.caller.wait()
                self.engine.skip_seqs(number - len(held))
                raise ClientError(f"task {operation} not acquired")
            held[operation] = job
        self._respond_to_done(self._apply(transaction, held, now), len(held))

    def _respond_to_done(self, ids: list[int], acked: int) -> None:
        """Count the commands of a transaction, and add its reply."""
        requests = self.hub.requests
        requests[b"ATOMIC"] += 1
        requests[b"PUSH"] += len(ids)
        requests[b"ACK"] += acked
        self.respond(b"OK", _ids_reply(ids))

    def _apply(self, transaction: Transaction, held: dict[int, Job], now: int) -> list[int]:
        """Apply all operations in order. Return the ids of the new tasks."""
        engine = self.engine
        ids: list[int] = []
        with engine.hold_queues(now):
            for operation in transaction.operations:
                if isinstance(operation, int):
                    engine.complete(held[operation], now, MASENKO)
                    continue
                operation.blockers = tasks.blocker_seqs(operation.blockers, engine.next_seq, ids)
                ids.append(engine.push(operation, now).seq)
        return ids

    def _apply_in_slices(self, transaction: Transaction, now: int) -> Iterator[None]:
        """Stage a large transaction over several turns, then let it take effect as a whole."""
        engine, transactions = self.engine, self.engine.transactions
        name, reverts = transactions.begin(now), engine.revert_count
        ids: list[int] = []
        acked: list[int] = []
        sealed = False
        try:
            for number, operation in enumerate(transaction.operations, 1):
                if isinstance(operation, int):
                    if self._find(operation, now) is None:  # another client has ended it
                        self._refuse_lost(operation)
                        return
                    acked.append(operation)
                else:
                    transaction.check_rule(operation)
                    blockers = tasks.blocker_seqs(operation.blockers, engine.next_seq, ids)
                    operation.blockers = blockers
                    ids.append(transactions.stage(name, operation, now).seq)
                if number % TRANSACTION_BATCH_SIZE == 0:
                    yield
                    if engine.unavailable_reason or engine.revert_count != reverts:
                        self.reply_error(
                            self.unavailable_reply(engine.unavailable_reason or "a commit failed")
                        )
                        return
            for seq in acked:
                if not engine.leases.holds(self.caller.holder, seq):  # ended since its slice
                    self._refuse_lost(seq)
                    return
            acked_count = len(acked)  # the transaction takes over the list
            transactions.seal(name, MASENKO, self.caller.holder, acked, now)
            sealed = True
        except QueueRefused as refusal:
            self.reply_error(error_reply(str(refusal)))
            return
        finally:
            if not sealed:
                transactions.abandon(name, now)
        if not (yield from self.carry_out(name, now)):
            self.reply_error(self.unavailable_reply(engine.unavailable_reason or "a commit failed"))
            return
        if engine.durable:
            # The sealed transaction is durable: no refused commit can undo it.
            self.caller.must_wait = False
        self._respond_to_done(ids, acked_count)

    def _refuse_lost(self, seq: int) -> None:
        self.caller.wait()
        self.reply_error(error_reply(f"task {seq} not acquired"))


def _ids_reply(ids: list[int]) -> bytes:
    if not ids or len(ids) > MAX_IDS_REPLY_BYTES:
        return OK
    reply = b'OK {"ids":[%b]}\n' % b",".join(b"%d" % seq for seq in ids)
    return reply if len(reply) <= MAX_IDS_REPLY_BYTES else OK


def upper_case_verb(verb: bytes) -> bytes:
    """The verb in upper case, as in Go: each letter becomes one letter."""
    if verb.isascii():
        return verb.upper()
    text = verb.decode("utf-8", "surrogateescape")
    upper = "".join(char.upper() if len(char.upper()) == 1 else char for char in text)
    return upper.encode("utf-8", "surrogateescape")


COMMANDS: Final = {
    b"PING": MasenkoConnection._ping,
    b"PUSH": MasenkoConnection._push,
    b"FETCH": MasenkoConnection._fetch,
    b"ACK": MasenkoConnection._ack,
    b"NACK": MasenkoConnection._nack,
    b"INFO": MasenkoConnection._info,
    b"QUIT": MasenkoConnection._quit,
    b"ATOMIC": MasenkoConnection._atomic,
}
#: The other requests are counted when they succeed.
COUNTED_ON_ARRIVAL: Final = frozenset({b"PING", b"INFO", b"QUIT"})
#: Commands whose replies do not wait for a commit. The reply to FETCH waits only for earlier
#: changes to its task.
NEVER_WAIT: Final = frozenset(
    {
        MasenkoConnection._ping,
        MasenkoConnection._fetch,
        MasenkoConnection._info,
        MasenkoConnection._quit,
    }
)
