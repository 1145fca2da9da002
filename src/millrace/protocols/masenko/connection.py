"""One Masenko client's connection: framing, the heartbeat, then the commands in the spec's order.

A command is a line: a verb, and after a space its JSON. A task that was fetched is the connection's
until it says what became of it; when the connection ends, all that it still has have failed.
"""

from collections.abc import Callable, Iterator
from typing import Final

from millrace.engine.job import MASENKO, Job
from millrace.engine.waiters import Waiter
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import Connection
from millrace.protocols.errors import ClientError
from millrace.protocols.web_clients import is_web_request

from . import info, tasks
from .forsaken import leave_queue
from .held import Held
from .hub import MasenkoHub
from .replies import EMPTY, OK, PONG, error
from .transaction import Transaction

#: The heartbeat's name among the engine's alarms.
HEARTBEAT: Final = "heartbeat"
#: The reply to a transaction has the ids of its tasks, if it is no longer than this: the Python
#: client reads it with one recv.
MAX_IDS: Final = 4096
#: FETCH lines up to this size are remembered, because workers repeat them.
MAX_ASKED: Final = 4096
#: Longer verbs are cut.
MAX_VERB: Final = 1 << 14
#: A FETCH with up to this many queues is woken by a push. One with more looks for tasks after a
#: pause, in slices.
MAX_WAIT_QUEUES: Final = 1000
SCAN_BATCH_SIZE: Final = 1000
SCAN_INTERVAL: Final = 50_000
SCAN_PAUSE_PER_QUEUE: Final = 2
#: A longer line counts as several commands in a client's share of a turn.
LONG_LINE: Final = 1 << 12


class MasenkoConnection(Connection):
    def __init__(self, hub: MasenkoHub) -> None:
        super().__init__()
        self.hub = hub
        self.engine = hub.engine
        #: The holder of its leases; empty before the first FETCH.
        self.name = ""
        self._lines = LineBuffer(hub.max_line)
        #: The time of the last line; 0 before the first call with a time.
        self._heard_at = 0
        self._held = Held(hub.engine)
        self._transaction: Transaction | None = None
        self._asked: bytes | None = None
        self._queues: tuple[str, ...] = ()
        self._timeout = 0
        #: The end of a FETCH with more queues than a client can wait for; see `_scan`.
        self._fetch_until = 0
        self._ended = False
        if hub.full:
            self._say_error(error("too many connections"))
            self.closing = True
        else:
            hub.connections.add(self)
            self.engine.alarm(self._alarm, 0)

    # Framing

    @property
    def backlog(self) -> int:
        return self._lines.size

    @property
    def held(self) -> int:
        transaction = self._transaction
        return self._lines.held + (0 if transaction is None else transaction.held)

    def discard(self) -> None:
        self._lines, self._transaction, self.work = LineBuffer(0), None, None

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, most: int) -> bool:
        lines = self._lines
        if 0 <= data.find(b"\n") == len(data) - 1 <= lines.limit and lines.empty and not self._busy:
            self._heard_at = now
            self._take(data[:-1], now)  # the usual case: one complete line
            return self.work is not None
        lines.feed(data)
        return self.run(now, most)

    @property
    def _busy(self) -> bool:
        return self.waiter is not None or self.work is not None or self.closing

    def run(self, now: int, most: int) -> bool:
        lines = self._lines
        while self.waiter is None and not self.closing:
            if self.work is not None:
                if most <= 0:
                    return True
                most -= self.work_slice()
                continue
            if not lines.pending:
                self._run_dry()
                return False
            if most <= 0:
                return True
            line = lines.take()
            most -= 1 + len(line) // LONG_LINE
            self._heard_at = now
            self._take(line, now)
        return False

    def _run_dry(self) -> None:
        """Everything is done that has come."""
        if not self.is_native and is_web_request(self._lines.partial):
            self.reject_web_client(self.hub)
        elif self._lines.too_long:
            self._say_error(error(f"line longer than {self.hub.max_line} bytes"))
            self.closing = self.drains_input = True
        elif self._ended:
            self.closing = True

    def _take(self, line: bytes, now: int) -> None:
        if not self.is_native:
            if is_web_request(line):
                self.reject_web_client(self.hub)
                return
            self.is_native = True
        verb, space, payload = line.partition(b" ")
        if not space and verb[-1:] == b"\r":
            verb = verb[:-1]
        if len(verb) > MAX_VERB:
            verb = verb[:MAX_VERB]
        if self._transaction is not None:
            self._collect(self._transaction, capitals(verb), payload, now)
            return
        do = self._commands.get(verb)
        if do is None:
            known = capitals(verb)
            do = self._commands.get(known)
            if do is None:
                if is_web_request(line):
                    self.reject_web_client(self.hub)
                    return
                text = verb.decode("utf-8", "surrogateescape")
                self._say_error(error(f"unknown verb {text}"))
                return
            verb = known
        self.hub.requests[verb] += 1
        self.hub.commands += 1
        self._execute(do, payload, now)

    def _execute(
        self, do: Callable[["MasenkoConnection", bytes, int], None], payload: bytes, now: int
    ) -> None:
        engine, replies = self.engine, self.replies
        before, said = engine.changes, len(replies)
        try:
            do(self, payload, now)
        except ClientError as problem:
            self._say_error(error(str(problem)))
        if len(replies) > said and (
            engine.changes != before or (do not in self._never_wait and engine.has_uncommitted)
        ):
            self.marks.append(len(replies) - 1)

    def _say(self, verb: bytes, reply: bytes) -> None:
        self.hub.responses[verb] += 1
        self.replies.append(reply)

    def _say_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self._say(b"ERR", reply)

    def _need_store(self, *, pushes: bool = False) -> None:
        if reason := self.engine.halted or (self.engine.pushes_refused if pushes else ""):
            raise ClientError(refused(reason))

    def refusal(self, reason: str) -> bytes:
        return error(refused(reason))

    # Heartbeat

    @property
    def _alarm(self) -> tuple["MasenkoConnection", str]:
        return (self, HEARTBEAT)

    def alarm(self, what: str, now: int) -> None:
        """Cut a client that has said nothing for too long; else look again when it will have."""
        heartbeat = self.hub.heartbeat
        if not self._heard_at:
            self._heard_at = now  # a new connection
        until = self._heard_at + heartbeat
        if self.waiter is not None or self._lines.pending:
            until = max(until, now + heartbeat // 2)  # the client waits for a reply
        if now > until and not self.closing:
            self._say_error(error("no heartbeat"))
            self.closing = True
        elif not self.closing:
            self.engine.alarm(self._alarm, until + 1)

    def clock_moved(self, by: int) -> None:
        if self._heard_at:
            self._heard_at += by

    def _waited(self, now: int) -> None:
        """A wait is over, and may have taken all of the heartbeat: half of it is still to come."""
        self.waiter = None
        self._heard_at = max(self._heard_at, now - self.hub.heartbeat // 2)

    # The end of a connection

    def ended(self, now: int) -> bool:
        """The client has closed its sending side: everything that it sent is answered. The session
        finds out if the client is gone.
        """
        self._ended = True
        return True

    def stop_waiting(self, now: int) -> None:
        if self.waiter is not None:
            self.engine.unwait(self.waiter)
            self.timed_out(now)

    def lost(self, now: int) -> None:
        self.closing = True
        engine = self.engine
        engine.unalarm(self._alarm)
        self.discard()  # cancelled alarms are kept for a while
        self.hub.connections.discard(self)
        if self.waiter is not None:
            engine.unwait(self.waiter)
            self.waiter = None
        if self.hub.stopping:
            return  # its tasks are ready again after the start, without a failure
        engine.holders.discard(self.name)
        unheard = (
            set() if engine.halted else {seq for seq in map(self._unheard, self.handed) if seq}
        )
        self.hub.forsake(self.name, [seq for seq in self._held if seq not in unheard], now)

    def _unheard(self, handed: tuple[Job, int]) -> int:
        """The id of a task whose reply was never written, which the server gives back."""
        job, attempt = handed
        same = self.engine.jobs.get(job.seq) is job and job.attempt == attempt
        return job.seq if same else 0

    # Commands

    def _ping(self, payload: bytes, now: int) -> None:
        self._say(b"PONG", PONG)

    def _push(self, payload: bytes, now: int) -> None:
        self._need_store(pushes=True)
        push = tasks.read_push(payload)
        engine = self.engine
        if push.blockers:
            if min(push.blockers) <= 0:
                raise ClientError("cannot use relative blocked by outside of a transaction")
            push.blockers = [tasks.seq_of(b, engine.next_seq) for b in push.blockers]
        try:
            tasks.check_size(push, self.hub.max_payload)
        except ClientError as problem:
            engine.burn(1)
            text = f"cannot push to queue: wall append: serialize operation: {problem}"
            raise ClientError(text) from None
        job = engine.push(push, now)
        self._say(b"OK", b'OK {"id":%d}\n' % job.seq)

    def _fetch(self, payload: bytes, now: int) -> None:
        if payload != self._asked:
            self._queues, self._timeout = tasks.read_fetch(payload, self.hub.heartbeat)
            self._asked = payload if len(payload) <= MAX_ASKED else None
        queues = self._queues
        if not queues:
            self._say(b"EMPTY", EMPTY)
            return
        if not self.name:
            self.name = self.hub.name(now)
            self.engine.holders.add(self.name)
        if self.hub.stopping:
            queues = ()  # the server stops: no task is leased
        if len(queues) > MAX_WAIT_QUEUES:
            self._fetch_until = now + self._timeout
            self.begin_work(self._scan(now), len(payload))
            return
        job = self.engine.lease(queues, self.name, MASENKO, now)
        if job is not None:
            self._hand(job)
            return
        self.waiter = Waiter(queues, self.name, MASENKO, self)
        self.engine.wait(self.waiter, now + self._timeout)

    def _scan(self, now: int) -> Iterator[None]:
        """Look for a task in a large number of queues in slices, and again after a pause, because
        waiting for each queue would be slow.
        """
        queues = self._queues
        for start in range(0, len(queues), SCAN_BATCH_SIZE):
            job = self.engine.lease(
                queues[start : start + SCAN_BATCH_SIZE], self.name, MASENKO, now
            )
            if job is not None:
                self._fetch_until = 0
                self._hand(job)
                return
            yield
        pause = max(SCAN_INTERVAL, len(queues) * SCAN_PAUSE_PER_QUEUE)
        self.waiter = Waiter((), self.name, MASENKO, self)
        self.engine.wait(self.waiter, min(self._fetch_until, now + pause))

    def deliver(self, job: Job, now: int) -> None:
        self._waited(now)
        self._hand(job)

    def _hand(self, job: Job) -> None:
        self._held.add(job.seq)
        self.hub.responses[b"OK"] += 1
        self.hand(job, tasks.written(job), self.engine)

    def timed_out(self, now: int) -> None:
        self._waited(now)
        if now < self._fetch_until and not self.hub.stopping:
            self.begin_work(self._scan(now))
            return
        self._fetch_until = 0
        self._say(b"EMPTY", EMPTY)

    def _ack(self, payload: bytes, now: int) -> None:
        self._need_store()
        seq = tasks.read_id(payload, self.engine.next_seq, "ackRequest")
        self.engine.complete(self._acquired(seq, now), now, MASENKO)
        self._held.end(seq)
        self._say(b"OK", OK)

    def _nack(self, payload: bytes, now: int) -> None:
        self._need_store()
        seq = tasks.read_id(payload, self.engine.next_seq, "nackRequest")
        job = self._acquired(seq, now)
        queue = job.queue
        self.engine.fail(job, now, MASENKO, "Nack", "", [])
        leave_queue(self.engine, job, queue, now)
        self._held.end(seq)
        self._say(b"OK", OK)

    def _acquired(self, seq: int, now: int) -> Job:
        job = self._find(seq, now)
        if job is None:
            self.engine.depend()  # its end can be uncommitted
            raise ClientError("task not acquired")
        return job

    def _find(self, seq: int, now: int) -> Job | None:
        """A task that this connection has."""
        job = self.engine.jobs.get(seq) if seq in self._held else None
        return job if job and self.engine.reclaim(job, self.name, MASENKO, now) else None

    def _info(self, payload: bytes, now: int) -> None:
        self._say(b"OK", info.answer(self.hub))

    def _quit(self, payload: bytes, now: int) -> None:
        self._say(b"OK", OK)
        self.closing = True

    # Transactions

    def _atomic(self, payload: bytes, now: int) -> None:
        self._transaction = Transaction(
            self.engine, self._held, self.hub.max_payload, self.hub.max_transaction
        )

    def _collect(self, transaction: Transaction, verb: bytes, payload: bytes, now: int) -> None:
        if verb == b"DONE":
            self._execute(MasenkoConnection._done, payload, now)
        else:
            transaction.take(verb, payload)

    def _done(self, payload: bytes, now: int) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        pushes = any(not isinstance(operation, int) for operation in transaction.operations)
        self._need_store(pushes=pushes)
        transaction.check()
        held: dict[int, Job] = {}
        for number, operation in enumerate(transaction.operations):
            if not isinstance(operation, int):
                continue
            job = self._find(operation, now)
            if job is None:  # another client has ended it
                self.engine.depend()
                self.engine.burn(number - len(held))
                raise ClientError(f"task {operation} not acquired")
            held[operation] = job
        ids = self._apply(transaction, held, now)
        reply = b'OK {"ids":[%b]}\n' % b",".join(b"%d" % seq for seq in ids)
        self._say(b"OK", reply if ids and len(reply) <= MAX_IDS else OK)

    def _apply(self, transaction: Transaction, held: dict[int, Job], now: int) -> list[int]:
        """Nothing can fail any more: do all of it, in its order; the ids of the new tasks."""
        engine = self.engine
        ids: list[int] = []
        for operation in transaction.operations:
            if isinstance(operation, int):
                engine.complete(held[operation], now, MASENKO)
                self._held.end(operation)
                continue
            operation.blockers = [
                ids[b] if b < 0 else tasks.seq_of(b, engine.next_seq) for b in operation.blockers
            ]
            ids.append(engine.push(operation, now).seq)
        self.hub.requests[b"PUSH"] += len(ids)
        self.hub.requests[b"ACK"] += len(held)
        return ids

    _commands: Final = {
        b"PING": _ping,
        b"PUSH": _push,
        b"FETCH": _fetch,
        b"ACK": _ack,
        b"NACK": _nack,
        b"INFO": _info,
        b"QUIT": _quit,
        b"ATOMIC": _atomic,
    }
    #: Commands whose replies depend on no durable state; a lease decides by its job.
    _never_wait: Final = frozenset({_ping, _fetch, _info, _quit})


def refused(reason: str) -> str:
    return f"{reason}: nothing was changed, try again later"


def capitals(verb: bytes) -> bytes:
    """In capitals as Go makes them: letter by letter, none of them becomes two."""
    if verb.isascii():
        return verb.upper()
    text = verb.decode("utf-8", "surrogateescape")
    upper = "".join(char.upper() if len(char.upper()) == 1 else char for char in text)
    return upper.encode("utf-8", "surrogateescape")
