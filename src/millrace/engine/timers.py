"""One heap for every moment the engine waits for."""

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush

Entry = tuple[int, int, Hashable]


class Timers:
    """At most one moment per key. Replaced and cancelled entries stay in the heap as corpses until
    they come up or outnumber the living; then the heap is built anew, so it cannot leak.
    """

    __slots__ = ("_live", "_ticks", "heap")

    def __init__(self) -> None:
        #: Its first entry is no later than any moment, but may be a corpse. To look at only.
        self.heap: list[Entry] = []
        self._live: dict[Hashable, Entry] = {}
        self._ticks = 0

    def set(self, key: Hashable, when: int) -> None:
        self._ticks = tick = self._ticks + 1  # makes entries unique: keys are never compared
        entry = (when, tick, key)
        self._live[key] = entry
        heappush(self.heap, entry)
        if tick & 1023 == 0:
            self._collect()

    def cancel(self, key: Hashable) -> None:
        self._live.pop(key, None)

    def move(self, chosen: Callable[[Hashable], bool], by: int) -> None:
        """Let the moments of these keys be so much later."""
        for key, (when, _, _) in list(self._live.items()):
            if chosen(key):
                self.set(key, when + by)

    def clear(self) -> None:
        self.heap.clear()
        self._live.clear()

    def next(self) -> int | None:
        """The earliest moment, or None."""
        heap = self.heap
        while heap:
            entry = heap[0]
            if self._live.get(entry[2]) is entry:
                return entry[0]
            heappop(heap)
        return None

    def due(self, now: int, most: int) -> Iterator[Hashable]:
        """Up to `most` keys whose moment has come; each is forgotten as it is given."""
        for _ in range(most):
            when = self.next()
            if when is None or when > now:
                return
            key = heappop(self.heap)[2]
            del self._live[key]
            yield key

    def when(self, key: Hashable) -> int | None:
        entry = self._live.get(key)
        return None if entry is None else entry[0]

    def __len__(self) -> int:
        return len(self._live)

    @property
    def corpses(self) -> int:
        return len(self.heap) - len(self._live)

    def _collect(self) -> None:
        if len(self.heap) > 2 * len(self._live) + 1024:
            self.heap = list(self._live.values())
            heapify(self.heap)
