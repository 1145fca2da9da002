"""All jobs, by seq and by jid."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from .job import Job
from .policy import EXCLUSIVE
from .states import LEASED


class JobTable:
    """Jobs by seq and by jid. Several jobs may have one jid: the oldest is found first."""

    __slots__ = ("_duplicates", "by_jid", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        #: The oldest job of each jid; the others are in `_duplicates`, by seq.
        self.by_jid: dict[str, Job] = {}
        self._duplicates: dict[str, list[Job]] = {}

    # Views

    def find_all(self, jid: str) -> list[Job]:
        job = self.by_jid.get(jid)
        return [] if job is None else [job, *self._duplicates.get(jid, ())]

    def count_of(self, jid: str) -> int:
        """The number of jobs with that jid."""
        return 0 if jid not in self.by_jid else 1 + len(self._duplicates.get(jid, ()))

    def find_below(self, jid: str, below: int, limit: int) -> list[Job]:
        """Jobs of that jid with a lower seq, the newest first."""
        oldest = self.by_jid.get(jid)
        if oldest is None:
            return []
        duplicates = self._duplicates.get(jid, [])
        end = bisect_left(duplicates, below, key=lambda job: job.seq)
        found = duplicates[max(0, end - limit) : end][::-1]
        return [*found, oldest] if len(found) < limit and oldest.seq < below else found

    def find_newest(self, jid: str, limit: int) -> list[Job]:
        """The oldest job of that jid and the newest ones."""
        job = self.by_jid.get(jid)
        return [] if job is None else [job, *self._duplicates.get(jid, ())[-limit:]]

    def find_leased(self, jid: str, actor: int, holder: str) -> Job | None:
        """The leased job of that jid that a worker of this protocol may end; its own first."""
        job = self.by_jid.get(jid)
        if job is None or (self._duplicates and jid in self._duplicates):
            return self._find_leased_duplicate(jid, actor, holder)
        if job.state != LEASED or (job.actor != actor and job.actor in EXCLUSIVE):
            return None
        return job

    def _find_leased_duplicate(self, jid: str, actor: int, holder: str) -> Job | None:
        held = [job for job in self.find_all(jid) if job.state == LEASED]
        same = [job for job in held if job.actor == actor]
        for job in same:
            if job.holder == holder:
                return job
        return next((job for job in (*same, *held) if job.actor not in EXCLUSIVE), None)

    # Changes

    def add(self, job: Job) -> None:
        """Enter a job. New jobs have the highest seq; restored jobs come in any order."""
        self.jobs[job.seq] = job
        if self.by_jid.setdefault(job.jid, job) is not job:
            self._add_duplicate(job)

    def _add_duplicate(self, job: Job) -> None:
        oldest = self.by_jid[job.jid]
        if job.seq < oldest.seq:
            self.by_jid[job.jid], job = job, oldest
        insort(self._duplicates.setdefault(job.jid, []), job, key=lambda each: each.seq)

    def remove(self, job: Job) -> None:
        del self.jobs[job.seq]
        duplicates = self._duplicates.get(job.jid) if self._duplicates else None
        if duplicates is None:
            del self.by_jid[job.jid]
            return
        if self.by_jid[job.jid] is job:
            self.by_jid[job.jid] = duplicates.pop(0)
        else:
            duplicates.remove(job)
        if not duplicates:
            del self._duplicates[job.jid]

    def clear(self) -> None:
        self.jobs.clear()
        self.clear_ids()

    def clear_ids(self) -> None:
        """Remove all jids, before they are entered again."""
        self.by_jid.clear()
        self._duplicates.clear()

    # Checks

    def problems(self) -> Iterator[tuple[Job | None, str]]:
        by_jid: dict[str, list[Job]] = {}
        for _, job in sorted(self.jobs.items()):
            by_jid.setdefault(job.jid, []).append(job)
        for jid, jobs in by_jid.items():
            found = self.by_jid.get(jid)
            if found is None:
                yield jobs[0], "the job is not found by its id"
            elif found is not jobs[0]:
                yield jobs[0], f"job {found.seq} is found instead of {jobs[0].seq}"
            duplicates = self._duplicates.get(jid, [])
            if [job.seq for job in duplicates] != [job.seq for job in jobs[1:]]:
                yield jobs[0], "some jobs of this id are not found in their order"
        for jid in (self.by_jid.keys() | self._duplicates.keys()) - by_jid.keys():
            yield None, f"{jid} leads to a job that does not exist"
