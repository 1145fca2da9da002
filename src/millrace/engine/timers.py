"""One heap for all timers of the engine."""

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from .component import IndexProblem, Problems

#: While the store fails, due timers are postponed by this time.
UNAVAILABLE_RETRY: Final = 1_000_000

#: The number of changes between two steps of a sweep, and the number of entries that a step
#: examines. Examining an entry takes about as long as changing a timer.
SWEEP_INTERVAL: Final = 64
SWEEP_BATCH_SIZE: Final = 256
#: The number of stale entries that cause no sweep.
MAX_UNSWEPT: Final = 1024

TimerEntry = tuple[int, int, Hashable]


class TimerHeap:
    """At most one time per key. Replaced and cancelled entries stay in the heap as stale entries
    until they reach the front or outnumber the current entries. Then the changes that follow sweep
    the heap in steps, from its end to its front, so stale entries cannot accumulate.
    """

    __slots__ = ("_last_number", "_live", "_others", "_unswept", "heap")

    def __init__(self) -> None:
        #: Read-only. Its first entry is no later than any timer, but may be stale.
        self.heap: list[TimerEntry] = []
        self._live: dict[Hashable, TimerEntry] = {}
        #: The keys that do not belong to jobs. Keys of jobs are positive numbers.
        self._others: dict[Hashable, None] = {}
        self._last_number = 0
        #: The number of leading heap entries that the sweep has not examined yet. 0: no sweep.
        self._unswept = 0

    def set(self, key: Hashable, when: int) -> None:
        # The number makes entries unique: keys are never compared.
        self._last_number = number = self._last_number + 1
        entry = (when, number, key)
        self._live[key] = entry
        if not isinstance(key, int) or key < 0:
            self._others[key] = None
        heappush(self.heap, entry)
        if number % SWEEP_INTERVAL == 0:
            self._sweep()

    def cancel(self, key: Hashable) -> None:
        self._live.pop(key, None)
        self._others.pop(key, None)

    def move(self, chosen: Callable[[Hashable], bool], by: int) -> None:
        """Shift the timers of the keys for which `chosen` returns true. `by` can be negative."""
        for key, (when, _, _) in list(self._live.items()):
            if chosen(key):
                self.set(key, when + by)

    def clear_jobs(self) -> list[Any]:
        """Remove the timers of all jobs, and return the collections that had them: it takes a long
        time to free them.
        """
        live, heap = self._live, self.heap
        self._live = {key: live[key] for key in self._others}
        self.heap = list(self._live.values())
        heapify(self.heap)
        self._unswept = 0
        return [live, heap]

    def clear(self) -> None:
        self.heap.clear()
        self._live.clear()
        self._others.clear()
        self._unswept = 0

    def next(self) -> int | None:
        """The earliest time, or None."""
        heap, live = self.heap, self._live
        while heap:
            when, number, key = heap[0]
            current = live.get(key)
            # Compiled tuples have no identity, so the number of the entry decides.
            if current is not None and current[1] == number:
                return when
            heappop(heap)
        return None

    def due(self, now: int, limit: int) -> Iterator[Hashable]:
        """Up to `limit` keys that are due; each is removed when it is yielded."""
        for _ in range(limit):
            when = self.next()
            if when is None or when > now:
                return
            key = heappop(self.heap)[2]
            del self._live[key]
            self._others.pop(key, None)
            yield key

    def when(self, key: Hashable) -> int | None:
        entry = self._live.get(key)
        return None if entry is None else entry[0]

    def keys(self) -> list[Hashable]:
        return list(self._live)

    def __len__(self) -> int:
        return len(self._live)

    @property
    def stale(self) -> int:
        """The number of entries that were replaced or cancelled."""
        return len(self.heap) - len(self._live)

    def _sweep(self) -> None:
        """Examine some entries if a sweep is in progress or is necessary, and remove the stale
        ones. An entry that moves meanwhile may be left for the next sweep.
        """
        heap: list[Any] = self.heap  # compiled code would copy each entry of a known type
        live = self._live
        at = min(self._unswept, len(heap))
        if not at:
            if len(heap) <= 2 * len(live) + MAX_UNSWEPT:
                return
            at = len(heap)
        end = max(0, at - SWEEP_BATCH_SIZE)
        while at > end:
            at -= 1
            entry = heap[at]
            current = live.get(entry[2])
            if current is None or current[1] != entry[1]:
                last = heap.pop()
                if at < len(heap):
                    _replace(heap, at, last)
        self._unswept = at

    def problems(self) -> Problems:
        """The problems of the heap, and None for each examined timer."""
        index = 1
        while index < len(self.heap):
            parent, entry = self.heap[(index - 1) // 2], self.heap[index]
            ordered = parent[:2] <= entry[:2]
            yield None if ordered else IndexProblem("timer", "the heap is not in order")
            index += 1
        newest = self._last_number
        numbers: set[int] = set()
        for entry in list(self.heap):
            numbers.add(entry[1])
            yield None
        for key in list(self._live):
            live = self._live.get(key)
            missing = live is not None and live[1] <= newest and live[1] not in numbers
            yield (
                IndexProblem("timer", "a timer that is set is not in the heap") if missing else None
            )


def _replace(heap: list[Any], at: int, entry: Any) -> None:
    """Replace the entry at this place of a heap."""
    size = len(heap)
    while at and entry < heap[(at - 1) >> 1]:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    while (child := 2 * at + 1) < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if entry < heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry


def is_heap(entries: Sequence[Any]) -> Generator[None, None, bool]:
    """Return whether the entries are a heap. Yield once for each examined entry."""
    for index in range(1, len(entries)):
        if entries[(index - 1) // 2] > entries[index]:
            return False
        yield
    return True
