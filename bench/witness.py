"""What producers and workers of a workload saw: every push that was acknowledged, every job that
was handed out, and how each attempt ended as far as its worker knows.

Moments are microseconds since 1970, before a command was sent and after its answer came: whatever
the server did, it did in between.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

#: The id of a job whose client gave it none.
ALIAS = "00000000-0000-4000-8000-{:012x}"


class Attempt(msgspec.Struct):
    """A job that a worker got. `end` is what it did that the server accepted: `completed`,
    `failed`, `buried`, `released`; or `left`: nothing, and it went; or `refused`.
    """

    worker: str
    protocol: str
    queue: str
    asked: int
    got: int
    end: str = "left"
    said: int = 0
    heard: int = 0
    group: str = ""
    message: str = ""
    renewals: int = 0


class Pushed(msgspec.Struct):
    """A job whose push was acknowledged, under the id that the server has for it."""

    number: int
    protocol: str
    jid: str
    queue: str
    kind: str
    said: int
    heard: int
    #: When it shall run first; 0: at once.
    due: int = 0
    #: The number of the job that it waits for.
    after: int = 0
    withdrawn: bool = False
    attempts: list[Attempt] = []


class Witness(msgspec.Struct):
    """Everything that was seen, for whoever wants to compare it with what the server tells."""

    seed: int
    began: int
    jobs: dict[int, Pushed] = {}
    ended: int = 0
    #: Jobs of earlier runs that were met and completed.
    strangers: int = 0

    def totals(self) -> dict[str, Any]:
        """Counts that people read."""
        return {
            "pushed": self.count(lambda job: (job.protocol, job.queue)),
            "leased": self.tally(lambda _, at: (at.protocol, at.queue)),
            "ends": self.tally(lambda _, at: (at.protocol, at.end)),
            "failures": self.tally(
                lambda _, at: (at.group,) if at.end in {"failed", "buried"} else None
            ),
            "crossings": self.tally(lambda job, at: (f"{job.protocol} to {at.protocol}",)),
            "withdrawn": sum(job.withdrawn for job in self.jobs.values()),
        }

    def count(self, key: Callable[[Pushed], tuple[str, ...]]) -> dict[str, int]:
        return _sorted(key(job) for job in self.jobs.values())

    def tally(self, key: Callable[[Pushed, Attempt], tuple[str, ...] | None]) -> dict[str, int]:
        """Attempts by what `key` says of them; None: not this one."""
        return _sorted(key(job, each) for job in self.jobs.values() for each in job.attempts)


def _sorted(keys: Iterable[tuple[str, ...] | None]) -> dict[str, int]:
    counted = Counter(" ".join(key) for key in keys if key is not None)
    return dict(sorted(counted.items()))


class Notebook:
    """The witness while it is being written, by many at once."""

    def __init__(self, seed: int, began: int) -> None:
        self.witness = Witness(seed, began)
        self._attempts: dict[int, list[Attempt]] = {}
        self._lock = threading.Lock()

    def leased(self, number: int, attempt: Attempt) -> int:
        """The how-manieth attempt at this job it is."""
        with self._lock:
            attempts = self._attempts.setdefault(number, [])
            attempts.append(attempt)
            return len(attempts)

    def pushed(self, job: Pushed) -> None:
        with self._lock:
            self.witness.jobs[job.number] = job

    def stranger(self) -> None:
        with self._lock:
            self.witness.strangers += 1

    def attempted(self, number: int) -> bool:
        with self._lock:
            return number in self._attempts

    @property
    def waiting(self) -> bool:
        """Whether a job that some worker will get has had no attempt yet."""
        with self._lock:
            return any(
                number not in self._attempts
                for number, job in self.witness.jobs.items()
                if not job.withdrawn and not job.after
            )

    @property
    def counts(self) -> tuple[int, int]:
        """Pushes, and attempts, until now."""
        with self._lock:
            return len(self.witness.jobs), sum(map(len, self._attempts.values()))

    def close(self, ended: int) -> Witness:
        """Nobody writes any more. A worker may have got a job before its producer heard of it."""
        witness = self.witness
        witness.ended = ended
        witness.jobs = dict(sorted(witness.jobs.items()))
        for number, attempts in self._attempts.items():
            witness.jobs[number].attempts = attempts
        return witness
