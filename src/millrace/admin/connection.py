r"""One connection to the admin socket: lines of JSON.

The first line is a hello with the version of the protocol; every further line is one operation:

    C: {"hello": {"version": 2, "client": "web 0.1.0"}}
    S: {"result": {"version": 2, "server": "0.1.0"}}
    C: {"queues": {"most": 50}}
    S: {"result": {"queues": [...], "count": 3, "more": ""}}
    C: {"act": {"action": "retry", "query": {"state": "dead"}, "by": "ann"}}
    S: {"progress": {"done": 500, ...}}
    S: {"result": {"done": 731, ...}}
    C: {"queue": {"name": "nowhere"}}
    S: {"error": {"code": "not found", "detail": "Queue \"nowhere\" not found."}}

Replies may gain members at any time. Requests omit arguments that have their default, so that a new
argument reaches an old server only if it is used. Any other change raises the version.

Times and durations are microseconds, 0 for none; bytes are base64. The reply to a change leaves
after its commit. Every client that can open the socket is an administrator.
"""

from collections.abc import Generator, Iterator
from typing import Any, Final

import msgspec

from millrace import __version__
from millrace.engine.errors import EngineError
from millrace.engine.job import Job
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import Connection
from millrace.protocols.errors import ClientError
from millrace.records import (
    PROTOCOL_VERSION,
    AdminErrorReply,
    BulkProgress,
    Code,
    Counters,
    ErrorReply,
    Hello,
    HelloReply,
    LeasedJobs,
    LeaseJobs,
    SocketRequest,
)

from . import audit, bulk, jobs, metrics, overview, queues, recurring, search, work, workers
from .errors import AdminError
from .service import LEASE_KEY, AdminService, Operation, Reply

#: Fits the longest job that can be pushed over HTTP, in base64.
MAX_LINE_BYTES: Final = 24 << 20

_decode = msgspec.json.Decoder(SocketRequest).decode
_decode_hello = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

OPERATIONS: Final[dict[str, Operation]] = {
    "why": lambda service, name, now: service.why(name, now),
    "sizes": lambda service, *_: service.sizes(),
    "counters": lambda service, *_: overview.get_counters(service),
    "overview": overview.get_overview,
    "health": overview.get_health,
    "server": overview.get_server,
    "pipeline": overview.get_pipeline,
    "run_pipeline": overview.run_pipeline,
    "faktory": overview.faktory_info,
    "flush": overview.flush,
    "metrics": metrics.get_metrics,
    "queues": queues.list_queues,
    "queue": queues.get_queue,
    "act_on_queue": queues.act_on_queue,
    "workers": workers.list_workers,
    "act_on_worker": workers.signal_worker,
    "job": jobs.get_job,
    "search": search.search_jobs,
    "failures": search.list_failures,
    "act": bulk.act_on_jobs,
    "recurring": recurring.list_recurring,
    "act_on_recurring": recurring.act_on_recurring,
    "tracked": recurring.list_tracked,
    "tags": recurring.list_tags,
    "throttles": recurring.list_limits,
    "set_qless": recurring.set_qless,
    "audit": audit.list_audit,
    "note": audit.add_note,
    "push": work.push,
    "end": work.end,
}
#: Overviews and reports on the process: they show the state in memory, also while a commit hangs.
NEVER_WAIT: Final = frozenset(
    {"sizes", "overview", "health", "server", "metrics", "faktory", "pipeline", "journal", "ship"}
)
_NAMES: Final = SocketRequest.__struct_fields__
_ABSENT: Final = (None, False)


class AdminConnection(Connection):
    def __init__(self, hub: AdminService) -> None:
        super().__init__()
        self.hub = hub
        self._lines = LineBuffer(MAX_LINE_BYTES)
        #: The operation that is being carried out in slices.
        self._running: Iterator[Reply | None] | None = None
        self._greeted = False
        #: Whether replies to the current request wait for commits, and the engine's count of
        #: changes before it.
        self._waits, self._before = True, 0
        hub.connections.add(self)

    @property
    def backlog(self) -> int:
        return self._lines.size

    @property
    def held(self) -> int:
        return self._lines.held

    def discard(self) -> None:
        self._lines = LineBuffer(0)
        self._stop()

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, most: int) -> bool:
        self.feed(data)
        return self.run(now, most)

    def run(self, now: int, most: int) -> bool:
        lines, self.hub.now = self._lines, now
        while lines.pending and most > 0 and not self.closing and not self._is_busy:
            line = lines.take()
            if self._greeted:
                self._execute(line, now)
            else:
                self._greet(line)
            most -= 1
        if self._running is not None:
            self._run_slice(self._running)  # a slice costs as much as a batch of commands
            return not self.closing
        if lines.too_long and not lines.pending and not self.closing:
            detail = f"A line must not be longer than {MAX_LINE_BYTES:,} bytes."
            self._refuse(AdminError(detail, "too large"))
            self.closing = True
        return bool(lines.pending) and not self.closing and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        """True while an operation runs or waits for a job."""
        return self._running is not None or self.waiter is not None

    def _greet(self, line: bytes) -> None:
        """Compare the versions. A client of version 1 gets an error in its own form."""
        try:
            members = _decode_hello(line)
        except msgspec.DecodeError:
            members = {}
        if list(members) != ["hello"]:
            detail = (
                f"This server requires version {PROTOCOL_VERSION} of the admin protocol, which "
                f"starts with a hello. Upgrade the client to Millrace {__version__}."
            )
            self._end_with(ErrorReply(detail))
            return
        try:
            hello = msgspec.json.decode(members["hello"], type=Hello)
        except msgspec.DecodeError as error:
            self._end_with(AdminErrorReply.of("bad request", f"Invalid hello: {error}"))
            return
        if hello.version != PROTOCOL_VERSION:
            newer = "server" if hello.version > PROTOCOL_VERSION else "client"
            detail = (
                f"The client uses version {hello.version} of the admin protocol, this server "
                f"(Millrace {__version__}) version {PROTOCOL_VERSION}. Upgrade the {newer}."
            )
            self._end_with(AdminErrorReply.of("refused", detail))
            return
        self._greeted = True
        self._send(HelloReply(PROTOCOL_VERSION, __version__))

    def _end_with(self, reply: msgspec.Struct) -> None:
        self.hub.errors += 1
        self.replies.append(_encode(reply) + b"\n")
        self.closing = True

    def _execute(self, line: bytes, now: int) -> None:
        self.hub.commands += 1
        self._waits, self._before = True, self.hub.engine.changes
        try:
            name, arguments = _operation(line)
            self._waits = name not in NEVER_WAIT
            if name == "lease":
                self._lease(arguments, now)
            elif name in {"journal", "ship"}:
                self._ship(name)
            else:
                result = OPERATIONS[name](self.hub, arguments, now)
                if isinstance(result, Iterator):
                    self._running = result
                else:
                    self._wait()
                    self._send(result)
        except (ClientError, EngineError) as error:
            self._wait()
            self._refuse(error)

    def _wait(self) -> None:
        """Hold the next reply back until everything is committed that it may depend on."""
        engine = self.hub.engine
        if self._waits and (engine.changes != self._before or engine.has_uncommitted):
            self.marks.append(len(self.replies))

    def _ship(self, name: str) -> None:
        shipper = self.hub.keeper
        if shipper is None:
            raise AdminError("This server has no store, so it ships no events.", "unavailable")
        if name == "ship":
            shipper.ship(self._shipped)  # replies later
        else:
            self._send(shipper.journal())

    def _run_slice(self, running: Iterator[Reply | None]) -> None:
        try:
            reply = next(running)
        except StopIteration:
            self._running = None
        except (ClientError, EngineError) as error:
            self._running = None
            self._wait()
            self._refuse(error)
        else:
            if reply is not None:
                self._wait()
                self._send(reply)

    def _send(self, reply: Reply) -> None:
        member = "progress" if _is_progress(reply) else "result"
        self.replies.append(b'{"%b":%b}\n' % (member.encode(), _encode(reply)))

    def _refuse(self, error: ClientError | EngineError) -> None:
        self.hub.errors += 1
        code: Code = "conflict" if isinstance(error, EngineError) else "bad request"
        if isinstance(error, AdminError):
            code = error.code
        detail = str(error) or str(type(error).__doc__)
        self.replies.append(_encode(AdminErrorReply.of(code, detail)) + b"\n")

    def _stop(self) -> None:
        """Stop the running operation; it records its progress."""
        running, self._running = self._running, None
        if isinstance(running, Generator):
            running.close()

    def _shipped(self, failing: str) -> None:
        if self not in self.hub.connections:
            return
        shipper = self.hub.keeper
        assert shipper is not None
        if failing:
            self._refuse(AdminError(failing, "unavailable"))
        else:
            self._send(shipper.journal())
        self.hub.touched.add(self)

    # Leases

    def _lease(self, request: LeaseJobs, now: int) -> None:
        engine, queue_names = self.hub.engine, work.queues_of(self.hub, request)
        leased = work.lease(self.hub, queue_names, request, now)
        if leased or request.wait <= 0:
            self._hand_out(leased)
            return
        self.waiter = work.waiter(queue_names, request, self)
        engine.wait(self.waiter, now + min(request.wait, work.MAX_WAIT))

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._hand_out([job])

    def timed_out(self, now: int) -> None:
        self.waiter = None
        self._hand_out([])

    def _hand_out(self, leased: list[Job]) -> None:
        engine = self.hub.engine
        reply = LeasedJobs([work.leased(self.hub, job) for job in leased])
        if any(job.seq in engine.unsettled for job in leased) or (
            leased and engine.is_note_uncommitted(LEASE_KEY)
        ):
            self.marks.append(len(self.replies))
        self.handed += [(job, job.attempt) for job in leased]
        self._send(reply)

    def refusal(self, reason: str) -> bytes:
        return _encode(AdminErrorReply.of("unavailable", reason)) + b"\n"

    def lost(self, now: int) -> None:
        self.hub.now = now
        self._stop()
        if self.waiter is not None:
            self.hub.engine.unwait(self.waiter)
            self.waiter = None
        self.hub.connections.discard(self)


def _operation(line: bytes) -> tuple[str, Any]:
    """The name and the arguments of the operation in a line."""
    try:
        request = _decode(line)
    except msgspec.DecodeError as error:
        raise AdminError(f"Invalid request: {error}") from None
    given = [(name, value) for name in _NAMES if (value := getattr(request, name)) not in _ABSENT]
    if len(given) == 1:
        return given[0]
    names = ", ".join(f"`{name}`" for name, _ in given) or "none"
    raise AdminError(
        f"A request must have exactly one operation; this one has {len(given)}: {names}."
    )


def _is_progress(reply: Reply) -> bool:
    if isinstance(reply, BulkProgress):
        return not reply.over
    return isinstance(reply, Counters) and reply.more
