"""A queue: its ready jobs in order, who waits for them, and how many jobs are in which state."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from .job import Job

#: Minus rank, place, seq; then a number that makes entries unique, so that jobs are not compared.
Key = tuple[float, int, int, int, Job]
#: While there are too many ghosts, so many places are looked at with each job that is taken out: a
#: million at once would hold up everybody.
SWEPT_AT_ONCE: Final = 16


class Waiter:
    """Somebody who wants the next job of some queues, or the outcome of a job that has no lease to
    give: then there are no queues, but `seq`. `owner` is whoever shall be told.
    """

    __slots__ = ("actor", "holder", "key", "lease_for", "made", "owner", "queues", "seq")

    def __init__(self, queues: tuple[str, ...], holder: str, actor: int, owner: Any) -> None:
        self.queues = queues
        self.holder = holder
        self.actor = actor
        self.owner = owner
        self.key = 0  # the engine's number for this wait, negative
        self.seq = 0
        #: How many of its queues nobody knew before.
        self.made = 0
        #: How long it shall have the job. 0: what the job says.
        self.lease_for = 0


class Outcome(NamedTuple):
    """How a job ended: by which cause, and with what."""

    job: Job
    cause: str
    succeeded: bool
    result: bytes


class Ready:
    """Ready jobs: higher rank first, then the lower place, then the lower seq.

    Most queues are plain first-in-first-out, so jobs of rank 0 that arrive in order go to a deque;
    everything else goes to a heap, and the smaller head wins. A job taken out of the middle leaves
    a ghost in the deque, or a stale entry in the heap, until it comes up or there are too many.
    Then the deque is swept, a little at a time: what was looked at is in a deque of its own, ahead.
    """

    __slots__ = (
        "_entries",
        "_fifo",
        "_ghosts",
        "_heap",
        "_last_place",
        "_last_seq",
        "_swept",
        "_tickets",
        "early",
    )

    def __init__(self) -> None:
        self._fifo: deque[Job] = deque()
        self._swept: deque[Job] = deque()
        self._ghosts: set[int] = set()
        self._heap: list[Key] = []
        self._tickets: dict[int, Key] = {}
        self._entries = 0
        # Of the newest in the deque. Not the job itself: its place may change once it is out.
        self._last_place = self._last_seq = -1
        #: How many are ahead of all that arrived: those of a place below 0.
        self.early = 0

    def add(self, job: Job) -> None:
        place, last = job.place, self._last_place
        if (
            job.rank == 0
            and (place > last or (place == last and job.seq > self._last_seq))
            and place >= 0
            and job.seq not in self._ghosts
        ):
            self._last_place, self._last_seq = place, job.seq
            self._fifo.append(job)
            return
        self._entries += 1
        if place < 0:
            self.early += 1
        key = (-job.rank, place, job.seq, self._entries, job)
        self._tickets[job.seq] = key
        heappush(self._heap, key)

    def pop(self) -> Job | None:
        if self._heap or self._ghosts:
            self._settle()
        fifo = self._swept or self._fifo
        if self._heap:
            key = self._heap[0]
            if not fifo or key[:3] < (0, fifo[0].place, fifo[0].seq):
                heappop(self._heap)
                del self._tickets[key[2]]
                self.early -= key[1] < 0
                return key[4]
        if not fifo:
            return None
        job = fifo.popleft()
        if not fifo and not self._fifo:
            self._last_place = self._last_seq = -1
        return job

    def peek(self) -> Job | None:
        """The job that goes next, without taking it."""
        self._settle()
        fifo, heap = self._swept or self._fifo, self._heap
        if not heap or (fifo and (0, fifo[0].place, fifo[0].seq) < heap[0][:3]):
            return fifo[0] if fifo else None
        return heap[0][4]

    def oldest(self) -> Job | None:
        """The job that waits longest, or nearly: of those that came in order the first, or of all
        others the first that came.
        """
        self._settle()
        fifo = self._swept or self._fifo
        head = fifo[0] if fifo else None
        key = next(iter(self._tickets.values()), None)
        if head is None or (key is not None and key[4].ready_at < head.ready_at):
            return None if key is None else key[4]
        return head

    def remove(self, job: Job) -> None:
        """Take out a job that somebody did something to while it waited."""
        key = self._tickets.pop(job.seq, None)
        if key is None:
            self._haunt(job.seq)
        else:
            self.early -= key[1] < 0
        if len(self._heap) > 64 + 2 * len(self._tickets):
            self._heap = list(self._tickets.values())
            heapify(self._heap)

    def _haunt(self, seq: int) -> None:
        """Leave a ghost in the place of a job, unless it was the last one there."""
        ghosts, fifo = self._ghosts, self._fifo
        ghosts.add(seq)
        while fifo and fifo[-1].seq in ghosts:
            ghosts.discard(fifo.pop().seq)
        if len(ghosts) <= 64 + (len(fifo) + len(self._swept)) // 4:
            return
        for _ in range(min(SWEPT_AT_ONCE, len(fifo))):
            job = fifo.popleft()
            if job.seq in ghosts:
                ghosts.discard(job.seq)
            else:
                self._swept.append(job)
        if not fifo:
            self._fifo, self._swept = self._swept, fifo

    def first(self, count: int) -> Iterator[Job]:
        """Up to `count` jobs in their order, without taking them. However many there are, only
        about so many are looked at.
        """
        heads: list[Key] = [(0, job.place, job.seq, 0, job) for job in self._first_in(count)]
        if self._tickets:
            heads += self._first_ranked(count)
            heads.sort()
        return (key[4] for key in heads[:count])

    def _first_in(self, count: int) -> list[Job]:
        """The first of the deque; ghosts among them are gone afterwards, so they cost but once."""
        ghosts = self._ghosts
        if not ghosts:
            return list(islice(chain(self._swept, self._fifo), count))
        found: list[Job] = []
        while len(found) < count and (fifo := self._swept or self._fifo):
            job = fifo.popleft()
            if job.seq in ghosts:
                ghosts.discard(job.seq)
            else:
                found.append(job)
        self._swept.extendleft(reversed(found))
        return found

    def _first_ranked(self, count: int) -> list[Key]:
        heap, tickets = self._heap, self._tickets
        if count > len(tickets) // 8:
            return sorted(tickets.values())[:count]
        found: list[Key] = []
        if len(heap) > len(tickets):  # stale ones go as they come up, so they cost but once
            while len(found) < count:
                key = heappop(heap)
                if tickets.get(key[2]) is key:
                    found.append(key)
            for key in found:
                heappush(heap, key)
            return found
        # Behind an entry that was the least only its two children can be the next.
        edge: list[tuple[Key, int]] = [(heap[0], 0)]
        while len(found) < count:
            key, at = heappop(edge)
            found.append(key)
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(edge, (heap[child], child))
        return found

    def __iter__(self) -> Iterator[Job]:
        """All of them, in no particular order."""
        yield from (job for job in chain(self._swept, self._fifo) if job.seq not in self._ghosts)
        yield from (key[4] for key in self._tickets.values())

    def __len__(self) -> int:
        return len(self._swept) + len(self._fifo) - len(self._ghosts) + len(self._tickets)

    @property
    def ghosts(self) -> int:
        """How many are kept that are not there any more."""
        return len(self._ghosts) + len(self._heap) - len(self._tickets)

    def _settle(self) -> None:
        """Drop ghosts and stale entries from both heads."""
        ghosts = self._ghosts
        while ghosts and (fifo := self._swept or self._fifo) and fifo[0].seq in ghosts:
            ghosts.discard(fifo.popleft().seq)
        heap, tickets = self._heap, self._tickets
        while heap and tickets.get(heap[0][2]) is not heap[0]:
            heappop(heap)


class Queue:
    __slots__ = ("asked", "counts", "known", "name", "paused", "ready", "waiters")

    def __init__(self, name: str) -> None:
        self.name = name
        #: Somebody pushed to it, and nobody removed it since.
        self.known = False
        self.paused = False
        #: When somebody last wanted a job of it. 0: not since the server's start.
        self.asked = 0
        self.ready = Ready()
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.counts = [0, 0, 0, 0, 0, 0]  # by state
