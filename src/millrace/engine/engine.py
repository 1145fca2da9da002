"""The engine: commands in; results, deliveries, events and the next timer out.

The engine does no I/O and has no clock: every command takes `now`, in microseconds since 1970.
policies.py defines the rules of the protocols that push and lease jobs.

After its commands, a caller passes the deliveries, outcomes and timeouts in `waiters` to the owners
of the waiters, and the result of `take_changes()` to the store. Only this package assigns fields of
a job or a queue.
"""

from collections.abc import Callable, Generator, Hashable, Iterable
from random import Random
from typing import Any, Final

from .annotations import TRACKED, Annotations, ensure_details, tracking, tracking_origin
from .arrivals import Arrivals
from .assignments import Assignments
from .attempts import Attempts
from .caller import Caller
from .cascades import Cascades
from .change_set import ChangeSet
from .component import Component
from .counters import TimerCounts, Totals
from .deadlines import Deadlines
from .dependencies import Dependencies, StagedBlockers
from .details import Number
from .due_timers import DueTimers
from .durations import RecentDurations
from .edits import Edits
from .failure_groups import FailureGroups
from .job import NO_PROTOCOL, Failure, Job, NewJob
from .job_timers import TTL_TIMER, JobTimers, TtlTimers, clock_offset
from .leases import LeaseSet
from .limits import Limits
from .payloads import Payloads
from .policies import RuleTable
from .positions import Positions
from .queues import Queue, QueueSet
from .recurring import RecurringJobs
from .removal import Removal
from .restoration import Restoration
from .retention import RETENTION_SETTING, Retention, changed_setting
from .state_index import StateIndex
from .states import BLOCKED, DONE, LEASED, SCHEDULED
from .statistics import Statistics
from .table import JobTable
from .timers import UNAVAILABLE_RETRY, TimerHeap
from .transactions import Transactions
from .transitions import Transitions
from .waiters import Waiter, WaiterSet

#: The number of due timers that one tick handles.
TICK_BATCH_SIZE: Final = 100


class Engine:
    """All commands of clients, protocols and the server: each method calls a component."""

    def __init__(self, random: Random, rules: RuleTable, *, dead_max: int = 100_000) -> None:
        self.random = random
        self.rules = rules
        self._own_clock = rules.own_clock
        #: The reason why the store is unavailable; empty if it is available. While it is
        #: unavailable, no job changes, and clients wait.
        self.unavailable = ""
        #: The reason why new jobs are refused; empty if they are accepted. The protocols check it.
        self.pushes_refused = ""

        self.next_seq = 1
        #: The server's clock when a job last became ready.
        self.clock = 0
        self.table = JobTable(rules)
        # The same dictionaries as in the components, for reading. A flush replaces these two, so a
        # reference to them must not be kept across turns.
        self.jobs, self.by_jid = self.table.jobs, self.table.by_jid
        self.queue_set = QueueSet(self.jobs)
        self.retention = Retention(self.jobs, rules, dead_max)
        self.states = StateIndex(self.jobs)
        self.queues = self.queue_set.by_name
        self.payloads = Payloads(self.jobs)
        self.done, self.dead = self.retention.done, self.retention.dead
        self.dead_kept, self.done_kept = self.retention.dead_kept, self.retention.done_kept
        self.scheduled, self.blocked = self.states.scheduled, self.states.blocked
        self.leased, self.staged = self.states.leased, self.states.staged
        self.timers = TimerHeap()
        self.dependencies = Dependencies(self.jobs, rules, self.timers)
        #: Dead jobs and jobs that wait for a retry, by error.
        self.failure_groups = FailureGroups(self.jobs)
        self.totals = Totals()
        self.statistics = Statistics()
        self.recent_durations = RecentDurations()
        self.timer_counts = TimerCounts()

        self.waiters = WaiterSet(self.queue_set, self.timers)
        self.deadlines = Deadlines(self.jobs, self.queues, rules)
        self.positions = Positions()
        #: Durable settings. Change them with `set_setting`.
        self.settings: dict[str, bytes] = {}
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
        #: The number of the current change set.
        self.turn = 0
        #: The number of reverts and of flushes.
        self.revert_count = 0
        self.flush_count = 0
        #: Whether a store makes changes durable. Without one, no reply waits.
        self.durable = False
        #: The change set that the store is committing.
        self.committing: ChangeSet | None = None
        #: Owners of work that continues after the next commit, successful or not: their `wake` is
        #: called. The dictionary keeps their order.
        self.commit_waiters: dict[Any, None] = {}
        #: Components that depend on a job's record, and those that depend on its state and queue.
        self.record_components: tuple[Component, ...] = (
            self.table,
            TtlTimers(self.timers, self.jobs),
            self.dependencies,
            self.annotations,
        )
        self.state_components: tuple[Component, ...] = (
            self.queue_set,
            self.states,
            self.retention,
            JobTimers(self.timers, self.jobs, rules),
            self.limits,
            self.failure_groups,
            self.deadlines,
            self.leases,
        )
        self.components: tuple[Component, ...] = self.record_components + self.state_components
        self.restoration = Restoration(self)
        self.transitions = Transitions(self)
        self._arrivals = Arrivals(self)
        self.edits = Edits(self)
        self.attempts = Attempts(self)
        self.recurring = RecurringJobs(self)
        self.transactions = Transactions(self)
        self.assignments = Assignments(self)
        self.removal = Removal(self)
        self.due_timers = DueTimers(self)

    # Views of jobs

    def job(self, seq: int) -> Job | None:
        """The job with this seq, or None if it was removed."""
        return self.jobs.get(seq)

    def find(self, jid: str) -> Job | None:
        """The oldest job with that jid."""
        return self.by_jid.get(jid)

    def find_all(self, jid: str, newest: int | None = None) -> list[Job]:
        """The jobs with that jid, the oldest first; with `newest`, only the oldest one and at most
        this number of the newest ones.
        """
        return self.table.find_all(jid, newest)

    def find_below(self, jid: str, below: int, limit: int) -> list[Job]:
        """Jobs with that jid and a lower seq, the newest first."""
        return self.table.find_below(jid, below, limit)

    def find_leased(self, jid: str, actor: int, holder: str = "") -> Job | None:
        """The leased job with that jid that a worker of this protocol may end."""
        return self.table.find_leased(jid, actor, holder)

    def count_of(self, jid: str) -> int:
        """The number of jobs with that jid."""
        return self.table.count_of(jid)

    def index_of(self, state: int) -> dict[int, Job]:
        """The jobs in a state other than ready, without those in `done_kept` and `dead_kept`."""
        if state == SCHEDULED:
            return self.scheduled
        if state == BLOCKED:
            return self.blocked
        if state == LEASED:
            return self.leased
        return self.done if state == DONE else self.dead

    @property
    def retrying(self) -> int:
        """The number of scheduled jobs that have failed before."""
        return self.states.retrying

    def dependents(self, job: Job) -> list[Job]:
        """The jobs that wait for this job."""
        return self.dependencies.dependents(job)

    def some_dependents(self, job: Job, limit: int) -> tuple[list[Job], int]:
        """The first dependents of a job, and the number of the remaining ones."""
        return self.dependencies.some_dependents(job, limit)

    def next_dependent(self, job: Job, after: int) -> int:
        """The seq of the first dependent above `after`; 0 if there is none."""
        return self.dependencies.next_dependent(job.seq, after)

    def payload(self, job: Job) -> bytes:
        """The payload of a job, from memory or from the store."""
        return self.payloads.read(job) if job.stored_size else job.inline_payload

    def payload_part(self, job: Job, start: int, size: int) -> bytes:
        """Up to `size` bytes of the payload of a job, starting at `start`."""
        return self.payloads.read_part(job, start, size)

    def time_of(self, job: Job, now: int) -> int:
        """The time of the current command by the clock of the job's other times."""
        if job.origin not in self._own_clock:
            return self.caller.server_time(now)
        return self.caller.time(now, clock_offset(job, self._own_clock))

    # Other views

    def current_statistics(self) -> Statistics:
        """The current statistics."""
        self.statistics.update(self.change_set, self.recent_durations)
        return self.statistics

    def retention_of(self, name: str) -> int | None:
        """The retention of completed jobs of a queue in microseconds, or None if it is not set."""
        return self.retention.of_queue(self.settings.get(RETENTION_SETTING), name)

    def next_timer(self) -> int | None:
        """The time of the next timer, or None."""
        return self.timers.next()

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after every durable change."""
        change_set = self.change_set
        return self.turn, len(change_set.events), change_set.edits

    @property
    def has_uncommitted(self) -> bool:
        """Whether the engine has a change that is not durable yet."""
        return self.durable and (self.committing is not None or bool(self.change_set))

    def is_turn_uncommitted(self, turn: int) -> bool:
        """Whether the changes of that turn are not committed. A revert increments
        `revert_count`.
        """
        if not self.durable or turn < self.turn - 1:
            return False
        return turn >= self.turn or self.committing is not None

    def is_setting_uncommitted(self, key: str) -> bool:
        """Whether the last change to that setting is not committed."""
        committing = self.committing
        return key in self.change_set.settings or (
            committing is not None and key in committing.settings
        )

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

        `since` returns when the job's wait began; without it, that is when the job became ready.
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

    def reclaim(
        self, job: Job, holder: str, actor: int, now: int, leased_at: int | None = None
    ) -> bool:
        """Whether this job is leased to that holder. If a crash or a refused commit may have undone
        the lease, the engine leases the job again. `leased_at` is the start of the lease, if the
        holder knows it.
        """
        return self.leases.reclaim(job, holder, actor, now, leased_at)

    def reclaim_by_id(self, jid: str, holder: str, actor: int, now: int) -> Job | None:
        """Lease a ready job with that jid again to a holder that claims to have held it before a
        restart; see `reclaim`.
        """
        return self.leases.reclaim_by_id(jid, holder, actor, now)

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

    # Waiting

    def wait(self, waiter: Waiter, until: int, job: Job | None = None) -> None:
        """Deliver the next job of the waiter's queues, or report a timeout at `until`. With `job`,
        report the end of this job.
        """
        if job is not None:
            self.waiters.add_for_end(job, waiter, until)
            return
        self.waiters.add(waiter, until)
        if self.recurring.by_queue:
            self.recurring.wait(waiter.queues)

    def cancel_wait(self, waiter: Waiter) -> None:
        """Remove a waiter after its connection closed."""
        self.waiters.remove(waiter)

    def stop_offering(self, waiter: Waiter | None = None) -> None:
        """Deliver no more jobs to a waiter, or to any waiter; each waits until its timeout."""
        if waiter is None:
            self.waiters.stop_offering_all()
        else:
            self.waiters.stop_offering(waiter)

    # Ends of attempts and jobs

    def complete(
        self,
        job: Job,
        now: int,
        actor: int,
        *,
        result: bytes | None = None,
        keep_until: int = 0,
        unleased: bool = False,
        advances: bool = False,
    ) -> None:
        """Complete the job. The engine retains it until the end of its time to live, or
        until `keep_until`, or until the time that `Retention.end_of` returns. With `unleased`, the
        job need not be leased. With `advances`, only a step of the job has ended, and the caller
        then moves it to the next queue.
        """
        if advances:
            self.attempts.advance(job, now, actor)
        else:
            self.attempts.complete(job, now, actor, result, keep_until, unleased)

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
        retry_at: int | None = None,
        uses_try: bool = True,
        removes_queue: bool = False,
    ) -> None:
        """End an attempt with a failure; see Attempts.fail."""
        self.attempts.fail(
            job,
            now,
            actor,
            group,
            message,
            backtrace,
            cause,
            result,
            unleased,
            final,
            retry_at,
            uses_try,
            removes_queue,
        )

    def cancel(
        self, job: Job, now: int, actor: int = NO_PROTOCOL, *, deferrable: bool = False
    ) -> None:
        """Remove a job in any state, and end its lease if it has one. With `deferrable`, a
        timer removes the job later if the store fails now; the job must be transient.
        """
        if deferrable and self.unavailable:
            self.timers.set(job.seq + TTL_TIMER, now + UNAVAILABLE_RETRY)
        else:
            self.removal.cancel(job, now, actor)

    def kill(self, job: Job, now: int, failure: Failure | None = None) -> None:
        """Move a job that is not leased or done to the dead set, with this failure if given."""
        self.attempts.kill(job, now, failure)

    def retry_now(self, job: Job, now: int) -> None:
        """Make a scheduled or dead job ready now."""
        self.attempts.retry_now(job, now)

    # Other changes to jobs

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
        self.attempts.move(job, name, now, actor, due=due, blockers=blockers)

    def update(
        self, job: Job, *, kind: str | None = None, payload: bytes | None = None, retries: int = -1
    ) -> None:
        """Change pushed fields of a job."""
        self.edits.update(job, kind, payload, retries)

    def set_rank(self, job: Job, rank: Number, position: int) -> None:
        """Change the rank and the position of a job."""
        self.edits.set_rank(job, rank, position)

    def block(self, job: Job, blockers: list[int]) -> None:
        """Add blockers to a blocked job."""
        self.edits.block(job, blockers)

    def block_staged(self, job: Job, staged: StagedBlockers) -> None:
        """Add staged blockers (see Dependencies.stage) to a blocked job at once."""
        self.edits.block_staged(job, staged)

    def unblock(self, job: Job, blockers: Iterable[int], now: int) -> None:
        """Remove blockers from a blocked job."""
        self.edits.unblock(job, blockers, now)

    def detach(self, job: Job) -> None:
        """Remove all blockers of a job that is about to be removed."""
        self.dependencies.remove(job)

    def set_tags(self, job: Job, tags: list[tuple[Any, int]]) -> None:
        """Replace the tags of a job: pairs of a tag and the time at which the job got it."""
        self.annotations.set_tags(job, tags)
        self.edits.record_job(job)

    def track(self, jid: str, when: int | None, origin: int = NO_PROTOCOL) -> None:
        """Track an id from the time `when`; None stops the tracking. The job need not exist. The
        origin is the protocol that tracks it; NO_PROTOCOL for clients with their own clocks. A
        tracked id keeps its origin.
        """
        self.annotations.track(jid, when)
        known = self.settings.get(TRACKED + jid)
        if origin == NO_PROTOCOL and known is not None:
            origin = tracking_origin(known)
        self.set_setting(TRACKED + jid, None if when is None else tracking(when, origin))

    def log(
        self, job: Job, word: str, when: int, limit: int, fields: dict[str, Any] | None = None
    ) -> None:
        """Append an entry to the job's log, which retains its first and its newest entries."""
        ensure_details(job).add_entry(word, when, limit, fields)
        self.edits.record_job(job)

    # Queues

    def open_queue(self, name: str) -> Queue:
        """The queue of that name, created if it does not exist."""
        return self.queue_set.open(name, self.change_set)

    def pause(self, name: str, *, paused: bool, now: int) -> None:
        """Pause or resume a queue. An unknown queue is not created."""
        self.edits.pause_queue(name, paused=paused, now=now)

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs, its name and its pause. Jobs in other states remain;
        they open the queue again when they become ready.
        """
        self.removal.remove_queue(name, now)

    def remove_queue_in_slices(self, name: str, now: int) -> Generator[None, None, None]:
        """Remove a queue as `remove_queue` does, in several steps. The first step hides the queue
        and the jobs that are ready at that time. If the caller closes the generator early, the
        remaining jobs stay.
        """
        return self.removal.queue_steps(name, now)

    def forget_queue(self, name: str) -> None:
        """Remove a queue's name and its pause. Its jobs stay, and the next push opens it again."""
        self.removal.forget_queue(name)

    def promote_due(self, queue: str, now: int, limit: Number) -> None:
        """Make ready up to `limit` scheduled jobs of a queue that are due by the clock of the
        client, and all jobs that a client has found due before.
        """
        self.due_timers.promote_due(queue, now, limit)

    def set_limit(
        self,
        key: str,
        maximum: Number | None,
        expires: int,
        now: int,
        origin: int = NO_PROTOCOL,
    ) -> bool:
        """Limit the number of leased jobs of a key; 0: no limit. None deletes the limit; return
        false if it did not exist. The key of a queue is `limits.QUEUE_KEY_PREFIX` and its name. The
        origin is the protocol that sets it; NO_PROTOCOL for clients with their own clocks.
        """
        if maximum is None:
            return self.limits.delete(key, now)
        self.limits.set(key, maximum, expires, now, origin)
        return True

    def set_retention(self, name: str, period: int | None) -> None:
        """Set the retention of completed jobs of a queue, in microseconds; None removes it."""
        self.set_setting(
            RETENTION_SETTING, changed_setting(self.settings.get(RETENTION_SETTING), name, period)
        )

    def forget_statistics(self, queues: Iterable[str]) -> None:
        """Remove the statistics of these queues."""
        self.current_statistics().drop(queues)
        self.edits.record()

    def flush(self, now: int, origin: int = NO_PROTOCOL) -> None:
        """Remove every job, queue and counter, and the settings in `FLUSHED_SETTINGS`, or only the
        jobs pushed over one protocol. Waiting clients continue to wait.
        """
        if origin == NO_PROTOCOL:
            self.removal.flush(now)
        else:
            for _ in self.removal.flush_steps(lambda: now, origin):
                pass

    # Turns, timers and the store

    def tick(self, now: int, limit: int = TICK_BATCH_SIZE) -> None:
        """Handle due timers, at most `limit` of them."""
        self.due_timers.tick(now, limit)

    def clock_moved(self, by: int) -> None:
        """Adjust the timers if the clock was set after the last tick. Timeouts of waiters and
        alarms retain their durations. Leases and due times are points in time and follow the clock.
        """
        self.due_timers.clock_moved(by)

    def set_alarm(self, key: Hashable, when: int | None) -> None:
        """Put `key`, which is not a number, into `alarms` at that time; None cancels the alarm."""
        if when is None:
            self.timers.cancel(key)
        else:
            self.timers.set(key, when)

    def take_changes(self) -> ChangeSet:
        """End the turn and return its changes."""
        self.current_statistics()
        change_set = self.change_set
        self.change_set = ChangeSet()
        self.turn += 1
        return change_set

    def set_setting(self, key: str, value: bytes | None, *, must_wait: bool = True) -> None:
        """Set a durable setting, or delete it with None. The reply waits, unless `must_wait` is
        false.
        """
        if value is None:
            self.settings.pop(key, None)
        else:
            self.settings[key] = value
        self.change_set.settings[key] = value
        if must_wait:
            self.edits.record()

    def load_settings(self, settings: dict[str, bytes] | None = None) -> None:
        """Replace the settings with the settings in the store, if given, and reload the settings of
        the components.
        """
        if settings is not None:
            self.settings = settings
        self.annotations.load(self.settings)
        self.limits.load(self.settings)
        self.cascades.load(self.settings)
        self.recurring.load(self.settings)
        self.transactions.load(self.settings)

    def restore(self, jobs: Iterable[Job], queues: dict[str, bool]) -> None:
        """Add jobs and queues from the store. Ready jobs should be sorted by `position`."""
        self.restoration.restore(jobs, queues)

    def revert(
        self, change_sets: Iterable[ChangeSet], jobs: Iterable[Job], queues: dict[str, bool]
    ) -> None:
        """Undo change sets that could not be written; see Restoration.revert."""
        self.restoration.revert(change_sets, jobs, queues)

    def resume(self, now: int) -> None:
        """Remove orphaned transient jobs and serve waiters, after the store has recovered."""
        self.restoration.resume(now)
