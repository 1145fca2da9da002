"""Which jobs wait for which jobs."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator

from .job import Extra, Job
from .policy import POLICIES
from .states import BLOCKED, DEAD, DONE


class Dependencies:
    """Both directions: a job's blockers are part of its record, its dependents are kept here, each
    once and in the order of their seqs.
    """

    __slots__ = ("_jobs", "by_blocker")

    def __init__(self, jobs: dict[int, Job]) -> None:
        self._jobs = jobs
        #: Blocker -> its dependents.
        self.by_blocker: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_blocker)

    # Views

    def dependents(self, job: Job) -> list[Job]:
        """The jobs that wait for this job."""
        found = [self._jobs.get(seq) for seq in self.by_blocker.get(job.seq, ())]
        return [each for each in found if each is not None and job.seq in blockers_of(each)]

    def some_dependents(self, job: Job, limit: int) -> tuple[list[Job], int]:
        """The first dependents of a job, and the number of the others."""
        seqs = self.by_blocker.get(job.seq, [])
        found = [self._jobs[seq] for seq in seqs[:limit] if seq in self._jobs]
        return found, len(seqs) - len(found)

    def next_dependent(self, job: Job, after: int) -> int:
        """The seq of the first dependent above `after`; 0 if there is none."""
        peers = self.by_blocker.get(job.seq, [])
        at = bisect_right(peers, after)
        return peers[at] if at < len(peers) else 0

    def failing_with(self, job: Job) -> list[Job]:
        """The dependents that fail with this job, the last one first."""
        found = map(self._jobs.get, reversed(self.by_blocker.get(job.seq, ())))
        return [each for each in found if each and POLICIES[each.origin].dies_with_blocker]

    def can_block(self, seq: int, origin: int) -> bool:
        """Whether a job of this origin can wait for that job: it exists and has not ended."""
        blocker = self._jobs.get(seq)
        if blocker is None or blocker.state == DONE:
            return False
        return blocker.state != DEAD or not POLICIES[origin].dies_with_blocker

    # Changes

    def add(self, job: Job) -> None:
        """Enter a job with the blockers of its record."""
        for blocker in blockers_of(job):
            self.link(blocker, job.seq)

    def remove(self, job: Job) -> None:
        """Let a job wait for no other job."""
        if job.extra is None:
            return
        blockers, job.extra.blockers = job.extra.blockers, []
        for blocker in blockers:
            self.unlink(blocker, job.seq)

    def clear(self) -> None:
        self.by_blocker.clear()

    def block(self, job: Job, blockers: list[int]) -> None:
        """Let a job also wait for these jobs; it may wait for itself."""
        if job.extra is None:
            job.extra = Extra()
        for seq in blockers:
            blocks = seq == job.seq or self.can_block(seq, job.origin)
            if blocks and seq not in job.extra.blockers:
                job.extra.blockers.append(seq)
                self.link(seq, job.seq)

    def take_dependents(self, blocker: Job) -> Iterator[Job]:
        """Remove a blocker from the records of its dependents, and yield them."""
        for seq in self.by_blocker.pop(blocker.seq, ()):
            job = self._jobs.get(seq)
            if job is not None and job.extra is not None and blocker.seq in job.extra.blockers:
                job.extra.blockers.remove(blocker.seq)
                yield job

    def link(self, blocker: int, seq: int) -> None:
        peers = self.by_blocker.setdefault(blocker, [])
        if not peers or peers[-1] < seq:
            peers.append(seq)
            return
        at = bisect_left(peers, seq)
        if peers[at] != seq:
            peers.insert(at, seq)

    def unlink(self, blocker: int, seq: int) -> None:
        peers = self.by_blocker.get(blocker, [])
        at = bisect_left(peers, seq)
        if at < len(peers) and peers[at] == seq:
            del peers[at]
        if not peers:
            self.by_blocker.pop(blocker, None)

    # Checks

    def problems(self) -> Iterator[tuple[Job | None, str]]:
        """Both directions must agree."""
        for job in self._jobs.values():
            blockers = blockers_of(job)
            waits_for_load = job.extra is not None and bool(job.extra.load)
            if job.state == BLOCKED and not blockers and not waits_for_load:
                yield job, "the job is blocked, but waits for no job"
            if len(set(blockers)) < len(blockers):
                yield job, "the job waits for the same job twice"
            for seq in dict.fromkeys(blockers):
                problem = self._blocker_problem(job, seq)
                if problem:
                    yield job, problem
        for seq, waiting in self.by_blocker.items():
            for dependent, times in Counter(waiting).items():
                yield from self._dependent_problems(seq, dependent, times)

    def _blocker_problem(self, job: Job, seq: int) -> str:
        blocker = self._jobs.get(seq)
        if blocker is None:
            return f"the job waits for job {seq}, which does not exist"
        if blocker.state == DONE:
            return f"the job waits for {blocker.jid}, which is done"
        if job.seq not in self.by_blocker.get(seq, ()):
            return f"the job is not a dependent of {blocker.jid}, for which it waits"
        return ""

    def _dependent_problems(
        self, seq: int, dependent: int, times: int
    ) -> Iterator[tuple[Job | None, str]]:
        job = self._jobs.get(dependent)
        if job is None:
            yield None, f"job {dependent} does not exist, but is a dependent of job {seq}"
        elif seq not in blockers_of(job):
            yield job, f"the job is a dependent of job {seq}, but does not wait for it"
        elif times > 1:
            yield job, f"the job is {times} times a dependent of job {seq}"


def blockers_of(job: Job) -> list[int]:
    return [] if job.extra is None else job.extra.blockers
