"""Dependencies between jobs.

A job can wait for any number of jobs. Up to MAX_LINKED_AT_ONCE blockers enter and leave the index
at once. Larger numbers are staged first (see StagedBlockers) and take effect together; a timer then
adds a limited number per turn to the index. They leave it in the same way.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import filterfalse
from typing import Any, Final

from .component import Component, IndexProblem, Problems
from .job import Extra, Job
from .jobs_by_seq import JobsBySeq
from .policies import RuleTable
from .states import BLOCKED, DEAD, DONE
from .timers import TimerHeap

#: The number of blockers of one job that enter or leave the index at once, and the number of
#: entries that one turn adds or removes later.
MAX_LINKED_AT_ONCE: Final = 1000
LINKS_TIMER: Final = "links"
#: The key of an index entry that belongs to no job. Transitions report the end of a job only if the
#: index is not empty, and staged blockers need these reports.
_NO_JOB: Final = 0


class StagedBlockers:
    """Blockers of one job that are not in the index yet. A blocker that ends is removed from
    them.
    """

    __slots__ = ("origin", "seq", "waiting")

    def __init__(self, origin: int) -> None:
        #: The protocol of the job, and its seq. The seq is 0 before the blockers take effect.
        self.origin = origin
        self.seq = _NO_JOB
        self.waiting: dict[int, None] = {}


class Dependencies(Component):
    """Both directions of each dependency. A job's record lists its blockers. This index lists the
    dependents of each blocker, without duplicates and in the order of their seqs.
    """

    __slots__ = ("_jobs", "_policies", "_staged", "_stale", "_timers", "by_blocker", "ending")

    def __init__(self, jobs: JobsBySeq, rules: RuleTable, timers: TimerHeap) -> None:
        self._jobs = jobs
        self._timers = timers
        self._staged: list[StagedBlockers] = []
        #: Entries of the index that do not apply any more: dependent -> its former blockers.
        self._stale: dict[int, dict[int, None]] = {}
        #: Blockers that have ended, but whose dependents have not all been handled yet; see
        #: cascades.py.
        self.ending: dict[int, bytes] = {}
        self._policies = rules.policies
        #: Blocker -> its dependents.
        self.by_blocker: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_blocker)

    # Views

    def dependents(self, job: Job) -> list[Job]:
        """The jobs that wait for this job."""
        found = filter(None, map(self._jobs.get, self._dependents_of(job.seq)))
        return [each for each in found if job.seq in blockers_of(each)]

    def first_dependents(self, job: Job, limit: int) -> tuple[list[Job], int]:
        """The first dependents of a job, and the number of the remaining ones."""
        seqs = self._dependents_of(job.seq)
        found = [self._jobs[seq] for seq in seqs[:limit] if seq in self._jobs]
        return found, len(seqs) - len(found)

    def next_dependent(self, blocker: int, after: int) -> int:
        """The seq of the first dependent above `after`; 0 if there is none."""
        dependents = self.by_blocker.get(blocker, [])
        index = bisect_right(dependents, after)
        if self._stale:
            while index < len(dependents) and self._is_stale(blocker, dependents[index]):
                index += 1
        found = dependents[index] if index < len(dependents) else 0
        for staged in self._staged:
            if staged.seq > after and blocker in staged.waiting:
                found = min(found, staged.seq) if found else staged.seq
        return found

    def _dependents_of(self, blocker: int) -> list[int]:
        """The seqs of the dependents, even while the index is incomplete."""
        dependents = self.by_blocker.get(blocker, [])
        if not self._staged and not self._stale:
            return dependents
        added = [each.seq for each in self._staged if each.seq and blocker in each.waiting]
        stale = [seq for seq, blockers in self._stale.items() if blocker in blockers]
        if not added and not stale:
            return dependents
        return sorted({*dependents}.difference(stale).union(added))

    def _is_stale(self, blocker: int, seq: int) -> bool:
        return seq in self._stale and blocker in self._stale[seq]

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
        for staged in [each for each in self._staged if each.seq == job.seq]:
            self.drop_staged(staged)
        self._unlink_all(blockers, job.seq)

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self.by_blocker.clear()
        self._stale.clear()
        for staged in list(self._staged):
            staged.waiting.clear()
            if staged.seq:
                self._staged.remove(staged)
        if self._staged:
            self.by_blocker[_NO_JOB] = []

    def discard(self) -> list[Any]:
        old: list[Any] = [self.by_blocker, self._stale]
        self.by_blocker, self._stale = {}, {}
        self.clear()
        return old

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
        """Remove some blockers of a job. If `blockers` is a dictionary, do not use it
        afterwards.
        """
        if job.extra is None:
            return
        removed = blockers if isinstance(blockers, dict) else dict.fromkeys(blockers)
        job.extra.blockers = list(filterfalse(removed.__contains__, job.extra.blockers))
        self._unlink_all(removed, job.seq)

    def _unlink_all(self, blockers: Collection[int], seq: int) -> None:
        """Remove entries of a job: a few immediately, many by the timer. A dictionary with many
        blockers belongs to the index from now on, because a copy takes milliseconds.
        """
        if len(blockers) <= MAX_LINKED_AT_ONCE:
            for blocker in blockers:
                self.unlink(blocker, seq)
        else:
            for staged in self._staged:
                if staged.seq == seq:
                    kept = filterfalse(blockers.__contains__, staged.waiting)
                    staged.waiting = dict.fromkeys(kept)
            stale = blockers if isinstance(blockers, dict) else dict.fromkeys(blockers)
            if seq in self._stale:
                stale.update(self._stale[seq])
            self._stale[seq] = stale
            self._timers.set(LINKS_TIMER, 0)

    # Many blockers

    def stage(self, origin: int) -> StagedBlockers:
        """Begin to collect many blockers for a job of this origin; see `block_staged`."""
        staged = StagedBlockers(origin)
        self._staged.append(staged)
        self.by_blocker.setdefault(_NO_JOB, [])
        return staged

    def add_staged(self, staged: StagedBlockers, seq: int) -> None:
        """Add a blocker. It is ignored if it cannot block the job."""
        if self.can_block(seq, staged.origin):
            staged.waiting[seq] = None

    def drop_staged(self, staged: StagedBlockers) -> None:
        """Forget staged blockers that have no effect."""
        if staged in self._staged:
            self._staged.remove(staged)
        if not self._staged:
            self.by_blocker.pop(_NO_JOB, None)

    def block_staged(self, job: Job, staged: StagedBlockers) -> None:
        """Add all staged blockers to a blocked job at once."""
        if job.extra is None:
            job.extra = Extra()
        own, waiting = job.extra.blockers, staged.waiting
        if staged.origin != job.origin or self._policies[job.origin].fails_with_blocker:
            for seq in [seq for seq in waiting if not self.can_block(seq, job.origin)]:
                del waiting[seq]
        if not waiting.keys().isdisjoint(own):
            for seq in own:
                waiting.pop(seq, None)
        own.extend(waiting)
        staged.seq = job.seq
        self._timers.set(LINKS_TIMER, 0)

    def tick(self, now: int) -> None:
        """Add entries for staged blockers to the index, and remove stale ones."""
        left = MAX_LINKED_AT_ONCE
        for staged in [each for each in self._staged if each.seq]:
            while staged.waiting and left:
                blocker, _ = staged.waiting.popitem()
                self.link(blocker, staged.seq)
                left -= 1
            if not staged.waiting:
                self.drop_staged(staged)
        for seq, blockers in list(self._stale.items()):
            while blockers and left:
                blocker, _ = blockers.popitem()
                self.unlink(blocker, seq)
                left -= 1
            if not blockers:
                del self._stale[seq]
        if not left:
            self._timers.set(LINKS_TIMER, now)

    # Entries

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
        for staged in [each for each in self._staged if blocker in each.waiting]:
            del staged.waiting[blocker]
            job = self._jobs.get(staged.seq)
            if job is not None and job.extra is not None and blocker in job.extra.blockers:
                job.extra.blockers.remove(blocker)
                yield job

    def link(self, blocker: int, seq: int) -> None:
        if self._stale and seq in self._stale:
            self._stale[seq].pop(blocker, None)
        dependents = self.by_blocker.setdefault(blocker, [])
        if not dependents or dependents[-1] < seq:
            dependents.append(seq)
            return
        index = bisect_left(dependents, seq)
        if dependents[index] != seq:
            dependents.insert(index, seq)

    def unlink(self, blocker: int, seq: int) -> None:
        for staged in self._staged:
            if staged.seq == seq:
                staged.waiting.pop(blocker, None)
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
        if any(each.seq == dependent and blocker in each.waiting for each in self._staged):
            return True
        dependents = self.by_blocker.get(blocker, [])
        index = bisect_left(dependents, dependent)
        is_listed = index < len(dependents) and dependents[index] == dependent
        return is_listed and not self._is_stale(blocker, dependent)

    def _blocker_problem(self, job: Job, seq: int) -> str:
        blocker = self._jobs.get(seq)
        if blocker is None:
            return f"the job waits for job {seq}, which does not exist"
        if blocker.state == DONE:
            return f"the job waits for {blocker.jid}, which is done"
        if not self._is_dependent(seq, job.seq):
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
