"""Transitions: the only code that changes a job's state and moves it between indexes.

`Engine` adds the commands. This module holds the components, the change set of the current turn,
and the restoring of jobs from a store.
"""

from collections.abc import Callable, Hashable, Iterable
from random import Random
from sys import intern
from typing import Final

from .batch import Batch
from .counters import Clocked, Totals
from .dependencies import Dependencies
from .events import Row, fingerprint
from .failure_groups import FailureGroups
from .job import FOREVER, LATER, NO_PROTOCOL, QLESS, Job, Lifetime, add_time, lifetime_of
from .policy import BOUND, POLICIES, RETURNING, UNTIMED
from .queues import Queue, QueueSet
from .retention import TRIM_TIMER, Retention
from .spans import Lately
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, LEGAL, NEW, READY, SCHEDULED
from .stats import Statistics
from .table import JobTable
from .timers import TimerHeap
from .waiters import WaiterSet

#: While the store fails, due timers are set again after this time.
HALTED_RETRY = 1_000_000
#: The key of the timer for a job's time to live is seq + LIFE; that of its state is seq.
LIFE: Final = 1 << 62
#: Causes that put a job behind the ready jobs. After other causes it returns to its old place.
_ARRIVES: Final = frozenset({"due", "unblocked", "requeued", "moved"})
#: Causes that also put it behind jobs that became ready in the same microsecond.
_BEHIND: Final = frozenset({"moved", "unblocked"})
#: Causes of a failure.
_FAILURES: Final = frozenset({"failed", "expired", "doomed"})


class Transitions:
    def __init__(self, random: Random, *, dead_max: int = 100_000) -> None:
        self.random = random
        #: Why the store fails, or empty. While it fails, no job changes and clients wait.
        self.halted = ""
        #: Why new jobs are refused; empty if they are accepted. The protocols check it.
        self.pushes_refused = ""

        self.next_seq = 1
        #: The position of the job that arrived last. It orders jobs and never decreases. It starts
        #: from the clock, but is ahead of it after the clock was set back.
        self.position = 0
        #: The server's clock when a job last became ready.
        self.clock = 0
        self.table = JobTable()
        self.queue_set = QueueSet()
        self.retention = Retention(dead_max)
        # The same dictionaries as in the components, for reading.
        self.jobs, self.by_jid = self.table.jobs, self.table.by_jid
        self.queues = self.queue_set.by_name
        self.done, self.dead = self.retention.done, self.retention.dead
        self.dying, self.kept = self.retention.dead_kept, self.retention.done_kept
        self.scheduled: dict[int, Job] = {}
        self.blocked: dict[int, Job] = {}
        #: Blocked jobs that wait for the release of their bulk load, by its name.
        self.staged: dict[str, dict[int, Job]] = {}
        self.leased: dict[int, Job] = {}
        self.dependencies = Dependencies(self.jobs)
        #: The number of scheduled jobs that failed before.
        self.retrying = 0
        #: Dead jobs and jobs that wait for a retry, by error.
        self.failing = FailureGroups()
        self.totals = Totals()
        self.statistics = Statistics()
        self.lately = Lately()
        self.clocked = Clocked()

        self.timers = TimerHeap()
        self.waiters = WaiterSet(self.queue_set, self.timers)
        #: The offset of the clock of the current client from the server's clock.
        self.skew = 0
        #: The same of the last client with a clock of its own. It applies to Qless jobs when
        #: another client changes them.
        self.theirs = 0
        #: Called after transitions of jobs with fields of a protocol: job, cause, actor, now.
        self.keeper: Callable[[Job, str, int, int], None] = _no_keeper
        #: Durable settings of protocols. Change them with `note`.
        self.notes: dict[str, bytes] = {}
        #: Open connections that can hold leases which end with the connection.
        self.holders: set[str] = set()
        #: Keys of due alarms.
        self.alarms: list[Hashable] = []

        self.batch = Batch()
        #: Counts changes that must be durable before they are acknowledged. A lease is not counted:
        #: after a crash the job is leased again.
        self.changes = 0
        #: Leases that ended because the previous process ended: seq -> attempt.
        self.interrupted: dict[int, int] = {}
        #: Ready jobs below this seq were ready when the store was read, unless they are in
        #: `_ready_since`: those have become ready since.
        self.restored_seq = 0
        self._ready_since: set[int] = set()
        #: The number of the current batch.
        self.turn = 0
        #: The number of reverts and of flushes.
        self.reverts = 0
        self.wipes = 0
        #: Whether a store makes changes durable. Without one, no reply waits.
        self.durable = False
        #: The batch whose commit is under way.
        self.committing: Batch | None = None
        #: Jobs that were leased in this turn although an earlier change of theirs, such as the push
        #: or the transition to ready, is not committed. The replies with these leases must wait.
        self.unsettled: set[int] = set()

    # Uncommitted changes

    @property
    def has_uncommitted(self) -> bool:
        """Whether the memory has any change that the store may still lose."""
        return self.durable and (self.committing is not None or bool(self.batch))

    def is_note_uncommitted(self, key: str) -> bool:
        committing = self.committing
        return key in self.batch.notes or (committing is not None and key in committing.notes)

    # Views

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
        return self.dependencies.next_dependent(job, after)

    # Changes and events

    def depend(self) -> None:
        """The reply to this command depends on state in memory: it must wait for the commit."""
        self.changes += 1

    def note(self, key: str, value: bytes | None) -> None:
        """Set or delete a durable setting."""
        if value is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = value
        self.batch.notes[key] = value
        self.changes += 1

    def note_unacknowledged(self, key: str, value: bytes) -> None:
        """Set a durable setting without letting the reply wait."""
        self.notes[key] = value
        self.batch.notes[key] = value

    def touch(self, job: Job) -> None:
        """Record a change of a job that is not a transition."""
        if job.seq not in self.batch.new:
            self.batch.changed[job.seq] = job
        self.changes += 1

    def count(self) -> Statistics:
        """The statistics, up to date."""
        batch = self.batch
        if batch.folded < len(batch.events):
            events = batch.events[batch.folded :] if batch.folded else batch.events
            self.statistics.fold(events, self.lately)
            batch.folded = len(batch.events)
        return self.statistics

    def take_batch(self) -> Batch:
        """End the turn and return its changes."""
        self.count()
        batch = self.batch
        self.batch = Batch()
        self.unsettled.clear()
        self.turn += 1
        return batch

    def restore(self, jobs: Iterable[Job], queues: dict[str, bool]) -> None:
        """Enter jobs and queues from the store. Ready jobs should come in the order of `place`."""
        for name, paused in queues.items():
            self.queue_set.restore(name, paused=paused)
        self.failing.deferring = True
        for job in jobs:
            self.restore_job(job)
        self.failing.deferring = False
        self.restored_seq = self.next_seq
        self._ready_since.clear()
        self.position += 1  # later arrivals are behind every restored job
        self.retention.sort()

    def revert(
        self, batches: Iterable[Batch], jobs: Iterable[Job], queues: dict[str, bool]
    ) -> None:
        """Undo batches that could not be written. `jobs` and `queues` are the committed records of
        all that these batches touched, or all records if a batch cleared everything.
        """
        batches = list(batches)
        if any(batch.cleared for batch in batches):
            self.clear()
        for batch in batches:
            for seq in (*batch.new, *batch.changed, *batch.rewritten):
                job = self.jobs.get(seq)
                if job is not None:
                    self.leave(job, self.queues[job.queue])
                    self.forget(job)
        for batch in batches:
            for name in batch.queues:
                queue = self.queues.get(name)
                if queue is not None and name not in queues:
                    queue.paused = queue.known = False
                    self.queue_set.drop_if_unused(queue)
        jobs = in_order(jobs)
        self.restore(jobs, queues)
        for load in {job.extra.load for job in jobs if job.extra is not None and job.extra.load}:
            if load in self.staged:  # the restored jobs are behind the others: sort them in
                self.staged[load] = dict(sorted(self.staged[load].items()))
        # Ends of leases and jobs because of closed connections were undone: repeat them.
        for job in self.leased.values():
            if job.actor in BOUND and job.holder not in self.holders:
                self.timers.set(job.seq, 0)
        for job in self.orphaned_transients():
            self.timers.set(job.seq + LIFE, 0)
        self.reverts += 1
        self.batch = Batch()
        self.unsettled.clear()

    def orphaned_transients(self) -> list[Job]:
        """Transient jobs whose clients are gone."""
        return [
            job
            for job in self.jobs.values()
            if job.extra is not None and job.extra.fleeting and not self.waiters.is_awaited(job.seq)
        ]

    def restore_job(self, job: Job) -> None:
        queue = self.queue_set.of_job(job.queue)
        job.queue, job.kind = queue.name, intern(job.kind)  # many jobs share one string
        self.table.add(job)
        if job.seq >= self.next_seq:
            self.next_seq = job.seq + 1
        # Positions of Qless jobs come from the clocks of its clients, which may be wrong.
        if job.place < LATER and job.origin != QLESS:
            self.position = max(self.position, job.place)
        if job.expires:
            self.timers.set(job.seq + LIFE, job.expires)
        if job.extra is not None:
            self.dependencies.add(job)
        self.enter(job, queue)

    def forget(self, job: Job) -> None:
        """Remove a job from the table, and the timer of its time to live."""
        self.table.remove(job)
        if job.expires:
            self.timers.cancel(job.seq + LIFE)
        if self._ready_since:
            self._ready_since.discard(job.seq)
        if job.extra is not None:
            if job.extra.fleeting:
                self.timers.cancel(job.seq + LIFE)  # set while the store failed
            if job.extra.blockers:
                self.dependencies.remove(job)

    def clear(self) -> None:
        self.queue_set.clear()
        for seq in self.jobs:
            self.timers.cancel(seq)
            self.timers.cancel(seq + LIFE)
        self.timers.cancel(TRIM_TIMER)
        self.wipes += 1
        self.table.clear()
        for index in (self.scheduled, self.blocked, self.leased):
            index.clear()
        self.retention.clear()
        self.staged.clear()
        self._ready_since.clear()
        self.dependencies.clear()
        self.failing.clear()
        self.retrying = 0
        self.totals = Totals()
        self.statistics = Statistics()

    # Transitions

    def apply(
        self,
        job: Job,
        queue: Queue,
        cause: str,
        to: int,
        now: int,
        actor: int,
        wait: int = 0,
        run: int = 0,
        source: str = "",
        repeat: int = 0,
    ) -> None:
        """Change a job's state, move it between indexes and append its event. `source` is the queue
        that a moved job comes from.

        This is most of the cost of a command, so the frequent transitions are written out here; the
        others use `leave` and `enter`.
        """
        before, seq, batch = job.state, job.seq, self.batch
        if before * 8 + to not in LEGAL[cause]:
            raise AssertionError(f"job {seq}: {cause} may not lead from {before} to {to}")

        lifetime = job.lifetime
        if before == LEASED:
            queue.counts[LEASED] -= 1
            del self.leased[seq]
            self.timers.cancel(seq)
            if lifetime is None:
                lifetime = lifetime_of(job)
            lifetime.run += run
            wait = lifetime.lease_wait
        elif cause == "leased":
            queue.counts[READY] -= 1  # the caller has popped it
        elif before != NEW:
            self.leave(job, queue)

        job.state = to
        if to == READY:
            if job.origin == QLESS:
                job.ready_at = now + self.theirs - self.skew
            else:
                self.clock = job.ready_at = now - self.skew
            if seq < self.restored_seq:
                self._ready_since.add(seq)
            if cause in _ARRIVES:
                self._arrive(job, cause)
        elif to == DEAD:
            job.due = job.expires or add_time(now, POLICIES[job.origin].dead_for)
        if to >= DONE and before not in {DONE, DEAD}:
            job.ended_at, job.outcome = now, cause
        simple = job.failure is None and job.extra is None and not source
        if simple and before != LEASED and to <= LEASED:
            event: Row = (
                now,
                cause,
                seq,
                job.jid,
                queue.name,
                job.kind,
                job.origin,
                actor,
                job.holder,
                job.attempt,
                to,
                job.rank,
                job.ready_at,
                job.leased_at,
                wait,
                run,
                job.due,
                len(job.payload),
                before,
                job.created,
            )
        elif simple and to == GONE and lifetime is not None and lifetime.complete:
            held = before == LEASED
            event = (
                now,
                cause,
                seq,
                job.jid,
                queue.name,
                job.kind,
                job.origin,
                actor,
                job.holder,
                job.attempt,
                to,
                job.rank,
                job.ready_at,
                job.leased_at,
                wait,
                run,
                job.due,
                len(job.payload),
                before,
                job.created,
                "",
                "",
                "",
                (),
                "",
                job.actor if held else NO_PROTOCOL,
                lifetime.renewals if held else 0,
                repeat,
                lifetime.leases,
                lifetime.failures,
                lifetime.wait,
                lifetime.run,
                lifetime.first_leased_at,
                lifetime.first_queue,
                job.outcome,
                job.ended_at,
            )
        else:
            event = self.make_event(job, cause, before, now, actor, wait, run, source, repeat)
            if job.extra is not None and job.extra.own is not None:
                self.keeper(job, cause, actor, now)
        batch.events.append(event)

        if to == GONE:
            self.forget(job)
            if batch.new.pop(seq, None) is None:
                batch.changed.pop(seq, None)
                batch.rewritten.pop(seq, None)
                batch.gone[seq] = None
            if self.dependencies and cause not in _FAILURES:
                self.unblock_dependents(job, now)
            if not queue.known:
                self.queue_set.drop_if_unused(queue)
            return
        if seq not in batch.new:
            batch.changed[seq] = job
        if to == READY:
            if not queue.known:
                self.open_queue(queue.name)  # it was removed while the job was not ready
            queue.counts[READY] += 1
            queue.ready.add(job)
            if queue.waiters:
                self.serve(queue, now)
        elif to == LEASED:
            queue.counts[LEASED] += 1
            self.leased[seq] = job
            if actor not in UNTIMED:
                self.timers.set(seq, job.deadline)
        else:
            self.enter(job, queue)
            if to == DONE and self.dependencies and cause != "advanced":
                self.unblock_dependents(job, now)

    def _arrive(self, job: Job, cause: str) -> None:
        """Put a job that became ready behind the others, unless its position is fixed."""
        if not 0 <= job.place < LATER:
            return
        if cause == "due" and job.failures and job.origin in RETURNING:
            return
        if job.origin == QLESS:
            job.place = job.ready_at
        else:
            job.place = self.next_position(job.ready_at, behind=cause in _BEHIND)

    def next_position(self, now: int, *, behind: bool = False) -> int:
        """The position of a job that arrives now. Jobs that arrive in the same microsecond share
        one and are ordered by seq, unless the clock was set back or the job is to be `behind`.
        """
        if now > self.position:
            self.position = now
        elif behind or now < self.position:
            self.position += 1
        return self.position

    def make_event(
        self,
        job: Job,
        cause: str,
        before: int,
        now: int,
        actor: int,
        wait: int = 0,
        run: int = 0,
        source: str = "",
        repeat: int = 0,
    ) -> Row:
        """An event in the order of events.Event, without the fields at its end that are empty for
        its cause. `apply` builds the frequent forms itself.
        """
        failure, extra, state = job.failure, job.extra, job.state
        ends = state >= DONE
        group = message = shape = ""
        if failure is not None and (ends or cause in _FAILURES):
            group, message = failure.group, failure.message
            shape = fingerprint(group, message)
        event: Row = (
            now,
            cause,
            job.seq,
            job.jid,
            job.queue,
            job.kind,
            job.origin,
            actor,
            job.holder,
            job.attempt,
            state,
            job.rank,
            job.ready_at,
            job.leased_at,
            wait,
            run,
            job.due,
            len(job.payload),
            before,
            job.created,
            group,
            message,
            shape,
            () if extra is None else tuple(extra.tags),
            source,
        )
        lifetime = job.lifetime
        if before == LEASED and state != LEASED:
            assert lifetime is not None
            event += (job.actor, lifetime.renewals, repeat)
        elif ends or repeat:
            event += (NO_PROTOCOL, 0, repeat)
        return event + _totals(job) if ends else event

    def leave(self, job: Job, queue: Queue) -> None:
        """Remove a job from the indexes of its state."""
        state = job.state
        queue.counts[state] -= 1
        if state == READY:
            queue.ready.remove(job)
            return
        del self.index_of_job(job)[job.seq]
        self.timers.cancel(job.seq)
        if state == DEAD:
            self.failing.leave(job.seq)
        elif state == SCHEDULED and job.failures:
            self.retrying -= 1
            self.failing.leave(job.seq)
        elif state == BLOCKED and job.extra is not None and job.extra.load:
            self.unstage(job)

    def enter(self, job: Job, queue: Queue) -> None:
        """Enter a job into the indexes of its state."""
        state = job.state
        queue.counts[state] += 1
        if state == READY:
            queue.ready.add(job)
            return
        self.index_of_job(job)[job.seq] = job
        if state == LEASED:
            if job.actor not in UNTIMED:
                self.timers.set(job.seq, job.deadline)
        elif state == SCHEDULED:
            skew = self.theirs if job.origin == QLESS else self.skew
            self.timers.set(job.seq, job.due - skew)
            if job.failures:
                self.retrying += 1
                self.failing.enter(job)
        elif state == BLOCKED:
            if job.extra is not None and job.extra.load:
                self.staged.setdefault(job.extra.load, {})[job.seq] = job
        else:
            if not job.expires and job.due != FOREVER:
                self.timers.set(job.seq, job.due)
            if state == DEAD:
                self.failing.enter(job)

    def unstage(self, job: Job) -> None:
        assert job.extra is not None
        staged = self.staged[job.extra.load]
        del staged[job.seq]
        if not staged:
            del self.staged[job.extra.load]

    def index_of_job(self, job: Job) -> dict[int, Job]:
        """The index of a job that is not ready."""
        if job.state == SCHEDULED:
            return self.scheduled
        if job.state == BLOCKED:
            return self.blocked
        return self.leased if job.state == LEASED else self.retention.index_of(job)

    def index_of(self, state: int) -> dict[int, Job]:
        """The jobs in a state other than ready; done and dead jobs only where they are bounded."""
        if state == SCHEDULED:
            return self.scheduled
        if state == BLOCKED:
            return self.blocked
        if state == LEASED:
            return self.leased
        return self.done if state == DONE else self.dead

    def start_state(self, job: Job, now: int) -> int:
        """The state of a new, moved or unblocked job."""
        if job.extra is not None and (job.extra.blockers or job.extra.load):
            return BLOCKED
        if job.origin == QLESS:
            now += self.theirs - self.skew
        return SCHEDULED if job.due > now else READY

    def start_unblocked(self, job: Job, now: int) -> None:
        """Start a job that waits for no other any more. The due time of a job follows the server's
        clock, also if a caller with its own clock ended the blocker; Qless jobs follow theirs.
        """
        skew = self.skew
        if job.origin != QLESS:
            self.skew = 0
            now -= skew
        try:
            queue = self.queues[job.queue]
            self.apply(job, queue, "unblocked", self.start_state(job, now), now, NO_PROTOCOL)
        finally:
            self.skew = skew

    # Queues and leases

    def open_queue(self, name: str) -> Queue:
        """The queue of that name, created if it does not exist."""
        return self.queue_set.open(name, self.batch)

    def lease_to(
        self,
        job: Job,
        queue: Queue,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> None:
        wait = max(0, now - (job.ready_at if since is None else since(job)))
        if job.lifetime is None and not job.attempt and not job.failures:
            job.lifetime = Lifetime(1, 0, wait, 0, now, wait)
        else:
            lifetime = lifetime_of(job)
            lifetime.first_leased_at = lifetime.first_leased_at if lifetime.leases else now
            lifetime.leases += 1
            lifetime.wait += wait
            lifetime.lease_wait = wait
            lifetime.renewals = 0
        job.attempt += 1
        job.leased_at = now
        if until is None:
            until = FOREVER if actor in BOUND else add_time(now, job.lease_for)
        job.deadline = until
        job.holder = holder
        job.actor = actor
        queue.asked = now
        if self.durable:
            committing = self.committing
            if self.batch.touches(job.seq) or (
                committing is not None and committing.touches(job.seq)
            ):
                self.unsettled.add(job.seq)
        self.apply(job, queue, "leased", LEASED, now, actor, wait)

    def serve(self, queue: Queue, now: int) -> None:
        """Lease ready jobs to waiters, the longest waiter first, by the server's clock."""
        now -= self.skew
        while queue.waiters and not queue.paused and not self.halted:
            job = queue.ready.pop()
            if job is None:
                return
            waiter = next(iter(queue.waiters.values()))
            self.waiters.remove(waiter)
            until = add_time(now, waiter.lease_for) if waiter.lease_for else None
            self.lease_to(job, queue, waiter.holder, waiter.actor, now, until)
            self.waiters.deliveries.append((waiter, job))

    def unblock_dependents(self, blocker: Job, now: int) -> None:
        """Remove a job from the blockers of its dependents."""
        for job in self.dependencies.take_dependents(blocker):
            assert job.extra is not None
            if job.state == BLOCKED and not job.extra.blockers and not job.extra.load:
                self.start_unblocked(job, now)
            elif job.seq not in self.batch.new:
                self.batch.changed[job.seq] = job


def _totals(job: Job) -> Row:
    """The end of an event that ends a job."""
    found = job.lifetime
    if found is None:
        leases = -1 if job.attempt or job.failures else 0
        return (leases, leases, leases, leases, 0, "", job.outcome, job.ended_at)
    if not found.complete:
        return (-1, -1, -1, -1, 0, found.first_queue, job.outcome, job.ended_at)
    return (
        found.leases,
        found.failures,
        found.wait,
        found.run,
        found.first_leased_at,
        found.first_queue,
        job.outcome,
        job.ended_at,
    )


def _no_keeper(job: Job, cause: str, actor: int, now: int) -> None:
    """No protocol has set a keeper."""


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Jobs in the order that `restore` needs."""
    return sorted(jobs, key=lambda job: (job.place, job.seq))
