"""Queues: their ready jobs, their waiters, and the number of their jobs by state."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .change_set import ChangeSet
from .component import Component, IndexProblem, Problems
from .job import Job
from .jobs_by_seq import JobsBySeq
from .ready import ReadyQueue
from .seq_set import SeqSet
from .states import READY, STATE_NAMES

if TYPE_CHECKING:
    from .waiters import Waiter

#: A setting named by this prefix and a queue records that a client removed only the name of that
#: queue, which has jobs.
FORGOTTEN_PREFIX: Final = "forgotten/"
#: Reported in place of the problems of a queue that changed during the check.
SKIPPED: Final = IndexProblem("skipped", "the queue has changed")


class Queue:
    __slots__ = (
        "counts",
        "forgotten",
        "last_requested_at",
        "name",
        "paused",
        "ready",
        "registered",
        "removals",
        "version",
        "waiters",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        #: A job was pushed to the queue, and the queue has not been removed since then.
        self.registered = False
        #: A client removed only its name: it is not registered again until the next push.
        self.forgotten = False
        self.paused = False
        #: The number of commands that are removing its ready jobs. Its jobs are not offered then.
        self.removals = 0
        #: The time of the last request for its jobs; 0 if there was none since start-up.
        self.last_requested_at = 0
        self.ready = ReadyQueue()
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.counts = [0, 0, 0, 0, 0, 0]  # by state
        #: Counts the changes to its jobs: to their states, their order and their deadlines.
        self.version = 0

    @property
    def is_closed(self) -> bool:
        """Whether workers cannot get jobs from the queue."""
        return self.paused or self.removals > 0


class QueueSet(Component):
    """All queues by name, in the order of their first pushes."""

    __slots__ = ("_jobs", "_settings", "by_name")

    def __init__(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs
        self._settings: dict[str, bytes] = {}
        self.by_name: dict[str, Queue] = {}

    def load(self, settings: dict[str, bytes]) -> None:
        """Mark the queues whose names clients have removed."""
        self._settings = settings
        for key in settings:
            if key.startswith(FORGOTTEN_PREFIX):
                queue = self.by_name.get(key[len(FORGOTTEN_PREFIX) :])
                if queue is not None:
                    queue.forgotten = not queue.registered

    def open(self, name: str, change_set: ChangeSet) -> Queue:
        """The queue of that name, created if it does not exist."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name)
        if not queue.registered:
            self.by_name[name] = self.by_name.pop(name)  # behind all other queues
            queue.registered, queue.forgotten = True, False
            change_set.queues.pop(name, None)
            change_set.queues[name] = queue.paused
            change_set.moved_to_end.add(name)
            if self._settings.pop(FORGOTTEN_PREFIX + name, None) is not None:
                change_set.settings[FORGOTTEN_PREFIX + name] = None
        return queue

    def restore(self, name: str, *, paused: bool) -> None:
        """Restore a queue from the store, behind all other queues."""
        queue = self.by_name.pop(name, None)
        if queue is None:
            queue = Queue(name)
        self.by_name[name] = queue
        queue.paused = paused
        queue.registered, queue.forgotten = True, False

    def get_or_create(self, name: str) -> Queue:
        """The queue of a restored job, created if the store does not have it."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name)
        return queue

    def drop_if_unused(self, queue: Queue) -> None:
        """Remove a queue that is not registered and has no job and no waiter."""
        unused = not queue.registered and not queue.waiters and not any(queue.counts)
        if unused and self.by_name.get(queue.name) is queue:
            del self.by_name[queue.name]

    def add(self, job: Job) -> None:
        """Count a job; a ready job is added to the order of its queue, or to its parked jobs. Older
        versions changed the rank of a parked job, so this restores the rank.
        """
        queue = self.by_name[job.queue]
        queue.version += 1
        queue.counts[job.state] += 1
        if job.state == READY:
            # Only a queue whose name was removed has ready jobs without being registered.
            queue.forgotten = not queue.registered
            details = None if job.extra is None else job.extra.details
            if details is None or details.parked is None:
                queue.ready.add(job)
            else:
                job.rank = details.parked.rank
                queue.ready.park(job)

    def remove(self, job: Job) -> None:
        queue = self.by_name[job.queue]
        queue.version += 1
        queue.counts[job.state] -= 1
        if job.state == READY:
            queue.ready.remove(job)

    def forget_all(self, awaited: list[Queue]) -> list[ReadyQueue]:
        """Remove all jobs and settings. Queues with waiters stay; return the jobs that they had."""
        self.by_name.clear()
        removed = [queue.ready for queue in awaited]
        for queue in awaited:
            queue.paused = queue.registered = queue.forgotten = False
            queue.ready = ReadyQueue()
            queue.counts = [0] * 6
            queue.version += 1
            self.by_name[queue.name] = queue
        return removed

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        """Remove all jobs. The queues stay."""
        queues = list(self.by_name.values())
        self.by_name.clear()
        for queue in queues:
            queue.ready = ReadyQueue()
            queue.counts = [0] * 6
            queue.version += 1
            self.by_name[queue.name] = queue

    def problems(self) -> Problems:
        """Compare the counts and the order of each queue with its jobs. The check takes several
        slices: a queue that changes meanwhile is SKIPPED.
        """
        versions = {queue.name: (queue, queue.version) for queue in self.by_name.values()}
        counts: Counter[tuple[str, int]] = Counter()
        ready: dict[str, SeqSet] = {}
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            if job is None:
                continue
            counts[job.queue, job.state] += 1
            if job.state == READY:
                ready.setdefault(job.queue, SeqSet()).add(seq)
            if job.queue not in self.by_name:
                yield IndexProblem("queue", "the job's queue does not exist", job=job)
        for name in list(self.by_name):
            yield None
            queue = self.by_name.get(name)
            if queue is None:
                continue
            if queue.name != name:
                yield IndexProblem("queue", f"the queue is listed as {name}", queue=queue.name)
            found: list[IndexProblem] = []
            for state in range(len(queue.counts)):
                actual, counted = counts[name, state], queue.counts[state]
                if counted != actual:
                    detail = f"{counted} jobs are counted as {STATE_NAMES[state]}, but {actual} are"
                    found.append(IndexProblem("count", detail, queue=name))
            if versions.get(queue.name) == (queue, queue.version):
                expected = ready.pop(name, None) or SeqSet()
                yield from _ready_problems(queue, self._jobs, expected, found)
            # A flush may have removed the queue: its ready jobs are then freed in steps.
            is_listed = self.by_name.get(name) is queue
            if is_listed and versions.get(queue.name) == (queue, queue.version):
                yield from found
            else:
                yield SKIPPED


def _ready_problems(
    queue: Queue, jobs: JobsBySeq, expected: SeqSet, found: list[IndexProblem]
) -> Iterator[None]:
    """Check that the ready queue has each ready job once, in order."""
    ready = queue.ready
    seen = SeqSet()
    repeated: Counter[int] = Counter()
    length = early = 0
    for job in ready.iter_for_check():
        yield
        if job is None:
            continue
        length += 1
        if job.seq in seen:
            repeated[job.seq] += 1
        seen.add(job.seq)
        early += job.position < 0 and job.seq not in ready.parked
        if job.seq not in expected or jobs.get(job.seq) is not job:
            detail = f"the job is in the ready queue of {queue.name}, but not ready there"
            found.append(IndexProblem("ready", detail, job=job))
    for seq in expected:
        yield
        times = 1 + repeated[seq] if seq in seen else 0
        if times != 1:
            detail = f"the job is ready, but appears {times} times in the ready queue"
            found.append(IndexProblem("ready", detail, job=jobs.get(seq)))
    if len(ready) != length:
        detail = f"the ready queue reports {len(ready)} jobs"
        found.append(IndexProblem("ready", detail, queue=queue.name))
    if not (yield from ready.is_in_order()):
        found.append(IndexProblem("ready", "the ready jobs are not in order", queue=queue.name))
    if ready.front_count != early:
        detail = f"{ready.front_count} jobs are counted as ahead of all others, but {early} are"
        found.append(IndexProblem("count", detail, queue=queue.name))
