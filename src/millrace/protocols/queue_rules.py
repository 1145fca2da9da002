"""Limit a port to some queues: `queues = ["signup*"]` in the section of a protocol.

The protocols reach jobs and queues only through the engine of their hub. A limited port gets a
`LimitedEngine` in its place, which shows only the allowed queues and their jobs. A command that
names another queue raises `QueueRefused`; the id of a job in another queue is unknown. A port
without a rule uses the engine itself, at no cost.

`LimitedEngine` knows every attribute that the protocols use. Any other attribute is an error, so
that a new one cannot bypass the rule unnoticed.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from fnmatch import translate
from typing import Any, Final, cast

from millrace.engine.engine import Engine
from millrace.engine.job import Job, NewJob
from millrace.engine.limits import QUEUE_KEY_PREFIX
from millrace.engine.queues import Queue
from millrace.engine.states import BLOCKED, LEASED, SCHEDULED

from .errors import ClientError

#: Maximum number of names whose result is remembered.
MAX_REMEMBERED: Final = 10_000
#: Names of queues in an error are cut to this length.
MAX_SHOWN: Final = 100

#: Attributes of the engine that do not depend on a queue, and verbs for a job that the caller has
#: found through this engine.
SHARED: Final = frozenset(
    {
        # State
        *("unavailable", "pushes_refused", "durable", "rules", "random", "clock", "next_seq"),
        *("caller", "server_caller", "settings", "turn", "version", "change_set"),
        "commit_waiters",
        *("revert_count", "flush_count", "is_setting_uncommitted", "is_turn_uncommitted"),
        # Components
        *("annotations", "deadlines", "dependencies", "due_timers", "failure_groups"),
        *("leases", "limits"),
        *("payloads", "recurring", "retention", "timers", "transactions"),
        *("recent_durations", "statistics", "timer_counts", "totals"),
        # Views of a job or of a setting
        *("payload", "payload_part", "time_of", "retention_of"),
        # Verbs
        *("skip_seqs", "lease_job", "reclaim", "renew", "release"),
        *("wait", "cancel_wait", "stop_offering", "set_alarm"),
        *("complete", "fail", "cancel", "kill", "retry_now"),
        *("update", "set_rank", "block", "block_staged", "unblock", "detach"),
        *("set_tags", "track", "log"),
        *("promote_due", "set_setting", "load_settings"),
    }
)
#: Attributes that the protocols assign.
ASSIGNED: Final = frozenset({"caller"})


class QueueRefused(ClientError):
    """The rule of the port does not allow the queue or the command."""


class QueueRule:
    """The queues of a port: glob patterns with `*`, `?` and `[...]`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._matches = re.compile("|".join(map(translate, patterns))).match
        self._known: dict[str, bool] = {}

    def allows(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self._known[name] = self._matches(name) is not None
        return known

    def check(self, name: str) -> None:
        if not self.allows(name):
            raise QueueRefused(f"the queue {name[:MAX_SHOWN]} is not allowed on this port")

    def check_push(self, push: NewJob) -> None:
        """Check the queue of a job, and the queue that it moves to after its last failure."""
        self.check(push.queue)
        if push.dead_queue:
            self.check(push.dead_queue)


def limit_to(engine: Engine, patterns: tuple[str, ...]) -> Engine:
    """The engine for a port with these patterns; without patterns, the engine itself."""
    return cast("Engine", LimitedEngine(engine, QueueRule(patterns))) if patterns else engine


def rule_of(engine: Engine) -> QueueRule | None:
    """The rule of the port that uses this engine."""
    return engine.rule if isinstance(engine, LimitedEngine) else None


def check_blockers(engine: Engine, blockers: Iterable[int]) -> None:
    """Refuse the seqs of jobs in queues that the rule of the port does not allow."""
    if isinstance(engine, LimitedEngine):
        engine.check_blockers(blockers)


def unlimited_engine(engine: Engine) -> Engine:
    """The engine without a rule, for work that is not done for a client."""
    return engine.unlimited if isinstance(engine, LimitedEngine) else engine


def examined(index: Mapping[Any, Job]) -> Iterator[Job | None]:
    """The present jobs of an index of the engine, for work in slices. In place of a job that the
    rule of the port excludes, None, so that the caller can count it.
    """
    if not isinstance(index, VisibleJobs):
        return iter(list(index.values()))
    allows = index.allows
    return (job if allows(job.queue) else None for job in list(index.all_jobs.values()))


class VisibleJobs(Mapping[Any, Job]):
    """The jobs of allowed queues in an index of the engine."""

    def __init__(
        self, index: Callable[[], Mapping[Any, Job]], allows: Callable[[str], bool]
    ) -> None:
        #: A flush replaces the table of all jobs.
        self._index = index
        self.allows = allows

    @property
    def all_jobs(self) -> Mapping[Any, Job]:
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
        self, index: Callable[[], Mapping[Any, Job]], view: "VisibleQueues", states: slice
    ) -> None:
        super().__init__(index, view.rule.allows)
        self._view = view
        self._states = states

    def __len__(self) -> int:
        return sum(sum(queue.counts[self._states]) for queue in self._view.values())


class JobsByJid(CountedJobs):
    """The oldest visible job of each jid."""

    def __init__(self, engine: Engine, view: "VisibleQueues") -> None:
        super().__init__(lambda: engine.by_jid, view, slice(None))
        self._find_all = engine.find_all

    def get(self, key: Any, default: Any = None) -> Any:
        job = self.all_jobs.get(key)
        if job is None or self.allows(job.queue):
            return default if job is None else job
        return next((job for job in self._find_all(key) if self.allows(job.queue)), default)


class VisibleQueues(Mapping[str, Queue]):
    """The allowed queues. Asking for another one is an error of the client."""

    def __init__(self, queues: Mapping[str, Queue], rule: QueueRule) -> None:
        self._queues = queues
        self.rule = rule

    def __getitem__(self, name: str) -> Queue:
        self.rule.check(name)
        return self._queues[name]

    def get(self, name: str, default: Any = None) -> Any:
        self.rule.check(name)
        return self._queues.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return filter(self.rule.allows, self._queues)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class VisibleDays(Mapping[tuple[str, int], Any]):
    """The daily statistics of the allowed queues."""

    def __init__(self, days: Mapping[tuple[str, int], Any], rule: QueueRule) -> None:
        self._days = days
        self._rule = rule

    def __getitem__(self, key: tuple[str, int]) -> Any:
        self._rule.check(key[0])
        return self._days[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return (key for key in self._days if self._rule.allows(key[0]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class VisibleStatistics:
    """The statistics of the allowed queues."""

    def __init__(self, days: VisibleDays) -> None:
        self.days = days


class LimitedEngine:
    """The engine as a port with a rule sees it."""

    unlimited: Engine
    rule: QueueRule

    def __init__(self, engine: Engine, rule: QueueRule) -> None:
        queues = VisibleQueues(engine.queues, rule)
        self.__dict__.update(
            unlimited=engine,
            rule=rule,
            queues=queues,
            jobs=CountedJobs(lambda: engine.jobs, queues, slice(None)),
            by_jid=JobsByJid(engine, queues),
            scheduled=CountedJobs(
                lambda: engine.scheduled, queues, slice(SCHEDULED, SCHEDULED + 1)
            ),
            blocked=CountedJobs(lambda: engine.blocked, queues, slice(BLOCKED, BLOCKED + 1)),
            leased=CountedJobs(lambda: engine.leased, queues, slice(LEASED, LEASED + 1)),
            done=VisibleJobs(lambda: engine.done, rule.allows),
            dead=VisibleJobs(lambda: engine.dead, rule.allows),
            dead_kept=VisibleJobs(lambda: engine.dead_kept, rule.allows),
            done_kept=VisibleJobs(lambda: engine.done_kept, rule.allows),
        )

    def __getattr__(self, name: str) -> Any:
        if name not in SHARED:
            raise AttributeError(f"the rule for queues does not know engine.{name}")
        return getattr(self.unlimited, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ASSIGNED:
            raise AttributeError(f"the rule for queues does not know engine.{name}")
        setattr(self.unlimited, name, value)

    # Pushing and leasing

    def push_many(self, pushes: Iterable[NewJob], now: int) -> list[Job]:
        pushes = list(pushes)
        for push in pushes:
            self._check_push(push)
        return self.unlimited.push_many(pushes, now)

    def push(self, push: NewJob, now: int) -> Job:
        self._check_push(push)
        return self.unlimited.push(push, now)

    def _check_push(self, push: NewJob) -> None:
        self.rule.check_push(push)
        self.check_blockers(push.blockers)

    def check_blockers(self, blockers: Iterable[int]) -> None:
        jobs = self.unlimited.jobs
        for blocker in blockers:
            job = jobs.get(blocker)
            if job is not None and not self.rule.allows(job.queue):
                raise QueueRefused(f"the job {blocker} is in a queue that is not allowed here")

    def lease(self, queues: Iterable[str], *more: Any, **others: Any) -> Job | None:
        return self.unlimited.lease(self._checked(queues), *more, **others)

    def reclaim_by_id(self, jid: str, holder: str, actor: int, now: int) -> Job | None:
        if not self.find_all(jid):
            return None
        return self.unlimited.reclaim_by_id(jid, holder, actor, now)

    def _checked(self, queues: Iterable[str]) -> Iterable[str]:
        for name in queues:
            self.rule.check(name)
        return queues

    # Finding

    def find(self, jid: str) -> Job | None:
        job: Job | None = self.__dict__["by_jid"].get(jid)
        return job

    def find_all(self, jid: str, newest: int | None = None) -> list[Job]:
        return self._visible(self.unlimited.find_all(jid, newest))

    def find_below(self, jid: str, below: int, limit: int) -> list[Job]:
        while found := self.unlimited.find_below(jid, below, limit):
            if visible := self._visible(found):
                return visible
            below = found[-1].seq
        return []

    def count_of(self, jid: str) -> int:
        return len(self.find_all(jid))

    def find_leased(self, jid: str, actor: int, holder: str = "") -> Job | None:
        job = self.unlimited.find_leased(jid, actor, holder)
        return job if job is not None and self.rule.allows(job.queue) else None

    def next_dependent(self, job: Job, after: int) -> int:
        """The seq of the first visible dependent above `after`; 0 if there is none."""
        while after := self.unlimited.next_dependent(job, after):
            if after in self.jobs:
                break
        return after

    def dependents(self, job: Job) -> list[Job]:
        return self._visible(self.unlimited.dependents(job))

    def some_dependents(self, job: Job, limit: int) -> tuple[list[Job], int]:
        found, others = self.unlimited.some_dependents(job, limit)
        return self._visible(found), others

    def index_of(self, state: int) -> VisibleJobs:
        return VisibleJobs(lambda: self.unlimited.index_of(state), self.rule.allows)

    def _visible(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if self.rule.allows(job.queue)]

    # Counting

    @property
    def retrying(self) -> int:
        """The number of visible jobs that wait for a retry."""
        retries = self.unlimited.states.retries
        return sum(retries[name] for name in self.__dict__["queues"] if name in retries)

    def current_statistics(self) -> VisibleStatistics:
        return VisibleStatistics(VisibleDays(self.unlimited.current_statistics().days, self.rule))

    # Queues

    def move(self, job: Job, name: str, *more: Any, **others: Any) -> None:
        self.rule.check(name)
        self.unlimited.move(job, name, *more, **others)

    def open_queue(self, name: str) -> Queue:
        self.rule.check(name)
        return self.unlimited.open_queue(name)

    def pause(self, name: str, *, paused: bool, now: int) -> None:
        self.rule.check(name)
        self.unlimited.pause(name, paused=paused, now=now)

    def remove_queue(self, name: str, now: int) -> None:
        self.rule.check(name)
        self.unlimited.remove_queue(name, now)

    def remove_queue_in_slices(self, name: str, now: int) -> Generator[None, None, None]:
        self.rule.check(name)
        yield from self.unlimited.remove_queue_in_slices(name, now)

    def set_limit(self, key: str, *more: Any) -> bool:
        if key.startswith(QUEUE_KEY_PREFIX):
            self.rule.check(key.removeprefix(QUEUE_KEY_PREFIX))
        return self.unlimited.set_limit(key, *more)

    def set_retention(self, name: str, period: int | None) -> None:
        self.rule.check(name)
        self.unlimited.set_retention(name, period)

    def forget_queue(self, name: str) -> None:
        self.rule.check(name)
        self.unlimited.forget_queue(name)

    def forget_statistics(self, names: Iterable[str]) -> None:
        self.unlimited.forget_statistics(filter(self.rule.allows, names))

    # Commands for all queues

    def flush(self, *_: Any, **__: Any) -> None:
        raise QueueRefused("FLUSH is not allowed on this port: it has a rule for queues")

    @property
    def staged(self) -> Mapping[str, dict[int, Job]]:
        raise QueueRefused("bulk loads are not allowed on this port: it has a rule for queues")
