"""Deadlines: lease expirations and due times according to clients' clocks, per queue.

The engine sets no timer for a lease whose holder has its own clock: a later command from a client
detects that the lease has expired by that client's clock. In the same way, a client finds the
scheduled jobs that are due by its clock. The engine also sets a timer for those jobs.

Each queue has one heap for leases and one for due times. An entry is stale after its job has
changed; every entry is compared with its job when it is used.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final

from .annotations import read_details
from .caller import Caller
from .component import Component, IndexProblem, Problems
from .details import Number
from .job import Job
from .jobs_by_seq import JobsBySeq
from .policies import RuleTable
from .queues import Queue
from .states import LEASED, SCHEDULED
from .timers import is_heap

#: Maximum number of scheduled jobs that are remembered as due by the clock of a client.
MAX_FOUND_DUE: Final = 10_000
#: A heap is rebuilt when its size exceeds twice the number of its jobs plus this number.
MAX_STALE: Final = 64

Heap = list[tuple[int, int]]


class Deadlines(Component):
    __slots__ = (
        "_found_by_queue",
        "_found_due",
        "_jobs",
        "_max_offset",
        "_own_clock",
        "_queues",
        "due",
        "leases",
        "max_found",
    )

    def __init__(self, jobs: JobsBySeq, queues: dict[str, Queue], rules: RuleTable) -> None:
        self._jobs = jobs
        self._queues = queues
        self._own_clock = rules.own_clock_protocols
        #: Heaps by queue: the time and the seq of each job.
        self.leases: dict[str, Heap] = {}
        self.due: dict[str, Heap] = {}
        #: Queues and due times of jobs that a client has found due. The jobs stay scheduled,
        #: because a read-only command does not change a job, but replies show them as waiting.
        self._found_due: dict[int, tuple[str, int]] = {}
        #: The seqs of these jobs by queue.
        self._found_by_queue: dict[str, dict[int, None]] = {}
        self.max_found = MAX_FOUND_DUE
        #: The largest offset of a holder's clock from the server's.
        self._max_offset = 0

    # Changes

    def add(self, job: Job) -> None:
        """Add a job that has a new lease deadline or a new due time."""
        if job.state == LEASED:
            if job.history.holder_protocol in self._own_clock:
                self._max_offset = max(self._max_offset, read_details(job).lease_offset)
                self._add(self.leases, job, job.history.deadline)
        elif job.state == SCHEDULED and job.origin in self._own_clock:
            self._forget_found(job.seq)
            self._add(self.due, job, job.due_at)

    def _add(self, heaps: dict[str, Heap], job: Job, when: int) -> None:
        heap = heaps.setdefault(job.queue, [])
        heappush(heap, (when, job.seq))
        self._drop_stale(heap, job.queue, job.state)

    def _drop_stale(self, heap: Heap, queue: str, state: int) -> None:
        """Rebuild a heap of jobs in this state if it has too many stale or repeated entries."""
        if len(heap) > MAX_STALE + 2 * self._queues[queue].counts[state]:
            heap[:] = [each for each in set(heap) if self._current(queue, each) is not None]
            heapify(heap)

    def remove(self, job: Job) -> None:
        """Forget a job. Its entries become stale."""
        if self._found_due:
            self._forget_found(job.seq)

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self.leases.clear()
        self.due.clear()
        self._found_due.clear()
        self._found_by_queue.clear()
        self._max_offset = 0

    def discard(self) -> list[Any]:
        old: list[Any] = [self.leases, self.due]
        self.leases, self.due = {}, {}
        self.clear()
        return old

    def _current(self, queue: str, entry: tuple[int, int]) -> Job | None:
        """The job of an entry; None if the entry is stale."""
        job = self._jobs.get(entry[1])
        if job is None or job.queue != queue or self._time(job) != entry[0]:
            return None
        return job

    def _time(self, job: Job) -> int | None:
        """The time of the current entry of a job; None if it has none."""
        if job.state == LEASED:
            return job.history.deadline if job.history.holder_protocol in self._own_clock else None
        return job.due_at if job.state == SCHEDULED and job.origin in self._own_clock else None

    # Leases. `now` is the time on the client's clock.

    def expired(self, queue: str, now: int, limit: Number) -> list[Job]:
        """Jobs of a queue with an expired lease, the earliest first. Their entries remain."""
        heap = self.leases.get(queue)
        if not heap or heap[0][0] > now:
            return []
        found: dict[int, Job] = {}
        seen: Heap = []
        while heap and heap[0][0] <= now and len(found) < limit:
            entry = heappop(heap)
            job = self._current(queue, entry)
            if job is not None and job.state == LEASED and job.seq not in found:
                found[job.seq] = job
                seen.append(entry)
        for entry in seen:
            heappush(heap, entry)
        return list(found.values())

    def count_expired(self, queue: str, now: int, caller: Caller, limit: Number) -> int:
        """The number of leases that ended before `now`, by the clock of the caller or else by the
        clocks of their holders, up to `limit`.
        """
        heap = self.leases.get(queue, [])
        last = caller.time(now, self._max_offset)
        found: set[int] = set()
        pending = [0]
        while pending and len(found) < limit:
            index = pending.pop()
            if index >= len(heap) or heap[index][0] >= last:
                continue  # the entries below it in the heap are later
            job = self._current(queue, heap[index])
            if (
                job is not None
                and job.state == LEASED
                and job.history.deadline < caller.time(now, read_details(job).lease_offset)
            ):
                found.add(job.seq)
            pending += (2 * index + 1, 2 * index + 2)
        return len(found)

    def leased(self, queue: str) -> list[Job]:
        """The leased jobs of a queue whose holders have their own clocks, by deadline."""
        jobs = [self.leased_job(queue, each) for each in sorted(self.lease_entries(queue))]
        return [job for job in jobs if job is not None]

    def lease_entries(self, queue: str) -> set[tuple[int, int]]:
        """A copy of the lease entries of a queue, including stale ones: pairs of deadline and
        seq.
        """
        return set(self.leases.get(queue, ()))

    def leased_job(self, queue: str, entry: tuple[int, int]) -> Job | None:
        """The job of an entry, unless the lease has changed."""
        job = self._current(queue, entry)
        return None if job is None or job.state != LEASED else job

    def count_unexpired(self, queue: str, now: int) -> int:
        """The number of leases of a queue that have not expired."""
        known = self._queues.get(queue)
        held = 0 if known is None else known.counts[LEASED]
        return held - len(self.expired(queue, now - 1, held))

    # Due times

    def find_due(self, queue: str, now: int, limit: Number) -> list[Job]:
        """Scheduled jobs of a queue that are due by the clock of the client. They stay scheduled,
        but are shown as waiting from now on.
        """
        found = self.take_due(queue, now, limit)
        for job in found:
            heappush(self.due[queue], (job.due_at, job.seq))
            if self._found_due.get(job.seq, (queue, 0))[0] != queue:
                self._forget_found(job.seq)
            self._found_due[job.seq] = (queue, job.due_at)
            self._found_by_queue.setdefault(queue, {})[job.seq] = None
        if found:
            self._drop_stale(self.due[queue], queue, SCHEDULED)  # the entry can already be in it
        while len(self._found_due) > self.max_found:
            self._forget_found(next(iter(self._found_due)))
        return found

    def _forget_found(self, seq: int) -> None:
        entry = self._found_due.pop(seq, None)
        if entry is not None:
            seqs = self._found_by_queue[entry[0]]
            del seqs[seq]
            if not seqs:
                del self._found_by_queue[entry[0]]

    def take_due(self, queue: str, now: int, limit: Number) -> list[Job]:
        """Remove due scheduled jobs from their heap: up to `limit` jobs, and those that a client
        has already found due.
        """
        heap = self.due.get(queue)
        taken: dict[int, Job] = {}
        while heap and heap[0][0] <= now:
            due, seq = heap[0]
            found = self._found_due.get(seq) == (queue, due)
            if not found and limit <= 0:
                self._take_found(queue, now, taken)
                break
            entry = heappop(heap)
            job = self._current(queue, entry)
            if job is not None and job.state == SCHEDULED:
                taken[seq] = job
                limit -= not found
        return list(taken.values())

    def _take_found(self, queue: str, now: int, taken: dict[int, Job]) -> None:
        """Add the jobs that a client has found due before. Their entries become stale, or remain
        if the jobs stay scheduled.
        """
        for seq in self._found_by_queue.get(queue, ()):
            due = self._found_due[seq][1]
            job = self._current(queue, (due, seq)) if due <= now else None
            if job is not None and job.state == SCHEDULED:
                taken[seq] = job

    def is_found_due(self, job: Job) -> bool:
        """Whether a client has found this scheduled job due by its clock."""
        entry = self._found_due.get(job.seq)
        return job.state == SCHEDULED and entry is not None and entry[1] == job.due_at

    # Checks

    def problems(self) -> Problems:
        """Every job with a deadline by the clock of a client has an entry in the heap of its queue.
        Additional entries are valid.
        """
        versions = {queue.name: queue.version for queue in self._queues.values()}
        known: dict[str, set[tuple[int, int]]] = {}
        for what, heaps in (("lease", self.leases), ("due time", self.due)):
            for name, heap in [(name, list(heap)) for name, heap in heaps.items()]:
                ordered = is_heap(heap)
                while True:
                    try:
                        next(ordered)
                    except StopIteration as ended:
                        if not ended.value:
                            yield IndexProblem(what, "the heap is not in order", queue=name)
                        break
                    yield None
                known.setdefault(name, set()).update(heap)
                yield None
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            when = None if job is None else self._time(job)
            if job is None or when is None:
                continue
            queue = self._queues.get(job.queue)
            unchanged = queue is not None and versions.get(job.queue) == queue.version
            if unchanged and (when, seq) not in known.get(job.queue, ()):
                what = "lease" if job.state == LEASED else "due time"
                detail = f"its queue has no entry for the time {when / 1_000_000:.6f}"
                yield IndexProblem(what, detail, job=job)
