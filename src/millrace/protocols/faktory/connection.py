"""One Faktory client's connection: framing, then the commands in the spec's order.

HELLO is in handshake.py, and pushes that need a duplicate check or run in slices are in pushes.py.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from millrace.engine.job import Job
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.waiters import UNDONE, JobOutcome, Waiter
from millrace.engine.workers import WORKER_STATES, Worker
from millrace.protocols import go_json
from millrace.protocols.buffers import LARGE_LINE, LineBuffer
from millrace.protocols.connection import Connection
from millrace.protocols.errors import BadJson, ClientError, PartlyExecuted, StoreUnavailable
from millrace.protocols.registry import FAKTORY
from millrace.protocols.web_clients import is_web_request

from . import extensions, handshake, info, millrace_command, operator_commands, pushes, work_unit
from .hub import FETCH_WAIT, FaktoryHub
from .replies import (
    NULL_BULK,
    OK,
    OK_REPLY,
    encode_bulk,
    error_reply,
    queue_names,
    quote_input,
    require_argument,
    trim_or_unknown,
)

MAX_BACKTRACE: Final = 50
#: Commands whose replies do not wait for a commit, or that decide for themselves whether to wait.
#: The reply to FETCH waits only for earlier changes to the job.
NEVER_WAIT: Final = frozenset(
    {
        *(b"PUSH", b"FETCH", b"ACK", b"BEAT", b"INFO"),
        *(b"END", b"BATCH", b"TRACK", b"WORKER", b"MILLRACE"),
    }
)
PUSH_COMMANDS: Final = frozenset({b"PUSH", b"PUSHB"})
#: Commands that are refused while the store is not writable, in addition to some forms of QUEUE and
#: MILLRACE.
CHANGE_COMMANDS: Final = frozenset({b"PUSH", b"PUSHB", b"ACK", b"FAIL", b"FLUSH", b"MUTATE"})

_decode_ack = msgspec.json.Decoder(dict[str, str | None]).decode


class FaktoryConnection(Connection):
    def __init__(self, hub: FaktoryHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self.identified = False
        self.worker: Worker | None = None
        self._lines = LineBuffer(hub.max_line)
        self._idle = True  # no input, wait or long command: input can be executed directly
        self._last_fetch_argument: bytes | None = None
        self._fetch_queues: tuple[str, ...] = ()
        #: The id of the job whose end the client waits for.
        self.awaited_id = ""
        #: Whether the waiting FETCH is a bulk fetch, whose reply is an array.
        self.is_bulk_fetch = False
        #: The password at the time of the greeting; the hub's password can change later.
        self.password = hub.password
        self.hash_rounds, self.salt = 0, ""
        if self.password:
            self.hash_rounds, self.salt = hub.challenge()
            self.reply(b'+HI {"v":2,"i":%d,"s":"%b"}\r\n' % (self.hash_rounds, self.salt.encode()))
        else:
            self.reply(b'+HI {"v":2}\r\n')

    # Framing

    @property
    def unprocessed_bytes(self) -> int:
        return self._lines.size

    @property
    def memory_used(self) -> int:
        return self._lines.memory_used + (
            0 if self.long_command is None else self.long_command_size
        )

    def drop_input(self) -> None:
        self._lines = LineBuffer(0)
        self.drop_long_command()

    def feed(self, data: bytes) -> None:
        self._idle = False
        self._lines.feed(data)

    def receive(self, data: bytes, now: int, max_cost: int) -> bool:
        # The usual case: one complete command, and the connection is idle.
        if self._idle:
            line, end, rest = data.partition(b"\n")  # faster than `find` and a slice
            if end and not rest and len(line) <= self._lines.limit:
                self.dispatch(line, now)
                if self.waiter is None and self.long_command is None and not self.closing:
                    return False
                self._idle = False
                return self.long_command is not None and self.run(now, max_cost)
        self._lines.feed(data)
        more = self.run(now, max_cost)
        self._idle = (
            self._lines.empty
            and self.waiter is None
            and self.long_command is None
            and not self.closing
        )
        return more

    def has_input(self) -> bool:
        return bool(self._lines.pending)

    def step(self, now: int) -> int:
        if self._lines.pending:
            self.execute_line(self._lines.take_line(), now)
            return 1
        if not self.identified and is_web_request(self._lines.partial_head):
            self.reject_web_client(self.hub)
        elif self._lines.too_long:
            self.reply_and_close(
                error_reply(f"command too long: the limit is {self._lines.limit} bytes")
            )
            self.drains_input = True
        return 0

    def execute_line(self, line: bytes, now: int) -> None:
        if len(line) > LARGE_LINE and line.startswith(b"PUSH ") and self.identified:
            self.hub.commands += 1
            self.begin_long_command(pushes.push_large(self, line, now), len(line))
            return
        verb, space, argument = line.removesuffix(b"\r").partition(b" ")
        if not self.identified or verb not in COMMANDS:
            if is_web_request(line):
                self.reject_web_client(self.hub)
            elif self.identified:
                self.reply_error(error_reply(f"unknown command {quote_input(verb)}"))
            else:
                handshake.greet(self, verb, argument, now)
            return
        engine = self.engine
        self.hub.commands += 1
        if engine.unavailable_reason and verb in CHANGE_COMMANDS:
            self.reply_error(self.unavailable_reply(engine.unavailable_reason))
            return
        if engine.push_refusal_reason and verb in PUSH_COMMANDS:
            self.reply_error(self.unavailable_reply(engine.push_refusal_reason))
            return
        if engine.durable and verb not in NEVER_WAIT:
            self.caller.wait()
        argument_or_none = argument if space else None
        try:
            # The table has all commands. Compiled code calls a method directly only by its name,
            # so the most frequent commands have a line here.
            if verb == b"FETCH":
                self._fetch(argument_or_none, now)
            elif verb == b"ACK":
                self._ack(argument_or_none, now)
            elif verb == b"PUSH":
                self._push(argument_or_none, now)
            else:
                COMMANDS[verb](self, argument_or_none, now)
        except ClientError as problem:
            if verb in CHANGE_COMMANDS:
                self.caller.wait()  # an error can depend on other jobs
            self.reply_error(error_reply(str(problem)))

    def reply_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self.reply(reply)

    def reply_and_close(self, reply: bytes) -> None:
        self.hub.errors += reply[:1] == b"-"
        self.reply(reply)
        self.closing = True

    def unavailable_reply(self, reason: str) -> bytes:
        return error_reply(str(StoreUnavailable(reason)))

    def handshake_overdue(self) -> bool:
        return not self.identified and self.long_command is None

    def check_not_reverted(self, reverts: int) -> None:
        """Stop a long command if the changes of an earlier slice were reverted."""
        engine = self.engine
        if engine.revert_count != reverts or engine.unavailable_reason:
            raise PartlyExecuted(engine.unavailable_reason)

    def connection_lost(self, now: int) -> None:
        self.closing = True
        self.drop_long_command()  # the generator refers to this connection
        self.hub.read_cursors.end(self)
        if self.waiter is not None:
            self.engine.cancel_wait(self.waiter)
            self.waiter = None
        if self.identified:
            self.hub.connections.discard(self)
        if self.worker is not None:
            self.hub.leave(self, self.worker, now)
            self.worker = None

    # Commands for every client

    def _flush(self, _: bytes | None, now: int) -> None:
        self.engine.flush(now)
        self.reply_fixed(OK_REPLY)

    def _info(self, _: bytes | None, now: int) -> None:
        if len(self.engine.tables.queues) > info.QUEUE_BATCH_SIZE:
            self.begin_long_command(self._info_in_slices(now))
        else:
            self.reply(encode_bulk(info.encode_info(self.hub, now)))

    def _info_in_slices(self, now: int) -> Iterator[None]:
        self.reply(encode_bulk((yield from info.encode_info_in_slices(self.hub, now))))

    def _end(self, _: bytes | None, now: int) -> None:
        self.reply_and_close(OK)

    # Producers

    def _push(self, argument: bytes | None, now: int) -> None:
        try:
            push = work_unit.read(require_argument(argument) if argument is None else argument, now)
        except BadJson as problem:
            raise ClientError(f"invalid JSON: {problem}") from None
        if self.engine.find(push.jid) is not None or extensions.may_have_extensions(push):
            pushes.push_once(self, push, now)
        else:
            self.engine.push(push, now)
        self.reply_fixed(OK_REPLY)

    # Consumers

    def _fetch(self, argument: bytes | None, now: int) -> None:
        if argument != self._last_fetch_argument or argument is None:
            names = queue_names(argument or b"")
            self._last_fetch_argument = argument
            self._fetch_queues = tuple(names) or ("default",)
        worker = self.worker
        holder = "" if worker is None else worker.wid
        queues = self._fetch_queues
        if (worker is not None and worker.state) or self.hub.stopping:
            queues = ()  # the worker or the server is stopping: no job is leased
        job = self.engine.lease(queues, holder, FAKTORY, now)
        if job is not None:
            self._reply_with_job(job)
            return
        self.waiter = Waiter(queues, holder, FAKTORY, self)
        self.engine.add_waiter(self.waiter, now + FETCH_WAIT)

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        if self.is_bulk_fetch:
            self.is_bulk_fetch = False
            self.deliver_bulk([job])
        else:
            self._reply_with_job(job)

    def _reply_with_job(self, job: Job) -> None:
        if job.stored_size > MAX_DIRECT_READ:
            if not self.start_payload_read([job], self._reply_with_first):
                head, payload, tail = work_unit.write_large(job, self.engine.payload(job))
                size = len(head) + len(payload) + len(tail)
                self.reply_with_large_job(job, b"$%d\r\n%b" % (size, head), payload, tail + b"\r\n")
            return
        unit = work_unit.write(job, self.engine.payload(job))
        self.reply_with_job(job, b"$%d\r\n%b\r\n" % (len(unit), unit))

    def _reply_with_first(self, jobs: list[Job]) -> None:
        self._reply_with_job(jobs[0])

    def timed_out(self, now: int) -> None:
        self.waiter = None
        if self.awaited_id:
            self._reply_with_result()
        elif self.is_bulk_fetch:
            self.is_bulk_fetch = False
            self.deliver_bulk([])
        else:
            self.reply(NULL_BULK)

    def input_closed(self, now: int) -> bool:
        """Called when the client has closed its sending side. Return True: all commands received so
        far are answered. The session detects whether the client has disconnected.
        """
        return True

    def stop_waiting(self, now: int) -> None:
        """The server is stopping: FETCH gets no job, and a client that waits for the end of a job
        gets its current state.
        """
        if self.waiter is not None:
            self.engine.cancel_wait(self.waiter)
            self.timed_out(now)

    def _ack(self, argument: bytes | None, now: int) -> None:
        try:
            line = require_argument(argument) if argument is None else argument
            body = _decode_ack(line if line.isascii() else go_json.repair_text(line))
            jid = body["jid"]
        except (msgspec.MsgspecError, KeyError, RecursionError):
            raise ClientError(f"invalid ACK {quote_input(argument or b'')}") from None
        result = extensions.result_of_ack(body["result"]) if "result" in body else None
        job = self.find_leased_job(jid or "", now)
        if job is not None:
            self.engine.complete(job, now, FAKTORY, result=result)
        else:
            self.caller.wait()  # another client's ACK may not be committed yet
        self.reply_fixed(OK_REPLY)

    def find_leased_job(self, jid: str, now: int) -> Job | None:
        """The leased job with this jid. Any client may end it, unless it was leased over a protocol
        that reserves this right for the holder.
        """
        holder = "" if self.worker is None else self.worker.wid
        engine = self.engine
        held = engine.find_leased(jid, FAKTORY, holder)
        return held or engine.reclaim_by_id(jid, holder, FAKTORY, now)

    def _fail(self, argument: bytes | None, now: int) -> None:
        line = go_json.repair_text(require_argument(argument))
        try:
            fields, _ = go_json.split_members(
                line, frozenset({"jid", "errtype", "message", "backtrace"})
            )
            jid = go_json.read_string(fields.get("jid"), "jid")
            group = trim_or_unknown(go_json.read_string(fields.get("errtype"), "errtype"), 100)
            message = trim_or_unknown(go_json.read_string(fields.get("message"), "message"), 1000)
            backtrace = go_json.read_strings(fields.get("backtrace"), "backtrace")[:MAX_BACKTRACE]
        except BadJson:
            raise ClientError(f"invalid FAIL {quote_input(line)}") from None
        if not jid:
            raise ClientError("missing JID")
        job = self.find_leased_job(jid, now)
        if job is None:
            raise ClientError(f"Job not found {quote_input(jid.encode())}")
        self.engine.fail(job, now, FAKTORY, group, message, backtrace)
        self.reply_fixed(OK_REPLY)

    def _beat(self, argument: bytes | None, now: int) -> None:
        line = go_json.repair_text(require_argument(argument))
        try:
            fields, _ = go_json.split_members(
                line, frozenset({"wid", "current_state", "rss_kb", "running"})
            )
            wid = go_json.read_string(fields.get("wid"), "wid")
            state = go_json.read_string(fields.get("current_state"), "current_state")
            rss_kb = go_json.read_integer(fields.get("rss_kb"), "rss_kb") or 0
            running = go_json.read_strings(fields.get("running"), "running")
        except BadJson:
            raise ClientError(f"invalid BEAT {quote_input(line)}") from None
        worker = self.hub.workers.known.get(wid)
        if worker is None:
            raise ClientError(f"unknown worker {quote_input(wid.encode())}")
        worker.last_heartbeat_at = now
        worker.rss_kb = rss_kb
        if state in {"quiet", "terminate"}:
            self.hub.advance(worker, WORKER_STATES.index(state))
        members: dict[str, str | list[str]] = {}
        if worker.state:
            members["state"] = WORKER_STATES[worker.state]
        if running and (revoked := extensions.revoked_jobs(self.engine, wid, running, now)):
            members["cancelled"] = revoked
            self.caller.wait()
        if running and extensions.renew_leases(self.engine, wid, running, now):
            self.caller.wait()
        if members:
            self.reply(encode_bulk(msgspec.json.encode(members)))
        else:
            self.reply_fixed(OK_REPLY)

    # Beyond the spec

    def _batch(self, _: bytes | None, now: int) -> None:
        raise ClientError("batch subsystem is only available in Faktory Enterprise")

    def _track(self, _: bytes | None, now: int) -> None:
        raise ClientError("tracking subsystem is only available in Faktory Enterprise")

    def deliver_bulk(self, jobs: list[Job]) -> None:
        """Reply with several leased jobs."""
        self.is_bulk_fetch = self.start_payload_read(jobs, self.deliver_bulk)
        if self.is_bulk_fetch:
            return
        units = [work_unit.write(job, self.engine.payload(job)) for job in jobs]
        self.reply_with_jobs(jobs, encode_bulk(b"[%b]" % b",".join(units)))

    def job_ended(self, outcome: JobOutcome, now: int) -> None:
        self.waiter, jid, self.awaited_id = None, self.awaited_id, ""
        if outcome.cause == UNDONE:
            self.reply_error(self.unavailable_reply(self.engine.unavailable_reason))
            return
        self.caller.wait()  # the end of the job may not be committed yet
        self.reply(encode_bulk(extensions.describe_outcome(jid, outcome)))

    def _reply_with_result(self) -> None:
        jid, self.awaited_id = self.awaited_id, ""
        self.caller.wait()
        self.reply(
            encode_bulk(extensions.describe_job(jid, extensions.newest_job(self.engine, jid)))
        )


COMMANDS: Final = {
    b"FLUSH": FaktoryConnection._flush,
    b"INFO": FaktoryConnection._info,
    b"END": FaktoryConnection._end,
    b"PUSH": FaktoryConnection._push,
    b"PUSHB": pushes.push_bulk,
    b"FETCH": FaktoryConnection._fetch,
    b"ACK": FaktoryConnection._ack,
    b"FAIL": FaktoryConnection._fail,
    b"BEAT": FaktoryConnection._beat,
    b"QUEUE": operator_commands.queue,
    b"MUTATE": operator_commands.mutate,
    b"BATCH": FaktoryConnection._batch,
    b"TRACK": FaktoryConnection._track,
    b"WORKER": operator_commands.worker,
    b"MILLRACE": millrace_command.millrace,
}
