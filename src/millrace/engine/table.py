"""All jobs, by seq and by jid."""

from bisect import bisect_left, insort
from typing import Any

from .component import Component, IndexProblem, Problems
from .job import Job
from .jobs_by_seq import MAX_RECENT_JOBS, JobsBySeq
from .policies import RuleTable
from .states import DEAD, LEASED, SCHEDULED


def has_valid_state(job: Job) -> bool:
    """Whether the state is one of the six states, not `new` or `gone`."""
    return SCHEDULED <= job.state <= DEAD


class JobTable(Component):
    """Jobs by seq and by jid. Several jobs may share a jid; lookups return the oldest."""

    __slots__ = ("_duplicates", "_exclusive", "by_jid", "jobs")

    def __init__(self, rules: RuleTable) -> None:
        self._exclusive = rules.exclusive_protocols
        self.jobs = JobsBySeq()
        #: The oldest job of each jid; `_duplicates` has the remaining ones, by seq.
        self.by_jid: dict[str, Job] = {}
        self._duplicates: dict[str, list[Job]] = {}

    # Views

    def find_all(self, jid: str, newest: int | None = None) -> list[Job]:
        """The jobs with that jid, the oldest first; with `newest`, only the oldest one and at most
        this number of the newest ones.
        """
        job = self.by_jid.get(jid)
        if job is None:
            return []
        duplicates = self._duplicates.get(jid)
        if duplicates is None:
            return [job]
        return [job, *duplicates] if newest is None else [job, *duplicates[-newest:]]

    def count_of(self, jid: str) -> int:
        """The number of jobs with that jid."""
        return 0 if jid not in self.by_jid else 1 + len(self._duplicates.get(jid, ()))

    def find_below(self, jid: str, below: int, limit: int) -> list[Job]:
        """Jobs with that jid and a lower seq, the newest first."""
        oldest = self.by_jid.get(jid)
        if oldest is None:
            return []
        duplicates = self._duplicates.get(jid, [])
        end = bisect_left(duplicates, below, key=lambda job: job.seq)
        found = duplicates[max(0, end - limit) : end][::-1]
        return [*found, oldest] if len(found) < limit and oldest.seq < below else found

    def find_leased(self, jid: str, actor: int, holder: str) -> Job | None:
        """The leased job with that jid that a worker of this protocol may end. A job that the
        worker itself holds has precedence.
        """
        job = self.by_jid.get(jid)
        if job is None or (self._duplicates and jid in self._duplicates):
            return self.leased_among(self.find_all(jid), actor, holder)
        return self._if_leased(job, actor)

    def _if_leased(self, job: Job, actor: int) -> Job | None:
        protocol = job.history.holder_protocol
        if job.state != LEASED or (protocol != actor and protocol in self._exclusive):
            return None
        return job

    def leased_among(self, jobs: list[Job], actor: int, holder: str) -> Job | None:
        """The result of `find_leased` if only these jobs have the jid."""
        if len(jobs) == 1:
            return self._if_leased(jobs[0], actor)
        held = [job for job in jobs if job.state == LEASED]
        same = [job for job in held if job.history.holder_protocol == actor]
        for job in same:
            if job.history.holder == holder:
                return job
        return next(
            (job for job in (*same, *held) if job.history.holder_protocol not in self._exclusive),
            None,
        )

    # Changes

    def add(self, job: Job) -> None:
        """Add a job. A new job has the highest seq; restored jobs come in any order."""
        jobs, seq = self.jobs, job.seq
        if seq > jobs.last_grouped_seq and len(jobs.recent) < MAX_RECENT_JOBS:
            jobs.recent[seq] = job  # `put`, inlined
        else:
            jobs.put(seq, job)
        if self.by_jid.setdefault(job.jid, job) is not job:
            self.add_duplicate(job)

    def add_duplicate(self, job: Job) -> None:
        """Add a job with a jid that another job already has."""
        oldest = self.by_jid[job.jid]
        if job.seq < oldest.seq:
            self.by_jid[job.jid], job = job, oldest
        insort(self._duplicates.setdefault(job.jid, []), job, key=lambda each: each.seq)

    def remove(self, job: Job) -> None:
        jobs, seq = self.jobs, job.seq
        if seq > jobs.last_grouped_seq:
            del jobs.recent[seq]  # `remove`, inlined
        else:
            jobs.remove(seq)
        if not self._duplicates or (duplicates := self._duplicates.get(job.jid)) is None:
            del self.by_jid[job.jid]
            return
        if self.by_jid[job.jid] is job:
            self.by_jid[job.jid] = duplicates.pop(0)
        else:
            duplicates.remove(job)
        if not duplicates:
            del self._duplicates[job.jid]

    def discard(self) -> list[Any]:
        """Replace the tables with empty ones, in constant time, and return the old ones."""
        old: list[Any] = [*self.jobs.collections(), self.by_jid, self._duplicates]
        self.jobs, self.by_jid, self._duplicates = JobsBySeq(), {}, {}
        return old

    def clear(self) -> None:
        self.jobs.clear()
        self.by_jid.clear()
        self._duplicates.clear()

    # Checks

    def problems(self) -> Problems:
        for fault in self.jobs.faults():
            yield None if fault is None else IndexProblem("record", fault)
        for seq in self.jobs:
            job = self.jobs.get(seq)
            if job is None:
                yield None
                continue
            if job.seq != seq:
                yield IndexProblem("record", f"job {job.seq} is listed as job {seq}", job=job)
            if not has_valid_state(job):
                yield IndexProblem("record", f"the job has the unknown state {job.state}", job=job)
            yield self._problem(job)
        for jid in [*self.by_jid, *self._duplicates]:
            known = jid in self.by_jid or jid in self._duplicates
            exists = all(self.jobs.get(job.seq) is job for job in self._duplicates.get(jid, ()))
            found = self.by_jid.get(jid)
            if known and not (exists and found is not None and found.jid == jid):
                yield IndexProblem("id", f"{jid} refers to a job that does not exist")
            else:
                yield None

    def _problem(self, job: Job) -> IndexProblem | None:
        found = self.by_jid.get(job.jid)
        if found is None:
            return IndexProblem("id", "the job is not found by its id", job=job)
        if found is job:
            return None
        if found.seq > job.seq:
            return IndexProblem("id", f"job {found.seq} is found instead of {job.seq}", job=job)
        duplicates = self._duplicates.get(job.jid, [])
        index = bisect_left(duplicates, job.seq, key=lambda each: each.seq)
        if index < len(duplicates) and duplicates[index] is job:
            return None
        return IndexProblem(
            "id", "the jobs with this id are not listed in the order of their seqs", job=found
        )
