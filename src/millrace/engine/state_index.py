"""Jobs by state: scheduled, blocked and leased ones. Queues hold the ready jobs, and `Retention`
has the done and dead ones.
"""

from typing import Any

from .component import Component, IndexProblem, Problems
from .job import Job
from .jobs_by_seq import JobsBySeq
from .states import BLOCKED, LEASED, SCHEDULED, STATE_NAMES


class StateIndex(Component):
    __slots__ = (
        "_jobs",
        "_version",
        "blocked",
        "leased",
        "retrying",
        "retrying_by_queue",
        "scheduled",
        "staged",
    )

    def __init__(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs
        self.scheduled: dict[int, Job] = {}
        self.blocked: dict[int, Job] = {}
        self.leased: dict[int, Job] = {}
        #: Blocked jobs that wait for the release of their bulk load, by its name.
        self.staged: dict[str, dict[int, Job]] = {}
        #: The number of scheduled jobs that have failed before.
        self.retrying = 0
        #: The same number for each queue that has any.
        self.retrying_by_queue: dict[str, int] = {}
        #: Counts the changes to scheduled jobs.
        self._version = 0

    def _index(self, state: int) -> dict[int, Job] | None:
        if state == SCHEDULED:
            return self.scheduled
        if state == BLOCKED:
            return self.blocked
        return self.leased if state == LEASED else None

    def add(self, job: Job) -> None:
        index = self._index(job.state)
        if index is None:
            return
        index[job.seq] = job
        if job.state == SCHEDULED:
            self._version += 1
            if job.history.failures:
                self.count_retry(job.queue, 1)
        elif job.state == BLOCKED and load_of(job):
            self.staged.setdefault(load_of(job), {})[job.seq] = job

    def remove(self, job: Job) -> None:
        index = self._index(job.state)
        if index is None:
            return
        del index[job.seq]
        if job.state == SCHEDULED:
            self._version += 1
            if job.history.failures:
                self.count_retry(job.queue, -1)
        elif job.state == BLOCKED and load_of(job):
            self.unstage(job)

    def count_retry(self, queue: str, by: int) -> None:
        """Add `by` to the number of a queue's scheduled jobs that have failed before."""
        self.retrying += by
        number = self.retrying_by_queue.get(queue, 0) + by
        if number:
            self.retrying_by_queue[queue] = number
        else:
            del self.retrying_by_queue[queue]

    def unstage(self, job: Job) -> None:
        """Remove a job from its bulk load."""
        staged = self.staged[load_of(job)]
        del staged[job.seq]
        if not staged:
            del self.staged[load_of(job)]

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self.scheduled.clear()
        self.blocked.clear()
        self.leased.clear()
        self.staged.clear()
        self.retrying = 0
        self.retrying_by_queue.clear()
        self._version += 1

    def discard(self) -> list[Any]:
        """The indexes are replaced, so a reference to them must not be kept across a flush."""
        old: list[Any] = [self.scheduled, self.blocked, self.leased, self.staged]
        old.append(self.retrying_by_queue)
        self.scheduled, self.blocked, self.leased, self.staged = {}, {}, {}, {}
        self.retrying_by_queue = {}
        self.clear()
        return old

    def problems(self) -> Problems:
        version, retrying = self._version, dict.fromkeys(self.retrying_by_queue, 0)
        for state in (SCHEDULED, BLOCKED, LEASED):
            yield from self._index_problems(state)
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            if job is None:
                continue
            if job.state == SCHEDULED and job.history.failures:
                retrying[job.queue] = retrying.get(job.queue, 0) + 1
            index = self._index(job.state)
            if index is not None and seq not in index:
                detail = f"the job is {STATE_NAMES[job.state]} but not listed"
                yield IndexProblem("state", detail, job=job)
        total = sum(retrying.values())
        if version == self._version and (self.retrying, self.retrying_by_queue) != (
            total,
            retrying,
        ):
            detail = f"{self.retrying} jobs are counted as retrying, but {total} are"
            yield IndexProblem("count", detail)
        yield from self._load_problems()

    def _load_problems(self) -> Problems:
        """A load lists exactly the blocked jobs that were staged with it."""
        for load in list(self.staged):
            yield None
            if not self.staged.get(load, True):
                yield IndexProblem("load", f"the load {load} is empty")
            for seq in list(self.staged.get(load, ())):
                yield None
                job = self.staged.get(load, {}).get(seq)
                if job is not None and (self.blocked.get(seq) is not job or load_of(job) != load):
                    yield IndexProblem(
                        "load", f"the job is wrongly listed with load {load}", job=job
                    )
        for seq in list(self.blocked):
            yield None
            job = self.blocked.get(seq)
            if job is not None and load_of(job) and seq not in self.staged.get(load_of(job), ()):
                detail = f"the job is not listed with its load {load_of(job)}"
                yield IndexProblem("load", detail, job=job)

    def _index_problems(self, state: int) -> Problems:
        """The jobs of an index that do not belong there. A flush may replace the index."""
        for seq in list(self._index(state) or ()):
            yield None
            job = (self._index(state) or {}).get(seq)
            if job is None:
                continue
            if self._jobs.get(seq) is not job:
                detail = f"a job that does not exist is listed as {STATE_NAMES[state]}"
                yield IndexProblem("state", detail, job=job)
            elif job.state != state:
                detail = f"the job is {STATE_NAMES[job.state]} but listed as {STATE_NAMES[state]}"
                yield IndexProblem("state", detail, job=job)


def load_of(job: Job) -> str:
    """The bulk load whose release a job waits for."""
    return "" if job.extra is None else job.extra.load
