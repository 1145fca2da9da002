"""One Go Job Queue client's connection: framing, the commands in the spec's order, the errors.

A command is a word followed by its fields: NUL-terminated strings, little-endian integers,
length-prefixed data. Only the fields show where a command ends, so the parser reads it from the
start until it is complete. The parser remembers the minimum number of bytes, so that it does not
read an incomplete command repeatedly.
"""

import re
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from millrace.engine.job import FOREVER, SECOND, Job, NewJob
from millrace.engine.payloads import MAX_DIRECT_READ
from millrace.engine.states import DONE, LEASED
from millrace.engine.waiters import Waiter
from millrace.protocols.buffers import ByteBuffer
from millrace.protocols.connection import Connection
from millrace.protocols.errors import ClientError, StoreUnavailable
from millrace.protocols.registry import GOQUEUE
from millrace.protocols.web_clients import starts_web_request

if TYPE_CHECKING:
    from .hub import GoqueueHub

OK: Final = b"OK\0"
TIMEOUT: Final = b"TIMEOUT\0"

#: Priority, ttp, length of the data.
_ADD: Final = Struct("<III")
#: Word, id.
_ADDED: Final = Struct("<6sQ")
_DELETE: Final = Struct("<Q")
_RESERVE: Final = Struct("<I")
#: Word, id, priority, ttp, status, length of the data.
_RESERVED: Final = Struct("<9sQII9sI")
MAX_NUMBER: Final = (1 << 32) - 1

_WORD: Final = re.compile(rb"[A-Z]+")
MAX_WORD: Final = 255
MAX_NAME: Final = 255


class MalformedCommand(ClientError):
    """A command is malformed, so its end is unknown. The connection is closed."""


class GoqueueConnection(Connection):
    def __init__(self, hub: "GoqueueHub") -> None:
        super().__init__(hub)
        self.hub = hub
        self._input = ByteBuffer(0)
        #: The minimum size of the next command.
        self._min_command_size = 1
        self._input_ended = False
        if hub.full:
            self.reply_error(error_reply("Too many connections"))
            self.closing = True
        else:
            hub.connections.add(self)

    # Framing

    @property
    def unprocessed_bytes(self) -> int:
        """An incomplete command counts as one byte, so that the session reads the rest."""
        buffered = len(self._input)
        return buffered if buffered >= self._min_command_size else min(buffered, 1)

    @property
    def memory_used(self) -> int:
        return self._input.memory_used

    def drop_input(self) -> None:
        self._input, self._min_command_size = ByteBuffer(0), 1

    def feed(self, data: bytes) -> None:
        if not self.closing:
            self._input.feed(data)

    def has_input(self) -> bool:
        return len(self._input) >= self._min_command_size

    def step(self, now: int) -> int:
        if len(self._input) and self._step(now):
            return 1
        if self._input_ended and not self.closing:
            self._close()
        return 0

    def _step(self, now: int) -> bool:
        """Execute the next command; False if it is incomplete."""
        if self._min_command_size > 1 and len(self._input) < self._min_command_size:
            return False
        if self._execute_next(now):
            return True
        return self._input.join() and self._execute_next(now)

    def _execute_next(self, now: int) -> bool:
        """Execute the next command if its input is in one piece; False if it is incomplete."""
        data, start = self._input.data, self._input.start
        end = data.find(0, start, start + MAX_WORD + 1)
        if end < 0:
            word = data[start : start + MAX_WORD + 1]
            if starts_web_request(word):
                self.reject_web_client(self.hub)
                return True
            self.closing = len(word) > MAX_WORD or bool(word and not _WORD.fullmatch(word))
            return self._wait_for_input(len(data) + 1)
        command = COMMANDS.get(data[start:end])
        if command is None:
            self._refuse_unknown(data[start:end], end + 1)
            return True
        if self.engine.durable and command not in NEVER_WAIT:
            self.caller.wait()
        try:
            done = command(self, end + 1, now)
        except MalformedCommand as defect:
            self.reply_error(error_reply(f"Malformed {data[start:end].decode()} command: {defect}"))
            self.closing = self.drains_input = done = True
        except ClientError as problem:
            self.reply_error(error_reply(str(problem)))
            done = True
        self.hub.commands += done
        return done

    def reply_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self.reply(reply)

    def _refuse_unknown(self, word: bytes, command_end: int) -> None:
        if starts_web_request(word):
            self.reject_web_client(self.hub)
        elif _WORD.fullmatch(word) is None:
            self.closing = True
        else:
            self._consume(command_end)
            self.reply_error(error_reply(f"Unknown Command {word.decode()}"))

    def _wait_for_input(self, command_end: int) -> bool:
        """Record that the incomplete command ends at `command_end` or later. Return False."""
        self._min_command_size = command_end - self._input.start
        return False

    def _consume(self, command_end: int) -> None:
        """Consume the command, which ends at `command_end`."""
        self._input.consume(command_end)
        self._min_command_size = 1

    def _end_of_name(self, start: int) -> int:
        """Return the position of the NUL after the queue name that starts at `start`, or -1 if it
        has not arrived.
        """
        end = self._input.data.find(0, start, start + MAX_NAME + 1)
        if end < 0 and len(self._input.data) - start > MAX_NAME:
            raise MalformedCommand(f"the queue name is longer than {MAX_NAME} bytes")
        return end

    # The end of a connection

    def input_closed(self, now: int) -> bool:
        """Called when the client has closed its sending side. Return True: all commands received so
        far are answered. The session detects whether the client has disconnected.
        """
        self._input_ended = True
        return True

    def stop_waiting(self, now: int) -> None:
        if self.waiter is not None:
            self._cancel_wait()
            self.reply(TIMEOUT)

    def connection_lost(self, now: int) -> None:
        self.closing = True
        self.hub.connections.discard(self)
        if self.waiter is not None:
            self._cancel_wait()

    def _cancel_wait(self) -> None:
        assert self.waiter is not None
        self.engine.cancel_wait(self.waiter)
        self.waiter = None

    def _close(self) -> None:
        """Close after the last reply; an incomplete command gets an error."""
        data, start = self._input.data, self._input.start
        end = data.find(0, start, start + MAX_WORD + 1)
        if end >= 0:
            word = data[start:end].decode()
            self.reply_error(error_reply(f"Malformed {word} command: it is not complete"))
        self.closing = True

    # Commands

    def _add(self, start: int, now: int) -> bool:
        data = self._input.data
        end = self._end_of_name(start)
        if end < 0:
            return self._wait_for_input(len(data) + 1)
        begin = end + 1 + _ADD.size
        if len(data) < begin:
            return self._wait_for_input(begin)
        priority, ttp, size = _ADD.unpack_from(data, end + 1)
        if size > self.hub.max_data:
            raise MalformedCommand(f"the data is larger than {self.hub.max_data} bytes")
        command_end = begin + size
        if len(data) < command_end:
            return self._wait_for_input(command_end)
        self._consume(command_end)
        if self._refuse_if_unavailable(pushes=True):
            return True
        name = decode_queue_name(data[start:end])
        if not name:
            raise ClientError("Error adding new job to queue ")
        push = NewJob(
            "",
            "",
            data[begin:command_end],
            GOQUEUE,
            name,
            0,
            max(1, ttp) * SECOND,
            rank=-priority,
            max_attempts=self.hub.max_deliveries,
        )
        job = self.engine.push(push, now)
        self.reply(_ADDED.pack(b"ADDED\0", job.seq))
        return True

    def _connect(self, start: int, now: int) -> bool:
        self._consume(start)
        self.reply(OK)
        return True

    def _delete(self, start: int, now: int) -> bool:
        command_end = start + _DELETE.size
        if len(self._input.data) < command_end:
            return self._wait_for_input(command_end)
        (seq,) = _DELETE.unpack_from(self._input.data, start)
        self._consume(command_end)
        if self._refuse_if_unavailable():
            return True
        engine = self.engine
        job = engine.job(seq)
        if job is None or job.state == DONE:  # a protocol can keep the result of a job that is done
            self.caller.wait()
            raise ClientError(f"Job {seq} already deleted")
        if job.state == LEASED and job.holder_protocol not in engine.rules.exclusive_protocols:
            engine.complete(job, now, GOQUEUE)
        else:
            engine.cancel(job, now, GOQUEUE)
        self.reply(OK)
        return True

    def _reserve(self, start: int, now: int) -> bool:
        data = self._input.data
        end = self._end_of_name(start)
        if end < 0:
            return self._wait_for_input(len(data) + 1)
        command_end = end + 1 + _RESERVE.size
        if len(data) < command_end:
            return self._wait_for_input(command_end)
        (timeout,) = _RESERVE.unpack_from(data, end + 1)
        self._consume(command_end)
        if self._refuse_if_unavailable():
            return True
        names: tuple[str, ...] = (decode_queue_name(data[start:end]),)
        if self.hub.stopping:
            names = ()  # the server is stopping: no job is leased
        job = self.engine.lease(names, "", GOQUEUE, now)
        if job is not None:
            self._reply_with_job(job)
        else:
            self.waiter = Waiter(names, "", GOQUEUE, self)
            self.engine.add_waiter(self.waiter, now + timeout * SECOND if timeout else FOREVER)
        return True

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._reply_with_job(job)

    def timed_out(self, now: int) -> None:
        self.waiter = None
        self.reply(TIMEOUT)

    def _reply_with_first(self, jobs: list[Job]) -> None:
        self._reply_with_job(jobs[0])

    def _reply_with_job(self, job: Job) -> None:
        if job.stored_size > MAX_DIRECT_READ:
            if not self.start_payload_read([job], self._reply_with_first):
                payload = self.engine.payload(job)
                self.reply_with_large_job(job, reserved_head(job, len(payload)), payload, b"")
            return
        payload = self.engine.payload(job)
        self.reply_with_job(job, reserved_head(job, len(payload)) + payload)

    # Errors

    def _refuse_if_unavailable(self, *, pushes: bool = False) -> bool:
        """Refuse a command while the store cannot be written to."""
        if reason := self.store_problem(pushes=pushes):
            self.reply_error(self.unavailable_reply(reason))
            return True
        return False

    def unavailable_reply(self, reason: str) -> bytes:
        return error_reply(str(StoreUnavailable(reason)))


def error_reply(text: str) -> bytes:
    return b"ERROR\0%b\0" % text.encode()


def decode_queue_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ClientError("The queue name is not UTF-8") from None


def reserved_head(job: Job, size: int) -> bytes:
    """The reply with a job, before its payload. Values from other protocols are limited to the
    range of this one.
    """
    return _RESERVED.pack(
        b"RESERVED\0",
        job.seq,
        min(max(0, int(-job.rank)), MAX_NUMBER),
        min(max(1, job.lease_duration // SECOND), MAX_NUMBER),
        b"reserved\0",
        size,
    )


COMMANDS: Final[dict[bytes, Callable[["GoqueueConnection", int, int], bool]]] = {
    b"ADD": GoqueueConnection._add,
    b"CONNECT": GoqueueConnection._connect,
    b"DELETE": GoqueueConnection._delete,
    b"RESERVE": GoqueueConnection._reserve,
}
#: Commands whose replies depend on no durable state. The reply to a lease waits only for earlier
#: changes to its job.
NEVER_WAIT: Final = frozenset({GoqueueConnection._connect, GoqueueConnection._reserve})
