"""The engine: commands in; results, deliveries, events and the next timer out.

The engine does no I/O and has no clock: every command takes `now`, in microseconds since 1970.
policies.py defines the rules of the protocols that push and lease jobs.

After its commands, a caller passes the deliveries, outcomes and timeouts in `waiters` to the owners
of the waiters, and the result of `take_changes()` to the store. Only this package assigns fields of
a job or a queue.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

from .annotations import TRACKED_PREFIX, ensure_details
from .arrivals import Arrivals
from .assignments import Assignments, HeldQueues
from .attempts import Attempts
from .caller import Caller
from .cascades import Cascades
from .change_set import ChangeSet
from .component import Component
from .dependencies import StagedBlockers
from .details import Number
from .due_timers import DueTimers
from .edits import Edits
from .engine_state import EngineState
from .errors import QueueRefused
from .job import NO_PROTOCOL, Failure, Job, NewJob
from .job_timers import TTL_KEY_OFFSET, JobTimers, TtlTimers, clock_offset
from .leases import LeaseSet
from .limits import Limits
from .policies import RuleTable
from .queues import Queue
from .recurring import RecurringJob, RecurringJobs
from .removal import Removal
from .restoration import Restoration
from .retention import RETENTION_SETTING, with_queue_retention
from .states import READY
from .statistics import QueueDay
from .tables import Tables, VisibleDays
from .timers import UNAVAILABLE_RETRY
from .transactions import Transactions
from .transitions import Transitions
from .waiters import Waiter

#: The number of due timers that one tick handles.
TICK_BATCH_SIZE: Final = 100


class Engine(EngineState):
    """All commands of clients, protocols and the server: each method calls a component."""

    def __init__(self, random: Random, rules: RuleTable, *, dead_max: int = 100_000) -> None:
        super().__init__(random, rules, dead_max)
        self._own_clock = rules.own_clock_protocols
        self.all_tables = Tables(self)
        #: The caller between commands, and the caller of the current command.
        self.server_caller = Caller(self, NO_PROTOCOL)
        self.caller = self.server_caller
        self.limits = Limits(self)
        self.cascades = Cascades(self)
        self.leases = LeaseSet(self)
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
        self.arrivals = Arrivals(self)
        self.edits = Edits(self)
        self.attempts = Attempts(self)
        self.recurring = RecurringJobs(self)
        self.transactions = Transactions(self)
        self.assignments = Assignments(self)
        self.removal = Removal(self)
        self.due_timers = DueTimers(self)

    # Views of jobs. Here and below, the methods that find jobs or name queues apply the rule of the
    # caller (see queue_rules.py)

    def allows(self, name: str) -> bool:
        """Whether the caller may use a queue."""
        rule = self.caller.rule
        return rule is None or rule.allows(name)

    def check_queue(self, name: str) -> None:
        """Refuse a queue that the caller may not use."""
        rule = self.caller.rule
        if rule is not None:
            rule.check(name)

    @property
    def tables(self) -> Tables:
        """The indexes of the jobs and queues that the caller may use, for reading."""
        rule = self.caller.rule
        return self.all_tables if rule is None else rule.tables(self)

    def job(self, seq: int) -> Job | None:
        """The job with this seq, or None if it was removed."""
        job, rule = self.jobs.get(seq), self.caller.rule
        return job if rule is None else rule.visible_job(job)

    def find(self, jid: str) -> Job | None:
        """The oldest job with that jid."""
        if self.caller.rule is None:
            return self.by_jid.get(jid)
        found = self.find_all(jid)
        return found[0] if found else None

    def find_all(self, jid: str, newest: int | None = None) -> list[Job]:
        """The jobs with that jid, the oldest first; with `newest`, only the oldest one and at most
        this number of the newest ones.
        """
        found = self.table.find_all(jid, newest)
        rule = self.caller.rule
        return found if rule is None else rule.visible(found)

    def find_below(self, jid: str, below: int, limit: int) -> list[Job]:
        """Jobs with that jid and a lower seq, the newest first."""
        rule = self.caller.rule
        if rule is None:
            return self.table.find_below(jid, below, limit)
        return rule.find_below(self.table, jid, below, limit)

    def find_leased(self, jid: str, actor: int, holder: str = "") -> Job | None:
        """The leased job with that jid that a worker of this protocol may end."""
        rule = self.caller.rule
        if rule is None:
            return self.table.find_leased(jid, actor, holder)
        return self.table.leased_among(rule.visible(self.table.find_all(jid)), actor, holder)

    def count_of(self, jid: str) -> int:
        """The number of jobs with that jid."""
        if self.caller.rule is None:
            return self.table.count_of(jid)
        return len(self.find_all(jid))

    @property
    def retrying(self) -> int:
        """The number of scheduled jobs that have failed before."""
        rule, states = self.caller.rule, self.states
        return states.retrying if rule is None else rule.sum(states.retrying_by_queue)

    def dependents(self, job: Job) -> list[Job]:
        """The jobs that wait for this job."""
        found = self.dependencies.dependents(job)
        rule = self.caller.rule
        return found if rule is None else rule.visible(found)

    def first_dependents(self, job: Job, limit: int) -> tuple[list[Job], int]:
        """The first dependents of a job, and the number of the remaining ones."""
        found, others = self.dependencies.first_dependents(job, limit)
        rule = self.caller.rule
        return found if rule is None else rule.visible(found), others

    def next_dependent(self, job: Job, after: int) -> int:
        """The seq of the first dependent above `after`; 0 if there is none."""
        after = self.dependencies.next_dependent(job.seq, after)
        if self.caller.rule is not None:
            while after and self.job(after) is None:
                after = self.dependencies.next_dependent(job.seq, after)
        return after

    def time_of(self, job: Job, now: int) -> int:
        """The time of the current command, on the clock that the times of this job use."""
        if job.origin not in self._own_clock:
            return self.caller.server_time(now)
        return self.caller.time(now, clock_offset(job, self._own_clock))

    # Other views

    def queue(self, name: str) -> Queue | None:
        """The queue of that name, if it exists."""
        self.check_queue(name)
        return self.queues.get(name)

    def queue_days(self) -> Mapping[tuple[str, int], QueueDay]:
        """The current statistics of each queue and day."""
        days = self.current_statistics().days
        rule = self.caller.rule
        return days if rule is None else VisibleDays(days, rule.allows, rule.check)

    def retention_of(self, name: str) -> int | None:
        """The retention of completed jobs of a queue in microseconds, or None if it is not set."""
        self.check_queue(name)
        return self.retention.of_queue(self.settings.get(RETENTION_SETTING), name)

    # Pushing

    def push(self, push: NewJob, now: int) -> Job:
        """Add a job; it is ready, scheduled or blocked."""
        rule = self.caller.rule
        if rule is not None:
            rule.check_push(push, self.jobs)
        return self.arrivals.push(push, now)

    def push_many(self, pushes: Iterable[NewJob], now: int) -> list[Job]:
        """Push several jobs as one change. A blocker of -1 refers to the previous job in the
        list.
        """
        pushes, rule = list(pushes), self.caller.rule
        if rule is not None:
            for push in pushes:
                rule.check_push(push, self.jobs)
        return self.arrivals.push_many(pushes, now)

    def check_queues(self, push: NewJob) -> None:
        """Refuse a job if the caller may not use its queue, the queue that it moves to after its
        last failure, or a queue whose limit it uses.
        """
        rule = self.caller.rule
        if rule is not None:
            rule.check_queues_of(push)

    def check_limits(self, keys: Iterable[str]) -> None:
        """Refuse the keys of queues that the caller may not use."""
        rule = self.caller.rule
        if rule is not None:
            rule.check_limits(keys)

    def check_blockers(self, blockers: Iterable[int]) -> None:
        """Refuse the seqs of jobs in queues that the caller may not use."""
        rule = self.caller.rule
        if rule is not None:
            rule.check_blockers(blockers, self.jobs)

    # Leasing

    def lease(
        self,
        queues: Sequence[str],
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
        *,
        random_queue: bool = False,
    ) -> Job | None:
        """Lease a ready job until `until` and return it, or return None if there is none. It is the
        first ready job in these queues, in the given order, or in a random queue that has ready
        jobs.

        `since` returns the time at which the job's wait began; without it, that is when the job
        became ready.
        """
        rule = self.caller.rule
        if rule is not None:
            rule.check_all(queues)
        if random_queue:
            return self.assignments.lease_from_random_queue(queues, holder, actor, now)
        return self.assignments.lease(queues, holder, actor, now, until, since)

    def lease_job(
        self,
        job: Job,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> bool:
        """Lease this ready job; `since` as in `lease`. Return False if its payload is damaged; in
        that case, the job is dead.
        """
        if job.stored_size and job.state == READY:
            damage = self.payloads.find_damage(job)
            if damage:
                self.attempts.bury_damaged(job, now, damage)
                return False
        self.assignments.lease_job(job, holder, actor, now, until, since)
        return True

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
        return self.leases.reclaim_one_of(self.find_all(jid), holder, actor, now)

    def renew(self, job: Job, deadline: int, now: int, *, expired: bool = False) -> None:
        """Change the deadline of a lease. If it has `expired`, its holder keeps it for a grace
        period, which ends at the new deadline.
        """
        self.leases.renew(job, deadline, now, expired=expired)

    def release(self, job: Job, now: int, *, counted: bool = False) -> None:
        """Undo a lease that did not reach its holder: the job is ready again. The attempt does not
        count, unless the holder knows its number: then set `counted`, so that no other lease has
        this number. If such an attempt is the last one of the job, the lease ends as if it had
        expired.
        """
        self.leases.release(job, now, counted=counted)

    # Waiting

    def add_waiter(self, waiter: Waiter, until: int, job: Job | None = None) -> None:
        """Register a waiter. It later receives the next job of its queues, or a timeout at `until`.
        With `job`, report the end of this job.
        """
        if job is not None:
            self.waiters.add_for_job_end(job, waiter, until)
            return
        rule = self.caller.rule
        if rule is not None:
            rule.check_all(waiter.queues)
        self.waiters.add(waiter, until)
        if self.recurring.by_queue:
            self.recurring.set_timer_for_waiter(waiter.queues)

    def hold_queues(self, now: int) -> HeldQueues:
        """Use this in a `with` statement around changes that make several jobs ready: afterwards, a
        waiter gets the first of them. A command must not end its slice inside the `with` block.
        """
        return HeldQueues(self.assignments, now)

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
        allow_unleased: bool = False,
        advances: bool = False,
    ) -> None:
        """Complete the job. The engine retains it until the end of its time to live, or
        until `keep_until`, or until the time that `Retention.end_of` returns. With
        `allow_unleased`, the job need not be leased. With `advances`, only a step of the job has
        ended, and the caller then moves it to the next queue.
        """
        if advances:
            self.attempts.advance(job, now, actor)
        else:
            self.attempts.complete(job, now, actor, result, keep_until, allow_unleased)

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
        allow_unleased: bool = False,
        final: bool = False,
        retry_at: int | None = None,
        counts_failure: bool = True,
        remove_queue_if_empty: bool = False,
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
            allow_unleased,
            final,
            retry_at,
            counts_failure,
            remove_queue_if_empty,
        )

    def bury_damaged(self, job: Job, now: int, message: str) -> None:
        """Move a ready or leased job with a damaged payload to the dead set."""
        self.attempts.bury_damaged(job, now, message)

    def cancel(
        self, job: Job, now: int, actor: int = NO_PROTOCOL, *, deferrable: bool = False
    ) -> None:
        """Remove a job in any state, and end its lease if it has one. With `deferrable`, a timer
        removes the job later if the store is unavailable now; the job must be transient.
        """
        if deferrable and self.unavailable_reason:
            self.timers.set(job.seq + TTL_KEY_OFFSET, now + UNAVAILABLE_RETRY)
        else:
            self.removal.cancel(job, now, actor)

    def kill(self, job: Job, now: int, failure: Failure | None = None) -> None:
        """Move a job that is neither leased nor done to the dead set, with the given failure."""
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
        self.check_queue(name)
        self.attempts.move(job, name, now, actor, due=due, blockers=blockers)

    def update(
        self, job: Job, *, kind: str | None = None, payload: bytes | None = None, retries: int = -1
    ) -> None:
        """Change fields of a job that were set by its push."""
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
        """Remove blockers from a blocked job, and start the job if none remains."""
        self.edits.unblock(job, blockers, now)

    def remove_blockers(self, job: Job) -> None:
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
        if self._is_hidden(jid):
            raise QueueRefused("the job is in a queue that is not allowed here")
        key = TRACKED_PREFIX + jid
        self.set_setting(key, self.annotations.track(jid, when, origin, self.settings.get(key)))

    def is_tracked(self, jid: str) -> bool:
        """Whether an id is tracked. The job need not exist."""
        return jid in self.annotations.tracked and not self._is_hidden(jid)

    def _is_hidden(self, jid: str) -> bool:
        """Whether the oldest job with an id is in a queue that the caller may not use."""
        job = None if self.caller.rule is None else self.by_jid.get(jid)
        return job is not None and not self.allows(job.queue)

    def set_limit_keys(self, job: Job, keys: list[str]) -> None:
        """Replace the keys that a job uses, except the key of its queue."""
        self.check_limits(keys)
        self.limits.set_keys(job, keys)

    def log(
        self, job: Job, word: str, when: int, limit: int, fields: dict[str, Any] | None = None
    ) -> None:
        """Append an entry to the job's log, which retains its first and its newest entries."""
        ensure_details(job).add_entry(word, when, limit, fields)
        self.edits.record_job(job)

    # Queues

    def open_queue(self, name: str) -> Queue:
        """The queue of that name, created if it does not exist."""
        self.check_queue(name)
        return self.queue_set.open(name, self.change_set)

    def pause(self, name: str, *, paused: bool, now: int) -> None:
        """Pause or resume a queue. An unknown queue is not created."""
        self.check_queue(name)
        self.edits.pause_queue(name, paused=paused, now=now)

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs. If it is opened again, it is not paused. Jobs in
        other states remain; they open the queue again when they become ready.
        """
        self.check_queue(name)
        self.removal.remove_queue(name, now)

    def remove_queue_in_slices(self, name: str, now: int) -> Generator[None, None, None]:
        """Remove a queue in several steps; see Removal.remove_queue_in_slices."""
        self.check_queue(name)
        return self.removal.remove_queue_in_slices(name, now)

    def forget_queue(self, name: str) -> None:
        """Remove a queue from the list of queues. Its jobs stay. The next push opens it again,
        unpaused.
        """
        self.check_queue(name)
        self.removal.forget_queue(name)

    def promote_due(self, queue: str, now: int, limit: Number) -> None:
        """Make ready up to `limit` scheduled jobs of a queue that are due by the clock of the
        client, and all jobs that a client has found due before.
        """
        self.check_queue(queue)
        self.due_timers.promote_due(queue, now, limit)

    def set_limit(
        self,
        key: str,
        maximum: Number | None,
        expires: int,
        now: int,
        origin: int = NO_PROTOCOL,
    ) -> bool:
        """Set the maximum number of leased jobs of a key; 0 means no limit. None deletes the limit.
        Return False if there was no limit to delete. The key of a queue is
        `limits.QUEUE_KEY_PREFIX` followed by its name. The origin is the protocol that sets it;
        NO_PROTOCOL for clients with their own clocks.
        """
        self.check_limits([key])
        if maximum is None:
            return self.limits.delete(key, now)
        self.limits.set(key, maximum, expires, now, origin)
        return True

    def set_retention(self, name: str, period: int | None) -> None:
        """Set the retention of completed jobs of a queue, in microseconds; None removes it."""
        self.check_queue(name)
        setting = with_queue_retention(self.settings.get(RETENTION_SETTING), name, period)
        self.set_setting(RETENTION_SETTING, setting)

    def put_recurring(self, record: RecurringJob) -> None:
        """Add or replace a recurring job."""
        if self.caller.rule is not None:
            self.check_queue(record.queue)
            known = self.recurring.by_id.get(record.jid)
            if known is not None and not self.allows(known.queue):
                raise QueueRefused("the recurring job is in a queue that is not allowed here")
            unchanged = [] if known is None else known.limits
            self.check_limits([key for key in record.limits if key not in unchanged])
        self.recurring.put(record)

    def delete_recurring(self, jid: str) -> bool:
        """Delete a recurring job, and return whether it existed."""
        known = self.recurring.by_id.get(jid)
        return known is not None and self.allows(known.queue) and self.recurring.delete(jid)

    def forget_statistics(self, queues: Iterable[str]) -> None:
        """Remove the statistics of these queues."""
        self.current_statistics().drop(filter(self.allows, queues))
        self.edits.record()

    def flush(self, now: int, origin: int = NO_PROTOCOL) -> None:
        """Remove every job, queue and counter, and the settings in `FLUSHED_SETTINGS`, or only the
        jobs pushed over one protocol. Waiting clients continue to wait.
        """
        rule = self.caller.rule
        if rule is not None:
            rule.refuse("FLUSH")
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
        self.queue_set.load(self.settings)
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
