"""Failed jobs by error: dead jobs, and jobs that wait for a retry."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from .component import Component, IndexProblem, Problems
from .events import fingerprint
from .job import Job
from .jobs_by_seq import JobsBySeq
from .states import DEAD, SCHEDULED

#: The number of fingerprints that one slice computes. Each takes ten microseconds or more.
FINGERPRINT_BATCH_SIZE: Final = 50


class JobFailureGroup:
    """Jobs with the same last error, apart from numbers, ids and quoted text."""

    __slots__ = ("dead", "fingerprint", "group", "jobs", "newest")

    def __init__(self, fingerprint: str, group: str, job: Job) -> None:
        self.fingerprint = fingerprint
        #: The error type that these jobs have in common.
        self.group = group
        #: By seq, approximately in the order of their failures.
        self.jobs: dict[int, Job] = {}
        #: The number of dead jobs; the remaining jobs are scheduled for a retry.
        self.dead = 0
        #: Usually the job that failed last.
        self.newest = job

    @property
    def retrying(self) -> int:
        return len(self.jobs) - self.dead


class FailureGroups(Component):
    """Error groups by fingerprint; no group is empty. After start-up, most fingerprints are
    missing. A reader that needs all groups runs `yield from groups.index_remaining()` first.
    """

    __slots__ = ("_group_of", "_jobs", "_not_indexed", "by_fingerprint", "deferring")

    def __init__(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs
        self.by_fingerprint: dict[str, JobFailureGroup] = {}
        self._group_of: dict[int, JobFailureGroup] = {}
        #: Jobs without a computed fingerprint.
        self._not_indexed: dict[int, Job] = {}
        #: Set while the server reads the store, so that fingerprints do not delay start-up.
        self.deferring = False

    @property
    def count(self) -> int:
        """The number of jobs."""
        return len(self._group_of) + len(self._not_indexed)

    def get(self, fingerprint: str) -> JobFailureGroup | None:
        return self.by_fingerprint.get(fingerprint)

    def values(self) -> Iterable[JobFailureGroup]:
        return self.by_fingerprint.values()

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_fingerprint)

    def __len__(self) -> int:
        return len(self.by_fingerprint)

    def add(self, job: Job) -> None:
        """Add a job that is dead because of an error, or waits for a retry."""
        if not has_failed(job):
            return
        assert job.history.failure is not None
        if self.deferring:
            self._not_indexed[job.seq] = job
            return
        key = fingerprint(job.history.failure.group, job.history.failure.message)
        group = self.get(key)
        if group is None:
            group = self.by_fingerprint[key] = JobFailureGroup(key, job.history.failure.group, job)
        group.jobs[job.seq] = job
        group.dead += job.state == DEAD
        self._group_of[job.seq] = group
        newest = group.newest.failure
        if newest is None or job.history.failure.last_at >= newest.last_at:
            group.newest = job

    def remove(self, job: Job) -> None:
        if job.state == DEAD or (job.state == SCHEDULED and job.history.failures):
            self._leave(job.seq)

    def _leave(self, seq: int) -> None:
        if self._not_indexed.pop(seq, None) is not None:
            return
        group = self._group_of.pop(seq, None)
        if group is None:
            return
        job = group.jobs.pop(seq)
        group.dead -= job.state == DEAD
        if not group.jobs:
            del self.by_fingerprint[group.fingerprint]
        elif group.newest is job:
            group.newest = next(reversed(group.jobs.values()))

    def index_remaining(self) -> Iterator[None]:
        """Compute the missing fingerprints in slices."""
        while self.index_batch():
            yield None

    def index_batch(self) -> bool:
        """Compute the fingerprints of one slice, and return whether fingerprints are still
        missing.
        """
        for _ in range(min(FINGERPRINT_BATCH_SIZE, len(self._not_indexed))):
            self.add(self._not_indexed.popitem()[1])
        return bool(self._not_indexed)

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self.by_fingerprint.clear()
        self._group_of.clear()
        self._not_indexed.clear()

    def discard(self) -> list[Any]:
        old: list[Any] = [self.by_fingerprint, self._group_of, self._not_indexed]
        self.by_fingerprint, self._group_of, self._not_indexed = {}, {}, {}
        return old

    def problems(self) -> Problems:
        for seq in list(self._group_of):
            group = self._group_of.get(seq)
            job = None if group is None else group.jobs.get(seq)
            if group is None or (
                job is not None and self._jobs.get(seq) is job and has_failed(job)
            ):
                yield None
            else:
                yield IndexProblem(
                    "failure", f"job {seq} is listed as failed, but is not", job=job or group.newest
                )
        for group in list(self.values()):
            dead = 0
            for seq in list(group.jobs):
                job = group.jobs.get(seq)
                dead += job is not None and job.state == DEAD
                yield None
            # Jobs may have changed meanwhile, so count again before reporting a difference. A flush
            # may have discarded the group.
            if (
                group.dead != dead
                and self.get(group.fingerprint) is group
                and group.dead != sum(job.state == DEAD for job in group.jobs.values())
            ):
                detail = f"{group.dead} jobs of the failure group are counted as dead"
                yield IndexProblem("failure", detail, job=group.newest)
        for seq in self._jobs:
            job = self._jobs.get(seq)
            if (
                job is None
                or not has_failed(job)
                or seq in self._not_indexed
                or self._is_listed(job)
            ):
                yield None
            else:
                yield IndexProblem("failure", "the job is missing from its failure group", job=job)

    def _is_listed(self, job: Job) -> bool:
        assert job.history.failure is not None
        group = self.get(fingerprint(job.history.failure.group, job.history.failure.message))
        return group is not None and group.jobs.get(job.seq) is job


def has_failed(job: Job) -> bool:
    """Whether a job is dead because of an error, or waits for a retry."""
    if job.history.failure is None:
        return False
    return job.state == DEAD or (job.state == SCHEDULED and job.history.failures > 0)
