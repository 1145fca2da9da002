"""The components of an engine: each has one part of the state that is derived from the jobs.

The job records are the source of truth. At start-up, every job is added to all components.
Reverting a refused commit removes the jobs that it touched and adds them again as they are in the
store. A flush and a repair clear all components. Each component reports its own problems; see
consistency.py.
"""

from collections.abc import Iterator
from typing import Any

from .job import Job
from .jobs_by_seq import JobsBySeq


class IndexProblem:
    """One problem: its subject, a description, and the job or the queue if it concerns one."""

    __slots__ = ("detail", "job", "queue", "what")

    def __init__(self, what: str, detail: str, *, job: Job | None = None, queue: str = "") -> None:
        self.what = what
        self.detail = detail
        self.job = job
        self.queue = queue


#: Problems, and None for each examined item, so that a check can run in slices.
Problems = Iterator[IndexProblem | None]


class Component:
    __slots__ = ()

    def add(self, job: Job) -> None:
        """Add a job with its current state and queue."""
        raise NotImplementedError

    def remove(self, job: Job) -> None:
        """Remove a job, before its state or its queue changes."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove all jobs."""
        raise NotImplementedError

    def discard(self) -> list[Any]:
        """Remove all jobs, and return the collections that had them, to be freed in steps. Only
        components with a collection that takes a long time to free need to override it.
        """
        self.clear()
        return []

    def use_jobs(self, jobs: JobsBySeq) -> None:
        """Read jobs from this table: a flush has replaced the old one. Few components need it."""

    def problems(self) -> Problems:
        """Yield each problem, and None after each examined item. Jobs may change between items."""
        raise NotImplementedError
