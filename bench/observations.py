"""The record of a workload: every acknowledged push, every lease, and the end of each attempt as
far as its worker knows it.

Times are microseconds since 1970, before a command is sent and after its reply arrives: the server
acted between the two.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

#: The id of a job without a client id.
ALIAS = "00000000-0000-4000-8000-{:012x}"


#: Nanoseconds between two reads of a clock, at most, for a comparison with another clock.
CLOSE_READS = 20_000


class WallClock:
    """The time of day in microseconds, and how far it moved against the monotonic clock.

    A machine that corrects its time sets it back by some hundred microseconds. A server that reads
    the time between two reads of a client can then have a time outside of them, by `drift` at most.
    """

    def __init__(self) -> None:
        self._least: int | None = None
        self._most: int | None = None

    def now(self) -> int:
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < CLOSE_READS:
            offset = wall - before
            self._least = offset if self._least is None else min(self._least, offset)
            self._most = offset if self._most is None else max(self._most, offset)
        return wall // 1000

    @property
    def drift(self) -> int:
        """The largest difference between the offsets of the two clocks, in microseconds."""
        if self._least is None or self._most is None:
            return 0
        return (self._most - self._least) // 1000 + 1


class Attempt(msgspec.Struct):
    """A job that a worker leased. `end` is the action that the server accepted: `completed`,
    `failed`, `buried` or `released`; `left` if the worker disconnected without a result; or
    `refused`.
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
    """A job with an acknowledged push, under the server's id."""

    number: int
    protocol: str
    jid: str
    queue: str
    kind: str
    said: int
    heard: int
    #: The earliest start; 0: immediately.
    due: int = 0
    #: The number of the job that it depends on.
    after: int = 0
    withdrawn: bool = False
    attempts: list[Attempt] = []


class Observations(msgspec.Struct):
    """All observations, to compare with the server's tables."""

    seed: int
    began: int
    jobs: dict[int, Pushed] = {}
    ended: int = 0
    #: Microseconds by which the time of day moved against the monotonic clock during the run.
    drift: int = 0
    #: Completed jobs of earlier runs.
    foreign_jobs: int = 0

    def totals(self) -> dict[str, Any]:
        """Counts for the report."""
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
        """Attempts by `key`; None excludes an attempt."""
        return _sorted(key(job, each) for job in self.jobs.values() for each in job.attempts)


def _sorted(keys: Iterable[tuple[str, ...] | None]) -> dict[str, int]:
    counted = Counter(" ".join(key) for key in keys if key is not None)
    return dict(sorted(counted.items()))


class Recorder:
    """The record while several threads write to it."""

    def __init__(self, seed: int, began: int) -> None:
        self.observations = Observations(seed, began)
        self._attempts: dict[int, list[Attempt]] = {}
        self._lock = threading.Lock()

    def leased(self, number: int, attempt: Attempt) -> int:
        """The number of this attempt at the job."""
        with self._lock:
            attempts = self._attempts.setdefault(number, [])
            attempts.append(attempt)
            return len(attempts)

    def pushed(self, job: Pushed) -> None:
        with self._lock:
            self.observations.jobs[job.number] = job

    def count_foreign_job(self) -> None:
        with self._lock:
            self.observations.foreign_jobs += 1

    def attempted(self, number: int) -> bool:
        with self._lock:
            return number in self._attempts

    @property
    def waiting(self) -> bool:
        """Whether a job that a worker will lease has had no attempt yet."""
        with self._lock:
            return any(
                number not in self._attempts
                for number, job in self.observations.jobs.items()
                if not job.withdrawn and not job.after
            )

    @property
    def counts(self) -> tuple[int, int]:
        """The number of pushes and attempts so far."""
        with self._lock:
            return len(self.observations.jobs), sum(map(len, self._attempts.values()))

    def close(self, ended: int, drift: int) -> Observations:
        """Finish the record. A worker may have leased a job before its producer got the reply."""
        observations = self.observations
        observations.ended, observations.drift = ended, drift
        observations.jobs = dict(sorted(observations.jobs.items()))
        for number, attempts in self._attempts.items():
            observations.jobs[number].attempts = attempts
        return observations
