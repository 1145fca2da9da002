"""Failed jobs by error: dead jobs, and jobs that wait for a retry."""

from collections.abc import Iterator
from typing import Final

from .events import fingerprint
from .job import Job
from .states import DEAD, SCHEDULED

#: A fingerprint takes ten microseconds or more; one slice computes this number.
FINGERPRINT_BATCH_SIZE: Final = 50


class ErrorGroup:
    """Jobs whose last errors differ only in numbers, ids and quoted text."""

    __slots__ = ("dead", "fingerprint", "group", "jobs", "newest")

    def __init__(self, fingerprint: str, group: str, job: Job) -> None:
        self.fingerprint = fingerprint
        #: The common group of their errors.
        self.group = group
        #: By seq, approximately in the order of their failures.
        self.jobs: dict[int, Job] = {}
        #: The number of dead jobs; the others are scheduled for a retry.
        self.dead = 0
        #: Approximately the job that failed last.
        self.newest = job

    @property
    def retrying(self) -> int:
        return len(self.jobs) - self.dead


class FailureGroups(dict[str, ErrorGroup]):
    """Fingerprint -> its jobs; no group is empty. After a start most fingerprints are missing: a
    reader that needs all groups first runs `yield from groups.complete()`.
    """

    __slots__ = ("_of", "_owing", "deferring")

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, ErrorGroup] = {}
        #: Jobs whose fingerprint is not computed yet.
        self._owing: dict[int, Job] = {}
        #: Set while a store is read, which should not take longer because of fingerprints.
        self.deferring = False

    @property
    def count(self) -> int:
        """The number of jobs."""
        return len(self._of) + len(self._owing)

    def enter(self, job: Job) -> None:
        """Add a job that is dead or scheduled for a retry."""
        if job.failure is None:
            return
        if self.deferring:
            self._owing[job.seq] = job
            return
        key = fingerprint(job.failure.group, job.failure.message)
        group = self.get(key)
        if group is None:
            group = self[key] = ErrorGroup(key, job.failure.group, job)
        group.jobs[job.seq] = job
        group.dead += job.state == DEAD
        self._of[job.seq] = group
        newest = group.newest.failure
        if newest is None or job.failure.last_at >= newest.last_at:
            group.newest = job

    def leave(self, seq: int) -> None:
        """Remove a job that is about to change its state."""
        if self._owing.pop(seq, None) is not None:
            return
        group = self._of.pop(seq, None)
        if group is None:
            return
        job = group.jobs.pop(seq)
        group.dead -= job.state == DEAD
        if not group.jobs:
            del self[group.fingerprint]
        elif group.newest is job:
            group.newest = next(reversed(group.jobs.values()))

    def complete(self) -> Iterator[None]:
        """Compute the missing fingerprints in slices."""
        while self.go_on():
            yield None

    def go_on(self) -> bool:
        """Compute one slice, and return whether fingerprints are still missing."""
        for _ in range(min(FINGERPRINT_BATCH_SIZE, len(self._owing))):
            self.enter(self._owing.popitem()[1])
        return bool(self._owing)

    def clear(self) -> None:
        super().clear()
        self._of.clear()
        self._owing.clear()

    def wrong(self, jobs: dict[int, Job]) -> Iterator[tuple[Job, str]]:
        """Pairs of a job and a problem."""
        for seq, group in self._of.items():
            job = group.jobs.get(seq)
            if job is None or jobs.get(seq) is not job or not fails(job):
                yield job or group.newest, f"job {seq} is listed as failed, but is not"
        for group in self.values():
            if group.dead != sum(job.state == DEAD for job in group.jobs.values()):
                yield (
                    group.newest,
                    f"{group.dead} jobs of the failure group are counted as dead",
                )
        for job in jobs.values():
            if fails(job) and job.seq not in self._owing and not self._has(job):
                yield job, "the job is missing from its failure group"

    def _has(self, job: Job) -> bool:
        assert job.failure is not None
        group = self.get(fingerprint(job.failure.group, job.failure.message))
        return group is not None and group.jobs.get(job.seq) is job


def fails(job: Job) -> bool:
    """Whether a job is dead because of an error, or waits for a retry."""
    if job.failure is None:
        return False
    return job.state == DEAD or (job.state == SCHEDULED and job.failures > 0)
