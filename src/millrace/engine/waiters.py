"""Clients that wait for a job, or for the end of one."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from .job import FOREVER, Job
from .queues import Queue, QueueSet
from .timers import TimerHeap


class Waiter:
    """A client that waits for the next job of some queues, or for the end of the job `seq`; then it
    names no queues. `owner` receives the result.
    """

    __slots__ = ("actor", "holder", "key", "lease_for", "made", "owner", "queues", "seq")

    def __init__(self, queues: tuple[str, ...], holder: str, actor: int, owner: Any) -> None:
        self.queues = queues
        self.holder = holder
        self.actor = actor
        self.owner = owner
        #: The engine's number for this wait; it is negative.
        self.key = 0
        self.seq = 0
        #: The number of its queues that did not exist before.
        self.made = 0
        #: The duration of the lease; 0 for that of the job.
        self.lease_for = 0


class JobOutcome(NamedTuple):
    """How a job ended: the cause and the result."""

    job: Job
    cause: str
    succeeded: bool
    result: bytes


class WaiterSet:
    """All waiters, and the results that the server must hand to them."""

    __slots__ = (
        "_known_at_tick",
        "_last_key",
        "_queues",
        "_timers",
        "_waiters",
        "by_job",
        "deliveries",
        "outcomes",
        "timeouts",
    )

    def __init__(self, queues: QueueSet, timers: TimerHeap) -> None:
        self._queues = queues
        self._timers = timers
        self._last_key = 0
        self._known_at_tick = 0
        self._waiters: dict[int, Waiter] = {}
        #: Waiters for the end of a job, by its seq.
        self.by_job: dict[int, list[Waiter]] = {}
        #: Jobs to hand over; each is already leased to its waiter.
        self.deliveries: list[tuple[Waiter, Job]] = []
        #: Ends of jobs to report.
        self.outcomes: list[tuple[Waiter, JobOutcome]] = []
        #: Waiters that received nothing in time.
        self.timeouts: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter: Waiter) -> bool:
        return self._waiters.get(waiter.key) is waiter

    @property
    def awaited(self) -> int:
        """The number of jobs whose end a client waits for."""
        return len(self.by_job)

    def is_awaited(self, seq: int) -> bool:
        return seq in self.by_job

    def add(self, waiter: Waiter, until: int) -> None:
        """Deliver the next job of the waiter's queues, or report a timeout at `until`."""
        self._last_key -= 1
        waiter.key = key = self._last_key
        if until != FOREVER:
            self._timers.set(key, until)
        for name in waiter.queues:
            queue = self._queues.by_name.get(name)
            if queue is None:
                queue = self._queues.by_name[name] = Queue(name)  # it becomes known with a push
                waiter.made += 1
            queue.waiters[key] = waiter
        self._waiters[key] = waiter

    def add_for_end(self, job: Job, waiter: Waiter, until: int) -> None:
        """Report the end of the job, or a timeout at `until`."""
        waiter.seq = job.seq
        self.add(waiter, until)
        self.by_job.setdefault(job.seq, []).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter that was served or whose connection is closed."""
        self.stop_offering(waiter)
        peers = self.by_job.get(waiter.seq) if self.by_job else None
        if peers is not None and waiter in peers:
            peers.remove(waiter)
            if not peers:
                del self.by_job[waiter.seq]
        if self._waiters.pop(waiter.key, None) is not None:
            self._timers.cancel(waiter.key)

    def stop_offering(self, waiter: Waiter) -> None:
        """Let a waiter wait until its timeout without a job."""
        for name in waiter.queues:
            queue = self._queues.by_name.get(name)
            if queue is not None and queue.waiters.pop(waiter.key, None) is not None:
                self._queues.drop_if_unused(queue)

    def stop_offering_all(self) -> None:
        for waiter in self._waiters.values():
            self.stop_offering(waiter)

    def job_ended(self, outcome: JobOutcome) -> None:
        """Report the end of a job to its waiters."""
        for waiter in list(self.by_job.get(outcome.job.seq, ())):
            self.remove(waiter)
            self.outcomes.append((waiter, outcome))

    def tick(self) -> None:
        self._known_at_tick = self._last_key

    def time_out(self, key: int, now: int) -> None:
        """The timer of a waiter has ended."""
        waiter = self._waiters[key]
        for name in waiter.queues:
            queue = self._queues.by_name.get(name)
            if queue is not None:
                queue.asked = now
        self.remove(waiter)
        self.timeouts.append(waiter)

    def waited_at_last_tick(self, key: Hashable) -> bool:
        """Whether a timer key is that of a waiter that was there at the last tick."""
        return isinstance(key, int) and self._known_at_tick <= key < 0

    def problems(self) -> Iterator[tuple[str, str]]:
        """Pairs of a queue's name and a problem."""
        for name, queue in self._queues.by_name.items():
            for waiter in queue.waiters.values():
                if waiter not in self:
                    yield name, "the queue lists a waiter that does not exist"
        for key in self._timers.keys():  # noqa: SIM118 - it is a method of the heap
            if isinstance(key, int) and key < 0 and key not in self._waiters:
                yield "", "a timer is set for a waiter that does not exist"

    def repair(self) -> None:
        """Remove what `problems` reports."""
        for queue in self._queues.by_name.values():
            for number, waiter in list(queue.waiters.items()):
                if waiter not in self:
                    del queue.waiters[number]
        for key in self._timers.keys():  # noqa: SIM118 - it is a method of the heap
            if isinstance(key, int) and key < 0 and key not in self._waiters:
                self._timers.cancel(key)
