"""One Go Job Queue client's connection: framing, the commands in the spec's order, the errors.

A command is a word followed by its fields: strings that end with NUL, little-endian integers, data
after its length. Only the fields show where a command ends, so the parser reads it from the start
until it is complete. The parser remembers the minimum number of bytes, so that it does not read an
incomplete command repeatedly.
"""

import re
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final

from millrace.engine.job import FOREVER, GOQUEUE, Job, Push
from millrace.engine.policy import EXCLUSIVE, SECOND
from millrace.engine.states import DONE, LEASED
from millrace.engine.waiters import Waiter
from millrace.protocols.connection import Connection
from millrace.protocols.errors import ClientError
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
#: After a reply of this size the next command runs in the next turn, so that the reply is sent.
LARGE_REPLY: Final = 65_536


class Malformed(ClientError):
    """The start of the next command is unknown."""


class GoqueueConnection(Connection):
    def __init__(self, hub: "GoqueueHub") -> None:
        super().__init__()
        self.hub = hub
        self.engine = hub.engine
        #: Input that is not executed yet: `_data` from `_at` on, then `_later`.
        self._data = b""
        self._at = 0
        self._later = bytearray()
        #: The minimum size of the next command.
        self._needed = 1
        self._ended = False
        if hub.full:
            self._say_error(error("Too many connections"))
            self.closing = True
        else:
            hub.connections.add(self)

    # Framing

    @property
    def backlog(self) -> int:
        """An incomplete command counts as one byte, so that the session reads the rest."""
        held = self._held()
        return held if held >= self._needed else min(held, 1)

    def _held(self) -> int:
        return len(self._data) - self._at + len(self._later)

    @property
    def held(self) -> int:
        return len(self._data) + len(self._later)

    def discard(self) -> None:
        self._data, self._at, self._needed = b"", 0, 1
        self._later = bytearray()

    def feed(self, data: bytes) -> None:
        if self.closing:
            return
        if self._data or self._later:
            self._later += data
        else:
            self._data = data

    def receive(self, data: bytes, now: int, most: int) -> bool:
        self.feed(data)
        return self.run(now, most)

    def run(self, now: int, most: int) -> bool:
        while self.waiter is None and not self.closing and (self._data or self._later):
            if most <= 0:
                return self._held() >= self._needed
            most -= 1
            if not self._step(now):
                break
            if self.replies and len(self.replies[-1]) > LARGE_REPLY:
                most = 0
        if self._ended and self.waiter is None and not self.closing:
            self._end()
        return False

    def _step(self, now: int) -> bool:
        """Execute the next command; False if it is incomplete."""
        if self._needed > 1 and self._held() < self._needed:
            return False
        if self._do(now):
            return True
        if not self._at and not self._later:
            return False
        self._join()
        return self._do(now)

    def _join(self) -> None:
        """Join the input into one piece, without the executed commands."""
        self._data = self._data[self._at :] + self._later
        self._at = 0
        self._later.clear()

    def _do(self, now: int) -> bool:
        """As `_step`, for the content of `_data`."""
        data, at = self._data, self._at
        end = data.find(0, at, at + MAX_WORD + 1)
        if end < 0:
            word = data[at : at + MAX_WORD + 1]
            if starts_web_request(word):
                self.reject_web_client(self.hub)
                return True
            self.closing = len(word) > MAX_WORD or bool(word and not _WORD.fullmatch(word))
            return self._lacks(len(data) + 1)
        command = self._commands.get(data[at:end])
        if command is None:
            self._unknown(data[at:end], end + 1)
            return True
        engine, replies = self.engine, self.replies
        before, said = engine.changes, len(replies)
        try:
            done = command(self, end + 1, now)
        except Malformed as problem:
            self._say_error(error(f"Malformed {data[at:end].decode()} command: {problem}"))
            self.closing = self.drains_input = done = True
        except ClientError as problem:
            self._say_error(error(str(problem)))
            done = True
        self.hub.commands += done
        if len(replies) > said and (
            engine.changes != before or (command not in self._never_wait and engine.has_uncommitted)
        ):
            self.marks.append(len(replies) - 1)
        return done

    def _say_error(self, reply: bytes) -> None:
        self.hub.errors += 1
        self.replies.append(reply)

    def _unknown(self, word: bytes, after: int) -> None:
        if starts_web_request(word):
            self.reject_web_client(self.hub)
        elif _WORD.fullmatch(word) is None:
            self.closing = True
        else:
            self._pass(after)
            self._say_error(error(f"Unknown Command {word.decode()}"))

    def _lacks(self, after: int) -> bool:
        """Record that the command ends at `after` or later, and is incomplete."""
        self._needed = after - self._at
        return False

    def _pass(self, after: int) -> None:
        """Consume the command, which ends at `after`."""
        if after == len(self._data):
            self._data, self._at = b"", 0
        else:
            self._at = after
        self._needed = 1

    def _end_of_name(self, at: int) -> int:
        """The position of the NUL behind the queue name at `at`; -1 if it has not arrived."""
        end = self._data.find(0, at, at + MAX_NAME + 1)
        if end < 0 and len(self._data) - at > MAX_NAME:
            raise Malformed(f"the queue name is longer than {MAX_NAME} bytes")
        return end

    # The end of a connection

    def ended(self, now: int) -> bool:
        """The client has closed its sending side: everything that it sent is answered. The session
        finds out if the client is gone.
        """
        self._ended = True
        return True

    def stop_waiting(self, now: int) -> None:
        if self.waiter is not None:
            self._give_up()
            self.replies.append(TIMEOUT)

    def lost(self, now: int) -> None:
        self.closing = True
        self.hub.connections.discard(self)
        if self.waiter is not None:
            self._give_up()

    def _give_up(self) -> None:
        assert self.waiter is not None
        self.engine.unwait(self.waiter)
        self.waiter = None

    def _end(self) -> None:
        """Close after the last reply; an incomplete command gets an error."""
        end = self._data.find(0, self._at, self._at + MAX_WORD + 1)
        if end >= 0:
            word = self._data[self._at : end].decode()
            self._say_error(error(f"Malformed {word} command: it is not complete"))
        self.closing = True

    # Commands

    def _add(self, at: int, now: int) -> bool:
        data = self._data
        end = self._end_of_name(at)
        if end < 0:
            return self._lacks(len(data) + 1)
        begin = end + 1 + _ADD.size
        if len(data) < begin:
            return self._lacks(begin)
        priority, ttp, size = _ADD.unpack_from(data, end + 1)
        if size > self.hub.max_data:
            raise Malformed(f"the data is larger than {self.hub.max_data} bytes")
        after = begin + size
        if len(data) < after:
            return self._lacks(after)
        self._pass(after)
        if self._refused(pushes=True):
            return True
        name = queue_name(data[at:end])
        if not name:
            raise ClientError("Error adding new job to queue ")
        push = Push(
            "",
            "",
            data[begin:after],
            GOQUEUE,
            name,
            0,
            max(1, ttp) * SECOND,
            rank=-priority,
            most_attempts=self.hub.max_deliveries,
        )
        job = self.engine.push(push, now)
        self.replies.append(_ADDED.pack(b"ADDED\0", job.seq))
        return True

    def _connect(self, at: int, now: int) -> bool:
        self._pass(at)
        self.replies.append(OK)
        return True

    def _delete(self, at: int, now: int) -> bool:
        after = at + _DELETE.size
        if len(self._data) < after:
            return self._lacks(after)
        (seq,) = _DELETE.unpack_from(self._data, at)
        self._pass(after)
        if self._refused():
            return True
        engine = self.engine
        job = engine.jobs.get(seq)
        if job is None or job.state == DONE:  # a protocol can keep the result of a job that is done
            engine.depend()
            raise ClientError(f"Job {seq} already deleted")
        if job.state == LEASED and job.actor not in EXCLUSIVE:
            engine.complete(job, now, GOQUEUE)
        else:
            engine.cancel(job, now, GOQUEUE)
        self.replies.append(OK)
        return True

    def _reserve(self, at: int, now: int) -> bool:
        data = self._data
        end = self._end_of_name(at)
        if end < 0:
            return self._lacks(len(data) + 1)
        after = end + 1 + _RESERVE.size
        if len(data) < after:
            return self._lacks(after)
        (timeout,) = _RESERVE.unpack_from(data, end + 1)
        self._pass(after)
        if self._refused():
            return True
        names: tuple[str, ...] = (queue_name(data[at:end]),)
        if self.hub.stopping:
            names = ()  # the server stops: no job is leased
        job = self.engine.lease(names, "", GOQUEUE, now)
        if job is not None:
            self._hand(job)
        else:
            self.waiter = Waiter(names, "", GOQUEUE, self)
            self.engine.wait(self.waiter, now + timeout * SECOND if timeout else FOREVER)
        return True

    def deliver(self, job: Job, now: int) -> None:
        self.waiter = None
        self._hand(job)

    def timed_out(self, now: int) -> None:
        self.waiter = None
        self.replies.append(TIMEOUT)

    def _hand(self, job: Job) -> None:
        self.hand(job, reserved(job), self.engine)

    _commands: ClassVar[dict[bytes, Callable[["GoqueueConnection", int, int], bool]]] = {
        b"ADD": _add,
        b"CONNECT": _connect,
        b"DELETE": _delete,
        b"RESERVE": _reserve,
    }
    #: Replies that depend on no durable state; the reply to a lease waits for its job.
    _never_wait: Final = frozenset({_connect, _reserve})

    # Errors

    def _refused(self, *, pushes: bool = False) -> bool:
        """Refuse a command while the store cannot be written."""
        if reason := self.engine.halted or (self.engine.pushes_refused if pushes else ""):
            self._say_error(self.refusal(reason))
            return True
        return False

    def refusal(self, reason: str) -> bytes:
        return error(f"{reason}: nothing was changed, try again later")


def error(text: str) -> bytes:
    return b"ERROR\0%b\0" % text.encode()


def queue_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ClientError("The queue name is not UTF-8") from None


def reserved(job: Job) -> bytes:
    """The reply with a job. Numbers of other protocols are limited to the range of this one."""
    head = _RESERVED.pack(
        b"RESERVED\0",
        job.seq,
        min(max(0, int(-job.rank)), MAX_NUMBER),
        min(max(1, job.lease_for // SECOND), MAX_NUMBER),
        b"reserved\0",
        len(job.payload),
    )
    return head + job.payload
