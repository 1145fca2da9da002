"""Retention of ended jobs: how long they are kept, and how many of them."""

from collections import OrderedDict
from typing import Any, Final

import msgspec

from .annotations import read_details
from .component import Component, IndexProblem, Problems
from .job import SECOND, Job, add_time
from .jobs_by_seq import JobsBySeq
from .policies import RuleTable
from .states import DEAD, DONE, STATE_NAMES

#: Retention of a completed job with a result, if neither its push nor its queue sets another one.
RESULT_RETENTION: Final = 600 * SECOND
#: Maximum retention of a completed job.
MAX_RETENTION: Final = 366 * 86_400 * SECOND
#: Key of the setting with the retention of each queue that has one.
RETENTION_SETTING: Final = "retention"

#: One command drops at most this number of surplus jobs; a timer drops the rest in batches of this
#: size.
TRIM_BATCH_SIZE: Final = 64
#: The key of the timer that drops surplus jobs.
TRIM_TIMER: Final = "trim the dead set"


class Retention(Component):
    """Done and dead jobs. Only `dead` has a maximum size; it is sorted, the oldest job first."""

    __slots__ = (
        "_by_queue",
        "_decoded_setting",
        "_jobs",
        "_retaining_protocols",
        "dead",
        "dead_dropped",
        "dead_max",
        "dead_untrimmed",
        "done",
        "done_untrimmed",
    )

    def __init__(self, jobs: JobsBySeq, rules: RuleTable, dead_max: int) -> None:
        self._jobs = jobs
        self._retaining_protocols = rules.retaining_protocols
        self.dead_max = dead_max
        #: The number of dead jobs that were dropped because of the maximum.
        self.dead_dropped = 0
        self.done: dict[int, Job] = {}
        self.dead: OrderedDict[int, Job] = OrderedDict()
        #: Dead jobs that have their own end of retention, or that stay until a client removes them.
        self.dead_untrimmed: dict[int, Job] = {}
        #: Done jobs that stay until a client removes them, the oldest first.
        self.done_untrimmed: OrderedDict[int, Job] = OrderedDict()
        #: The setting that was decoded last, and its content.
        self._decoded_setting: bytes | None = None
        self._by_queue: dict[str, int] = {}

    def end_of(self, job: Job, result: bytes | None, setting: bytes | None, now: int) -> int:
        """The end of the retention of a job that completes now; 0 for no retention. The push sets
        it, or else the queue; without either, only a job with a result has one.
        """
        period = -1
        if job.extra is not None:
            period = 0 if job.extra.transient else job.extra.retention
        if period < 0:
            of_queue = self.of_queue(setting, job.queue)
            period = (RESULT_RETENTION if result else 0) if of_queue is None else of_queue
        return add_time(now, period) if period else 0

    def of_queue(self, setting: bytes | None, name: str) -> int | None:
        """The retention that is set for a queue."""
        if setting is None:
            return None
        if setting is not self._decoded_setting:
            self._by_queue = msgspec.msgpack.decode(setting, type=dict[str, int])
            self._decoded_setting = setting
        return self._by_queue.get(name)

    def index_of(self, job: Job) -> dict[int, Job]:
        """The index to which the job belongs in its current state."""
        if job.state == DEAD:
            return (
                self.dead_untrimmed
                if job.expires_at or job.origin in self._retaining_protocols
                else self.dead
            )
        assert job.state == DONE
        return self.done_untrimmed if job.origin in self._retaining_protocols else self.done

    @property
    def has_surplus(self) -> bool:
        """Whether the dead set has more jobs than its maximum."""
        return len(self.dead) > self.dead_max

    def sort(self) -> None:
        """Order restored jobs by the time at which they ended. Start-up restores the dead jobs in
        the order of their positions; a revert puts those that it restores behind the others.
        """
        for job in sorted(self.dead.values(), key=lambda dead: dead.due_at):
            self.dead.move_to_end(job.seq)
        for job in sorted(
            self.done_untrimmed.values(), key=lambda done: read_details(done).done_at
        ):
            self.done_untrimmed.move_to_end(job.seq)
        untrimmed = list(self.dead_untrimmed.values())
        untrimmed.sort(key=lambda dead: (dead.position, dead.seq))
        self.dead_untrimmed.clear()
        self.dead_untrimmed.update([(dead.seq, dead) for dead in untrimmed])

    def add(self, job: Job) -> None:
        if job.state in {DONE, DEAD}:
            self.index_of(job)[job.seq] = job

    def remove(self, job: Job) -> None:
        if job.state in {DONE, DEAD}:
            del self.index_of(job)[job.seq]

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        self.done.clear()
        self.dead.clear()
        self.dead_untrimmed.clear()
        self.done_untrimmed.clear()

    @property
    def _indexes(self) -> tuple[dict[int, Job], ...]:
        return self.done, self.dead, self.dead_untrimmed, self.done_untrimmed

    def discard(self) -> list[Any]:
        """The indexes are replaced, so a reference to them must not be kept across a flush."""
        old: list[Any] = [*self._indexes]
        self.done, self.dead_untrimmed = {}, {}
        self.dead, self.done_untrimmed = OrderedDict(), OrderedDict()
        return old

    def problems(self) -> Problems:
        names = (
            "done",
            "dead",
            "dead, with its own retention",
            "done, with its own retention",
        )
        for number, name in enumerate(names):
            for seq in list(self._indexes[number]):
                yield None
                index = self._indexes[number]  # a flush may have replaced it
                job = index.get(seq)
                if job is None:
                    continue
                if self._jobs.get(seq) is not job:
                    detail = f"a job that does not exist is listed as {name}"
                    yield IndexProblem("state", detail, job=job)
                elif job.state not in {DONE, DEAD} or self.index_of(job) is not index:
                    detail = f"the job is {STATE_NAMES[job.state]} but listed as {name}"
                    yield IndexProblem("state", detail, job=job)
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            if job is not None and job.state in {DONE, DEAD} and seq not in self.index_of(job):
                detail = f"the job is {STATE_NAMES[job.state]} but not listed"
                yield IndexProblem("state", detail, job=job)


def with_queue_retention(setting: bytes | None, name: str, period: int | None) -> bytes | None:
    """A copy of the setting with this retention of the queue, or without one if it is None."""
    found = {} if setting is None else msgspec.msgpack.decode(setting, type=dict[str, int])
    if period is None:
        found.pop(name, None)
    else:
        found[name] = period
    return msgspec.msgpack.encode(found) if found else None
