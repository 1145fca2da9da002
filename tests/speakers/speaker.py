"""One client of any protocol, sans-IO: commands to bytes, bytes in any pieces to answers.

    speaker = SPEAKERS["faktory"]("worker-1")
    wire.send(speaker.hello())
    wire.send(speaker.push(Work(id=..., queue="q", payload=b"[1]"), now))
    wire.send(speaker.lease("q", now))
    for answer in speaker.receive(wire.read()): ...

Every command has exactly one answer, in the order of the commands. A speaker may be asked for as
many commands as one likes before any of their bytes are sent: they can be pipelined.

Moments are microseconds since 1970, as in the engine; spans are seconds. `now` goes into the
commands of those protocols that bring their own time, and is ignored by the others. What a protocol
does not have is not in `can`, and asking for it is a mistake of the test's.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job that somebody wants pushed. What a protocol has no word for is left out."""

    #: The client's own id, where the protocol has one. A UUID in lower case suits all.
    id: str
    queue: str
    payload: bytes
    kind: str = "kind"
    #: Higher is sooner; Go Job Queue can only say 0 and below.
    rank: int = 0
    #: When it is to be run first; 0: at once.
    due: int = 0
    #: How long a worker may take, where the pusher says so.
    ttr: float = 60
    #: How long it is kept, done or not, where the pusher must say so.
    ttl: float = 86_400
    #: How often it is tried again after a failure. None: the protocol's own default.
    retries: int | None = None
    #: How often it may be leased. 0: no limit.
    most_attempts: int = 0
    #: Jobs that it waits for, by the ids that this protocol shows.
    after: tuple[str, ...] = ()
    dead_queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job as a worker got it."""

    #: As this protocol shows it.
    id: str
    queue: str
    #: Empty where the protocol shows none.
    kind: str
    #: What is on the wire: the bytes, or the JSON text as it was written.
    payload: bytes
    #: `base64` if the reply says that the payload is so encoded.
    encoding: str = ""
    #: As the protocol counts them; None where it does not tell.
    failures: int | None = None
    #: The right to end this attempt, where the id alone is none.
    token: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    #: The name of the method whose bytes this answers; empty if it answers nothing.
    command: str
    #: The job that the command was about; of a push that was accepted the id that it got, as this
    #: protocol shows it.
    id: str


@dataclass(frozen=True, slots=True)
class Accepted(Answer):
    """It was done."""


@dataclass(frozen=True, slots=True)
class Leased(Answer):
    held: Held


@dataclass(frozen=True, slots=True)
class Nothing(Answer):
    """No job, or no result, in the time that was to be waited."""


@dataclass(frozen=True, slots=True)
class Refused(Answer):
    text: str


@dataclass(frozen=True, slots=True)
class Result(Answer):
    """How a job ended."""

    succeeded: bool
    content: bytes


@dataclass(frozen=True, slots=True)
class Closed(Answer):
    """The connection ended before the answer came: nobody knows whether it was done."""


class Speaker(ABC):
    protocol: ClassVar[str]
    #: Of: id (the client gives it), kind, schedule, priority, dependency, retries, attempts (a
    #: limit of leases), dead queue, ttr, ttl, wait (a lease can wait), fail, bury (fail for good),
    #: renew, release, cancel (a job that nobody holds), result.
    can: ClassVar[frozenset[str]]
    #: A lease that finds nothing is answered after so many seconds at least.
    least_wait: ClassVar[float] = 0

    def __init__(self, name: str = "worker") -> None:
        #: Who it is, where the protocol's workers have names.
        self.name = name
        self._asked: deque[tuple[str, str]] = deque()

    @property
    def unanswered(self) -> int:
        return len(self._asked)

    # Commands

    def hello(self) -> bytes:
        """What is said first; it is answered where it is not empty."""
        return b""

    def ping(self) -> bytes:
        """What is said so that the server does not take us for gone; it is answered where it is not
        empty. Masenko must hear something every 45 seconds, Faktory every minute.
        """
        return b""

    @abstractmethod
    def push(self, work: Work, now: int) -> bytes: ...

    @abstractmethod
    def lease(self, queue: str, now: int, wait: float = 0) -> bytes: ...

    @abstractmethod
    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        """The attempt succeeded; the result, which should be JSON, is only said where the protocol
        can say it.
        """

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        """The attempt failed, and may be repeated."""
        raise NotImplementedError

    def bury(self, held: Held, now: int, message: str = "failed") -> bytes:
        """The attempt failed, and need not be repeated."""
        raise NotImplementedError

    def renew(self, held: Held, now: int) -> bytes:
        raise NotImplementedError

    def release(self, held: Held, now: int) -> bytes:
        """Somebody else shall have the job; it did not fail."""
        raise NotImplementedError

    def cancel(self, job: str, now: int) -> bytes:
        raise NotImplementedError

    def result(self, job: str, now: int, wait: float = 0) -> bytes:
        """Ask how a job ended."""
        raise NotImplementedError

    def run(self, work: Work, now: int, wait: float) -> bytes:
        """Push a job and wait for its result."""
        raise NotImplementedError

    # Answers

    def receive(self, data: bytes) -> list[Answer]:
        """The answers that are complete with these bytes."""
        answers = []
        for reply in self._replies(data):
            command, job = self._asked.popleft() if self._asked else ("", "")
            answer = self._answer(command, job, reply)
            if answer is not None:
                answers.append(answer)
        return answers

    def close(self) -> list[Answer]:
        """The connection has ended: what is unanswered stays so."""
        answers: list[Answer] = [Closed(command, job) for command, job in self._asked]
        self._asked.clear()
        return answers

    def _ask(self, command: str, job: str, data: bytes) -> bytes:
        self._asked.append((command, job))
        return data

    @abstractmethod
    def _replies(self, data: bytes) -> Iterable[Any]:
        """The replies that are complete with these bytes."""

    @abstractmethod
    def _answer(self, command: str, job: str, reply: Any) -> Answer | None:
        """What a reply means to whoever gave that command; None: nothing."""
