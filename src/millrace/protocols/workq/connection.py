"""One Workq client's connection: framing, then the commands in the spec's order.

A command is a line, for some commands followed by a block whose size is the line's last argument.
No byte of a block is executed as a command: the server skips the block of a refused command, and
closes the connection if the size of the block is unknown.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from millrace.engine.job import FOREVER, Job, NewJob
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.states import DEAD, DONE, LEASED
from millrace.engine.waiters import UNDONE, JobOutcome, Waiter
from millrace.protocols.buffers import ByteBuffer
from millrace.protocols.connection import Connection, FixedReply, Reply
from millrace.protocols.errors import ClientError, PayloadDamaged, StoreUnavailable
from millrace.protocols.registry import WORKQ
from millrace.protocols.slices import SLICE_SIZE
from millrace.protocols.web_clients import is_web_request

from . import arguments, inspection, jobs
from .arguments import Flags
from .hub import WorkqHub
from .inspection import UnknownObject

OK_REPLY: Final = FixedReply(b"+OK\r\n")
TIMEOUT: Final = b"-TIMEOUT\r\n"
NOT_FOUND: Final = b"-NOT-FOUND\r\n"
CRLF: Final = b"\r\n"
#: A refused block up to this size is skipped; a larger one ends the connection.
MAX_SKIPPED_BLOCK: Final = 64 << 20
#: The maximum number of names in one `lease`.
MAX_NAMES: Final = 10_000
#: A `lease` creates the queues that it names, as long as fewer queues than this exist.
MAX_QUEUES: Final = 100_000
#: Number of queues that one slice of a long `lease` creates.
QUEUE_BATCH_SIZE: Final = 50
#: The error group in the journal for failures that the `fail` command reports.
FAIL_GROUP: Final = "Failed"
MAX_MESSAGE: Final = 1000


def client_error(text: str) -> bytes:
    return b"-CLIENT-ERROR %b\r\n" % text.encode()


def server_error(text: str) -> bytes:
    return b"-SERVER-ERROR %b\r\n" % text.encode()


class WorkqCommand(NamedTuple):
    """A command. With a `size_error`, a block follows the line, and argument number `arguments` is
    the size of the block.
    """

    handler: Callable[["WorkqConnection", list[bytes], Flags, bytes, int], None]
    #: Commands that make changes are refused while the store cannot be written to.
    changes: bool
    arguments: int = 0
    size_error: str = ""
    #: A lease waits only for earlier changes to its job.
    leases: bool = False
    pushes: bool = False


class WorkqConnection(Connection):
    def __init__(self, hub: WorkqHub) -> None:
        super().__init__(hub)
        self.hub = hub
        self._input = ByteBuffer(hub.max_line)
        #: A command whose block is incomplete, and the block's size with CRLF.
        self._pending_command: tuple[WorkqCommand, list[bytes], Flags] | None = None
        self._block_size = 0
        #: Whether the buffered input ends inside a command.
        self._incomplete = False
        #: The number of bytes of a refused block that have not arrived, and its last two bytes so
        #: far.
        self._skipped_bytes_left = 0
        self._tail = b""
        #: The job id in the command that waits for the end of a job, and whether it is a `run`.
        self._awaited_id = ""
        self._awaits_run = False
        self._input_ended = False
        #: The arguments of the last `lease`, and the queue names in them: workers repeat the
        #: command.
        self._last_lease: tuple[list[bytes], tuple[str, ...]] = ([], ())
        if hub.full:
            self.reply(b"-SERVER-ERROR too many connections\r\n")
            self.closing = True
        else:
            hub.connections.add(self)

    # Framing

    @property
    def unprocessed_bytes(self) -> int:
        """An incomplete command counts as one byte, so that the session reads the rest."""
        held = len(self._input)
        if self._incomplete:
            return min(held, 1)
        return held or (self.long_command is not None)

    @property
    def memory_used(self) -> int:
        return len(self._input)

    def drop_input(self) -> None:
        self._input = ByteBuffer(0)

    def feed(self, data: bytes) -> None:
        self._input.feed(data)
        self._incomplete = False

    def has_input(self) -> bool:
        return bool(self._input)

    def step(self, now: int) -> int:
        if self._step(now):
            return 1
        self._incomplete = True
        if self._input_ended:
            self._close()
        return 0

    def _step(self, now: int) -> bool:
        """Execute the next command; False if the input is incomplete."""
        if self._pending_command is not None:
            return self._take_block(now)
        if self._skipped_bytes_left:
            return self._skip_block()
        line = self._input.take_line()
        if line is None:
            if not self.passed_web_check and is_web_request(self._input.first_byte):
                self.reject_web_client(self.hub)
            else:
                self.closing = self._input.too_long
            return False
        if not self.passed_web_check:
            if is_web_request(line):
                self.reject_web_client(self.hub)
                return True
            self.passed_web_check = True
        if line[-1:] != b"\r":
            self.closing = True
        else:
            self._handle_line(line[:-1], now)
        return True

    def _handle_line(self, line: bytes, now: int) -> None:
        args = line.split(b" ")
        verb = args.pop(0)
        if b"" in args:
            args = [word for word in args if word]
        flags: Flags = {}
        well_formed = True
        if line.find(b" -") >= 0:
            args, flags, well_formed = arguments.split_flags(args)
        command = COMMANDS.get(verb)
        if command is None:
            well_formed = arguments.split_flags(line.split(b" "))[2]  # the first word can be a flag
        if not well_formed:
            self._refuse(arguments.INVALID_FLAGS, command, args)
        elif command is None and is_web_request(line):
            self.reject_web_client(self.hub)
        elif command is None:
            self.reply_error(client_error(arguments.UNKNOWN_COMMAND))
        elif not command.size_error:
            self._execute(command, args, flags, b"", now)
        elif len(args) != command.arguments:
            self._refuse(arguments.INVALID_ARGS, command, args)
        else:
            size = arguments.parse_signed(args[-1])
            if size is None or not 0 <= size <= self.hub.max_block:
                self._refuse(command.size_error, command, args)
                return
            self._pending_command, self._block_size = (command, args, flags), size + 2
            self._take_block(now)  # the block usually arrives with its line

    def _take_block(self, now: int) -> bool:
        block = self._input.take(self._block_size)
        if block is None:
            end = self._block_size - len(CRLF)
            if len(self._input) > end and self._input.byte_at(end) != CRLF[0]:
                assert self._pending_command is not None
                self._refuse_block(self._pending_command[0])
                return True
            return False
        assert self._pending_command is not None
        command, args, flags = self._pending_command
        self._pending_command = None
        if block.endswith(CRLF):
            self._execute(command, args, flags, block[:-2], now)
        else:
            self._refuse_block(command)
        return True

    def _refuse_block(self, command: WorkqCommand) -> None:
        """Refuse a block with a wrong size, whose end is unknown."""
        self._pending_command = None
        self.reply_error(client_error(command.size_error))
        self.closing = self.drains_input = True

    def _refuse(self, text: str, command: WorkqCommand | None, args: list[bytes]) -> None:
        """Refuse a line, and skip the block that follows it."""
        self.reply_error(client_error(text))
        if command is None or not command.size_error:
            return
        known = len(args) >= command.arguments
        size = arguments.parse_signed(args[command.arguments - 1]) if known else None
        if size is None or not 0 <= size <= MAX_SKIPPED_BLOCK:
            self.closing = self.drains_input = True
        else:
            self._skipped_bytes_left, self._tail = size + 2, b""

    def _skip_block(self) -> bool:
        piece = self._input.take(min(self._skipped_bytes_left, len(self._input)))
        if not piece:
            return False
        self._skipped_bytes_left -= len(piece)
        self._tail = (self._tail + piece[-2:])[-2:]
        if not self._skipped_bytes_left and self._tail != CRLF:
            self.closing = True
        return True

    def _execute(
        self, command: WorkqCommand, args: list[bytes], flags: Flags, block: bytes, now: int
    ) -> None:
        engine = self.engine
        self.hub.commands += 1
        if command.changes and (reason := self.store_problem(pushes=command.pushes)):
            self.reply_error(self.unavailable_reply(reason))
            return
        if engine.durable and not command.leases:
            self.caller.wait()
        try:
            command.handler(self, args, flags, block, now)
        except PayloadDamaged as damage:
            self.reply_error(server_error(str(damage)))
        except ClientError as problem:
            self.reply_error(client_error(str(problem)))
        except UnknownObject:
            self.reply_error(NOT_FOUND)

    def reply_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self.reply(reply)

    def unavailable_reply(self, reason: str) -> bytes:
        return server_error(str(StoreUnavailable(reason)))

    # The end of a connection

    def input_closed(self, now: int) -> bool:
        """Called when the client has closed its sending side. Return True: all commands received so
        far are answered. The session detects whether the client has disconnected.
        """
        self._input_ended = True
        return True

    def stop_waiting(self, now: int) -> None:
        if self.waiter is not None:
            self._cancel_wait(now)
            self.reply(TIMEOUT)

    def connection_lost(self, now: int) -> None:
        self.closing = True
        self.drop_long_command()  # the generator refers to this connection
        self.hub.connections.discard(self)
        if self.waiter is not None:
            self._cancel_wait(now)

    def _cancel_wait(self, now: int) -> None:
        """End the wait, and cancel the job of a `run`."""
        assert self.waiter is not None
        waiter, self.waiter = self.waiter, None
        self.engine.cancel_wait(waiter)
        if self._awaits_run:
            self._awaits_run = False
            job = self.engine.job(waiter.seq)
            if job is not None:
                self.engine.cancel(job, now, deferrable=True)

    def _close(self) -> None:
        """Close after the last reply; an incomplete block gets an error."""
        if self._pending_command is not None:
            self.reply_error(client_error(self._pending_command[0].size_error))
        self.closing = True

    # Client commands

    def _add(self, args: list[bytes], flags: Flags, payload: bytes, now: int) -> None:
        self._push(jobs.read_add(args, flags, payload, now), now)
        self.reply_fixed(OK_REPLY)

    def _schedule(self, args: list[bytes], flags: Flags, payload: bytes, now: int) -> None:
        self._push(jobs.read_schedule(args, flags, payload, now), now)
        self.reply_fixed(OK_REPLY)

    def _push(self, push: NewJob, now: int) -> Job:
        """Push, or report a duplicate id. The report waits until the first push is durable."""
        if jobs.find(self.engine, push.jid) is not None:
            self.caller.wait()
            raise ClientError(arguments.DUPLICATE_JOB)
        return self.engine.push(push, now)

    def _run(self, args: list[bytes], flags: Flags, payload: bytes, now: int) -> None:
        push, timeout = jobs.read_run(args, flags, payload)
        job = self._push(push, now)
        self._awaits_run = True
        self._wait_for_end(job, push.jid, now + timeout * 1000)

    def _result(self, args: list[bytes], flags: Flags, _: bytes, now: int) -> None:
        if len(args) != 2 or flags:
            raise ClientError(arguments.INVALID_ARGS)
        jid = arguments.parse_job_id(args[0])
        timeout = arguments.parse_wait_timeout(args[1])
        job = jobs.find(self.engine, jid)
        if job is None:
            raise UnknownObject
        if job.state in {DONE, DEAD}:
            content = b"" if job.extra is None else job.extra.result or b""
            self.caller.wait()
            self.reply(jobs.result(jid, succeeded=job.state == DONE, content=content))
        elif timeout:
            self._wait_for_end(job, jid, now + timeout * 1000)
        else:
            self.reply(TIMEOUT)

    def _wait_for_end(self, job: Job, jid: str, until: int) -> None:
        self._awaited_id = jid
        self.waiter = Waiter((), "", WORKQ, self)
        self.waiter.owns_job = self._awaits_run
        self.engine.add_waiter(self.waiter, until, job)

    def job_ended(self, outcome: JobOutcome, now: int) -> None:
        self.waiter = None
        if outcome.cause == UNDONE:
            self._awaits_run = False
            self.reply_error(self.unavailable_reply(self.engine.unavailable_reason))
            return
        self.caller.wait()  # the end of the job may not be committed yet
        ended_without_result = outcome.cause == "evicted" or (
            self._awaits_run and outcome.cause == "expired"
        )
        if ended_without_result:
            self.reply(TIMEOUT)
        else:
            succeeded, content = outcome.succeeded, outcome.result
            self.reply(jobs.result(self._awaited_id, succeeded=succeeded, content=content))
        self._awaits_run = False

    def timed_out(self, now: int) -> None:
        assert self.waiter is not None
        waiter, self.waiter = self.waiter, None
        job = self.engine.job(waiter.seq) if self._awaits_run else None
        if job is not None and job.state == LEASED:  # a worker has the job
            until = job.deadline if job.deadline != FOREVER else job.leased_at + job.lease_duration
            if until > now:
                self._wait_for_end(job, self._awaited_id, until)
                return
        self._awaits_run = False
        if job is not None:
            self.engine.cancel(job, now, deferrable=True)
        self.reply(TIMEOUT)

    # Worker commands

    def _lease(self, args: list[bytes], flags: Flags, _: bytes, now: int) -> None:
        if not 2 <= len(args) <= MAX_NAMES + 1 or flags:
            raise ClientError(arguments.INVALID_ARGS)
        timeout = arguments.parse_wait_timeout(args.pop())
        if args != self._last_lease[0]:
            if len(args) > SLICE_SIZE:
                self.slice_time = now
                self.begin_long_command(self._lease_in_slices(args, timeout))
                return
            self._last_lease = args, tuple(dict.fromkeys(map(self._queue_name, args)))
        self._open_queues(self._last_lease[1])
        self._lease_from(self._last_lease[1], timeout, now)

    def _lease_in_slices(self, args: list[bytes], timeout: int) -> Iterator[None]:
        """A `lease` with a long list of names. Most of its cost is the creation of queues. The
        lease and the wait start when all queues exist.
        """
        names: list[str] = []
        try:
            for start in range(0, len(args), SLICE_SIZE):
                names += map(self._queue_name, args[start : start + SLICE_SIZE])
                yield
            unique = tuple(dict.fromkeys(names))
            for start in range(0, len(unique), QUEUE_BATCH_SIZE):
                self.require_store()
                self._open_queues(unique[start : start + QUEUE_BATCH_SIZE])
                yield
            self.require_store()
            self._last_lease = args, unique
            self._lease_from(unique, timeout, self.slice_time)
        except StoreUnavailable:
            self.reply_error(self.unavailable_reply(self.store_problem(pushes=False)))
        except ClientError as problem:
            self.reply_error(client_error(str(problem)))

    def _queue_name(self, word: bytes) -> str:
        """Read the name of a queue. All are checked before the first one is created."""
        name = arguments.parse_name(word)
        self.engine.check_queue(name)
        return name

    def _open_queues(self, names: tuple[str, ...]) -> None:
        engine = self.engine
        for name in names:
            queue = engine.queue(name)
            if (queue is None or not queue.registered) and len(engine.tables.queues) < MAX_QUEUES:
                engine.open_queue(name)

    def _lease_from(self, names: tuple[str, ...], timeout: int, now: int) -> None:
        engine = self.engine
        if self.hub.stopping:
            names = ()  # the server is stopping: no job is leased
        job = engine.lease(names, "", WORKQ, now, random_queue=len(names) != 1)
        if job is not None:
            self._reply_with_job(job)
        elif timeout:
            self.waiter = Waiter(names, "", WORKQ, self)
            engine.add_waiter(self.waiter, now + timeout * 1000)
        else:
            self.reply(TIMEOUT)

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._reply_with_job(job)

    def _reply_with_first(self, found: list[Job]) -> None:
        self._reply_with_job(found[0])

    def _reply_with_job(self, job: Job) -> None:
        if job.stored_size > MAX_DIRECT_READ:
            if not self.start_payload_read([job], self._reply_with_first):
                payload = self.engine.payload(job)
                head = jobs.lease_head(job, len(payload), with_ttr=self.hub.with_ttr)
                self.reply_with_large_job(job, head, payload, CRLF)
            return
        reply = jobs.lease_reply(job, self.engine.payload(job), with_ttr=self.hub.with_ttr)
        self.reply_with_job(job, reply)

    def _complete(self, args: list[bytes], flags: Flags, result: bytes, now: int) -> None:
        job = self._job_for_result(args, flags)
        self.engine.complete(job, now, WORKQ, result=result, allow_unleased=True)
        self.reply_fixed(OK_REPLY)

    def _fail(self, args: list[bytes], flags: Flags, result: bytes, now: int) -> None:
        job = self._job_for_result(args, flags)
        message = result[:MAX_MESSAGE].decode("utf-8", "replace")
        self.engine.fail(
            job, now, WORKQ, FAIL_GROUP, message, [], result=result, allow_unleased=True
        )
        self.reply_fixed(OK_REPLY)

    def _job_for_result(self, args: list[bytes], flags: Flags) -> Job:
        """The job that a result is for. An error waits until the state it reports is durable."""
        if flags:
            raise ClientError(arguments.INVALID_ARGS)
        job = jobs.find_for_result(self.engine, arguments.parse_job_id(args[0]))
        if job is None:
            self.caller.wait()
            raise UnknownObject
        if job.state in {DONE, DEAD}:
            self.caller.wait()
            raise ClientError(arguments.DUPLICATE_RESULT)
        return job

    # Administrative commands

    def _delete(self, args: list[bytes], flags: Flags, _: bytes, now: int) -> None:
        if len(args) != 1 or flags:
            raise ClientError(arguments.INVALID_ARGS)
        job = jobs.find(self.engine, arguments.parse_job_id(args[0]))
        if job is None:
            self.caller.wait()
            raise UnknownObject
        self.engine.cancel(job, now, WORKQ)
        self.reply_fixed(OK_REPLY)

    def _inspect(self, args: list[bytes], flags: Flags, _: bytes, now: int) -> None:
        pieces = inspection.inspect_object(self.hub, args, has_flags=bool(flags))
        first = next(pieces)
        if first:
            self.reply(first)
        engine = self.engine
        self.begin_long_command(
            self._send_in_slices(pieces, bool(first), engine.turn, engine.revert_count)
        )

    def _send_in_slices(
        self, pieces: Iterator[bytes | None], has_begun: bool, turn: int, reverts: int
    ) -> Iterator[None]:
        """Send a reply in pieces. If the store refuses to commit the changes that the first piece
        shows, one error replaces it, and the rest is dropped. A reply that has already begun cannot
        end with an error, so the connection is closed: after a refused commit, or if a job is
        removed before its payload is read.
        """
        engine = self.engine
        is_durable = has_begun and not self.caller.must_wait
        while True:
            try:
                piece = next(pieces)
            except StopIteration:
                return
            except PayloadDamaged as damage:
                if has_begun:
                    self.closing = True
                else:
                    self.reply_error(server_error(str(damage)))
                return
            except UnknownObject:  # a job was removed before its payload was read
                if has_begun:
                    self.closing = True
                else:
                    self.caller.wait()
                    self.reply_error(NOT_FOUND)
                return
            if piece and not has_begun:
                self.caller.wait()
                self.reply(piece)
                has_begun, is_durable = True, not self.caller.must_wait
                turn, reverts = engine.turn, engine.revert_count
            elif piece:
                while not is_durable and engine.is_turn_uncommitted(turn):
                    self.await_commit()
                    yield
                    if engine.revert_count != reverts:
                        return
                is_durable = True
                if engine.revert_count != reverts:
                    self.closing = True
                    return
                self.caller.wait()
                self.replies.append(Reply(piece, self.caller.must_wait, drop_if_refused=True))
            yield


COMMANDS: Final = {
    b"add": WorkqCommand(
        WorkqConnection._add, True, 5, arguments.INVALID_PAYLOAD_SIZE, pushes=True
    ),
    b"schedule": WorkqCommand(
        WorkqConnection._schedule, True, 6, arguments.INVALID_PAYLOAD_SIZE, pushes=True
    ),
    b"run": WorkqCommand(
        WorkqConnection._run, True, 5, arguments.INVALID_PAYLOAD_SIZE, pushes=True
    ),
    b"result": WorkqCommand(WorkqConnection._result, False),
    b"lease": WorkqCommand(WorkqConnection._lease, True, leases=True),
    b"complete": WorkqCommand(WorkqConnection._complete, True, 2, arguments.INVALID_PAYLOAD_SIZE),
    b"fail": WorkqCommand(WorkqConnection._fail, True, 2, arguments.INVALID_RESULT_SIZE),
    b"delete": WorkqCommand(WorkqConnection._delete, True),
    b"inspect": WorkqCommand(WorkqConnection._inspect, False),
}
