"""Collections that a flush has removed, freed in small steps. Freeing a million jobs takes 0.1 s in
total.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from .failure_groups import JobFailureGroup
from .jobs_by_seq import JobGroup
from .queues import Queue
from .ready import ReadyQueue

T = TypeVar("T")


def drain(items: list[T]) -> Iterator[T]:
    """Yield the items of a list in order, and remove each from the list. Otherwise, a list of
    removed jobs would keep them all in memory and then free them all at once.
    """
    items.reverse()
    while items:
        yield items.pop()


class DiscardedCollections:
    __slots__ = ("_queues", "_stack")

    def __init__(self, queues: dict[str, Queue]) -> None:
        #: The queues in use: a queue with waiting clients survives a flush.
        self._queues = queues
        self._stack: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._stack)

    def add(self, collection: Any) -> None:
        """Take a dictionary, list, set or deque to which nothing else refers."""
        self._stack.append(collection)

    def free(self, limit: int) -> None:
        """Remove this number of items. A queue, a collection or a group of jobs is an item, and so
        is each of its entries.
        """
        stack = self._stack
        while stack and limit > 0:
            collection = stack[-1]
            if not collection:
                stack.pop()
                continue
            limit -= 1
            item = collection.popitem()[1] if isinstance(collection, dict) else collection.pop()
            if isinstance(item, JobGroup | JobFailureGroup):
                stack.append(item.jobs)
                continue
            if isinstance(item, dict | list):
                stack.append(item)
                continue
            if isinstance(item, Queue) and self._queues.get(item.name) is not item:
                item = item.ready
            if isinstance(item, ReadyQueue):
                stack.extend(item.collections())
