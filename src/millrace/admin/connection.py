r"""One connection to the admin socket: lines of JSON.

The first line is a hello with the version of the protocol; every further line is one operation:

    C: {"hello": {"version": 3, "client": "web 0.1.0"}}
    S: {"result": {"version": 3, "server": "0.1.0"}}
    C: {"queues": {"limit": 50}}
    S: {"result": {"queues": [...], "count": 3, "next": ""}}
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

from base64 import b64encode
from collections.abc import Generator, Iterator
from typing import Any, Final

import msgspec

from millrace import __version__
from millrace.engine.errors import EngineError, QueueRefused
from millrace.engine.job import Job, payload_size
from millrace.engine.queue_rules import QueueRule
from millrace.protocols.buffers import LineBuffer
from millrace.protocols.connection import MAX_JOINED_BYTES, Connection, PendingDelivery
from millrace.protocols.errors import ClientError, CodedError, StoreUnavailable
from millrace.protocols.http import leases
from millrace.records import (
    PROTOCOL_VERSION,
    AdminErrorReply,
    BulkProgress,
    Code,
    Counters,
    ErrorReply,
    Hello,
    HelloReply,
    ImportProgress,
    LeasedJobs,
    LeaseJobs,
    SocketRequest,
)

from . import (
    audit,
    bulk,
    imports,
    jobs,
    metrics,
    overview,
    queues,
    recurring,
    search,
    work,
    workers,
)
from .errors import AdminError, require_writable
from .service import AdminService, Operation, Reply

#: Fits the longest job that can be pushed over HTTP, in base64.
MAX_LINE_BYTES: Final = 24 << 20
#: Payload bytes that one slice encodes: a multiple of 3, so that the base64 has no padding.
PART_BYTES: Final = 3 << 17

_decode = msgspec.json.Decoder(SocketRequest).decode
_decode_hello = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

OPERATIONS: Final[dict[str, Operation]] = {
    "why": lambda service, name, now: service.why(name, now),
    "sizes": overview.get_sizes,
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
    "limits": recurring.list_limits,
    "set_qless": recurring.set_qless,
    "audit": audit.list_audit,
    "note": audit.add_note,
    "push": work.push,
    "end": work.end,
    "import_jobs": imports.import_jobs,
}
#: Overviews and reports on the process: they show the state in memory, also while a commit hangs.
NEVER_WAIT: Final = frozenset(
    {"sizes", "overview", "health", "server", "metrics", "faktory", "pipeline", "journal", "ship"}
)
#: The operations of a connection that is limited to some queues. The others concern the whole
#: server, or jobs of all queues.
LIMITED: Final = frozenset(
    {
        *("health", "queues", "queue", "act_on_queue", "job", "why", "search", "act"),
        *("push", "lease", "end", "note"),
    }
)
_NAMES: Final = SocketRequest.__struct_fields__
_ABSENT: Final = (None, False)
#: A payload in an encoded record. No string contains this text: its quotes would be escaped.
_PAYLOAD_START: Final = b'"payload":"'
_EMPTY_PAYLOAD: Final = _PAYLOAD_START + b'"'


class AdminConnection(Connection):
    def __init__(self, hub: AdminService) -> None:
        super().__init__(hub)
        self.hub = hub
        self._lines = LineBuffer(MAX_LINE_BYTES)
        self._greeted = False
        #: Whether replies to the current request wait for changes of other clients.
        self._waits = True
        hub.connections.add(self)

    @property
    def unprocessed_bytes(self) -> int:
        return self._lines.size

    @property
    def memory_used(self) -> int:
        return self._lines.memory_used

    def drop_input(self) -> None:
        self._lines = LineBuffer(0)
        self._stop()

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def run(self, now: int, max_cost: int) -> bool:
        self.hub.now = now
        return super().run(now, max_cost)

    def has_input(self) -> bool:
        return bool(self._lines.pending)

    def step(self, now: int) -> int:
        lines = self._lines
        if lines.pending:
            line = lines.take_line()
            if self._greeted:
                self._execute(line, now)
            else:
                self._greet(line)
            return 1
        if lines.too_long:
            detail = f"A line must not be longer than {MAX_LINE_BYTES:,} bytes."
            self._refuse(AdminError(detail, "too large"))
            self.closing = True
        return 0

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
            step = f"Upgrade the client. It must be of Millrace {__version__}."
            if hello.version > PROTOCOL_VERSION:
                step = "Upgrade the server. If it was upgraded while it ran, restart it."
            detail = (
                f"The client uses version {hello.version} of the admin protocol, this server "
                f"(Millrace {__version__}) version {PROTOCOL_VERSION}. {step}"
            )
            self._end_with(AdminErrorReply.of("refused", detail))
            return
        if hello.queues:
            self.caller.rule = QueueRule(hello.queues)
        self._greeted = True
        self._send(HelloReply(PROTOCOL_VERSION, __version__))

    def _end_with(self, reply: msgspec.Struct) -> None:
        self.hub.errors += 1
        self.reply(_encode(reply) + b"\n")
        self.closing = True

    def _execute(self, line: bytes, now: int) -> None:
        self.hub.commands += 1
        self._waits = True
        try:
            name, arguments = _operation(line)
            self._waits = name not in NEVER_WAIT
            if self.caller.rule is not None and name not in LIMITED:
                raise AdminError(f"Not available with a rule for queues: {name}.", "refused")
            if name == "lease":
                self._lease(arguments, now)
            elif name in {"journal", "ship"}:
                self._ship(name)
            elif name == "push" and work.takes_slices(self.hub, arguments):
                pushing = work.push_in_slices(self.hub, arguments, self._carry_out_push)
                self.begin_long_command(self._send_all(pushing))
            else:
                result = OPERATIONS[name](self.hub, arguments, now)
                if isinstance(result, Iterator):
                    self.begin_long_command(self._send_all(result))
                else:
                    self._wait()
                    self._send(result)
        except (ClientError, EngineError) as error:
            self._wait()
            self._refuse(error)

    def _wait(self) -> None:
        """Hold the next reply back until everything is committed that it may depend on."""
        if self._waits:
            self.caller.wait()

    def _ship(self, name: str) -> None:
        shipper = self.hub.keeper
        if shipper is None:
            raise AdminError("This server has no store, so it ships no events.", "unavailable")
        if name == "ship":
            shipper.ship(self._shipped)  # replies later
        else:
            self._send(shipper.current_status())

    def _send_all(self, running: Iterator[Reply | None]) -> Iterator[None]:
        """Carry out a long operation, and send each of its replies."""
        try:
            for reply in running:
                if reply is not None:
                    self._wait()
                    self._send(reply)
                yield
        except (ClientError, EngineError) as error:
            self._wait()
            self._refuse(error)
        finally:
            if isinstance(running, Generator):
                running.close()  # a stopped operation records its progress

    def _send(self, reply: Reply) -> None:
        self.reply(_line(reply))

    def _refuse(self, error: ClientError | EngineError) -> None:
        self.hub.errors += 1
        detail = str(error) or str(type(error).__doc__)
        self.reply(_encode(AdminErrorReply.of(_code(error), detail)) + b"\n")

    def _stop(self) -> None:
        """Stop the long operation."""
        work, self.long_command = self.long_command, None
        if isinstance(work, Generator):
            work.close()

    def _shipped(self, failing: str) -> None:
        if self not in self.hub.connections:
            return
        shipper = self.hub.keeper
        assert shipper is not None
        if failing:
            self._refuse(AdminError(failing, "unavailable"))
        else:
            self._send(shipper.current_status())
        self.hub.connections_with_messages.add(self)

    def _carry_out_push(self, name: str, now: int) -> Generator[None, None, bool]:
        """Carry out a large push. Its reply need not wait if the push is durable then."""
        is_durable = yield from self.carry_out(name, now)
        if is_durable and self.engine.durable:
            self._waits = self.caller.must_wait = False
        return is_durable

    # Leases

    def _lease(self, request: LeaseJobs, now: int) -> None:
        engine = self.hub.engine
        require_writable(engine)
        requested = leases.requested_queues(request)
        queue_names = () if self.hub.stopping else requested
        leased = leases.lease_jobs(engine, queue_names, request, now)
        if leased or request.wait <= 0:
            self._hand_out(leased)
            return
        self.waiter = leases.make_waiter(queue_names, request, self)
        engine.add_waiter(self.waiter, now + min(request.wait, leases.MAX_WAIT))

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._hand_out([job])

    def timed_out(self, now: int) -> None:
        self.waiter = None
        self._hand_out([])

    def _hand_out(self, leased: list[Job]) -> None:
        if self.start_payload_read(leased, self._hand_out):
            return
        if sum(map(payload_size, leased)) > MAX_JOINED_BYTES:
            leases = tuple([(job, job.attempt) for job in leased])
            payloads = [self.engine.payload(job) for job in leased]
            self.lease_read = PendingDelivery(None, leases, self.caller.must_wait, self._hand_out)
            self.begin_long_command(self._hand_out_in_slices(self.lease_read, payloads))
            return
        reply = self._leased(leased, [self.engine.payload(job) for job in leased])
        self.reply_with_jobs(leased, _line(reply))

    def _leased(self, jobs: list[Job], payloads: list[bytes]) -> LeasedJobs:
        reply = work.leased(self.hub, jobs, payloads)
        if jobs and self.hub.tokens.is_key_uncommitted:
            self.caller.wait()
        return reply

    def _hand_out_in_slices(
        self, lease_read: PendingDelivery, payloads: list[bytes]
    ) -> Iterator[None]:
        """Encode the payloads in slices, and reply with the jobs that are still leased then."""
        encoded: dict[int, list[bytes]] = {}
        for (job, _), payload in zip(lease_read.leases, payloads, strict=True):
            parts = encoded[job.seq] = []
            for start in range(0, len(payload), PART_BYTES):
                parts.append(b64encode(memoryview(payload)[start : start + PART_BYTES]))
                yield
        self.lease_read = None
        leased = self.still_leased(lease_read)
        if len(leased) < len(lease_read.leases):
            self.caller.wait()
        reply = self._leased(leased, [b""] * len(leased))
        first, *others = _line(reply).split(_EMPTY_PAYLOAD)
        pieces = [first]
        for job, text in zip(leased, others, strict=True):
            pieces[-1] += _PAYLOAD_START
            pieces += [*encoded[job.seq], b'"' + text]
        self.reply_in_pieces(pieces, tuple([(job, job.attempt) for job in leased]))

    def unavailable_reply(self, reason: str) -> bytes:
        return _encode(AdminErrorReply.of("unavailable", reason)) + b"\n"

    def connection_lost(self, now: int) -> None:
        self.hub.now = now
        self._stop()
        if self.waiter is not None:
            self.hub.engine.cancel_wait(self.waiter)
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


def _code(error: ClientError | EngineError) -> Code:
    match error:
        case CodedError():
            return error.code
        case StoreUnavailable():
            return "unavailable"
        case QueueRefused():
            return "refused"
        case EngineError():
            return "conflict"
    return "bad request"


def _line(reply: Reply) -> bytes:
    """A reply as the client reads it."""
    member = b"progress" if _is_progress(reply) else b"result"
    return b'{"%b":%b}\n' % (member, _encode(reply))


def _is_progress(reply: Reply) -> bool:
    if isinstance(reply, BulkProgress | ImportProgress):
        return not reply.finished
    return isinstance(reply, Counters) and reply.more
