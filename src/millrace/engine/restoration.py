"""Restoration of jobs from the store, at start-up or after a refused commit; removal of all jobs.

Commands do no extra work for a possible undo. The undo removes every job that the refused change
sets touched from all components, and restores what the store has.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from .change_set import ChangeSet
from .counters import Totals
from .discarded import DiscardedCollections
from .job import AFTER_ARRIVALS, BEFORE_ARRIVALS, FOREVER, NO_PROTOCOL, Job, forget_shared_terms
from .job_timers import TTL_KEY_OFFSET
from .queues import FORGOTTEN_PREFIX
from .retention import TRIM_TIMER
from .states import READY
from .statistics import Statistics
from .tables import Tables
from .waiters import UNDONE, JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

#: The number of ready jobs of a queue that are added together at start-up.
RESTORE_BATCH_SIZE: Final = 10_000
#: The timer that frees records after a flush, and the number of records per tick.
DISCARD_TIMER: Final = "discarded"
DISCARD_BATCH_SIZE: Final = 1000


class Restoration:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        #: Records removed by a flush: freeing a million at once would delay all clients.
        self._discarded = DiscardedCollections(engine.queues)
        #: Ready jobs below this seq were ready when the server read the store. The exceptions are
        #: the jobs in `ready_after_restore`, which became ready later.
        self.restored_seq = 0
        self.ready_after_restore: set[int] = set()
        #: Leases that ended because the previous process ended: seq -> attempt.
        self._interrupted: dict[int, int] = {}

    def restore(
        self, jobs: Iterable[Job], queues: dict[str, bool], *, in_table: bool = False
    ) -> None:
        """Add jobs and queues from the store. Ready jobs should be sorted by `position`. With
        `in_table`, the table of jobs by seq already has them.
        """
        engine = self._engine
        for name, paused in queues.items():
            engine.queue_set.restore(name, paused=paused)
        engine.failure_groups.deferring = True
        self._restore_jobs(jobs, in_table=in_table)
        engine.failure_groups.deferring = False
        self.restored_seq = engine.next_seq
        self.ready_after_restore.clear()
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
            self.remove_all_jobs()
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
        jobs = list(jobs)
        for job in jobs:  # usually in the order of their seqs, which saves memory
            engine.jobs.put(job.seq, job)
        jobs = sort_for_restore(jobs)
        self.restore(jobs, queues, in_table=True)
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
                job.history.holder_protocol in engine.rules.bound_protocols
                and job.history.holder not in engine.leases.holders
            ):
                engine.timers.set(job.seq, 0)
        for job in self.orphaned_transients():
            engine.timers.set(job.seq + TTL_KEY_OFFSET, 0)
        engine.revert_count += 1
        engine.change_set = ChangeSet()

    def after_restart(self, now: int) -> None:
        """Remove transient jobs after a restart, and release the leases of connections. The restart
        has closed these connections; this does not count as a failure.
        """
        engine = self._engine
        engine.last_known_time = now
        self._drop_forgotten_names()
        for job in self.orphaned_transients():
            engine.cancel(job, now)
        engine.transactions.after_restart(now)
        bound = [job for job in engine.leased.values() if self._is_bound(job)]
        self._interrupted = {job.seq: job.history.attempt for job in bound}
        for job in sort_for_restore(bound):
            self.release_interrupted(job, now)
        engine.limits.unpark_freed(now)
        engine.recurring.schedule_check()

    def _drop_forgotten_names(self) -> None:
        """Delete the settings of forgotten queues that have lost their last job."""
        engine = self._engine
        for key in [each for each in engine.settings if each.startswith(FORGOTTEN_PREFIX)]:
            if key[len(FORGOTTEN_PREFIX) :] not in engine.queues:
                engine.set_setting(key, None)

    def resume(self, now: int) -> None:
        """Remove orphaned transient jobs and serve waiters, after the store has recovered."""
        engine = self._engine
        engine.unavailable_reason = ""
        for job in self.orphaned_transients():
            engine.removal.remove_expired(job, now)
        engine.limits.unpark_freed(now)
        engine.assignments.serve_all(now)

    def is_untouched(self, job: Job) -> bool:
        """Whether a ready job has been ready since the server read the store."""
        return job.seq < self.restored_seq and job.seq not in self.ready_after_restore

    def was_interrupted(self, job: Job) -> bool:
        """Whether the end of the previous process has interrupted the lease of a job."""
        return self._is_bound(job) and self._interrupted.get(job.seq) == job.history.attempt

    def release_interrupted(self, job: Job, now: int) -> None:
        """Release a lease without counting a failure, because a restart closed its connection."""
        engine = self._engine
        queue = engine.queues[job.queue]
        engine.transitions.apply(job, queue, "released", READY, now, NO_PROTOCOL)
        engine.caller.must_wait = True

    def _is_bound(self, job: Job) -> bool:
        """Whether the lease of a job ends with the connection of its holder."""
        return job.history.holder_protocol in self._engine.rules.bound_protocols

    def orphaned_transients(self) -> list[Job]:
        """Transient jobs whose client has disconnected or no longer waits."""
        engine = self._engine
        return [
            job
            for job in engine.jobs.each()
            if job.extra is not None
            and job.extra.transient
            and not engine.waiters.has_owner(job.seq)
        ]

    def _restore_jobs(self, jobs: Iterable[Job], *, in_table: bool) -> None:
        """Add jobs as `restore_job` does. Nearly all jobs of a backlog are ready, so this loop
        collects them and adds all jobs of a queue together. The start-up time depends on it.
        """
        engine = self._engine
        table, of_job, own_clock = (
            engine.table,
            engine.queue_set.get_or_create,
            engine.rules.own_clock_protocols,
        )
        ready: dict[str, list[Job]] = {}
        known, by_jid = table.jobs, table.by_jid
        position, last_seq = engine.positions.last, engine.next_seq - 1
        name, group = "", list[Job]()  # the queue of the last job, and its jobs
        for job in jobs:
            if job.state != READY or (job.extra is not None and job.extra.details is not None):
                self.restore_job(job)
                continue
            if not in_table:
                known.put(job.seq, job)
            if by_jid.setdefault(job.jid, job) is not job:
                table.add_duplicate(job)
            if position < job.position < AFTER_ARRIVALS and job.origin not in own_clock:
                position = job.position
            if job.seq > last_seq:  # noqa: PLR1730 - `max`, inlined
                last_seq = job.seq
            if job.expires_at:
                engine.timers.set(job.seq + TTL_KEY_OFFSET, job.expires_at)
            if job.extra is not None:
                engine.dependencies.add(job)
                engine.annotations.add(job)
            if job.queue != name or not ready:
                name = of_job(job.queue).name
                if name not in ready:
                    ready[name] = []
                group = ready[name]
            job.queue = name  # jobs share this string
            group.append(job)
            if len(group) == RESTORE_BATCH_SIZE:
                self._restore_ready(name, group)
                group.clear()
        for name, group in ready.items():
            self._restore_ready(name, group)
        engine.positions.last = max(engine.positions.last, position)
        engine.next_seq = max(engine.next_seq, last_seq + 1)

    def _restore_ready(self, name: str, jobs: list[Job]) -> None:
        """Add ready jobs of a queue, in their order."""
        queue = self._engine.queues[name]
        queue.counts[READY] += len(jobs)
        queue.forgotten = not queue.registered  # see `QueueSet.add`
        queue.ready.extend(jobs)

    def restore_job(self, job: Job) -> None:
        engine = self._engine
        queue = engine.queue_set.get_or_create(job.queue)
        job.queue = queue.name  # jobs share this string
        for component in engine.components:
            component.add(job)
        if job.seq >= engine.next_seq:
            engine.next_seq = job.seq + 1
        # The clock of a client, which may be wrong, determines the positions of its jobs.
        if job.position < AFTER_ARRIVALS and job.origin not in engine.rules.own_clock_protocols:
            engine.positions.last = max(engine.positions.last, job.position)

    def remove_all_jobs(self) -> None:
        engine = self._engine
        is_large = max(len(engine.jobs), len(engine.queues)) > DISCARD_BATCH_SIZE
        if is_large:
            self._discarded.add(list(engine.queues.values()))
            self._discarded.add(list(engine.statistics.days.values()))
            engine.timers.set(DISCARD_TIMER, 0)
        # This comes first, so that the components examine no queue and no timer of a job.
        removed = engine.queue_set.forget_all(engine.waiters.awaited_queues())
        timers, tags = engine.timers.clear_jobs(), engine.annotations.take_tags()
        if is_large:
            for collection in (removed, *timers, tags):
                self._discarded.add(collection)
            del timers, tags
            self._replace_indexes()
        else:
            for component in engine.components:
                component.clear()
        engine.timers.cancel(TRIM_TIMER)
        forget_shared_terms()
        engine.flush_count += 1
        self.ready_after_restore.clear()
        engine.positions.tied.clear()
        engine.totals = Totals()
        engine.statistics = Statistics(engine.statistics.keep_days)

    def _replace_indexes(self) -> None:
        """Remove all jobs from the table and from the indexes. Emptying the table takes 45 ms for
        1,000,000 jobs, so each component gets a new one, and replaces its own indexes.
        """
        engine = self._engine
        for component in engine.components:
            for collection in component.discard():
                self._discarded.add(collection)
        engine.jobs, engine.by_jid = engine.table.jobs, engine.table.by_jid
        retention, states = engine.retention, engine.states
        engine.done, engine.dead = retention.done, retention.dead
        engine.dead_untrimmed = retention.dead_untrimmed
        engine.done_untrimmed = retention.done_untrimmed
        engine.scheduled, engine.blocked = states.scheduled, states.blocked
        engine.leased, engine.staged = states.leased, states.staged
        engine.transitions.use_leased(states.leased)
        engine.all_tables = Tables(engine)
        engine.payloads.use_jobs(engine.jobs)
        for component in engine.components:
            component.use_jobs(engine.jobs)

    def free_discarded(self, now: int) -> None:
        """Free some records that a flush has removed."""
        self._discarded.free(DISCARD_BATCH_SIZE)
        if self._discarded:
            self._engine.timers.set(DISCARD_TIMER, now)


def sort_for_restore(jobs: Iterable[Job]) -> list[Job]:
    """Jobs in the order that `restore` needs: by position, then by seq. They are usually sorted,
    and a sort of a million jobs takes longer than this check, and more memory.
    """
    found = list(jobs)
    if not is_sorted_for_restore(found):
        found.sort(key=attrgetter("seq"))
        found.sort(key=attrgetter("position"))
    return found


def is_sorted_for_restore(jobs: Iterable[Job]) -> bool:
    """Whether jobs are sorted by position, then by seq."""
    position, seq = BEFORE_ARRIVALS - FOREVER, 0
    for job in jobs:
        if job.position < position or (job.position == position and job.seq < seq):
            return False
        position, seq = job.position, job.seq
    return True
