"""All jobs by seq, in about 8 bytes per job; a dictionary takes 65 to 74, with its keys.

A dictionary holds the newest jobs, because most jobs end soon. When it is full, the oldest move to
groups: a list holds the jobs with consecutive seqs. Some jobs stay for months, while all others
around them end: a group with few jobs left is dissolved, and its jobs move to a second dictionary.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import Any, Final

from .job import Job

_SHIFT: Final = 9
#: The number of seqs in a group.
GROUP_SIZE: Final = 1 << _SHIFT
_MASK: Final = GROUP_SIZE - 1
#: A group with fewer jobs is dissolved.
MIN_GROUP_JOBS: Final = GROUP_SIZE // 8
#: The number of new jobs above which the oldest of them are grouped.
MAX_RECENT_JOBS: Final = 2 * GROUP_SIZE


class JobGroup:
    """The jobs with consecutive seqs, each at its own index, and their number."""

    __slots__ = ("count", "jobs")

    def __init__(self) -> None:
        self.count = 0
        self.jobs: list[Job | None] = [None] * GROUP_SIZE


class JobsBySeq:
    """A mutable mapping that lists its jobs in the order of their seqs."""

    __slots__ = ("_grouped_count", "_groups", "_scattered", "last_grouped_seq", "recent")

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        #: The jobs with higher seqs than `last_grouped_seq`.
        self.recent: dict[int, Job] = {}
        self.last_grouped_seq = -1
        self._groups: dict[int, JobGroup] = {}
        #: The number of jobs in groups.
        self._grouped_count = 0
        #: The jobs up to `last_grouped_seq` whose groups do not exist.
        self._scattered: dict[int, Job] = {}
        for job in jobs:
            self.put(job.seq, job)

    # One job

    def get(self, seq: int) -> Job | None:
        if seq > self.last_grouped_seq:
            return self.recent.get(seq)
        group = self._groups.get(seq >> _SHIFT)
        return self._scattered.get(seq) if group is None else group.jobs[seq & _MASK]

    def __getitem__(self, seq: int) -> Job:
        job = self.get(seq)
        if job is None:
            raise KeyError(seq)
        return job

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and self.get(seq) is not None

    def put(self, seq: int, job: Job) -> None:
        """Add a job, or replace the one with that seq."""
        if seq > self.last_grouped_seq and len(self.recent) >= MAX_RECENT_JOBS:
            self._group_recent()
        if seq > self.last_grouped_seq:
            self.recent[seq] = job
        else:
            self._put_older(seq, job)

    def extend(self, jobs: list[Job]) -> None:
        """Add many jobs, like `put`. Jobs that are newer than all others and sorted by seq, as the
        store reads them, go directly to their groups.
        """
        if not self._all_follow(jobs):
            for job in jobs:
                self.put(job.seq, job)
            return
        newest = [self.recent[seq] for seq in sorted(self.recent)]
        self.recent.clear()
        number, group = -1, newest[:0]
        for job in chain(newest, jobs):
            if job.seq >> _SHIFT != number:
                self._add_sorted(number, group)
                number, group = job.seq >> _SHIFT, []
            group.append(job)
        # The last group may get more jobs.
        self.last_grouped_seq = max(self.last_grouped_seq, (number << _SHIFT) - 1)
        for job in group:
            self.recent[job.seq] = job

    def remove(self, seq: int) -> None:
        """Remove a job, which must exist."""
        if seq > self.last_grouped_seq:
            del self.recent[seq]
        else:
            self._remove_older(seq)

    def pop(self, seq: int) -> Job | None:
        """Remove a job if there is one with that seq, and return it."""
        job = self.get(seq)
        if job is not None:
            self.remove(seq)
        return job

    def __setitem__(self, seq: int, job: Job) -> None:
        self.put(seq, job)

    def __delitem__(self, seq: int) -> None:
        self.remove(seq)

    # All jobs

    def __len__(self) -> int:
        return len(self.recent) + self._grouped_count + len(self._scattered)

    def __bool__(self) -> bool:
        return bool(self.recent) or self._grouped_count > 0 or bool(self._scattered)

    def __iter__(self) -> Iterator[int]:
        """The seqs. Jobs may be added and removed during the iteration: the result has the seqs of
        all jobs that stay, and of some others.
        """
        return chain.from_iterable(self._parts())

    def seqs(self, *, newest_first: bool = False) -> Iterator[int]:
        """The seqs of all present jobs, in order, and some others. Later changes have no effect.
        This does not build a list of all seqs.
        """
        scattered = sorted(self._scattered)
        parts: list[Sequence[int]] = []
        at = 0
        for number in sorted(self._groups):
            start = number << _SHIFT
            end = bisect_left(scattered, start, at)
            parts.append(scattered[at:end])
            parts.append(range(start, start + GROUP_SIZE))
            at = end
        parts.append(scattered[at:])
        parts.append(sorted(self.recent))
        if newest_first:
            return chain.from_iterable(map(reversed, reversed(parts)))
        return chain.from_iterable(parts)

    def each(self) -> Iterator[Job]:
        """The jobs, without a list of all of them."""
        return chain.from_iterable(self._lists())

    def values(self) -> list[Job]:
        found: list[Job] = []
        for part in self._lists():
            found += part
        return found

    def items(self) -> Iterator[tuple[int, Job]]:
        return chain.from_iterable(map(dict.items, self._parts()))

    def __eq__(self, other: object) -> bool:
        jobs = dict(self.items())
        return jobs == (dict(other.items()) if isinstance(other, JobsBySeq) else other)

    def __hash__(self) -> int:
        return id(self)

    def clear(self) -> None:
        self.recent.clear()
        self._groups.clear()
        self._scattered.clear()
        self._grouped_count, self.last_grouped_seq = 0, -1

    def collections(self) -> list[Any]:
        """Everything that grows with the number of jobs, to be freed in steps."""
        return [self.recent, self._groups, self._scattered]

    # Groups

    def _put_older(self, seq: int, job: Job) -> None:
        group = self._groups.get(seq >> _SHIFT)
        if group is None:
            self._scattered[seq] = job
            return
        if group.jobs[seq & _MASK] is None:
            group.count += 1
            self._grouped_count += 1
        group.jobs[seq & _MASK] = job

    def _remove_older(self, seq: int) -> None:
        number = seq >> _SHIFT
        group = self._groups.get(number)
        if group is None:
            del self._scattered[seq]
            return
        if group.jobs[seq & _MASK] is None:
            raise KeyError(seq)
        group.jobs[seq & _MASK] = None
        group.count -= 1
        self._grouped_count -= 1
        if group.count < MIN_GROUP_JOBS:
            self._dissolve(number, group)

    def _group_recent(self) -> None:
        """Move the oldest recent jobs to groups: about as many as one group has."""
        seqs = sorted(self.recent)
        # The last group may get more jobs, unless it is the only one.
        end = max((seqs[0] >> _SHIFT) + 1, seqs[GROUP_SIZE - 1] >> _SHIFT) << _SHIFT
        self.last_grouped_seq = end - 1
        at, count = 0, bisect_left(seqs, end)
        while at < count:
            number = seqs[at] >> _SHIFT
            next_group = bisect_left(seqs, (number + 1) << _SHIFT, at)
            self._add_group(number, seqs[at:next_group])
            at = next_group

    def _add_group(self, number: int, seqs: list[int]) -> None:
        """Move recent jobs to a new group, or to the scattered jobs if they are few."""
        recent = self.recent
        if len(seqs) < MIN_GROUP_JOBS:
            for seq in seqs:
                self._scattered[seq] = recent.pop(seq)
            return
        self._groups[number] = group = JobGroup()
        group.count = len(seqs)
        self._grouped_count += len(seqs)
        for seq in seqs:
            group.jobs[seq & _MASK] = recent.pop(seq)

    def _all_follow(self, jobs: list[Job]) -> bool:
        """Whether each of these jobs has a higher seq than all before it."""
        last = max(self.recent, default=self.last_grouped_seq)
        for job in jobs:
            if job.seq <= last:
                return False
            last = job.seq
        return True

    def _add_sorted(self, number: int, jobs: list[Job]) -> None:
        """Add the jobs of a group, or scattered jobs if they are few."""
        if len(jobs) < MIN_GROUP_JOBS:
            for job in jobs:
                self._scattered[job.seq] = job
            return
        self._groups[number] = group = JobGroup()
        group.count = len(jobs)
        self._grouped_count += len(jobs)
        places = group.jobs
        for job in jobs:
            places[job.seq & _MASK] = job

    def _dissolve(self, number: int, group: JobGroup) -> None:
        del self._groups[number]
        self._grouped_count -= group.count
        for seq, job in enumerate(group.jobs, number << _SHIFT):
            if job is not None:
                self._scattered[seq] = job

    def _parts(self) -> Iterator[dict[int, Job]]:
        """All jobs in the order of their seqs, in parts. Jobs may be added and removed between two
        parts.
        """
        groups, scattered, recent = sorted(self._groups), sorted(self._scattered), self.recent
        newest = {seq: recent[seq] for seq in sorted(recent)}
        at = 0
        for number in groups:
            end = bisect_left(scattered, number << _SHIFT, at)
            yield self._scattered_jobs(scattered[at:end])
            yield self._jobs_in_group(number)
            at = end
        yield self._scattered_jobs(scattered[at:])
        yield newest

    def _lists(self) -> Iterator[list[Job]]:
        """Like `_parts`, but without the seqs, which takes a tenth of the time."""
        groups, scattered, recent = sorted(self._groups), sorted(self._scattered), self.recent
        newest = [recent[seq] for seq in sorted(recent)]
        at = 0
        for number in groups:
            end = bisect_left(scattered, number << _SHIFT, at)
            if end > at:
                yield list(self._scattered_jobs(scattered[at:end]).values())
            group = self._groups.get(number)
            if group is None:  # it was dissolved
                yield list(self._jobs_in_group(number).values())
            else:
                yield [job for job in group.jobs if job is not None]
            at = end
        yield list(self._scattered_jobs(scattered[at:]).values())
        yield newest

    def _jobs_in_group(self, number: int) -> dict[int, Job]:
        start, group = number << _SHIFT, self._groups.get(number)
        if group is None:  # it was dissolved
            return self._scattered_jobs(range(start, start + GROUP_SIZE))
        seqs = compress(range(start, start + GROUP_SIZE), group.jobs)
        return dict(zip(seqs, filter(None, group.jobs), strict=True))

    def _scattered_jobs(self, seqs: Iterable[int]) -> dict[int, Job]:
        scattered = self._scattered
        return {seq: scattered[seq] for seq in seqs if seq in scattered}

    # Checks

    def faults(self) -> Iterator[str | None]:
        """A description of each misplaced job and of each wrong number of jobs, and None for each
        examined group or job.
        """
        for number in list(self._groups):
            group = self._groups.get(number)
            if group is None:
                continue
            count = GROUP_SIZE - group.jobs.count(None)
            if len(group.jobs) != GROUP_SIZE or count != group.count or count < MIN_GROUP_JOBS:
                yield f"group {number} has {count} jobs and reports {group.count}"
            elif (number + 1) << _SHIFT > self.last_grouped_seq + 1:
                yield f"group {number} should not exist"
            else:
                yield None
        for seq in list(self._scattered):
            exists = seq in self._scattered
            misplaced = seq > self.last_grouped_seq or seq >> _SHIFT in self._groups
            yield f"job {seq} is not in its group" if exists and misplaced else None
        misplaced = any(seq <= self.last_grouped_seq for seq in self.recent)
        yield "a job is wrongly listed as recent" if misplaced else None
        total = sum(group.count for group in self._groups.values())
        yield (
            None
            if total == self._grouped_count
            else f"{self._grouped_count} jobs are counted, not {total}"
        )
