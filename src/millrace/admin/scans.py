"""Scans over jobs, by number or in another order. A scan can resume after any key.

A scan yields the numbers of jobs, each with its key. The order by key is stable: a later scan that
resumes after a key yields the same jobs, except for jobs added or removed since. A scan yields None
at the end of a slice. The caller must check whether a job still matches.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from heapq import heappop, heappush, merge
from typing import Any, Final, Protocol, TypeVar

from millrace.engine.engine import Engine
from millrace.engine.job import Job, seq_from_id
from millrace.engine.jobs_by_seq import JobsBySeq
from millrace.engine.ready import ReadyQueue

from .service import parse_number

#: Per slice: numbers sorted, jobs sorted by key, and numbers skipped without a job.
SORT_SLICE_SIZE: Final = 2000
KEYED_SLICE_SIZE: Final = 500
MAX_MISSES: Final = 10_000
SEQUENCE_STEP: Final = 500
#: If the range of numbers exceeds the number of jobs by this factor, SequenceScan lists the jobs.
SPARSE_FACTOR: Final = 20
#: Maximum jobs of a queue in queue order, and maximum timers read to find the next due jobs. The
#: remaining jobs follow by number.
MAX_HEAD_SIZE: Final = 1000
MAX_TIMERS_READ: Final = 250

Key = tuple[Any, ...]
Position = tuple[Key, int] | None
KeyOf = Callable[[Job], Key]


class Scan(Protocol):
    #: Approximate number of jobs in the scan.
    total: int

    def go(self, after: Key | None) -> Iterator[Position]:
        """Scan from the start, or resume after a key."""
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
    """The jobs in the indexes when the scan starts, the newest first. Indexes may overlap."""

    def __init__(self, *indexes: Collection[int]) -> None:
        self._indexes = indexes
        self.total = sum(map(len, indexes))

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
    """Return the numbers in any order. Iteration in the order of an OrderedDict takes four times as
    long.
    """
    seqs: list[int] = []
    for index in indexes:
        if isinstance(index, JobsBySeq):
            seqs.extend(index.seqs())  # also some numbers without a job
        else:
            seqs.extend(dict.keys(index) if isinstance(index, dict) else index)
    return seqs


class IdScan:
    """Jobs with one id, the newest first; if there is none, the job with that number. A million
    jobs may share an id. Operations that change jobs set `ids_only`.
    """

    def __init__(self, engine: Engine, jid: str, *, ids_only: bool) -> None:
        self._engine = engine
        self._jid = jid
        self._number = seq_from_id(jid) if ids_only else parse_number(jid)
        self.total = engine.count_of(jid) or int(self._number in engine.tables.jobs)

    def go(self, after: Key | None) -> Iterator[Position]:
        below, begins = _below(after, 1 << 64), after is None
        while some := self._engine.find_below(self._jid, below, KEYED_SLICE_SIZE):
            begins = False
            for job in some:
                below = job.seq
                yield (below,), below
            yield None
        if begins and self._number in self._engine.tables.jobs:
            yield (self._number,), self._number


class FailureScan:
    """Jobs that are dead or wait for a retry after the same error, the newest first."""

    def __init__(self, engine: Engine, shape: str) -> None:
        self._failing = engine.failure_groups
        self._shape = shape
        group = engine.failure_groups.get(shape)
        self.total = 0 if group is None else len(group.jobs)

    def go(self, after: Key | None) -> Iterator[Position]:
        yield from self._failing.index_remaining()
        group = self._failing.get(self._shape)
        if group is not None:
            yield from IndexScan(group.jobs).go(after)


class SequenceScan:
    """All current jobs, the newest first. The scan does not list them first, because there may be a
    million.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._below = engine.next_seq
        self.total = len(engine.tables.jobs)

    def go(self, after: Key | None) -> Iterator[Position]:
        below = _below(after, self._below)
        jobs = self._engine.tables.jobs
        if below > SPARSE_FACTOR * len(jobs):
            yield from IndexScan(jobs).go((below,))
            return
        passed = 0
        for last in range(below, 1, -SEQUENCE_STEP):
            numbers = range(max(1, last - SEQUENCE_STEP), last)
            jobs = self._engine.tables.jobs  # a flush replaces the table
            yield from (((seq,), seq) for seq in reversed(numbers) if seq in jobs)
            passed += SEQUENCE_STEP
            if passed >= MAX_MISSES:
                passed = 0
                yield None


class SortedScan:
    """Jobs sorted by a key that ends with the job number."""

    def __init__(self, engine: Engine, seqs: Iterable[int], key: KeyOf) -> None:
        self._engine = engine
        self._key = key
        self.seqs = list(seqs)
        self.total = len(self.seqs)

    def go(self, after: Key | None) -> Iterator[Position]:
        seqs, key = self.seqs, self._key
        runs = []
        for first in range(0, len(seqs), KEYED_SLICE_SIZE):
            if first:
                yield None
            found = map(self._engine.job, seqs[first : first + KEYED_SLICE_SIZE])
            keyed = sorted((key(job), job.seq) for job in found if job is not None)
            runs.append([each for each in keyed if after is None or each[0] > after])
        yield from merge(*map(_consumed, runs))


def _consumed(run: list[tuple[Key, int]]) -> Iterator[tuple[Key, int]]:
    """The entries of a run in order. Each is freed at once: to free all of them at the end would
    take 10 ms for 30,000 jobs.
    """
    run.reverse()
    while run:
        yield run.pop()


def _below(after: Key | None, most: int) -> int:
    """Return the upper limit from a key. A client may forge a cursor, so the key is validated."""
    return min(most, after[0]) if after and isinstance(after[0], int) else most


# Order of a queue, of due times and of end times


def ready_key(job: Job) -> Key:
    return (-job.rank, job.position, job.seq)


def due_key(engine: Engine) -> KeyOf:
    """Return a key by due time on the server clock, even if the job uses another clock."""
    when = engine.timers.when
    return lambda job: (when(job.seq) or 0, job.seq)


def ended_key(job: Job) -> Key:
    return (-job.ended_at, -job.seq)


def first_ready(engine: Engine, queue: str) -> list[int]:
    known = engine.queue(queue)
    return [] if known is None else [job.seq for job in known.ready.first(MAX_HEAD_SIZE)]


def first_due(engine: Engine) -> list[int]:
    """Return the next scheduled jobs by due time. Reads the timer heap from its top."""
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
        if isinstance(key, int) and key in engine.tables.scheduled and timers.when(key) == when:
            found[key] = when
    if frontier:  # more unread timers may have the same time as the last one
        last = frontier[0][0][0]
        return [seq for seq, when in found.items() if when < last]
    return list(found)


class HeadScan:
    """The first jobs in an order."""

    def __init__(self, engine: Engine, first: Callable[[], list[int]], key: KeyOf) -> None:
        self._engine = engine
        self._first = first
        self._key = key
        #: Key of the last job in this scan, once known.
        self.bound: Key | None = None
        self.total = 0

    def go(self, after: Key | None) -> Iterator[Position]:
        self.bound = after
        for stop in SortedScan(self._engine, self._first(), self._key).go(after):
            if stop is not None:
                self.bound = stop[0]
            yield stop

    def is_behind(self, job: Job) -> bool:
        return self.bound is None or self._key(job) > self.bound


class TailScan:
    """The jobs of another scan that are not in the HeadScan."""

    def __init__(self, engine: Engine, walk: Scan, beginning: HeadScan) -> None:
        self._engine = engine
        self._walk = walk
        self._beginning = beginning
        self.total = walk.total

    def go(self, after: Key | None) -> Iterator[Position]:
        engine, is_behind = self._engine, self._beginning.is_behind
        passed = 0
        for stop in self._walk.go(after):
            job = None if stop is None else engine.job(stop[1])
            if stop is None or (job is not None and is_behind(job)):
                yield stop
                continue
            passed += 1
            if passed == KEYED_SLICE_SIZE:
                passed = 0
                yield None


#: Names examined per slice.
NAME_SLICE_SIZE: Final = 1000

N = TypeVar("N", str, tuple[str, str], tuple[int, str])


def page_of(
    names: list[N], after: N | None, limit: int
) -> Generator[None, None, tuple[list[N], bool]]:
    """Return the first `limit` names after `after`, and whether there are more. Runs in slices."""
    best: list[N] = []
    for first in range(0, len(names), NAME_SLICE_SIZE):
        if first:
            yield
        some = names[first : first + NAME_SLICE_SIZE]
        if after is not None:
            some = [name for name in some if name > after]
        if len(best) > limit:
            last = best[-1]
            some = [name for name in some if name < last]
        best = sorted(best + some)[: limit + 1]
    return best[:limit], len(best) > limit
