"""Which jobs failed of the same: those that are dead, or wait for another try, by fingerprint."""

from collections.abc import Iterator
from typing import Final

from .events import fingerprint
from .job import Job
from .states import DEAD, SCHEDULED

#: A fingerprint costs ten microseconds or more; so many are made before others have their turn.
AT_ONCE: Final = 50


class FailingGroup:
    """Jobs whose last errors differ only in numbers, ids and quoted words."""

    __slots__ = ("dead", "fingerprint", "group", "jobs", "newest")

    def __init__(self, fingerprint: str, group: str, job: Job) -> None:
        self.fingerprint = fingerprint
        #: The error's group, as all of them have it.
        self.group = group
        #: By seq, in the order in which they failed, or nearly.
        self.jobs: dict[int, Job] = {}
        #: So many of them are dead; the others are scheduled for another try.
        self.dead = 0
        #: The one that failed last, or nearly.
        self.newest = job

    @property
    def retrying(self) -> int:
        return len(self.jobs) - self.dead


class Failing(dict[str, FailingGroup]):
    """Fingerprint -> its jobs; no group is empty. After a start most of it is still to be made:
    whoever wants all of it does `yield from failing.complete()` first.
    """

    __slots__ = ("_of", "_owing", "deferring")

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, FailingGroup] = {}
        #: Jobs whose fingerprint nobody has made yet.
        self._owing: dict[int, Job] = {}
        #: A store is being read, which shall not take longer for this.
        self.deferring = False

    @property
    def count(self) -> int:
        """How many jobs."""
        return len(self._of) + len(self._owing)

    def enter(self, job: Job) -> None:
        """A job is dead, or scheduled for another try."""
        if job.failure is None:
            return
        if self.deferring:
            self._owing[job.seq] = job
            return
        key = fingerprint(job.failure.group, job.failure.message)
        group = self.get(key)
        if group is None:
            group = self[key] = FailingGroup(key, job.failure.group, job)
        group.jobs[job.seq] = job
        group.dead += job.state == DEAD
        self._of[job.seq] = group
        newest = group.newest.failure
        if newest is None or job.failure.last_at >= newest.last_at:
            group.newest = job

    def leave(self, seq: int) -> None:
        """It is about to be so no longer."""
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
        """Make what is still to be made, some at a time."""
        while self.go_on():
            yield None

    def go_on(self) -> bool:
        """Some of it; is there more?"""
        for _ in range(min(AT_ONCE, len(self._owing))):
            self.enter(self._owing.popitem()[1])
        return bool(self._owing)

    def clear(self) -> None:
        super().clear()
        self._of.clear()
        self._owing.clear()

    def wrong(self, jobs: dict[int, Job]) -> Iterator[tuple[Job, str]]:
        """Every job of all there are that is not where it should be, and what is wrong."""
        for seq, group in self._of.items():
            job = group.jobs.get(seq)
            if job is None or jobs.get(seq) is not job or not fails(job):
                yield job or group.newest, f"job {seq} is said to fail, but does not"
        for group in self.values():
            if group.dead != sum(job.state == DEAD for job in group.jobs.values()):
                yield (
                    group.newest,
                    f"{group.dead} of those that failed of the same are counted as dead",
                )
        for job in jobs.values():
            if fails(job) and job.seq not in self._owing and not self._has(job):
                yield job, "the job is not found among those that failed of the same"

    def _has(self, job: Job) -> bool:
        assert job.failure is not None
        group = self.get(fingerprint(job.failure.group, job.failure.message))
        return group is not None and group.jobs.get(job.seq) is job


def fails(job: Job) -> bool:
    """Is it dead of an error, or waits for another try?"""
    if job.failure is None:
        return False
    return job.state == DEAD or (job.state == SCHEDULED and job.failures > 0)
