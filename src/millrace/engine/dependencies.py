"""Dependencies between jobs."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator

from .component import Component, IndexProblem, Problems
from .job import Extra, Job
from .jobs_by_seq import JobsBySeq
from .policies import RuleTable
from .states import BLOCKED, DEAD, DONE


class Dependencies(Component):
    """Both directions of each dependency. A job's record lists its blockers. This index lists the
    dependents of each blocker, without duplicates and in the order of their seqs.
    """

    __slots__ = ("_jobs", "_policies", "by_blocker", "ending")

    def __init__(self, jobs: JobsBySeq, rules: RuleTable) -> None:
        self._jobs = jobs
        #: Blockers that have ended, but not yet for all of their dependents; see cascades.py.
        self.ending: dict[int, bytes] = {}
        self._policies = rules.policies
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
        """The first dependents of a job, and the number of the remaining ones."""
        seqs = self.by_blocker.get(job.seq, [])
        found = [self._jobs[seq] for seq in seqs[:limit] if seq in self._jobs]
        return found, len(seqs) - len(found)

    def next_dependent(self, blocker: int, after: int) -> int:
        """The seq of the first dependent above `after`; 0 if there is none."""
        dependents = self.by_blocker.get(blocker, [])
        index = bisect_right(dependents, after)
        return dependents[index] if index < len(dependents) else 0

    def can_block(self, seq: int, origin: int) -> bool:
        """Whether a job of this origin can wait for that job: it exists and is not done. A dead job
        can be a blocker if the policy of this origin lets jobs wait for it.
        """
        blocker = self._jobs.get(seq)
        if blocker is None or blocker.state == DONE:
            return False
        return blocker.state != DEAD or not self._policies[origin].fails_with_blocker

    # Changes

    def add(self, job: Job) -> None:
        """Add a job with the blockers of its record."""
        for blocker in blockers_of(job):
            self.link(blocker, job.seq)

    def remove(self, job: Job) -> None:
        """Remove all blockers of a job."""
        if job.extra is None:
            return
        blockers, job.extra.blockers = job.extra.blockers, []
        for blocker in blockers:
            self.unlink(blocker, job.seq)

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self.by_blocker.clear()

    def block(self, job: Job, blockers: list[int]) -> None:
        """Add blockers to a job. A job may be its own blocker."""
        if job.extra is None:
            job.extra = Extra()
        known = set(job.extra.blockers)
        for seq in blockers:
            blocks = seq == job.seq or self.can_block(seq, job.origin)
            if blocks and seq not in known:
                known.add(seq)
                job.extra.blockers.append(seq)
                self.link(seq, job.seq)

    def unblock(self, job: Job, blockers: Iterable[int]) -> None:
        """Remove some blockers of a job."""
        if job.extra is None:
            return
        removed = set(blockers).intersection(job.extra.blockers)
        job.extra.blockers = [seq for seq in job.extra.blockers if seq not in removed]
        for seq in removed:
            self.unlink(seq, job.seq)

    def take_dependents(self, blocker: int, limit: int) -> Iterator[Job]:
        """Remove a blocker from the records of its first dependents, and yield them."""
        dependents = self.by_blocker.get(blocker, [])
        if len(dependents) <= limit:
            taken = self.by_blocker.pop(blocker, [])
        else:
            taken = dependents[:limit]
            del dependents[:limit]
        for seq in taken:
            job = self._jobs.get(seq)
            if job is not None and job.extra is not None and blocker in job.extra.blockers:
                job.extra.blockers.remove(blocker)
                yield job

    def link(self, blocker: int, seq: int) -> None:
        dependents = self.by_blocker.setdefault(blocker, [])
        if not dependents or dependents[-1] < seq:
            dependents.append(seq)
            return
        index = bisect_left(dependents, seq)
        if dependents[index] != seq:
            dependents.insert(index, seq)

    def unlink(self, blocker: int, seq: int) -> None:
        dependents = self.by_blocker.get(blocker, [])
        index = bisect_left(dependents, seq)
        if index < len(dependents) and dependents[index] == seq:
            del dependents[index]
        if not dependents:
            self.by_blocker.pop(blocker, None)

    # Checks

    def problems(self) -> Problems:
        """Both directions must agree. Dependents may still wait for jobs that are `ending`."""
        for number in self._jobs:
            yield None
            job = self._jobs.get(number)
            if job is None:
                continue
            blockers = blockers_of(job)
            waits_for_load = job.extra is not None and bool(job.extra.load)
            if job.state == BLOCKED and not blockers and not waits_for_load:
                yield IndexProblem(
                    "dependency", "the job is blocked, but waits for no job", job=job
                )
            if len(set(blockers)) < len(blockers):
                yield IndexProblem("dependency", "the job waits for the same job twice", job=job)
            for seq in dict.fromkeys(blockers):
                problem = "" if seq in self.ending else self._blocker_problem(job, seq)
                if problem:
                    yield IndexProblem("dependency", problem, job=job)
        for seq in list(self.by_blocker):
            yield None
            for dependent, times in Counter(self.by_blocker.get(seq, ())).items():
                yield None
                if self._is_dependent(seq, dependent):
                    yield from self._dependent_problems(seq, dependent, times)

    def _is_dependent(self, blocker: int, dependent: int) -> bool:
        dependents = self.by_blocker.get(blocker, [])
        index = bisect_left(dependents, dependent)
        return index < len(dependents) and dependents[index] == dependent

    def _blocker_problem(self, job: Job, seq: int) -> str:
        blocker = self._jobs.get(seq)
        if blocker is None:
            return f"the job waits for job {seq}, which does not exist"
        if blocker.state == DONE:
            return f"the job waits for {blocker.jid}, which is done"
        if job.seq not in self.by_blocker.get(seq, ()):
            return f"the job waits for {blocker.jid}, which does not list it"
        return ""

    def _dependent_problems(self, seq: int, dependent: int, times: int) -> Iterator[IndexProblem]:
        job = self._jobs.get(dependent)
        if job is None:
            yield IndexProblem(
                "dependency", f"job {dependent} does not exist, but is a dependent of job {seq}"
            )
        elif seq not in blockers_of(job):
            yield IndexProblem(
                "dependency",
                f"the job is a dependent of job {seq}, but does not wait for it",
                job=job,
            )
        elif times > 1:
            yield IndexProblem("dependency", f"job {seq} lists the job {times} times", job=job)


def blockers_of(job: Job) -> list[int]:
    return [] if job.extra is None else job.extra.blockers
