"""The timers of jobs: for their current state, and for their time to live.

The timer for the state of a job has the key seq. It ends a lease, starts a scheduled job, or ends
the retention of an ended job. The timer for the time to live has the key seq + TTL_KEY_OFFSET.
"""

from collections.abc import Iterator
from typing import Final

from .component import Component, IndexProblem, Problems
from .job import FOREVER, Job
from .jobs_by_seq import JobsBySeq
from .policies import RuleTable
from .states import DEAD, DONE, LEASED, SCHEDULED, STATE_NAMES
from .timers import TimerHeap

TTL_KEY_OFFSET: Final = 1 << 62


def clock_offset(job: Job, own_clock: frozenset[int]) -> int:
    """How far the clock of a job's times is ahead of the server's. It is 0 except for jobs of
    protocols whose clients have their own clocks.
    """
    if job.extra is None or job.extra.details is None or job.origin not in own_clock:
        return 0
    return job.extra.details.clock_offset


class JobTimers(Component):
    """The timers for the states of jobs."""

    __slots__ = ("_bound", "_jobs", "_own_clock", "_timers", "_untimed")

    def __init__(self, timers: TimerHeap, jobs: JobsBySeq, rules: RuleTable) -> None:
        self._timers = timers
        self._jobs = jobs
        self._untimed, self._bound = rules.untimed_protocols, rules.bound_protocols
        self._own_clock = rules.own_clock_protocols

    def add(self, job: Job) -> None:
        if not self._is_timed(job):
            return
        if job.state == LEASED:
            self._timers.set(job.seq, job.history.deadline)
        else:
            self._timers.set(job.seq, job.due_at - self._offset(job))

    def _offset(self, job: Job) -> int:
        return clock_offset(job, self._own_clock) if job.state == SCHEDULED else 0

    def remove(self, job: Job) -> None:
        self._timers.cancel(job.seq)

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self._timers.clear_jobs()

    def problems(self) -> Problems:
        """Every job that waits for a point in time has a timer, and no other job has one. The times
        are not compared: clients' clocks differ from the server's, and timers are delayed while the
        store fails.
        """
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            if job is None:
                continue
            if self._is_timed(job) and self._timers.when(job.seq) is None:
                yield IndexProblem(
                    "timer", f"the {STATE_NAMES[job.state]} job has no timer", job=job
                )
        for key in job_keys(self._timers, for_ttl=False):
            yield None
            job = self._jobs.get(key)
            if self._timers.when(key) is None:
                continue
            if job is None:
                yield IndexProblem("timer", f"a timer is set for job {key}, which does not exist")
            elif not self._may_have_timer(job):
                yield IndexProblem("timer", f"a {STATE_NAMES[job.state]} job has a timer", job=job)

    def _is_timed(self, job: Job) -> bool:
        if job.state == LEASED:
            return job.history.holder_protocol not in self._untimed
        if job.state in {DONE, DEAD}:
            return not job.expires_at and job.due_at != FOREVER
        return job.state == SCHEDULED

    def _may_have_timer(self, job: Job) -> bool:
        """Whether a job may have a timer. While the store fails, a lease of a disconnected client
        has one that ends it later.
        """
        return self._is_timed(job) or (
            job.state == LEASED and job.history.holder_protocol in self._bound
        )


class TtlTimers(Component):
    """The timers for the time to live."""

    __slots__ = ("_jobs", "_timers")

    def __init__(self, timers: TimerHeap, jobs: JobsBySeq) -> None:
        self._timers = timers
        self._jobs = jobs

    def add(self, job: Job) -> None:
        if job.expires_at:
            self._timers.set(job.seq + TTL_KEY_OFFSET, job.expires_at)

    def remove(self, job: Job) -> None:
        """Remove a job. A transient job may have a timer that was set while the store failed."""
        if job.expires_at or (job.extra is not None and job.extra.transient):
            self._timers.cancel(job.seq + TTL_KEY_OFFSET)

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        for key in job_keys(self._timers, for_ttl=True):
            self._timers.cancel(key)

    def problems(self) -> Problems:
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            if job is not None and job.expires_at and self._when(seq) is None:
                yield IndexProblem("timer", "the job's time to live has no timer", job=job)
        for key in job_keys(self._timers, for_ttl=True):
            yield None
            seq = key - TTL_KEY_OFFSET
            job = self._jobs.get(seq)
            if self._when(seq) is None:
                continue
            if job is None:
                yield IndexProblem("timer", f"a timer is set for job {seq}, which does not exist")
            elif not job.expires_at and not (job.extra is not None and job.extra.transient):
                yield IndexProblem(
                    "timer", "a job without a time to live has a timer for one", job=job
                )

    def _when(self, seq: int) -> int | None:
        return self._timers.when(seq + TTL_KEY_OFFSET)


def job_keys(timers: TimerHeap, *, for_ttl: bool) -> Iterator[int]:
    """The keys of the timers for states of jobs, or for times to live."""
    for key in timers.keys():  # noqa: SIM118 - it is a method of the heap
        if isinstance(key, int) and key >= 0 and (key >= TTL_KEY_OFFSET) == for_ttl:
            yield key
