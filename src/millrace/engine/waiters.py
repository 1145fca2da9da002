"""Clients that wait for a job, or for the end of one."""

from collections.abc import Hashable
from typing import Any, Final

from .component import IndexProblem, Problems
from .job import FOREVER, Job
from .queues import Queue, QueueSet
from .timers import TimerHeap

#: The cause of the end of a job that the store has refused: it was never pushed.
UNDONE: Final = "undone"


class Waiter:
    """A client that waits for the next job from some queues, or for the end of the job `seq`. In
    the second case it has no queues. `owner` receives the result.
    """

    __slots__ = (
        "actor",
        "holder",
        "key",
        "lease_duration",
        "must_wait",
        "new_queue_count",
        "owner",
        "owns_job",
        "queues",
        "reports_removal",
        "seq",
    )

    def __init__(self, queues: tuple[str, ...], holder: str, actor: int, owner: Any) -> None:
        self.queues = queues
        self.holder = holder
        self.actor = actor
        self.owner = owner
        #: The engine's number for this wait; it is negative.
        self.key = 0
        self.seq = 0
        #: The number of its queues that did not exist before.
        self.new_queue_count = 0
        #: The duration of the lease; 0: the duration that the job defines.
        self.lease_duration = 0
        #: The reply with the delivered job must wait for the commit.
        self.must_wait = False
        #: The waiter is also notified of the removal of the job. Other clients wait until their
        #: timeouts.
        self.reports_removal = False
        #: The client pushed the transient job `seq`; the job is removed when this wait ends.
        self.owns_job = False


class JobOutcome:
    """How a job ended: the cause and the result."""

    __slots__ = ("cause", "job", "result", "succeeded")

    def __init__(self, job: Job, cause: str, succeeded: bool, result: bytes) -> None:
        self.job = job
        self.cause = cause
        self.succeeded = succeeded
        self.result = result


class WaiterSet:
    """All waiters, and the results that the server must send to them."""

    __slots__ = (
        "_last_key",
        "_last_key_at_tick",
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
        self._last_key_at_tick = 0
        self._waiters: dict[int, Waiter] = {}
        #: Waiters for the end of a job, by its seq.
        self.by_job: dict[int, list[Waiter]] = {}
        #: Jobs to deliver; each is already leased to its waiter.
        self.deliveries: list[tuple[Waiter, Job]] = []
        #: Ends of jobs to report.
        self.outcomes: list[tuple[Waiter, JobOutcome]] = []
        #: Waiters that did not receive a result before their timeouts.
        self.timeouts: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter: Waiter) -> bool:
        return self._waiters.get(waiter.key) is waiter

    @property
    def awaited_job_count(self) -> int:
        """The number of jobs with a client that waits for their end."""
        return len(self.by_job)

    def awaited_queues(self) -> list[Queue]:
        """The queues with waiters. The cost does not depend on the number of other queues."""
        names = dict.fromkeys(name for each in self._waiters.values() for name in each.queues)
        found = [self._queues.by_name.get(name) for name in names]
        return [queue for queue in found if queue is not None and queue.waiters]

    def has_owner(self, seq: int) -> bool:
        """Whether the client that pushed a transient job still waits for its end."""
        return any(waiter.owns_job for waiter in self.by_job.get(seq, ()))

    def add(self, waiter: Waiter, until: int) -> None:
        """Register a waiter. It later receives the next job from its queues, or a timeout at
        `until`.
        """
        self._last_key -= 1
        waiter.key = key = self._last_key
        if until != FOREVER:
            self._timers.set(key, until)
        by_name = self._queues.by_name
        for name in waiter.queues:
            if (queue := by_name.get(name)) is None:
                queue = by_name[name] = Queue(name)  # a push registers it
                waiter.new_queue_count += 1
            queue.waiters[key] = waiter
        self._waiters[key] = waiter

    def add_for_job_end(self, job: Job, waiter: Waiter, until: int) -> None:
        """Register a waiter. It is later notified of the end of the job, or of a timeout at
        `until`.
        """
        waiter.seq = job.seq
        self.add(waiter, until)
        self.by_job.setdefault(job.seq, []).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter after it was served or its connection closed."""
        self.stop_offering(waiter)
        self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        peers = self.by_job.get(waiter.seq) if self.by_job else None
        if peers is not None and waiter in peers:
            peers.remove(waiter)
            if not peers:
                del self.by_job[waiter.seq]
        if self._waiters.pop(waiter.key, None) is not None:
            self._timers.cancel(waiter.key)

    def stop_offering(self, waiter: Waiter) -> None:
        """Deliver no more jobs to a waiter; it waits until its timeout."""
        by_name, key = self._queues.by_name, waiter.key
        for name in waiter.queues:
            queue = by_name.get(name)
            if (
                queue is not None
                and queue.waiters.pop(key, None) is not None
                and not queue.registered
            ):
                self._queues.drop_if_unused(queue)

    def stop_offering_all(self) -> None:
        for waiter in self._waiters.values():
            self.stop_offering(waiter)

    def job_ended(self, outcome: JobOutcome) -> None:
        """Report the end of a job to its waiters."""
        for waiter in list(self.by_job.get(outcome.job.seq, ())):
            if outcome.cause != "cancelled" or waiter.reports_removal:
                self.remove(waiter)
                self.outcomes.append((waiter, outcome))

    def tick(self) -> None:
        self._last_key_at_tick = self._last_key

    def time_out(self, key: int, now: int) -> None:
        """Report the timeout of a waiter, unless it has just received a job that was due before."""
        waiter, by_name = self._waiters.get(key), self._queues.by_name
        if waiter is None:
            return
        for name in waiter.queues:
            if (queue := by_name.get(name)) is not None:
                queue.last_requested_at = now
                if queue.waiters.pop(key, None) is not None and not queue.registered:
                    self._queues.drop_if_unused(queue)
        self._forget(waiter)
        self.timeouts.append(waiter)

    def waited_at_last_tick(self, key: Hashable) -> bool:
        """Whether a timer key belongs to a waiter that was already waiting at the last tick."""
        return isinstance(key, int) and self._last_key_at_tick <= key < 0

    def problems(self) -> Problems:
        """The problems of queues and timers, and None for each examined item."""
        for queue in list(self._queues.by_name.values()):
            yield None
            for waiter in list(queue.waiters.values()):
                if waiter not in self and waiter.key in queue.waiters:
                    detail = "the queue lists a waiter that does not exist"
                    yield IndexProblem("waiter", detail, queue=queue.name)
        for key in self._timers.keys():  # noqa: SIM118 - it is a method of the heap
            yield None
            gone = isinstance(key, int) and key < 0 and key not in self._waiters
            if gone and self._timers.when(key) is not None:
                yield IndexProblem("timer", "a timer is set for a waiter that does not exist")

    def repair(self) -> None:
        """Repair the problems that `problems` reports."""
        for queue in self._queues.by_name.values():
            for number, waiter in list(queue.waiters.items()):
                if waiter not in self:
                    del queue.waiters[number]
        for key in self._timers.keys():  # noqa: SIM118 - it is a method of the heap
            if isinstance(key, int) and key < 0 and key not in self._waiters:
                self._timers.cancel(key)
