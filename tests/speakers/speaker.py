"""One client of any protocol, sans-IO: commands to bytes, bytes in any pieces to answers.

    speaker = SPEAKERS["faktory"]("worker-1")
    wire.send(speaker.hello())
    wire.send(speaker.push(Work(id=..., queue="q", payload=b"[1]"), now))
    wire.send(speaker.lease("q", now))
    for answer in speaker.receive(wire.read()): ...

Every command has exactly one answer, in the order of the commands. Commands can be pipelined: a
test can encode any number of them before it sends their bytes.

Times are microseconds since 1970, as in the engine; durations are seconds. `now` is used in the
commands of protocols with client times, and ignored in the remaining protocols. `can` lists the
features of a protocol; using any other feature is an error of the test.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job to push. Fields that a protocol does not have are left out."""

    #: The client's own id, where the protocol has one. A lower-case UUID works for all protocols.
    id: str
    queue: str
    payload: bytes
    kind: str = "kind"
    #: Higher is sooner; Go Job Queue only has 0 and below.
    rank: int = 0
    #: The earliest start; 0: immediately.
    due: int = 0
    #: Maximum duration of an attempt, where the producer sets it.
    ttr: float = 60
    #: Retention, done or not, where the producer must set it.
    ttl: float = 86_400
    #: Number of retries after a failure. None: the protocol's default.
    retries: int | None = None
    #: Maximum number of leases. 0: no limit.
    most_attempts: int = 0
    #: Dependencies, by their ids in this protocol.
    after: tuple[str, ...] = ()
    dead_queue: str = ""
    tags: tuple[str, ...] = ()
    #: Keys of limits that the job uses while it is leased.
    limits: tuple[str, ...] = ()
    #: Retention of the result in seconds, where the producer can set it. 0: the protocol's own
    #: rule.
    keep_result: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A leased job, as the worker received it."""

    #: In the form of this protocol.
    id: str
    queue: str
    #: Empty if the protocol does not show it.
    kind: str
    #: The content on the wire: the bytes, or the original JSON text.
    payload: bytes
    #: `base64` if the reply marks the payload as encoded.
    encoding: str = ""
    #: As counted by the protocol; None if it does not show them.
    failures: int | None = None
    #: The right to end this attempt, where the id alone is not enough.
    token: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    #: The name of the method whose bytes this answers; empty for an unrequested message.
    command: str
    #: The job of the command; for an accepted push, the id that was assigned in this protocol.
    id: str


@dataclass(frozen=True, slots=True)
class Accepted(Answer):
    """The command succeeded."""


@dataclass(frozen=True, slots=True)
class Reported(Accepted):
    """The command succeeded, and the reply has content."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Leased(Answer):
    held: Held


@dataclass(frozen=True, slots=True)
class Nothing(Answer):
    """No job, or no result, within the waiting time."""


@dataclass(frozen=True, slots=True)
class Refused(Answer):
    text: str


@dataclass(frozen=True, slots=True)
class Result(Answer):
    """The end of a job."""

    succeeded: bool
    content: bytes


@dataclass(frozen=True, slots=True)
class Closed(Answer):
    """The connection ended before the answer: the command may or may not have been executed."""


class Speaker(ABC):
    protocol: ClassVar[str]
    #: Of: id (set by the client), kind, schedule, priority, dependency, retries, attempts (a limit
    #: of leases), dead queue, ttr, ttl, wait (a lease can wait), fail, bury (fail permanently),
    #: renew, release, cancel (a job that is not leased), result.
    can: ClassVar[frozenset[str]]
    #: Minimum seconds until the reply to a lease without a job.
    least_wait: ClassVar[float] = 0

    def __init__(self, name: str = "worker") -> None:
        #: The worker's name, where the protocol has one.
        self.name = name
        self._asked: deque[tuple[str, str]] = deque()

    @property
    def unanswered(self) -> int:
        return len(self._asked)

    # Commands

    def hello(self) -> bytes:
        """The first message; it has an answer unless it is empty."""
        return b""

    def ping(self) -> bytes:
        """A message that keeps the connection alive; it has an answer unless it is empty. Masenko
        requires one every 45 seconds, Faktory every minute.
        """
        return b""

    @abstractmethod
    def push(self, work: Work, now: int) -> bytes: ...

    @abstractmethod
    def lease(self, queue: str, now: int, wait: float = 0) -> bytes: ...

    @abstractmethod
    def complete(self, held: Held, now: int, result: bytes = b"") -> bytes:
        """The attempt succeeded. The result should be JSON; it is only sent in protocols that have
        results.
        """

    def fail(self, held: Held, now: int, message: str = "failed") -> bytes:
        """The attempt failed and may be retried."""
        raise NotImplementedError

    def bury(self, held: Held, now: int, message: str = "failed") -> bytes:
        """The attempt failed and must not be retried."""
        raise NotImplementedError

    def renew(self, held: Held, now: int) -> bytes:
        raise NotImplementedError

    def release(self, held: Held, now: int) -> bytes:
        """Give the job back without a failure."""
        raise NotImplementedError

    def cancel(self, job: str, now: int) -> bytes:
        raise NotImplementedError

    def result(self, job: str, now: int, wait: float = 0) -> bytes:
        """Request the result of a job."""
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
        """The connection has ended: unanswered commands remain unanswered."""
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
        """The answer to that command, or None if the reply has no meaning."""
