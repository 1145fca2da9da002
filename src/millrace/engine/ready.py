"""The ready jobs of a queue, in their order."""

from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final

from .details import Number
from .job import Job

#: The negative rank, the position, the seq, a number that makes entries unique, and the job.
#: Because of the number, jobs are never compared.
ReadyKey = tuple[Number, int, int, int, Job]
#: While the number of tombstones is too high, each removal examines this number of entries.
#: Examining a million at once would delay all clients.
SWEEP_BATCH_SIZE: Final = 16


class ReadyQueue:
    """Ready jobs: higher rank first, then the lower position, then the lower seq.

    Most queues are first-in-first-out, so jobs of rank 0 that arrive in order go to a deque. All
    other jobs go to a heap, and the smaller head is next. Removing a job from the middle leaves a
    tombstone in the deque, or a stale entry in the heap. It stays until it reaches the front, or
    until the number of tombstones is too high. Then the queue sweeps the deque in small steps; a
    second deque in front holds the swept part.
    """

    __slots__ = (
        "_entry_number",
        "_fifo",
        "_heap",
        "_heap_keys",
        "_last_position",
        "_last_seq",
        "_swept",
        "_tombstones",
        "front_count",
        "parked",
    )

    def __init__(self) -> None:
        self._fifo: deque[Job] = deque()
        self._swept: deque[Job] = deque()
        self._tombstones: set[int] = set()
        self._heap: list[ReadyKey] = []
        self._heap_keys: dict[int, ReadyKey] = {}
        self._entry_number = 0
        # Position and seq of the newest job of the deque. The job's own position may change later.
        self._last_position = self._last_seq = -1
        #: The number of jobs with a position below 0, which are ahead of all arrivals.
        self.front_count = 0
        #: Jobs that wait for a limit. They have no order and are not popped, but `len` counts them.
        self.parked: dict[int, Job] = {}

    def collections(self) -> list[Any]:
        """Everything that grows with the number of jobs, to be freed in steps."""
        return [
            *(self._fifo, self._swept, self._tombstones),
            *(self._heap, self._heap_keys, self.parked),
        ]

    def add(self, job: Job) -> None:
        position, last = job.position, self._last_position
        if (
            job.rank == 0
            and (position > last or (position == last and job.seq > self._last_seq))
            and position >= 0
            and job.seq not in self._tombstones
        ):
            self._last_position, self._last_seq = position, job.seq
            self._fifo.append(job)
            return
        self._entry_number += 1
        if position < 0:
            self.front_count += 1
        key = (-job.rank, position, job.seq, self._entry_number, job)
        self._heap_keys[job.seq] = key
        heappush(self._heap, key)

    def extend(self, jobs: list[Job]) -> None:
        """Add jobs that are sorted by position."""
        first = bisect_left(jobs, 0, key=attrgetter("position"))
        is_behind = first < len(jobs) and (jobs[first].position, jobs[first].seq) > (
            self._last_position,
            self._last_seq,
        )
        if not is_behind or self._tombstones or not _have_no_rank(jobs):
            for job in jobs:
                self.add(job)
            return
        for job in jobs[:first]:  # ahead of all arrivals
            self.add(job)
        self._fifo.extend(jobs[first:] if first else jobs)
        self._last_position, self._last_seq = jobs[-1].position, jobs[-1].seq

    def pop(self) -> Job | None:
        if self._heap or self._tombstones:
            self._drop_tombstones()
        fifo = self._swept or self._fifo
        if self._heap:
            key = self._heap[0]
            if not fifo or key[:3] < (0, fifo[0].position, fifo[0].seq):
                heappop(self._heap)
                del self._heap_keys[key[2]]
                self.front_count -= key[1] < 0
                return key[4]
        if not fifo:
            return None
        job = fifo.popleft()
        if not fifo and not self._fifo:
            self._last_position = self._last_seq = -1
        return job

    def peek(self) -> Job | None:
        """The next job, which stays in the queue."""
        self._drop_tombstones()
        fifo, heap = self._swept or self._fifo, self._heap
        if not heap or (fifo and (0, fifo[0].position, fifo[0].seq) < heap[0][:3]):
            return fifo[0] if fifo else None
        return heap[0][4]

    def oldest(self) -> Job | None:
        """The job with the longest wait, approximately: the first of the deque or the oldest entry
        of the heap.
        """
        self._drop_tombstones()
        fifo = self._swept or self._fifo
        head = fifo[0] if fifo else None
        key = next(iter(self._heap_keys.values()), None)
        if head is None or (key is not None and key[4].ready_at < head.ready_at):
            return None if key is None else key[4]
        return head

    def remove(self, job: Job) -> None:
        """Remove a job, wherever it is in the order."""
        if self.parked and self.parked.pop(job.seq, None) is not None:
            return
        key = self._heap_keys.pop(job.seq, None)
        if key is None:
            self._mark_removed(job.seq)
        else:
            self.front_count -= key[1] < 0
        if len(self._heap) > 64 + 2 * len(self._heap_keys):
            self._heap = list(self._heap_keys.values())
            heapify(self._heap)

    def park(self, job: Job) -> None:
        """Add a job that is not in the order to the parked jobs."""
        self.parked[job.seq] = job

    def _mark_removed(self, seq: int) -> None:
        """Replace the entry of a job with a tombstone, or remove it from the end of the deque."""
        tombstones, fifo = self._tombstones, self._fifo
        tombstones.add(seq)
        while fifo and fifo[-1].seq in tombstones:
            tombstones.discard(fifo.pop().seq)
        if len(tombstones) <= 64 + (len(fifo) + len(self._swept)) // 4:
            return
        for _ in range(min(SWEEP_BATCH_SIZE, len(fifo))):
            job = fifo.popleft()
            if job.seq in tombstones:
                tombstones.discard(job.seq)
            else:
                self._swept.append(job)
        if not fifo:
            self._fifo, self._swept = self._swept, fifo

    def first(self, count: int) -> Iterator[Job]:
        """Up to `count` jobs in their order, then parked ones. All stay in the queue. The cost
        depends on `count`, not on the length of the queue.
        """
        if not self.parked:
            return self._first(count)
        found = list(self._first(count))
        return iter([*found, *islice(self.parked.values(), count - len(found))])

    def _first(self, count: int) -> Iterator[Job]:
        if not self._heap_keys and not self._tombstones:
            return islice(chain(self._swept, self._fifo), count)
        heads: list[ReadyKey] = [
            (0, job.position, job.seq, 0, job) for job in self._first_in_deque(count)
        ]
        if self._heap_keys:
            heads += self._first_ranked(count)
            heads.sort()
        return iter([key[4] for key in heads[:count]])

    def _first_in_deque(self, count: int) -> list[Job]:
        """The first jobs of the deque. Tombstones before them are dropped."""
        tombstones = self._tombstones
        if not tombstones:
            return list(islice(chain(self._swept, self._fifo), count))
        found: list[Job] = []
        while len(found) < count and (fifo := self._swept or self._fifo):
            job = fifo.popleft()
            if job.seq in tombstones:
                tombstones.discard(job.seq)
            else:
                found.append(job)
        self._swept.extendleft(reversed(found))
        return found

    def _first_ranked(self, count: int) -> list[ReadyKey]:
        heap, keys = self._heap, self._heap_keys
        if count > len(keys) // 8:
            return sorted(keys.values())[:count]
        found: list[ReadyKey] = []
        if len(heap) > len(keys):  # drop the stale entries on the way
            while len(found) < count:
                key = heappop(heap)
                if self._is_current(key):
                    found.append(key)
            for key in found:
                heappush(heap, key)
            return found
        # After the smallest entry, only its two children can be the next.
        candidates: list[tuple[ReadyKey, int]] = [(heap[0], 0)]
        while len(found) < count:
            key, at = heappop(candidates)
            found.append(key)
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(candidates, (heap[child], child))
        return found

    def __iter__(self) -> Iterator[Job]:
        """All jobs, in no particular order."""
        if self._tombstones or self._heap_keys or self.parked:
            return self._iter_all()
        return chain(self._swept, self._fifo)

    def _iter_all(self) -> Iterator[Job]:
        for job in chain(self._swept, self._fifo):
            if job.seq not in self._tombstones:
                yield job
        for key in self._heap_keys.values():
            yield key[4]
        yield from self.parked.values()

    def __len__(self) -> int:
        ordered = len(self._swept) + len(self._fifo) - len(self._tombstones) + len(self._heap_keys)
        return ordered + len(self.parked)

    @property
    def tombstones(self) -> int:
        """The number of entries of removed jobs."""
        return len(self._tombstones) + len(self._heap) - len(self._heap_keys)

    def _drop_tombstones(self) -> None:
        """Drop tombstones and stale entries at the front."""
        tombstones = self._tombstones
        while tombstones and (fifo := self._swept or self._fifo) and fifo[0].seq in tombstones:
            tombstones.discard(fifo.popleft().seq)
        heap = self._heap
        while heap and not self._is_current(heap[0]):
            heappop(heap)

    def _is_current(self, key: ReadyKey) -> bool:
        """Whether an entry of the heap is not stale. Compiled tuples have no identity, so the
        number of the entry decides.
        """
        current = self._heap_keys.get(key[2])
        return current is not None and current[3] == key[3]

    def iter_for_check(self) -> Iterator[Job | None]:
        """All jobs, in no particular order, and None for tombstones. The queue is copied, because
        it may change during the iteration.
        """
        for job in list(chain(self._swept, self._fifo)):
            yield None if job.seq in self._tombstones else job
        for key in list(self._heap_keys.values()):
            yield key[4]
        yield from list(self.parked.values())

    def is_in_order(self) -> Generator[None, None, bool]:
        """Whether the deque is sorted and the heap has the keys that its jobs have. Yields for each
        examined job; the result is valid if the queue did not change during the check.
        """
        before = (-1, -1)
        for job in list(chain(self._swept, self._fifo)):
            yield
            if job.seq in self._tombstones:
                continue
            place = (job.position, job.seq)
            if job.rank or place < before:
                return False
            before = place
        heap = list(self._heap)
        entries: set[int] = set()
        for at, key in enumerate(heap):
            yield
            if at and heap[(at - 1) // 2][:4] > key[:4]:
                return False
            entries.add(key[3])
        for seq in list(self._heap_keys):
            yield
            current = self._heap_keys.get(seq)
            if current is None:
                return False
            job = current[4]
            if current[:3] != (-job.rank, job.position, seq) or current[3] not in entries:
                return False
        return True


def _have_no_rank(jobs: list[Job]) -> bool:
    # A loop, because mypyc turns a generator expression into a list.
    for job in jobs:  # noqa: SIM110
        if job.rank:
            return False
    return True
