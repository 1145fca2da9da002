"""Removal of jobs and queues: one job, a queue, the jobs of a protocol, or everything."""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

from .change_set import ChangeSet
from .discarded import drain
from .job import NO_PROTOCOL, Job
from .queues import FORGOTTEN_PREFIX, Queue
from .settings import FLUSHED_SETTINGS
from .states import DEAD, DONE, GONE, READY
from .waiters import JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

#: The number of jobs that one step of a flush of one protocol removes, and examines.
FLUSH_BATCH_SIZE: Final = 100
FLUSH_SCAN_SIZE: Final = 2000
#: The number of jobs that one step of the removal of a queue removes.
REMOVAL_BATCH_SIZE: Final = 40


class Removal:
    """Removes jobs and queues from the components of an engine."""

    __slots__ = ("_engine", "_queues", "_transitions", "_waiters")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._queues, self._waiters = engine.queues, engine.waiters
        self._transitions = engine.transitions

    # Jobs

    def cancel(self, job: Job, now: int, actor: int) -> None:
        """Remove a job in any state, and end its lease if it has one."""
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "cancelled", False, b""))
        self._transitions.apply(job, self._queues[job.queue], "cancelled", GONE, now, actor)
        self._engine.caller.must_wait = True

    def remove_expired(self, job: Job, now: int) -> None:
        """Remove a job whose time to live has expired, or a transient job whose client has
        disconnected.
        """
        counts = self._engine.timer_counts
        if job.state in {DONE, DEAD}:
            counts.purged += 1
            cause = "purged"
        elif job.extra is not None and job.extra.transient:
            cause = "cancelled"
        else:
            counts.evicted += 1
            cause = "evicted"
            if job.seq in self._waiters.by_job:
                self._waiters.job_ended(JobOutcome(job, cause, False, b""))
        self._transitions.apply(job, self._queues[job.queue], cause, GONE, now, NO_PROTOCOL)
        self._engine.caller.must_wait = True

    # Queues

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs; see Engine.remove_queue."""
        for _ in self.remove_queue_in_slices(name, now):
            pass

    def remove_queue_in_slices(self, name: str, now: int) -> Generator[None, None, None]:
        """Remove a queue in several steps. The first step hides the queue and the jobs that are
        ready at that time. If the caller closes the generator early, the remaining
        jobs stay. The removal of the name is recorded at the end: after a crash in the middle, the
        queue is still listed.
        """
        engine = self._engine
        queue = self._queues.get(name)
        if queue is None or not (queue.registered or queue.counts[READY]):
            return
        queue.registered = queue.paused = False
        queue.removals += 1  # no waiter receives a job that is about to be removed
        engine.edits.record()
        reverts = engine.revert_count
        try:
            for number, job in enumerate(drain(list(queue.ready)), 1):
                if job.state == READY and engine.jobs.get(job.seq) is job:
                    # This can unblock a job, which opens the queue again.
                    self.cancel(job, now, NO_PROTOCOL)
                if number % REMOVAL_BATCH_SIZE == 0:
                    yield
                    if engine.revert_count != reverts:
                        return  # the store has refused a step, and the engine has reverted it
        finally:
            queue.removals -= 1
            if engine.revert_count == reverts:
                self._end_removal(queue)
            if self._queues.get(name) is queue:
                if queue.waiters:
                    engine.assignments.serve_waiters(queue, now)
                engine.queue_set.drop_if_unused(queue)

    def _end_removal(self, queue: Queue) -> None:
        """Record the removal of a queue, or that it is open again because it has ready jobs."""
        engine, name = self._engine, queue.name
        current = self._queues.get(name)  # the removal of its last job drops an unused queue
        if current is None or not (current.registered or current.counts[READY]):
            engine.change_set.queues[name] = None
        elif not current.forgotten:
            engine.queue_set.open(name, engine.change_set)
        engine.edits.record()

    def remove_queue_if_empty(self, job: Job, name: str, now: int) -> None:
        """Remove the queue of a failed job if the failure was final, the queue is now empty, and
        the policy of the job requires it.
        """
        queue = self._queues.get(name)
        if queue is None or not queue.registered or queue.is_closed or queue.waiters:
            return
        left = job.queue != name or job.state == DEAD
        removes = self._engine.rules.policies[job.origin].removes_empty_queue
        if left and removes and not any(queue.counts[:DEAD]):
            self.remove_queue(name, now)

    def forget_queue(self, name: str) -> None:
        """Remove a queue's name and resume the queue; see Engine.forget_queue."""
        engine = self._engine
        queue = self._queues.get(name)
        if queue is None or not queue.registered:
            return
        queue.registered = queue.paused = False
        queue.forgotten = True
        engine.change_set.queues[name] = None
        if any(queue.counts):
            engine.set_setting(FORGOTTEN_PREFIX + name, b"")
        engine.queue_set.drop_if_unused(queue)
        engine.edits.record()

    # Everything

    def flush(self, now: int) -> None:
        """Remove every job, queue and counter, and the settings in `FLUSHED_SETTINGS`."""
        engine = self._engine
        engine.current_statistics()
        engine.leases.record_ends()
        engine.restoration.remove_all_jobs()
        old, changes = engine.change_set, ChangeSet()
        changes.ended_leases = old.ended_leases
        changes.cleared = True
        changes.events, changes.event_count = old.events, old.event_count
        changes.settings = old.settings
        engine.change_set = changes
        keys = [key for key in engine.settings if key.startswith(FLUSHED_SETTINGS)]
        for key in keys:  # there may be thousands of tracked ids and of limits
            del engine.settings[key]
        changes.settings.update(dict.fromkeys(keys))
        changes.edits += len(keys)
        engine.load_settings()
        engine.recent_durations.clear()
        changes.event_count += 1
        if engine.records_transitions:
            last = engine.next_seq - 1
            zeros = (0,) * 7
            changes.events.append(
                (now, "flushed", last, "", "", "", 0, 0, "", 0, GONE, *zeros, GONE, 0)
            )
        engine.caller.must_wait = True

    def flush_steps(self, clock: Callable[[], int], origin: int) -> Iterator[int]:
        """Remove the jobs of one protocol, and yield the number that each step removed: at most
        FLUSH_BATCH_SIZE, and 0 if it only examined jobs. Jobs pushed after the first step stay.
        """
        engine, removed_count = self._engine, 0
        # Remove the newest jobs first, so that no dependent becomes ready before its removal.
        for number, seq in enumerate(engine.jobs.seqs(newest_first=True), 1):
            job = engine.jobs.get(seq)  # a flush replaces the table
            if job is not None and job.origin == origin:
                self.cancel(job, clock(), origin)
                removed_count += 1
            if removed_count == FLUSH_BATCH_SIZE or number % FLUSH_SCAN_SIZE == 0:
                yield removed_count
                removed_count = 0
        if removed_count:
            yield removed_count
