"""Jobs that wait for a key with a limit, by key.

A parked job is ready, but it is left out of the order of its queue. Its details contain the key and
the start of the wait, so the job is still parked after a restart. `Limits` decides which jobs are
parked, and when they return; it calls `park` and `unpark`.
"""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from .annotations import ensure_details
from .component import IndexProblem, Problems
from .details import LimitWait
from .job import Job
from .queues import Queue
from .states import READY

if TYPE_CHECKING:
    from .engine import Engine

#: Maximum number of entries in the log of a job when the engine adds an entry.
MAX_LOG_ENTRIES: Final = 100

#: The start of the wait; the jid if clients set the job's times, otherwise empty; and the seq.
ParkedEntry = tuple[int, str, int]


class ParkedJobs:
    __slots__ = ("_engine", "by_key")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        #: Parked jobs by key, the longest wait first. Entries may be stale. Jobs under "" were
        #: released from their key; the next request for jobs of their queue examines them.
        self.by_key: dict[str, list[ParkedEntry]] = {}

    # Views

    def jobs_for_key(self, key: str) -> list[Job]:
        """The jobs that wait for a key, the longest wait first."""
        entries = sorted(set(self.by_key.get(key, ())))
        found = [self._current(key, entry) for entry in entries]
        return [job for job in found if job is not None]

    def some_for_key(self, key: str, limit: int) -> list[Job]:
        """Some jobs that wait for a key, including the job with the longest wait."""
        entries = sorted(set(self.by_key.get(key, [])[: 4 * limit]))
        found = [self._current(key, entry) for entry in entries]
        return [job for job in found if job is not None][:limit]

    def _current(self, key: str, entry: ParkedEntry) -> Job | None:
        """The job of an entry, if it still waits."""
        job = self._engine.jobs.get(entry[2])
        parked = None if job is None else parked_of(job)
        if parked is None or (parked.key, parked.since) != (key, entry[0]):
            return None
        return job

    # Changes

    def park(self, job: Job, queue: Queue, key: str, now: int, shown_queue: str) -> None:
        """Park a ready job that was taken from the order of its queue."""
        engine, details = self._engine, ensure_details(job)
        queue.version += 1
        if details.front:  # its position ahead of all jobs applies only once
            details.front, job.rank = False, details.rank
        since = engine.time_of(job, now)
        details.parked = parked = LimitWait(key, since, job.rank)
        queue.ready.park(job)
        self._wait(key, self._entry(job, parked))
        if not details.log or details.log[-1][1] != "throttled":
            details.add_entry(
                "throttled", since, MAX_LOG_ENTRIES, {"queue": shown_queue or queue.name}
            )
        engine.change_set.record(job)

    def unpark(self, job: Job, now: int) -> None:
        """Return a parked job to its old place in the queue. If clients set its times, it returns
        ahead of the jobs that become ready at the same time.
        """
        engine, queue = self._engine, self._engine.queues[job.queue]
        queue.version += 1
        ready = queue.ready
        ready.remove(job)
        self.end_wait(job)
        if job.origin in engine.rules.own_clock_protocols:
            job.position = engine.time_of(job, now) - 1
        ready.add(job)
        engine.change_set.record(job)

    def end_wait(self, job: Job) -> None:
        """End the wait of a job if it is parked. Its entry becomes stale."""
        details = None if job.extra is None else job.extra.details
        if details is not None and details.parked is not None:
            job.rank, details.parked = details.parked.rank, None

    def pop(self, key: str) -> Job | None:
        """Remove the first entry of a key, and return its job; None if the entry is stale."""
        return self._current(key, heappop(self.by_key[key]))

    def release(self, job: Job, parked: LimitWait) -> None:
        """Release a job from the key that it waits for."""
        parked.key = ""
        heappush(self.by_key.setdefault("", []), self._entry(job, parked))

    def drop_unparked(self) -> None:
        """Drop the entries of released jobs that are not parked any more."""
        left = {entry for entry in self.by_key.pop("", []) if self._current("", entry) is not None}
        if left:
            self.by_key[""] = sorted(left)

    def add(self, job: Job) -> bool:
        """Add a ready job if it is parked, and return whether it is."""
        parked = parked_of(job)
        if parked is None:
            return False
        self._wait(parked.key, self._entry(job, parked))
        return True

    def _entry(self, job: Job, parked: LimitWait) -> ParkedEntry:
        """The place of a job among those that wait for its key. Jobs that were parked at the same
        time return in the order of their pushes, or by jid if clients set their times.
        """
        own_clock = job.origin in self._engine.rules.own_clock_protocols
        return parked.since, job.jid if own_clock else "", job.seq

    def _wait(self, key: str, entry: ParkedEntry) -> None:
        heap = self.by_key.setdefault(key, [])
        heappush(heap, entry)
        if len(heap) > 64 + 2 * len(self._engine.jobs):
            heap[:] = [each for each in set(heap) if self._current(key, each) is not None]
            heapify(heap)

    # Checks

    def problems(self) -> Problems:
        """Compare the entries with the jobs and their queues."""
        engine = self._engine
        entries: dict[str, set[ParkedEntry]] = {}
        for seq in engine.jobs:
            yield None
            job = engine.jobs.get(seq)
            if job is None:
                continue
            parked = parked_of(job)
            queue = engine.queues.get(job.queue)
            listed = queue is not None and job.seq in queue.ready.parked
            if listed != (job.state == READY and parked is not None):
                yield IndexProblem(
                    "limit",
                    "the job and its queue do not agree on whether it is parked",
                    job=job,
                )
            elif parked is not None:
                entry = self._entry(job, parked)
                if parked.key not in entries:
                    entries[parked.key] = set(self.by_key.get(parked.key, ()))
                if entry in entries[parked.key]:
                    continue
                if entry not in self.by_key.get(parked.key, ()):
                    yield IndexProblem(
                        "limit",
                        f"the job waits for the limit {parked.key}, which does not list it",
                        job=job,
                    )


def parked_of(job: Job) -> LimitWait | None:
    """The reason why a job is parked, or None."""
    own = None if job.extra is None else job.extra.details
    return None if own is None else own.parked
