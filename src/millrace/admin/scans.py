"""Ways through jobs: by number, or in another order; each can be gone on from where it was left.

A walk gives the numbers of jobs, each with its key: what follows a key follows it again another
time, whatever came or went meanwhile. None lets others have their turn. Whether a job is still what
was looked for is for whoever walks to see.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from heapq import heappop, heappush, merge
from typing import Any, Final, Protocol, TypeVar

from millrace.engine.engine import Engine
from millrace.engine.job import Job, seq_of
from millrace.engine.ready import ReadyQueue

from .errors import AdminError
from .service import parse_number

#: So many numbers are sorted at once, so many jobs by what they have, so many numbers of jobs
#: that are gone are passed over.
SORT_SLICE_SIZE: Final = 2000
KEYED_SLICE_SIZE: Final = 500
MAX_MISSES: Final = 10_000
SEQUENCE_STEP: Final = 500
#: If more numbers than jobs have been given out by this factor, the jobs are listed.
SPARSE_FACTOR: Final = 20
#: So many jobs of a queue are told in their order, and so many timers are looked at to tell
#: the next ones that are due; others follow by number.
MAX_HEAD_SIZE: Final = 1000
MAX_TIMERS_READ: Final = 250

Key = tuple[Any, ...]
Position = tuple[Key, int] | None
KeyOf = Callable[[Job], Key]


class Scan(Protocol):
    #: About how many jobs are on the way.
    of: int

    def go(self, after: Key | None) -> Iterator[Position]:
        """From the beginning, or from behind a key on."""
        ...


class ReadyIndex:
    """The numbers of a queue's ready jobs, in no particular order."""

    def __init__(self, ready: ReadyQueue) -> None:
        self._ready = ready

    def __len__(self) -> int:
        return len(self._ready)

    def __iter__(self) -> Iterator[int]:
        return (job.seq for job in self._ready)

    def __contains__(self, seq: object) -> bool:
        return any(seq == each for each in self)


class IndexScan:
    """What is in these when it begins, the newest first. A number may be there twice."""

    def __init__(self, *indexes: Collection[int]) -> None:
        self._indexes = indexes
        self.of = sum(map(len, indexes))

    def go(self, after: Key | None) -> Iterator[Position]:
        seqs = index_numbers(self._indexes)
        below = _below(after, 1 << 64)
        runs = []
        for first in range(0, len(seqs), SORT_SLICE_SIZE):
            if first:
                yield None
            runs.append(
                sorted(
                    (n for n in seqs[first : first + SORT_SLICE_SIZE] if n < below), reverse=True
                )
            )
        last = 0
        for seq in merge(*runs, reverse=True):
            if seq != last:
                yield (seq,), seq
            last = seq


def index_numbers(indexes: Iterable[Collection[int]]) -> list[int]:
    """In any order: an ordered dictionary takes four times as long to tell its own."""
    seqs: list[int] = []
    for index in indexes:
        seqs.extend(dict.keys(index) if isinstance(index, dict) else index)
    return seqs


class IdScan:
    """Jobs of one id, the newest first; if there is none, the one of that number. There may be a
    million of one id. Whoever changes what is found means ids only.
    """

    def __init__(self, engine: Engine, jid: str, *, ids_only: bool) -> None:
        self._engine = engine
        self._jid = jid
        self._number = seq_of(jid) if ids_only else parse_number(jid)
        self.of = engine.count_of(jid) or int(self._number in engine.jobs)

    def go(self, after: Key | None) -> Iterator[Position]:
        below, begins = _below(after, 1 << 64), after is None
        while some := self._engine.find_below(self._jid, below, KEYED_SLICE_SIZE):
            begins = False
            for job in some:
                below = job.seq
                yield (below,), below
            yield None
        if begins and self._number in self._engine.jobs:
            yield (self._number,), self._number


class FailureScan:
    """Jobs that are dead of the same error or wait for another try after it, the newest first."""

    def __init__(self, engine: Engine, shape: str) -> None:
        self._failing = engine.failing
        self._shape = shape
        group = engine.failing.get(shape)
        self.of = 0 if group is None else len(group.jobs)

    def go(self, after: Key | None) -> Iterator[Position]:
        yield from self._failing.complete()
        group = self._failing.get(self._shape)
        if group is not None:
            yield from IndexScan(group.jobs).go(after)


class SequenceScan:
    """All jobs that there are by now, the newest first, without listing them: there may be a
    million.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._below = engine.next_seq
        self.of = len(engine.jobs)

    def go(self, after: Key | None) -> Iterator[Position]:
        below = _below(after, self._below)
        jobs = self._engine.jobs
        if below > SPARSE_FACTOR * len(jobs):
            yield from IndexScan(jobs).go((below,))
            return
        passed = 0
        for last in range(below, 1, -SEQUENCE_STEP):
            numbers = range(max(1, last - SEQUENCE_STEP), last)
            if not jobs.keys().isdisjoint(numbers):
                yield from (((seq,), seq) for seq in reversed(numbers) if seq in jobs)
            passed += SEQUENCE_STEP
            if passed >= MAX_MISSES:
                passed = 0
                yield None


class SortedScan:
    """These, by a key that ends with the number."""

    def __init__(self, engine: Engine, seqs: Iterable[int], key: KeyOf) -> None:
        self._jobs = engine.jobs
        self._key = key
        self.seqs = list(seqs)
        self.of = len(self.seqs)

    def go(self, after: Key | None) -> Iterator[Position]:
        seqs, key = self.seqs, self._key
        runs = []
        for first in range(0, len(seqs), KEYED_SLICE_SIZE):
            if first:
                yield None
            found = map(self._jobs.get, seqs[first : first + KEYED_SLICE_SIZE])
            keyed = sorted((key(job), job.seq) for job in found if job is not None)
            runs.append([each for each in keyed if after is None or each[0] > after])
        yield from merge(*runs)


def _below(after: Key | None, most: int) -> int:
    """A cursor may be anybody's invention."""
    return min(most, after[0]) if after and isinstance(after[0], int) else most


# In the order of a queue, and of what is due


def ready_key(job: Job) -> Key:
    return (-job.rank, job.place, job.seq)


def due_key(engine: Engine) -> KeyOf:
    """By the server's clock, whatever clock the job goes by."""
    when = engine.timers.when
    return lambda job: (when(job.seq) or 0, job.seq)


def ended_key(job: Job) -> Key:
    return (-job.ended_at, -job.seq)


def first_ready(engine: Engine, queue: str) -> list[int]:
    known = engine.queues.get(queue)
    return [] if known is None else [job.seq for job in known.ready.first(MAX_HEAD_SIZE)]


def first_due(engine: Engine) -> list[int]:
    """Scheduled jobs of which no other one is due before: the heap is walked from its top."""
    timers = engine.timers
    heap = timers.heap
    frontier = [(heap[0], 0)] if heap else []
    found: dict[int, int] = {}
    passed = 0
    while frontier and passed < MAX_TIMERS_READ:
        (when, _, key), at = heappop(frontier)
        passed += 1
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))
        if isinstance(key, int) and key in engine.scheduled and timers.when(key) == when:
            found[key] = when
    if frontier:  # of those of the last moment there may be more
        last = frontier[0][0][0]
        return [seq for seq, when in found.items() if when < last]
    return list(found)


class HeadScan:
    """The first of an order."""

    def __init__(self, engine: Engine, first: Callable[[], list[int]], key: KeyOf) -> None:
        self._engine = engine
        self._first = first
        self._key = key
        #: The last of the first, once that is known.
        self.bound: Key | None = None
        self.of = 0

    def go(self, after: Key | None) -> Iterator[Position]:
        self.bound = after
        for stop in SortedScan(self._engine, self._first(), self._key).go(after):
            if stop is not None:
                self.bound = stop[0]
            yield stop

    def is_behind(self, job: Job) -> bool:
        return self.bound is None or self._key(job) > self.bound


class TailScan:
    """What another walk finds that is not among the first of an order."""

    def __init__(self, engine: Engine, walk: Scan, beginning: HeadScan) -> None:
        self._jobs = engine.jobs
        self._walk = walk
        self._beginning = beginning
        self.of = walk.of

    def go(self, after: Key | None) -> Iterator[Position]:
        jobs, is_behind = self._jobs, self._beginning.is_behind
        passed = 0
        for stop in self._walk.go(after):
            job = None if stop is None else jobs.get(stop[1])
            if stop is None or (job is not None and is_behind(job)):
                yield stop
                continue
            passed += 1
            if passed == SORT_SLICE_SIZE:
                passed = 0
                yield None


MAX_PAGE_SIZE: Final = 1000
#: So many names are looked at before others have their turn.
NAME_SLICE_SIZE: Final = 1000

N = TypeVar("N", str, tuple[str, str], tuple[int, str])


def page_of(
    names: list[N], after: N | None, most: int
) -> Generator[None, None, tuple[list[N], bool]]:
    """The first `most` names behind `after`, and whether there are more. Yields now and then."""
    if not 0 < most <= MAX_PAGE_SIZE:
        raise AdminError(f"`most` is from 1 to {MAX_PAGE_SIZE}")
    best: list[N] = []
    for first in range(0, len(names), NAME_SLICE_SIZE):
        if first:
            yield
        some = names[first : first + NAME_SLICE_SIZE]
        if after is not None:
            some = [name for name in some if name > after]
        if len(best) > most:
            last = best[-1]
            some = [name for name in some if name < last]
        best = sorted(best + some)[: most + 1]
    return best[:most], len(best) > most
