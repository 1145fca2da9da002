"""Queues: their ready jobs, their waiters, and the number of their jobs by state."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from .batch import Batch
from .ready import ReadyQueue

if TYPE_CHECKING:
    from .waiters import Waiter


class Queue:
    __slots__ = ("asked", "counts", "known", "name", "paused", "ready", "waiters")

    def __init__(self, name: str) -> None:
        self.name = name
        #: A job was pushed to it, and it was not removed since.
        self.known = False
        self.paused = False
        #: The time of the last request for its jobs; 0 if there was none since the server's start.
        self.asked = 0
        self.ready = ReadyQueue()
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.counts = [0, 0, 0, 0, 0, 0]  # by state


class QueueSet:
    """All queues by name, in the order of their first pushes."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[str, Queue] = {}

    def open(self, name: str, batch: Batch) -> Queue:
        """The queue of that name, created if it does not exist."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name)
        if not queue.known:
            self.by_name[name] = self.by_name.pop(name)  # behind all others
            queue.known = True
            batch.queues.pop(name, None)
            batch.queues[name] = queue.paused
            batch.opened.add(name)
        return queue

    def restore(self, name: str, *, paused: bool) -> None:
        """Put back a queue that the store has, behind all others."""
        queue = self.by_name.pop(name, None)
        if queue is None:
            queue = Queue(name)
        self.by_name[name] = queue
        queue.paused = paused
        queue.known = True

    def of_job(self, name: str) -> Queue:
        """The queue of a restored job, which may be unknown to the store."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name)
        return queue

    def drop_if_unused(self, queue: Queue) -> None:
        """Forget a queue that has neither a push, a job nor a waiter."""
        unused = not queue.known and not queue.waiters and not any(queue.counts)
        if unused and self.by_name.get(queue.name) is queue:
            del self.by_name[queue.name]

    def clear(self) -> None:
        """Remove all jobs and settings. Queues with waiters stay."""
        for queue in list(self.by_name.values()):
            queue.paused = queue.known = False
            queue.ready = ReadyQueue()
            queue.counts = [0] * 6
            self.drop_if_unused(queue)

    def clear_jobs(self) -> None:
        """Remove all jobs, before an index is built again."""
        queues = list(self.by_name.values())
        self.by_name.clear()
        for queue in queues:
            queue.ready = ReadyQueue()
            queue.counts = [0] * 6
            self.by_name[queue.name] = queue
