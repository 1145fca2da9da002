"""The engine: commands in; results, deliveries, events and the next timer out.

The engine does no I/O and has no clock: every command takes `now`, in microseconds since 1970.
policies.py defines the rules of the protocols that push and lease jobs.

After its commands, a caller passes the deliveries, outcomes and timeouts in `waiters` to the owners
of the waiters, and the result of `take_changes()` to the store. Only this package assigns fields of
a job or a queue.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from random import Random
from sys import intern
from typing import Any, Final

from .annotations import TRACKED, Annotations, details_of
from .arrivals import Arrivals
from .assignments import Assignments
from .attempts import Attempts
from .caller import Caller
from .cascades import CASCADE_TIMER, Cascades
from .cascades import SETTING as CASCADE_SETTING
from .change_set import ChangeSet
from .component import Component
from .counters import TimerCounts, Totals
from .deadlines import Deadlines
from .dependencies import Dependencies
from .details import Number
from .durations import RecentDurations
from .errors import NotLeased, WrongState
from .failure_groups import FailureGroups
from .job import (
    FOREVER,
    NO_PROTOCOL,
    Failure,
    Job,
    NewJob,
    extra_of,
)
from .job_timers import LIFETIME_TIMER, JobTimers, Lifetimes, clock_offset
from .leases import LEASES_TIMER, LeaseSet, use_server_clock
from .limits import LIMITS_TIMER, SETTING, Limits, parked_of
from .payloads import PayloadFetcher, PayloadReader
from .policies import RuleTable
from .positions import TiedPositions
from .queues import Queue, QueueSet
from .recurring import RECURRING_TIMER, RecurringJob, RecurringJobs
from .recurring import SETTING as RECURRING_SETTING
from .restoration import DISCARD_TIMER, Restoration, in_order
from .retention import RETENTION_SETTING, TRIM_TIMER, Retention, changed_setting
from .state_index import StateIndex
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from .statistics import QueueDay, Statistics
from .table import JobTable
from .timers import UNAVAILABLE_RETRY, TimerHeap
from .transactions import SETTING as TRANSACTION_SETTING
from .transactions import TRANSACTION_TIMER, Transactions
from .transitions import Transitions
from .waiters import JobOutcome, Waiter, WaiterSet

#: Settings of bulk loads have this prefix; see bulk_loads.py.
LOADS: Final = "loads/"
#: Totals of past days over all queues have this prefix.
DAYS: Final = "days/"
#: Idempotency keys of pushes have this prefix; see admin/idempotency.py.
IDEMPOTENCY: Final = "idempotency/"
#: Imports have this prefix; see imports.py.
IMPORTS: Final = "imports/"
#: A flush removes the settings with these prefixes.
FLUSHED_SETTINGS: Final = (
    LOADS,
    DAYS,
    TRACKED,
    SETTING,
    RECURRING_SETTING,
    IDEMPOTENCY,
    IMPORTS,
    RETENTION_SETTING,
    CASCADE_SETTING,
    TRANSACTION_SETTING,
)
#: Due timers that one tick handles.
TICK_BATCH_SIZE: Final = 100
#: Jobs removed in one step of a flush.
FLUSH_BATCH_SIZE: Final = 100
#: Jobs removed in one step of the removal of a queue.
REMOVAL_BATCH_SIZE: Final = 50
#: Timers of the engine's components; other keys that are not numbers are alarms.
_OWN_TIMERS: Final = frozenset(
    {
        TRIM_TIMER,
        LIMITS_TIMER,
        RECURRING_TIMER,
        CASCADE_TIMER,
        TRANSACTION_TIMER,
        DISCARD_TIMER,
        LEASES_TIMER,
    }
)


class Engine:
    """All commands of clients, protocols and the server."""

    def __init__(self, random: Random, rules: RuleTable, *, dead_max: int = 100_000) -> None:
        self.random = random
        self.rules = rules
        self._untimed, self._own_clock = rules.untimed, rules.own_clock
        #: Why the store fails, or empty. While it fails, no job changes and clients wait.
        self.unavailable = ""
        #: Reads payloads that live in the store; None: all are in memory.
        self.payload_reader: PayloadReader | None = None
        #: Reads them on another thread; None: there is no other thread.
        self.payload_fetcher: PayloadFetcher | None = None
        #: Payloads that were read on another thread, while they are needed.
        self.fetched: dict[int, bytes] = {}
        #: Why new jobs are refused; empty if they are accepted. The protocols check it.
        self.pushes_refused = ""

        self.next_seq = 1
        #: The position of the job that arrived last. It orders jobs and never decreases. It starts
        #: from the clock, but is ahead of it after the clock was set back.
        self.position = 0
        #: The server's clock when a job last became ready.
        self.clock = 0
        self.table = JobTable(rules)
        # The same dictionaries as in the components, for reading.
        self.jobs, self.by_jid = self.table.jobs, self.table.by_jid
        self.queue_set = QueueSet(self.jobs)
        self.retention = Retention(self.jobs, rules, dead_max)
        self.states = StateIndex(self.jobs)
        self.queues = self.queue_set.by_name
        self.done, self.dead = self.retention.done, self.retention.dead
        self.dead_kept, self.done_kept = self.retention.dead_kept, self.retention.done_kept
        self.scheduled, self.blocked = self.states.scheduled, self.states.blocked
        self.leased, self.staged = self.states.leased, self.states.staged
        self.dependencies = Dependencies(self.jobs, rules)
        #: Dead jobs and jobs that wait for a retry, by error.
        self.failure_groups = FailureGroups(self.jobs)
        self.totals = Totals()
        self.statistics = Statistics()
        self.recent_durations = RecentDurations()
        self.timer_counts = TimerCounts()

        self.timers = TimerHeap()
        self.waiters = WaiterSet(self.queue_set, self.timers)
        self.deadlines = Deadlines(self.jobs, self.queues, rules)
        self.tied_positions = TiedPositions()
        self._settings: dict[str, bytes] = {}
        self.annotations = Annotations(self.jobs)
        self.limits = Limits(self)
        self.cascades = Cascades(self)
        self.leases = LeaseSet(self)
        #: Keys of due alarms.
        self.alarms: list[Hashable] = []

        self.change_set = ChangeSet()
        #: The caller between commands, and the caller of the current command.
        self.server_caller = Caller(self, NO_PROTOCOL)
        self.caller = self.server_caller
        #: Leases that ended because the previous process ended: seq -> attempt.
        self.interrupted: dict[int, int] = {}
        #: Ready jobs below this seq were ready when the server read the store. Exceptions are the
        #: jobs in `ready_since`, which became ready later.
        self.restored_seq = 0
        self.ready_since: set[int] = set()
        #: The number of the current change set.
        self.turn = 0
        #: The number of reverts and of flushes.
        self.revert_count = 0
        self.flush_count = 0
        #: Whether a store makes changes durable. Without one, no reply waits.
        self.durable = False
        #: The change set that the store is committing.
        self.committing: ChangeSet | None = None
        #: Components that depend on a job's record, and those that depend on its state and queue.
        self.of_records: tuple[Component, ...] = (
            self.table,
            Lifetimes(self.timers, self.jobs),
            self.dependencies,
            self.annotations,
        )
        self.of_states: tuple[Component, ...] = (
            self.queue_set,
            self.states,
            self.retention,
            JobTimers(self.timers, self.jobs, rules),
            self.limits,
            self.failure_groups,
            self.deadlines,
            self.leases,
        )
        self.components: tuple[Component, ...] = self.of_records + self.of_states
        self.transitions = Transitions(self)
        self.restoration = Restoration(self)
        self._arrivals = Arrivals(self)
        self._attempts = Attempts(self)
        self.cascades.connect(self._attempts)
        self.recurring = RecurringJobs(self)
        self.transactions = Transactions(self)
        self.assignments = Assignments(self)

    @property
    def settings(self) -> dict[str, bytes]:
        """Durable settings. Change them with `set_setting`."""
        return self._settings

    @settings.setter
    def settings(self, value: dict[str, bytes]) -> None:
        """Replace the settings with the settings in the store, at the start or after a revert."""
        self._settings = value
        self.load_settings()

    def load_settings(self) -> None:
        """Reload the settings of the components."""
        self.annotations.load(self._settings)
        self.limits.load(self._settings)
        self.cascades.load(self._settings)
        self.recurring.load(self._settings)
        self.transactions.load(self._settings)

    @property
    def retrying(self) -> int:
        """The number of scheduled jobs that failed before."""
        return self.states.retrying

    # Uncommitted changes

    @property
    def has_uncommitted(self) -> bool:
        """Whether the engine has a change that is not durable yet."""
        return self.durable and (self.committing is not None or bool(self.change_set))

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after every durable change."""
        change_set = self.change_set
        return self.turn, len(change_set.events), change_set.edits

    def is_turn_uncommitted(self, turn: int) -> bool:
        """Whether the changes of that turn are not committed. A revert raises `revert_count`."""
        if not self.durable or turn < self.turn - 1:
            return False
        return turn >= self.turn or self.committing is not None

    def is_setting_uncommitted(self, key: str) -> bool:
        committing = self.committing
        return key in self.change_set.settings or (
            committing is not None and key in committing.settings
        )

    # Views

    def job(self, seq: int) -> Job | None:
        return self.jobs.get(seq)

    def find(self, jid: str) -> Job | None:
        """The oldest job of that jid."""
        return self.by_jid.get(jid)

    def find_all(self, jid: str) -> list[Job]:
        return self.table.find_all(jid)

    def count_of(self, jid: str) -> int:
        return self.table.count_of(jid)

    def find_below(self, jid: str, below: int, limit: int) -> list[Job]:
        return self.table.find_below(jid, below, limit)

    def find_newest(self, jid: str, limit: int) -> list[Job]:
        return self.table.find_newest(jid, limit)

    def find_leased(self, jid: str, actor: int, holder: str = "") -> Job | None:
        return self.table.find_leased(jid, actor, holder)

    def ready_count(self) -> int:
        return sum(queue.counts[READY] for queue in self.queues.values())

    def dependents(self, job: Job) -> list[Job]:
        return self.dependencies.dependents(job)

    def some_dependents(self, job: Job, limit: int) -> tuple[list[Job], int]:
        return self.dependencies.some_dependents(job, limit)

    def next_dependent(self, job: Job, after: int) -> int:
        return self.dependencies.next_dependent(job.seq, after)

    # Changes and events

    def set_setting(self, key: str, value: bytes | None) -> None:
        """Set or delete a durable setting."""
        if value is None:
            self._settings.pop(key, None)
        else:
            self._settings[key] = value
        self.change_set.settings[key] = value
        self.record_edit()

    def set_setting_unacknowledged(self, key: str, value: bytes) -> None:
        """Set a durable setting without letting the reply wait."""
        self._settings[key] = value
        self.change_set.settings[key] = value

    def record_edit(self) -> None:
        """Record that the change set has a change without an event. The reply waits for it."""
        self.change_set.edits += 1
        self.caller.must_wait = True

    def record_change(self, job: Job) -> None:
        """Record a change of a job that is not a transition."""
        if job.seq not in self.change_set.new:
            self.change_set.changed[job.seq] = job
        self.record_edit()

    def record_unacknowledged(self, job: Job) -> None:
        """Record a change of a job that no reply announces."""
        if job.seq not in self.change_set.new:
            self.change_set.changed[job.seq] = job

    def current_statistics(self) -> Statistics:
        """The statistics, up to date."""
        change_set = self.change_set
        if change_set.folded < len(change_set.events):
            events = (
                change_set.events[change_set.folded :] if change_set.folded else change_set.events
            )
            self.statistics.fold(events, self.recent_durations)
            change_set.folded = len(change_set.events)
        return self.statistics

    def take_changes(self) -> ChangeSet:
        """End the turn and return its changes."""
        self.current_statistics()
        change_set = self.change_set
        self.change_set = ChangeSet()
        self.turn += 1
        return change_set

    def index_of(self, state: int) -> dict[int, Job]:
        """The jobs in a state other than ready, without those in `done_kept` and `dead_kept`."""
        if state == SCHEDULED:
            return self.scheduled
        if state == BLOCKED:
            return self.blocked
        if state == LEASED:
            return self.leased
        return self.done if state == DONE else self.dead

    def open_queue(self, name: str) -> Queue:
        """The queue of that name, created if it does not exist."""
        return self.queue_set.open(name, self.change_set)

    # Pushing

    def push(self, push: NewJob, now: int) -> Job:
        """Add a job; it is ready, scheduled or blocked."""
        return self._arrivals.push(push, now)

    def push_many(self, pushes: Iterable[NewJob], now: int) -> list[Job]:
        """Push several jobs as one change. A blocker of -1 is the previous job of the list."""
        return self._arrivals.push_many(pushes, now)

    def skip_seqs(self, count: int) -> None:
        """Skip `count` seqs."""
        self.next_seq += count

    # Leasing

    def lease(
        self,
        queues: Iterable[str],
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
        *,
        random_queue: bool = False,
    ) -> Job | None:
        """Lease the first ready job of these queues, in their order, or of a random one of them
        that has ready jobs.

        `since` gives the start of its wait; without it, the wait began when the job became ready.
        """
        if random_queue:
            return self.assignments.lease_from_random(queues, holder, actor, now)
        return self.assignments.lease(queues, holder, actor, now, until, since)

    def lease_job(
        self,
        job: Job,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> None:
        """Lease this ready job; `since` as in `lease`."""
        self.assignments.lease_job(job, holder, actor, now, until, since)

    def reclaim_by_id(self, jid: str, holder: str, actor: int, now: int) -> Job | None:
        """Lease a ready job of that jid again to a holder that claims to have held it before a
        restart; see `reclaim`.
        """
        return self.leases.reclaim_by_id(jid, holder, actor, now)

    def reclaim(
        self, job: Job, holder: str, actor: int, now: int, leased_at: int | None = None
    ) -> bool:
        """Whether this job is leased to that holder. If a crash or a refused commit may have undone
        the lease, the engine leases the job again. `leased_at` is the start of the lease, if the
        holder knows it.
        """
        return self.leases.reclaim(job, holder, actor, now, leased_at)

    def renew(self, job: Job, deadline: int, now: int, *, expired: bool = False) -> None:
        """Change the deadline of a lease. If it has `expired`, its holder keeps it for a grace
        period, which ends at the new deadline.
        """
        self.leases.renew(job, deadline, now, expired=expired)

    def release(self, job: Job, now: int, *, counted: bool = False) -> None:
        """Return a lease that did not reach its holder. The attempt does not count, unless the
        holder knows its number: then set `counted`, so that no other lease has this number.
        """
        self.leases.release(job, now, counted=counted)

    def time_of(self, job: Job, now: int) -> int:
        """The time of the current command by the clock of the job's other times."""
        if job.origin not in self._own_clock:
            return self.caller.server_time(now)
        return self.caller.time(now, clock_offset(job, self._own_clock))

    # Waiting

    def wait(self, waiter: Waiter, until: int) -> None:
        """Deliver the next job of the waiter's queues, or report a timeout at `until`."""
        self.waiters.add(waiter, until)
        if self.recurring.by_queue:
            self.recurring.wait(waiter.queues)

    def wait_for_end(self, job: Job, waiter: Waiter, until: int) -> None:
        """Report the end of the job to the waiter, or a timeout at `until`."""
        self.waiters.add_for_end(job, waiter, until)

    def cancel_wait(self, waiter: Waiter) -> None:
        """Remove a waiter after its connection closed."""
        self.waiters.remove(waiter)

    def stop_offering(self, waiter: Waiter) -> None:
        """Deliver no more jobs to a waiter; it waits until its timeout."""
        self.waiters.stop_offering(waiter)

    def stop_offering_all(self) -> None:
        """Deliver no more jobs to any waiter; each waits until its timeout."""
        self.waiters.stop_offering_all()

    # Ends of attempts

    def complete(
        self,
        job: Job,
        now: int,
        actor: int,
        *,
        result: bytes | None = None,
        keep_until: int = 0,
        unleased: bool = False,
    ) -> None:
        """End the job with success. The engine retains it until the end of its time to live, or
        until `keep_until`, or until the time that `Retention.end_of` returns. With `unleased`, the
        job need not be leased.
        """
        if job.state != LEASED and not (unleased and job.state in {READY, SCHEDULED}):
            raise NotLeased
        if self.caller.own_clock and job.origin not in self._own_clock:
            now = self._use_server_clock(job, now)
            try:
                self.complete(
                    job, now, actor, result=result, keep_until=keep_until, unleased=unleased
                )
            finally:
                self.caller.own_clock = True
            return
        self.totals.processed += 1
        run = max(0, now - job.leased_at) if job.state == LEASED else 0
        queue = self.queues[job.queue]
        if job.expires_at:
            keep_until = job.expires_at
        elif job.origin in self.rules.kept:
            keep_until = FOREVER
        elif not keep_until and (
            result or job.extra is not None or RETENTION_SETTING in self.settings
        ):
            setting = self.settings.get(RETENTION_SETTING)
            keep_until = self.retention.end_of(job, result, setting, now)
        if job.seq in self.waiters.by_job:
            self.waiters.job_ended(JobOutcome(job, "completed", True, result or b""))
        if keep_until > now:
            if result is not None or job.extra is not None:
                extra_of(job).result = result
            job.due_at = keep_until
            self.transitions.apply(job, queue, "completed", DONE, now, actor, 0, run)
        else:
            self.transitions.apply(job, queue, "completed", GONE, now, actor, 0, run)
        self.caller.must_wait = True

    def fail(
        self,
        job: Job,
        now: int,
        actor: int,
        group: str,
        message: str,
        backtrace: list[str],
        *,
        cause: str = "failed",
        result: bytes | None = None,
        unleased: bool = False,
        final: bool = False,
        again_at: int | None = None,
        uses_try: bool = True,
    ) -> None:
        """End an attempt with a failure; see Attempts.fail."""
        caller = self.caller
        own_clock = caller.own_clock
        if own_clock and job.origin not in self._own_clock:
            again_at = None if again_at is None else caller.server_time(again_at)
            now = self._use_server_clock(job, now)
        try:
            self._attempts.fail(
                job,
                now,
                actor,
                group,
                message,
                backtrace,
                cause=cause,
                result=result,
                unleased=unleased,
                final=final,
                again_at=again_at,
                uses_try=uses_try,
            )
        finally:
            caller.own_clock = own_clock

    def _use_server_clock(self, job: Job, now: int) -> int:
        """Let the server's clock apply to the rest of the command, and return its time. The policy
        of the job decides about its retries and its retention, and uses this clock.
        """
        caller = self.caller
        now = caller.server_time(now)
        caller.own_clock = False
        if job.state == LEASED and job.holder_protocol in self._own_clock:
            use_server_clock(job)  # the clock of the lease, not of this command
        return now

    def move(
        self,
        job: Job,
        name: str,
        now: int,
        actor: int,
        *,
        due: int = 0,
        blockers: list[int] | None = None,
    ) -> None:
        """Move a job in any state to a queue, where it starts again; see Attempts.move."""
        self._attempts.move(job, name, now, actor, due=due, blockers=blockers)

    # The store

    def restore(self, jobs: Iterable[Job], queues: dict[str, bool]) -> None:
        """Add jobs and queues from the store. Ready jobs should be sorted by `position`."""
        self.restoration.restore(jobs, queues)

    def revert(
        self, change_sets: Iterable[ChangeSet], jobs: Iterable[Job], queues: dict[str, bool]
    ) -> None:
        """Undo change sets that could not be written; see Restoration.revert."""
        self.restoration.revert(change_sets, jobs, queues)

    # Time

    def next_timer(self) -> int | None:
        return self.timers.next()

    def tick(self, now: int, limit: int = TICK_BATCH_SIZE) -> None:
        """Handle due timers, at most `limit` of them."""
        self.waiters.tick()
        long_work: list[Callable[[int], None]] = []
        for key in self.timers.due(now, limit):
            if not isinstance(key, int):
                if key not in _OWN_TIMERS:
                    self.alarms.append(key)
                elif self.unavailable:
                    self.timers.set(key, now + UNAVAILABLE_RETRY)
                elif key == LIMITS_TIMER:
                    self.limits.tick(now)
                elif key == RECURRING_TIMER:
                    self.recurring.tick(now)
                else:
                    long_work.append(self._long_work(key))
            elif key < 0:
                self.waiters.time_out(key, now)
            elif self.unavailable:
                self.timers.set(key, now + UNAVAILABLE_RETRY)
            elif key < LIFETIME_TIMER:
                self._timer_due(self.jobs[key], now)
            elif key - LIFETIME_TIMER in self.jobs:
                self._end_of_life(self.jobs[key - LIFETIME_TIMER], now)
        for step in long_work:  # one step per tick: each sets its timer again
            step(now)

    def _long_work(self, key: Hashable) -> Callable[[int], None]:
        if key == CASCADE_TIMER:
            return self.cascades.tick
        if key == LEASES_TIMER:
            return self.leases.tick
        if key == DISCARD_TIMER:
            return self.restoration.free_discarded
        return self.transactions.tick if key == TRANSACTION_TIMER else self._attempts.trim_dead

    def clock_moved(self, by: int) -> None:
        """Adjust the timers if the clock was set after the last tick. Timeouts of waiters and
        alarms retain their durations. Leases and due times are points in time and follow the clock.
        """

        def is_duration(key: Hashable) -> bool:
            if isinstance(key, int):
                return self.waiters.waited_at_last_tick(key)
            return key not in _OWN_TIMERS or key == TRIM_TIMER

        self.timers.move(is_duration, by)
        self.recurring.clock_set()

    def resume(self, now: int) -> None:
        """Remove orphaned transient jobs and serve waiters, after the store has recovered."""
        self.unavailable = ""
        for job in self.restoration.orphaned_transients():
            self._end_of_life(job, now)
        self.limits.settle(now)
        self.assignments.serve_all(now)

    def set_alarm(self, key: Hashable, when: int) -> None:
        """Put `key`, which is not a number, into `alarms` at that time."""
        self.timers.set(key, when)

    def cancel_alarm(self, key: Hashable) -> None:
        self.timers.cancel(key)

    def _timer_due(self, job: Job, now: int) -> None:
        queue = self.queues[job.queue]
        if job.state == SCHEDULED:
            if job.failures:
                self.timer_counts.retried += 1
            else:
                self.timer_counts.started += 1
            self.transitions.apply(job, queue, "due", READY, now, NO_PROTOCOL)
        elif job.state == LEASED:
            if (
                job.holder_protocol in self.rules.bound
                and self.interrupted.get(job.seq) == job.attempt
            ):
                self._return_after_restart(job, now)
                return
            self.timer_counts.expired += 1
            group, message = self.rules.policies[job.origin].expired
            self.fail(job, now, NO_PROTOCOL, group, message, [], cause="expired")
            return
        else:
            self.timer_counts.purged += 1
            self.transitions.apply(job, queue, "purged", GONE, now, NO_PROTOCOL)
        self.caller.must_wait = True

    def _return_after_restart(self, job: Job, now: int) -> None:
        """Return a lease without a failure, because a restart closed its connection."""
        self.transitions.apply(job, self.queues[job.queue], "released", READY, now, NO_PROTOCOL)
        self.caller.must_wait = True

    def _end_of_life(self, job: Job, now: int) -> None:
        """End a job at the end of its time to live."""
        if job.state in {DONE, DEAD}:
            self.timer_counts.purged += 1
            cause = "purged"
        elif job.extra is not None and job.extra.transient:
            cause = "cancelled"
        else:
            self.timer_counts.evicted += 1
            cause = "evicted"
            if job.seq in self.waiters.by_job:
                self.waiters.job_ended(JobOutcome(job, cause, False, b""))
        self.transitions.apply(job, self.queues[job.queue], cause, GONE, now, NO_PROTOCOL)
        self.caller.must_wait = True

    # Other changes of jobs

    def retry_now(self, job: Job, now: int) -> None:
        """Make a scheduled or dead job ready now."""
        if job.state not in {SCHEDULED, DEAD}:
            raise WrongState
        if job.state == DEAD:
            job.due_at = 0  # until now this was the end of its retention
        self.transitions.apply(job, self.queues[job.queue], "requeued", READY, now, NO_PROTOCOL)
        self.caller.must_wait = True

    def kill(self, job: Job, now: int, failure: Failure | None = None) -> None:
        """Move a job that is not leased to the dead set, with this failure if given."""
        if job.state in {LEASED, DONE}:
            raise WrongState
        if self.caller.own_clock and job.origin not in self._own_clock:
            now = self._use_server_clock(job, now)
            try:
                self.kill(job, now, failure)
            finally:
                self.caller.own_clock = True
            return
        if failure is not None:
            job.failure = failure
        if job.state == BLOCKED:
            self._leave_load(job)
        if job.seq in self.waiters.by_job:
            self.waiters.job_ended(JobOutcome(job, "killed", False, b""))
        self.transitions.apply(job, self.queues[job.queue], "killed", DEAD, now, NO_PROTOCOL)
        self._attempts.fail_dependents(job, now)
        self.caller.must_wait = True

    def cancel(self, job: Job, now: int, actor: int = NO_PROTOCOL) -> None:
        """Remove a job in any state, and end its lease if it has one."""
        if job.seq in self.waiters.by_job:
            self.waiters.job_ended(JobOutcome(job, "cancelled", False, b""))
        self.transitions.apply(job, self.queues[job.queue], "cancelled", GONE, now, actor)
        self.caller.must_wait = True

    def cancel_transient(self, job: Job, now: int) -> None:
        """Remove a transient job of a disconnected client; while the store fails, a timer removes
        it later.
        """
        if self.unavailable:
            self.timers.set(job.seq + LIFETIME_TIMER, now + UNAVAILABLE_RETRY)
        else:
            self.cancel(job, now)

    def after_restart(self, now: int) -> None:
        """Remove transient jobs after a restart, and return leases that were bound to connections,
        without a failure. The restart has closed all connections.
        """
        self.clock = now
        for job in self.restoration.orphaned_transients():
            self.cancel(job, now)
        self.transactions.after_restart(now)
        bound = [job for job in self.leased.values() if job.holder_protocol in self.rules.bound]
        self.interrupted = {job.seq: job.attempt for job in bound}
        for job in in_order(bound):
            self._return_after_restart(job, now)
        self.limits.settle(now)
        self.recurring.clock_set()

    def payload(self, job: Job) -> bytes:
        """The payload of a job, from memory or from the store."""
        if not job.stored_size:
            return job.inline_payload
        if job.seq in self.fetched:
            return self.fetched[job.seq]
        assert self.payload_reader is not None
        return self.payload_reader.read(job.seq)

    def payload_part(self, job: Job, start: int, size: int) -> bytes:
        """Up to `size` bytes of the payload of a job, from `start` on."""
        if not job.stored_size:
            return job.inline_payload[start : start + size]
        assert self.payload_reader is not None
        return self.payload_reader.read_part(job.seq, start, size)

    def payload_stored(self, seq: int, payload: bytes) -> None:
        """The store has committed this payload of a job: remove it from memory, unless the job has
        another payload by now.
        """
        job = self.jobs.get(seq)
        if job is not None and job.inline_payload is payload:
            job.inline_payload, job.stored_size = b"", len(payload)

    def update(
        self, job: Job, *, kind: str | None = None, payload: bytes | None = None, retries: int = -1
    ) -> None:
        """Change pushed fields of a job."""
        if kind is not None:
            job.kind = intern(kind)
        if payload is not None:
            job.inline_payload, job.stored_size = payload, 0
        if retries >= 0:
            job.retries = retries
        if job.seq not in self.change_set.new:
            self.change_set.rewritten[job.seq] = job
        self.record_edit()

    def set_rank(self, job: Job, rank: Number, place: int) -> None:
        """Change the order of a job."""
        queue = self.queues[job.queue]
        queue.version += 1
        ready = queue.ready if job.state == READY else None
        parked = parked_of(job)
        if parked is not None:
            ready, parked.rank = None, rank
        if ready is not None:
            ready.remove(job)
        job.rank, job.position = rank, place
        if ready is not None:
            ready.add(job)
        self.record_change(job)

    def set_tags(self, job: Job, tags: list[tuple[Any, int]]) -> None:
        """Replace the tags of a job: pairs of a tag and the time at which the job got it."""
        self.annotations.set_tags(job, tags)
        self.record_change(job)

    def track(self, jid: str, when: int | None) -> None:
        """Track an id from the time `when`; None stops the tracking. The job need not exist."""
        self.annotations.track(jid, when)
        self.set_setting(TRACKED + jid, None if when is None else b"%d" % when)

    def log(
        self, job: Job, word: str, when: int, limit: int, fields: dict[str, Any] | None = None
    ) -> None:
        """Append an entry to the job's log, which retains its first and its newest entries."""
        details_of(job).add_entry(word, when, limit, fields)
        self.record_change(job)

    def advance(self, job: Job, now: int, actor: int) -> None:
        """End a successful step of a job that the caller then moves to the next queue."""
        if job.state != LEASED:
            raise NotLeased
        self.totals.processed += 1
        run = max(0, now - job.leased_at)
        self.transitions.apply(job, self.queues[job.queue], "advanced", DONE, now, actor, 0, run)
        self.caller.must_wait = True

    def block(self, job: Job, blockers: list[int]) -> None:
        """Add blockers to a blocked job."""
        if job.state != BLOCKED:
            raise WrongState
        self.dependencies.block(job, blockers)
        self.record_change(job)

    def unblock(self, job: Job, blockers: Iterable[int], now: int) -> None:
        """Remove blockers from a blocked job."""
        if job.state != BLOCKED or job.extra is None:
            raise WrongState
        for seq in blockers:
            if seq in job.extra.blockers:
                job.extra.blockers.remove(seq)
                self.dependencies.unlink(seq, job.seq)
        self.record_change(job)
        if not job.extra.blockers and not job.extra.load:
            self.transitions.start_unblocked(job, now)

    def release_from_load(self, job: Job, now: int) -> None:
        """Release a job from its bulk load. It becomes ready or scheduled, or stays blocked."""
        if job.state != BLOCKED:
            raise WrongState
        self._leave_load(job)
        if job.extra is None or not job.extra.blockers:
            self.transitions.start_unblocked(job, now)
        self.record_change(job)

    def _leave_load(self, job: Job) -> None:
        if job.extra is not None and job.extra.load:
            self.states.unstage(job)
            job.extra.load = ""
            if job.extra.is_empty:
                job.extra = None

    def detach(self, job: Job) -> None:
        """Remove all blockers of a job that is about to be removed."""
        self.dependencies.remove(job)

    def promote(self, job: Job, now: int) -> None:
        """Make a scheduled job ready when it is due by the clock of the client."""
        if job.state != SCHEDULED:
            raise WrongState
        self.deadlines.remove(job)
        self._timer_due(job, now)

    def promote_due(self, queue: str, now: int, limit: Number) -> None:
        """Make up to `limit` scheduled jobs of a queue ready that are due by the clock of the
        client, and all jobs that a client has found due before.
        """
        if not self.unavailable:
            for job in self.deadlines.take_due(queue, now, limit):
                self.promote(job, now)

    # Queues

    def pause(self, name: str, *, paused: bool, now: int) -> None:
        """Pause or resume a queue. This does not create an unknown queue."""
        queue = self.queues.get(name)
        if queue is None or not queue.registered or queue.paused == paused:
            return
        queue.paused = paused
        self.change_set.queues[name] = paused
        self.record_edit()
        if not paused:
            self.assignments.serve(queue, now)

    def put_recurring(self, record: RecurringJob) -> None:
        """Add or replace a recurring job."""
        self.recurring.put(record)

    def delete_recurring(self, jid: str) -> bool:
        """Delete a recurring job, and return whether it existed."""
        return self.recurring.delete(jid)

    def set_limit(self, key: str, maximum: Number, expires: int, now: int) -> None:
        """Limit the number of leased jobs of a key. The key of a queue is `limits.OF_QUEUE` and the
        queue's name. 0: no limit.
        """
        self.limits.set(key, maximum, expires, now)

    def delete_limit(self, key: str, now: int) -> bool:
        """Delete a limit, and return whether it existed."""
        return self.limits.delete(key, now)

    def release_limit(self, job: Job, key: str, now: int) -> None:
        """Release a job from a limit that it uses or waits for."""
        self.limits.release(job, key, now)

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs, its name and its pause. Jobs in other states remain;
        they open the queue again when they become ready.
        """
        for _ in self.remove_queue_in_slices(name, now):
            pass

    def remove_queue_in_slices(self, name: str, now: int) -> Generator[None, None, None]:
        """Remove a queue as `remove_queue` does, in several steps. The first step hides the queue
        and the jobs that are ready at that time. If the caller closes it early, the remaining jobs
        stay.
        """
        queue = self.queues.get(name)
        if queue is None or not queue.registered:
            return
        queue.registered = False
        queue.paused = True  # so that no waiter receives a job that is about to be removed
        self.change_set.queues[name] = None
        self.record_edit()
        reverts = self.revert_count
        try:
            for number, job in enumerate(list(queue.ready), 1):
                if job.state == READY and self.jobs.get(job.seq) is job:
                    self.cancel(job, now)  # this can unblock a job, which opens the queue again
                if number % REMOVAL_BATCH_SIZE == 0:
                    yield
                    if self.revert_count != reverts:
                        return  # the store has refused a step, and the engine has reverted it
        finally:
            if self.revert_count == reverts and self.queues.get(name) is queue:
                queue.paused = False
                if queue.counts[READY] and not queue.registered:
                    self.open_queue(name)
                if queue.registered:
                    self.change_set.queues[name] = False
                    self.assignments.serve(queue, now)
                self.queue_set.drop_if_unused(queue)

    def remove_queue_if_left(self, job: Job, name: str, now: int) -> None:
        """Remove the queue of a failed job if the failure was final, the queue is now empty, and
        the policy of the job requires it.
        """
        queue = self.queues.get(name)
        if queue is None or not queue.registered or queue.paused or queue.waiters:
            return
        left = job.queue != name or job.state == DEAD
        removes = self.rules.policies[job.origin].removes_empty_queue
        if left and removes and not any(queue.counts[:DEAD]):
            self.remove_queue(name, now)

    def forget_queue(self, name: str) -> None:
        """Remove a queue's name and its pause. Its jobs stay, and the next push opens it again."""
        queue = self.queues.get(name)
        if queue is None or not queue.registered:
            return
        queue.registered = queue.paused = False
        self.change_set.queues[name] = None
        self.queue_set.drop_if_unused(queue)
        self.record_edit()

    def set_retention(self, name: str, period: int | None) -> None:
        """Set the retention of completed jobs of a queue, in microseconds; None removes it."""
        self.set_setting(
            RETENTION_SETTING, changed_setting(self.settings.get(RETENTION_SETTING), name, period)
        )

    def retention_of(self, name: str) -> int | None:
        """The retention of completed jobs of a queue in microseconds, or None if it is not set."""
        return self.retention.of_queue(self.settings.get(RETENTION_SETTING), name)

    def add_statistics(self, processed: int, failures: int, days: Iterable[QueueDay]) -> None:
        """Add totals and statistics of days that another server has recorded."""
        self.totals.processed += processed
        self.totals.failures += failures
        statistics = self.current_statistics()
        for day in days:
            statistics.merge(day)
        self.record_edit()

    def forget_statistics(self, queues: Iterable[str]) -> None:
        """Remove the statistics of these queues."""
        self.current_statistics().drop(queues)
        self.record_edit()

    def flush(self, now: int, origin: int = NO_PROTOCOL) -> None:
        """Remove every job, queue, load and counter, or only the jobs pushed over one protocol.
        Waiting clients continue to wait.
        """
        if origin != NO_PROTOCOL:
            for _ in self.flush_steps(lambda: now, origin):
                pass
            return
        self.leases.end_all()
        self.restoration.clear()
        old, self.change_set = self.change_set, ChangeSet()
        self.change_set.ended_leases = old.ended_leases
        self.change_set.cleared = True
        self.change_set.events, self.change_set.settings = old.events, old.settings
        self.change_set.folded = old.folded
        ended = [key for key in self.settings if key.startswith(FLUSHED_SETTINGS)]
        for key in ended:
            self.set_setting(key, None)
        self.load_settings()
        last = self.next_seq - 1
        nothing = (0,) * 7
        self.change_set.events.append(
            (now, "flushed", last, "", "", "", 0, 0, "", 0, GONE, *nothing, GONE, 0)
        )
        self.caller.must_wait = True

    def flush_steps(self, clock: Callable[[], int], origin: int) -> Iterator[int]:
        """Remove the jobs of one protocol, FLUSH_BATCH_SIZE at a time, and yield their number.
        Jobs pushed after the first step stay.
        """
        seqs = list(self.jobs)
        done = 0
        # Remove the newest jobs first, so that no dependent becomes ready before its removal.
        for seq in reversed(seqs):
            job = self.jobs.get(seq)
            if job is None or job.origin != origin:
                continue
            self.cancel(job, clock(), origin)
            done += 1
            if done == FLUSH_BATCH_SIZE:
                yield done
                done = 0
        if done:
            yield done
