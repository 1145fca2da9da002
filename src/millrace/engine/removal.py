"""Removal of jobs and queues: one job, a queue, the jobs of a protocol, or everything."""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

from .change_set import ChangeSet
from .job import NO_PROTOCOL, Job
from .settings import FLUSHED_SETTINGS
from .states import DEAD, DONE, GONE, READY
from .waiters import JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

#: Jobs removed in one step of a flush.
FLUSH_BATCH_SIZE: Final = 100
#: Jobs removed in one step of the removal of a queue.
REMOVAL_BATCH_SIZE: Final = 50


class Removal:
    """Removes jobs and queues from the components of an engine."""

    __slots__ = ("_core", "_queues", "_transitions", "_waiters")

    def __init__(self, core: "Engine") -> None:
        self._core = core
        self._queues, self._waiters = core.queues, core.waiters
        self._transitions = core.transitions

    # Jobs

    def cancel(self, job: Job, now: int, actor: int) -> None:
        """Remove a job in any state, and end its lease if it has one."""
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "cancelled", False, b""))
        self._transitions.apply(job, self._queues[job.queue], "cancelled", GONE, now, actor)
        self._core.caller.must_wait = True

    def end_of_life(self, job: Job, now: int) -> None:
        """End a job at the end of its time to live."""
        counts = self._core.timer_counts
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
        self._core.caller.must_wait = True

    # Queues

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs; see Engine.remove_queue."""
        for _ in self.queue_steps(name, now):
            pass

    def queue_steps(self, name: str, now: int) -> Generator[None, None, None]:
        """Remove a queue in several steps. The first step hides the queue and the jobs that are
        ready at that time. If the caller closes it early, the remaining jobs stay.
        """
        core = self._core
        queue = self._queues.get(name)
        if queue is None or not queue.registered:
            return
        queue.registered = False
        queue.paused = True  # so that no waiter receives a job that is about to be removed
        core.change_set.queues[name] = None
        core.edits.record()
        reverts = core.revert_count
        try:
            for number, job in enumerate(list(queue.ready), 1):
                if job.state == READY and core.jobs.get(job.seq) is job:
                    # This can unblock a job, which opens the queue again.
                    self.cancel(job, now, NO_PROTOCOL)
                if number % REMOVAL_BATCH_SIZE == 0:
                    yield
                    if core.revert_count != reverts:
                        return  # the store has refused a step, and the engine has reverted it
        finally:
            if core.revert_count == reverts and self._queues.get(name) is queue:
                queue.paused = False
                if queue.counts[READY] and not queue.registered:
                    core.open_queue(name)
                if queue.registered:
                    core.change_set.queues[name] = False
                    core.assignments.serve(queue, now)
                core.queue_set.drop_if_unused(queue)

    def remove_queue_if_left(self, job: Job, name: str, now: int) -> None:
        """Remove the queue of a failed job if the failure was final, the queue is now empty, and
        the policy of the job requires it.
        """
        queue = self._queues.get(name)
        if queue is None or not queue.registered or queue.paused or queue.waiters:
            return
        left = job.queue != name or job.state == DEAD
        removes = self._core.rules.policies[job.origin].removes_empty_queue
        if left and removes and not any(queue.counts[:DEAD]):
            self.remove_queue(name, now)

    def forget_queue(self, name: str) -> None:
        """Remove a queue's name and its pause; see Engine.forget_queue."""
        core = self._core
        queue = self._queues.get(name)
        if queue is None or not queue.registered:
            return
        queue.registered = queue.paused = False
        core.change_set.queues[name] = None
        core.queue_set.drop_if_unused(queue)
        core.edits.record()

    # Everything

    def flush(self, now: int) -> None:
        """Remove every job, queue, load and counter."""
        core = self._core
        core.leases.end_all()
        core.restoration.clear()
        old, changes = core.change_set, ChangeSet()
        changes.ended_leases = old.ended_leases
        changes.cleared = True
        changes.events, changes.settings, changes.folded = old.events, old.settings, old.folded
        core.change_set = changes
        for key in [key for key in core.settings if key.startswith(FLUSHED_SETTINGS)]:
            core.set_setting(key, None)
        core.load_settings()
        last = core.next_seq - 1
        nothing = (0,) * 7
        changes.events.append(
            (now, "flushed", last, "", "", "", 0, 0, "", 0, GONE, *nothing, GONE, 0)
        )
        core.caller.must_wait = True

    def flush_steps(self, clock: Callable[[], int], origin: int) -> Iterator[int]:
        """Remove the jobs of one protocol, FLUSH_BATCH_SIZE at a time, and yield their number.
        Jobs pushed after the first step stay.
        """
        jobs = self._core.jobs
        seqs = list(jobs)
        done = 0
        # Remove the newest jobs first, so that no dependent becomes ready before its removal.
        for seq in reversed(seqs):
            job = jobs.get(seq)
            if job is None or job.origin != origin:
                continue
            self.cancel(job, clock(), origin)
            done += 1
            if done == FLUSH_BATCH_SIZE:
                yield done
                done = 0
        if done:
            yield done
