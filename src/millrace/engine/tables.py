"""The indexes of jobs and queues that protocols and operators read.

The verbs and views of the engine find single jobs and queues. These indexes serve lists and counts.
A caller with a rule for queues (see queue_rules.py) sees only the allowed queues and their jobs.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from .job import Job
from .jobs_by_seq import JobsBySeq
from .queues import Queue
from .states import BLOCKED, DONE, LEASED, SCHEDULED
from .statistics import QueueDay

if TYPE_CHECKING:
    from .engine import Engine

#: An index of jobs by seq or by jid.
Index = Mapping[Any, Job] | JobsBySeq
Allows = Callable[[str], bool]
Check = Callable[[str], None]
#: An index with more jobs is not copied. Its jobs are looked up by the seqs of all jobs.
MAX_COPIED: Final = 5000
SEQS_PER_STEP: Final = 64
KEYS_PER_STEP: Final = 64


class Tables:
    """The indexes of all jobs and queues. A flush replaces the indexes of jobs, so a reference to
    them must not be kept across turns.
    """

    jobs: Mapping[int, Job] | JobsBySeq
    by_jid: Mapping[str, Job]
    queues: Mapping[str, Queue]
    scheduled: Mapping[int, Job]
    blocked: Mapping[int, Job]
    leased: Mapping[int, Job]
    done: Mapping[int, Job]
    dead: Mapping[int, Job]
    done_untrimmed: Mapping[int, Job]
    dead_untrimmed: Mapping[int, Job]
    #: The staged jobs of each bulk load.
    staged: Mapping[str, Mapping[int, Job]]

    def __init__(self, engine: "Engine") -> None:
        self.jobs, self.by_jid, self.queues = engine.jobs, engine.by_jid, engine.queues
        self.scheduled, self.blocked = engine.scheduled, engine.blocked
        self.leased, self.staged = engine.leased, engine.staged
        self.done, self.dead = engine.done, engine.dead
        self.done_untrimmed, self.dead_untrimmed = engine.done_untrimmed, engine.dead_untrimmed

    def by_state(self, state: int) -> Mapping[int, Job]:
        """The jobs in a state other than ready, except `done_untrimmed` and `dead_untrimmed`."""
        if state == SCHEDULED:
            return self.scheduled
        if state == BLOCKED:
            return self.blocked
        if state == LEASED:
            return self.leased
        return self.done if state == DONE else self.dead


class RestrictedTables(Tables):
    """The indexes of the jobs and queues that a rule allows. Bulk loads are not visible."""

    def __init__(self, engine: "Engine", allows: Allows, check: Check) -> None:
        queues = VisibleQueues(engine.queues, allows, check)
        self.queues = queues
        self.jobs = CountedJobs(lambda: engine.jobs, allows, queues, slice(None))
        self.by_jid = JobsByJid(engine, allows, queues)
        self.scheduled = CountedJobs(lambda: engine.scheduled, allows, queues, _only(SCHEDULED))
        self.blocked = CountedJobs(lambda: engine.blocked, allows, queues, _only(BLOCKED))
        self.leased = CountedJobs(lambda: engine.leased, allows, queues, _only(LEASED))
        self.done = VisibleJobs(lambda: engine.done, allows)
        self.dead = VisibleJobs(lambda: engine.dead, allows)
        self.done_untrimmed = VisibleJobs(lambda: engine.done_untrimmed, allows)
        self.dead_untrimmed = VisibleJobs(lambda: engine.dead_untrimmed, allows)
        self.staged = {}


def _only(state: int) -> slice:
    return slice(state, state + 1)


def jobs_to_examine(index: Index, jobs: Index) -> Iterator[Job | None]:
    """Yield the present jobs of an index. Yield None for a job that the rule of the caller
    excludes, so that the command can count it. `jobs` has all jobs.
    """
    if not isinstance(index, VisibleJobs):
        return values_to_examine(index, jobs)
    allows = index.allows
    found = values_to_examine(index.all_jobs, jobs)
    return (job if job is not None and allows(job.queue) else None for job in found)


def values_to_examine(index: Any, jobs: Index) -> Iterator[Any]:
    """Yield the values of a dictionary by seq, and None after some steps. Its entries may change
    during the iteration. A large dictionary is not copied: a copy accesses every job.
    """
    if isinstance(jobs, VisibleJobs):
        jobs = jobs.all_jobs
    if len(index) <= MAX_COPIED or not isinstance(jobs, JobsBySeq):
        return iter(list(index.values()))
    return _by_seq(index.get, jobs.seqs())


def items_to_examine(index: Mapping[int, Any], jobs: Index) -> Iterator[Any]:
    """Yield the seqs and values of a dictionary like `values_to_examine`."""
    if isinstance(jobs, VisibleJobs):
        jobs = jobs.all_jobs
    if len(index) <= MAX_COPIED or not isinstance(jobs, JobsBySeq):
        return iter(list(index.items()))
    return _by_seq(lambda seq: (seq, index[seq]) if seq in index else None, jobs.seqs())


def _by_seq(get: Callable[[int], Any], seqs: Iterator[int]) -> Iterator[Any]:
    while some := list(islice(seqs, SEQS_PER_STEP)):
        yield from filter(None, map(get, some))
        yield None


def keys_to_examine(index: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield the keys of a dictionary without a copy of all of them. If it grows or shrinks
    meanwhile, the rest is copied.
    """
    seen: list[list[Any]] = []
    keys = iter(index)
    try:
        while some := list(islice(keys, KEYS_PER_STEP)):
            seen.append(some)
            yield from some
    except RuntimeError:
        known = set(chain.from_iterable(seen))
        yield from [key for key in index if key not in known]


def seqs_to_examine(index: Index, *, newest_first: bool = False) -> Iterator[int]:
    """The seqs of the present jobs of an index, and some others: the command looks up each. Later
    changes have no effect. Only the index of all jobs has an order.
    """
    if isinstance(index, VisibleJobs):
        index = index.all_jobs
    if isinstance(index, JobsBySeq):
        return index.seqs(newest_first=newest_first)
    return iter(list(index))


class VisibleJobs(Mapping[Any, Job]):
    """The jobs of allowed queues in an index of the engine."""

    def __init__(self, index: Callable[[], Index], allows: Allows) -> None:
        #: A function, because a flush replaces the table of all jobs.
        self._index = index
        self.allows = allows

    @property
    def all_jobs(self) -> Index:
        return self._index()

    def __getitem__(self, key: Any) -> Job:
        job: Job | None = self.get(key)
        if job is None:
            raise KeyError(key)
        return job

    def get(self, key: Any, default: Any = None) -> Any:
        job = self.all_jobs.get(key)
        return job if job is not None and self.allows(job.queue) else default

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return (key for key, job in self.all_jobs.items() if self.allows(job.queue))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class CountedJobs(VisibleJobs):
    """An index of the jobs in `states`. The counters of the queues give its length."""

    def __init__(
        self,
        index: Callable[[], Index],
        allows: Allows,
        queues: "VisibleQueues",
        states: slice,
    ) -> None:
        super().__init__(index, allows)
        self._queues = queues
        self._states = states

    def __len__(self) -> int:
        return sum(sum(queue.counts[self._states]) for queue in self._queues.values())


class JobsByJid(CountedJobs):
    """The oldest visible job of each jid."""

    def __init__(self, engine: "Engine", allows: Allows, queues: "VisibleQueues") -> None:
        super().__init__(lambda: engine.by_jid, allows, queues, slice(None))
        self._find_all = engine.table.find_all

    def get(self, key: Any, default: Any = None) -> Any:
        job = self.all_jobs.get(key)
        if job is None or self.allows(job.queue):
            return default if job is None else job
        return next((job for job in self._find_all(key) if self.allows(job.queue)), default)


class VisibleQueues(Mapping[str, Queue]):
    """The allowed queues. Asking for another one is a client error."""

    def __init__(self, queues: Mapping[str, Queue], allows: Allows, check: Check) -> None:
        self._queues = queues
        self._allows = allows
        self._check = check

    def __getitem__(self, name: str) -> Queue:
        self._check(name)
        return self._queues[name]

    def get(self, name: str, default: Any = None) -> Any:
        self._check(name)
        return self._queues.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return filter(self._allows, self._queues)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class VisibleDays(Mapping[tuple[str, int], QueueDay]):
    """The daily statistics of the allowed queues."""

    def __init__(
        self, days: Mapping[tuple[str, int], QueueDay], allows: Allows, check: Check
    ) -> None:
        self._days = days
        self._allows = allows
        self._check = check

    def __getitem__(self, key: tuple[str, int]) -> QueueDay:
        self._check(key[0])
        return self._days[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return (key for key in self._days if self._allows(key[0]))

    def __len__(self) -> int:
        return sum(1 for _ in self)
