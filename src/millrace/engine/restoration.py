"""Restoration of jobs from the store, at start-up or after a refused commit; removal of all jobs.

Commands do no extra work for a possible undo. The undo removes every job that the refused change
sets touched from all components, and restores what the store has.
"""

from collections.abc import Iterable
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Final

from .change_set import ChangeSet
from .counters import Totals
from .discarded import Discarded
from .job import AFTER_ARRIVALS, BEFORE_ARRIVALS, FOREVER, NO_PROTOCOL, Job
from .job_timers import TTL_TIMER
from .retention import TRIM_TIMER
from .states import READY
from .statistics import Statistics
from .waiters import UNDONE, JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

#: The timer that frees records after a flush, and the number of records per tick.
DISCARD_TIMER: Final = "discarded"
DISCARD_BATCH_SIZE: Final = 1000


class Restoration:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        #: Records removed by a flush: freeing a million at once would delay all clients.
        self._discarded = Discarded(engine.queues)
        #: Ready jobs below this seq were ready when the server read the store. Exceptions are the
        #: jobs in `ready_since`, which became ready later.
        self.restored_seq = 0
        self.ready_since: set[int] = set()
        #: Leases that ended because the previous process ended: seq -> attempt.
        self._interrupted: dict[int, int] = {}

    def restore(self, jobs: Iterable[Job], queues: dict[str, bool]) -> None:
        """Add jobs and queues from the store. Ready jobs should be sorted by `position`."""
        engine = self._engine
        for name, paused in queues.items():
            engine.queue_set.restore(name, paused=paused)
        engine.failure_groups.deferring = True
        self._restore_jobs(jobs)
        engine.failure_groups.deferring = False
        self.restored_seq = engine.next_seq
        self.ready_since.clear()
        engine.positions.last += 1  # later arrivals are behind every restored job
        engine.retention.sort()

    def revert(
        self, change_sets: Iterable[ChangeSet], jobs: Iterable[Job], queues: dict[str, bool]
    ) -> None:
        """Undo change sets that could not be written. `jobs` and `queues` are the committed records
        of all that these change sets touched, or all records if a change set cleared everything.
        """
        engine = self._engine
        change_sets = list(change_sets)
        held = engine.leases.held_before(change_sets)
        awaited = [
            job
            for change_set in change_sets
            for job in change_set.new.values()
            if job.seq in engine.waiters.by_job
        ]
        if any(change_set.cleared for change_set in change_sets):
            self.clear()
        for change_set in change_sets:
            for seq in (*change_set.new, *change_set.changed, *change_set.rewritten):
                job = engine.jobs.get(seq)
                if job is not None:
                    engine.transitions.leave(job)
                    engine.transitions.forget(job)
        for change_set in change_sets:
            for name in change_set.queues:
                queue = engine.queues.get(name)
                if queue is not None and name not in queues:
                    queue.paused = queue.registered = False
                    engine.queue_set.drop_if_unused(queue)
        jobs = in_order(jobs)
        self.restore(jobs, queues)
        engine.leases.restore_undone(held)
        for job in awaited:
            if job.seq not in engine.jobs:
                engine.waiters.job_ended(JobOutcome(job, UNDONE, False, b""))
        for load in {job.extra.load for job in jobs if job.extra is not None and job.extra.load}:
            if load in engine.staged:  # sort: the restored jobs are at the end
                engine.staged[load] = dict(sorted(engine.staged[load].items()))
        # The revert also restored leases and jobs that closed connections had ended: end them
        # again.
        for job in engine.leased.values():
            if (
                job.history.holder_protocol in engine.rules.bound
                and job.history.holder not in engine.leases.holders
            ):
                engine.timers.set(job.seq, 0)
        for job in self.orphaned_transients():
            engine.timers.set(job.seq + TTL_TIMER, 0)
        engine.revert_count += 1
        engine.change_set = ChangeSet()

    def after_restart(self, now: int) -> None:
        """Remove transient jobs after a restart, and return leases that were bound to connections,
        without a failure. The restart has closed all connections.
        """
        engine = self._engine
        engine.clock = now
        for job in self.orphaned_transients():
            engine.cancel(job, now)
        engine.transactions.after_restart(now)
        bound = [job for job in engine.leased.values() if self._is_bound(job)]
        self._interrupted = {job.seq: job.history.attempt for job in bound}
        for job in in_order(bound):
            self.return_lease(job, now)
        engine.limits.settle(now)
        engine.recurring.clock_set()

    def resume(self, now: int) -> None:
        """Remove orphaned transient jobs and serve waiters, after the store has recovered."""
        engine = self._engine
        engine.unavailable = ""
        for job in self.orphaned_transients():
            engine.removal.end_of_life(job, now)
        engine.limits.settle(now)
        engine.assignments.serve_all(now)

    def is_untouched(self, job: Job) -> bool:
        """Whether a ready job has been ready since the server read the store."""
        return job.seq < self.restored_seq and job.seq not in self.ready_since

    def was_interrupted(self, job: Job) -> bool:
        """Whether the end of the previous process has interrupted the lease of a job."""
        return self._is_bound(job) and self._interrupted.get(job.seq) == job.history.attempt

    def return_lease(self, job: Job, now: int) -> None:
        """Return a lease without a failure, because a restart closed its connection."""
        engine = self._engine
        queue = engine.queues[job.queue]
        engine.transitions.apply(job, queue, "released", READY, now, NO_PROTOCOL)
        engine.caller.must_wait = True

    def _is_bound(self, job: Job) -> bool:
        """Whether the lease of a job ends with the connection of its holder."""
        return job.history.holder_protocol in self._engine.rules.bound

    def orphaned_transients(self) -> list[Job]:
        """Transient jobs whose client has disconnected or no longer waits."""
        engine = self._engine
        return [
            job
            for job in engine.jobs.values()
            if job.extra is not None
            and job.extra.transient
            and not engine.waiters.has_owner(job.seq)
        ]

    def _restore_jobs(self, jobs: Iterable[Job]) -> None:
        """Add jobs as `restore_job` does. Nearly all jobs of a backlog are ready, so this loop
        collects them and adds all jobs of a queue together. The start-up time depends on it.
        """
        engine = self._engine
        table, of_job, own_clock = engine.table, engine.queue_set.of_job, engine.rules.own_clock
        ready: dict[str, list[Job]] = {}
        known, by_jid = table.jobs, table.by_jid
        position, last_seq = engine.positions.last, engine.next_seq - 1
        for job in jobs:
            if job.state != READY or (job.extra is not None and job.extra.details is not None):
                self.restore_job(job)
                continue
            known[job.seq] = job
            if by_jid.setdefault(job.jid, job) is not job:
                table.add_duplicate(job)
            if position < job.position < AFTER_ARRIVALS and job.origin not in own_clock:
                position = job.position
            if job.seq > last_seq:  # noqa: PLR1730 - `max`, inlined
                last_seq = job.seq
            if job.expires_at:
                engine.timers.set(job.seq + TTL_TIMER, job.expires_at)
            if job.extra is not None:
                engine.dependencies.add(job)
                engine.annotations.add(job)
            group = ready.get(job.queue)
            if group is None:
                ready[of_job(job.queue).name] = group = []
            group.append(job)
        for name, group in ready.items():
            queue = engine.queues[name]
            queue.counts[READY] += len(group)
            queue.ready.extend(group)
            for job in group:
                job.queue = name
        engine.positions.last = max(engine.positions.last, position)
        engine.next_seq = max(engine.next_seq, last_seq + 1)

    def restore_job(self, job: Job) -> None:
        engine = self._engine
        queue = engine.queue_set.of_job(job.queue)
        job.queue, job.kind = queue.name, intern(job.kind)  # jobs share these strings
        for component in engine.components:
            component.add(job)
        if job.seq >= engine.next_seq:
            engine.next_seq = job.seq + 1
        # The clock of a client, which may be wrong, determines the positions of its jobs.
        if job.position < AFTER_ARRIVALS and job.origin not in engine.rules.own_clock:
            engine.positions.last = max(engine.positions.last, job.position)

    def clear(self) -> None:
        engine = self._engine
        is_large = max(len(engine.jobs), len(engine.queues)) > DISCARD_BATCH_SIZE
        if is_large:
            self._replace_table()
            self._discarded.add(list(engine.queues.values()))
            self._discarded.add(list(engine.statistics.days.values()))
            engine.timers.set(DISCARD_TIMER, 0)
        # This comes first, so that the components examine no queue and no timer of a job.
        removed = engine.queue_set.forget_all()
        if is_large:
            self._discarded.add(removed)
        engine.timers.clear_jobs()
        for component in engine.components:
            component.clear()
        engine.timers.cancel(TRIM_TIMER)
        engine.flush_count += 1
        self.ready_since.clear()
        engine.positions.tied.clear()
        engine.totals = Totals()
        engine.statistics = Statistics()

    def _replace_table(self) -> None:
        """Remove all jobs from the table. Emptying it takes 45 ms for 1,000,000 jobs, so each
        component gets a new one.
        """
        engine = self._engine
        for table in engine.table.replace():
            self._discarded.add(table)
        engine.jobs, engine.by_jid = engine.table.jobs, engine.table.by_jid
        engine.payloads.use_jobs(engine.jobs)
        for component in engine.components:
            component.use_jobs(engine.jobs)

    def free_discarded(self, now: int) -> None:
        """Free some records that a flush has removed."""
        self._discarded.free(DISCARD_BATCH_SIZE)
        if self._discarded:
            self._engine.timers.set(DISCARD_TIMER, now)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Jobs in the order that `restore` needs: by position, then by seq. They are usually sorted,
    and a sort of a million jobs takes longer than this check, and more memory.
    """
    found = list(jobs)
    position, seq = BEFORE_ARRIVALS - FOREVER, 0
    for job in found:
        if job.position < position or (job.position == position and job.seq < seq):
            found.sort(key=attrgetter("seq"))
            found.sort(key=attrgetter("position"))
            break
        position, seq = job.position, job.seq
    return found
