"""The engine: commands in; replies, deliveries, events and the next timer out.

It does no I/O and knows no clock: every command takes `now`, in microseconds since 1970. Nothing in
it is of one protocol; what differs by origin is in policy.py.

What a caller must do after its commands: tell the owners of `deliveries`, `outcomes`, `timeouts`,
and hand `take_batch()` to the store. What a caller must not do is change a job's fields.
"""

from collections.abc import Callable, Iterable, Iterator
from sys import intern
from typing import Final

from .batch import Batch
from .errors import NotLeased, WrongState
from .job import NO_PROTOCOL, Extra, Job
from .jobs import HALTED_RETRY, LIFE, in_order
from .policy import BOUND
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from .waiters import JobOutcome, Waiter
from .working import Working

#: What is known of loads is noted under their names behind this; see loads.py.
LOADS: Final = "loads/"
#: What was done on a day, over all queues, is noted under this and its number when it is over.
DAYS: Final = "days/"
#: Jobs removed in one step of a flush.
FLUSH_BATCH_SIZE: Final = 100
_NOTHING_EXTRA: Final = Extra()


class Engine(Working):
    """All commands: those of working.py, and what else people and protocols do."""

    # The server takes these lists and replaces them by empty ones.

    @property
    def deliveries(self) -> list[tuple[Waiter, Job]]:
        return self.waiters.deliveries

    @deliveries.setter
    def deliveries(self, value: list[tuple[Waiter, Job]]) -> None:
        self.waiters.deliveries = value

    @property
    def outcomes(self) -> list[tuple[Waiter, JobOutcome]]:
        return self.waiters.outcomes

    @outcomes.setter
    def outcomes(self, value: list[tuple[Waiter, JobOutcome]]) -> None:
        self.waiters.outcomes = value

    @property
    def timeouts(self) -> list[Waiter]:
        return self.waiters.timeouts

    @timeouts.setter
    def timeouts(self, value: list[Waiter]) -> None:
        self.waiters.timeouts = value

    @property
    def dead_max(self) -> int:
        """The maximum number of dead jobs."""
        return self.retention.dead_max

    @dead_max.setter
    def dead_max(self, value: int) -> None:
        self.retention.dead_max = value

    @property
    def dead_dropped(self) -> int:
        return self.retention.dead_dropped

    # What people do to jobs

    def requeue(self, job: Job, now: int) -> None:
        """Make a scheduled or dead job ready now."""
        if job.state not in {SCHEDULED, DEAD}:
            raise WrongState
        if job.state == DEAD:
            job.due = 0  # it was the end of its keeping
        self._change(job, self.queues[job.queue], "requeued", READY, now, NO_PROTOCOL)
        self.changes += 1

    def kill(self, job: Job, now: int) -> None:
        """Put a job that nobody holds into the dead set."""
        if job.state in {LEASED, DONE}:
            raise WrongState
        if job.state == BLOCKED:
            self._leave_load(job)
        if self.waiters.is_awaited(job.seq):
            self.waiters.job_ended(JobOutcome(job, "killed", False, b""))
        self._change(job, self.queues[job.queue], "killed", DEAD, now, NO_PROTOCOL)
        self._fell(job, now)
        self.changes += 1

    def cancel(self, job: Job, now: int, actor: int = NO_PROTOCOL) -> None:
        """Remove a job, whatever it is doing."""
        self._change(job, self.queues[job.queue], "cancelled", GONE, now, actor)
        self.changes += 1

    def abandon(self, job: Job, now: int) -> None:
        """Whoever wanted a fleeting job is gone. If nothing can be changed now, it goes later."""
        if self.halted:
            self.timers.set(job.seq + LIFE, now + HALTED_RETRY)
        else:
            self.cancel(job, now)

    def begin_anew(self, now: int) -> None:
        """After a restart all connections are gone: jobs that go with them go, and leases that are
        bound to them end, which is nobody's failure.
        """
        self.clock = now
        for job in self._forlorn():
            self.cancel(job, now)
        bound = [job for job in self.leased.values() if job.actor in BOUND]
        self._unbound = {job.seq: job.attempt for job in bound}
        for job in in_order(bound):
            self._unbind(job, now)

    # What protocols do to jobs beside working them

    def amend(
        self, job: Job, *, kind: str | None = None, payload: bytes | None = None, retries: int = -1
    ) -> None:
        """Change what was pushed."""
        if kind is not None:
            job.kind = intern(kind)
        if payload is not None:
            job.payload = payload
        if retries >= 0:
            job.retries = retries
        if job.seq not in self.batch.new:
            self.batch.rewritten[job.seq] = job
        self.changes += 1

    def rerank(self, job: Job, rank: float, place: int) -> None:
        """Change a job's order among others."""
        ready = self.queues[job.queue].ready if job.state == READY else None
        if ready is not None:
            ready.remove(job)
        job.rank, job.place = rank, place
        if ready is not None:
            ready.add(job)
        self.touch(job)

    def advance(self, job: Job, now: int, actor: int) -> None:
        """The attempt succeeded, and the job is about to be moved on."""
        if job.state != LEASED:
            raise NotLeased
        self.totals.processed += 1
        run = max(0, now - job.leased_at)
        self._change(job, self.queues[job.queue], "advanced", DONE, now, actor, 0, run)
        self.changes += 1

    def block(self, job: Job, blockers: list[int]) -> None:
        """Let a blocked job wait for these, too."""
        if job.state != BLOCKED:
            raise WrongState
        self._dependents.block(job, blockers)
        self.touch(job)

    def unblock(self, job: Job, blockers: Iterable[int], now: int) -> None:
        """Let a blocked job wait for these no longer."""
        if job.state != BLOCKED or job.extra is None:
            raise WrongState
        for seq in blockers:
            if seq in job.extra.blockers:
                job.extra.blockers.remove(seq)
                self._dependents.unlink(seq, job.seq)
        self.touch(job)
        if not job.extra.blockers and not job.extra.load:
            queue = self.queues[job.queue]
            self._change(job, queue, "unblocked", self._start(job, now), now, NO_PROTOCOL)

    def let_go(self, job: Job, now: int) -> None:
        """A job's load is released: it is ready, or scheduled, or waits for what else it waits."""
        if job.state != BLOCKED:
            raise WrongState
        self._leave_load(job)
        if job.extra is None or not job.extra.blockers:
            queue = self.queues[job.queue]
            self._change(job, queue, "unblocked", self._start(job, now), now, NO_PROTOCOL)
        self.touch(job)

    def _leave_load(self, job: Job) -> None:
        if job.extra is not None and job.extra.load:
            self._unstage(job)
            job.extra.load = ""
            if job.extra == _NOTHING_EXTRA:
                job.extra = None

    def detach(self, job: Job) -> None:
        """Let a job that is about to go wait for nobody."""
        self._dependents.remove(job)

    def fall_due(self, job: Job, now: int) -> None:
        """A scheduled job's moment has come, by the clock of whoever asks."""
        if job.state != SCHEDULED:
            raise WrongState
        self._fall_due(job, now)

    # What people do to queues

    def pause(self, name: str, *, paused: bool, now: int) -> None:
        """Stop or resume handing out a queue's jobs. An unknown queue is left unknown."""
        queue = self.queues.get(name)
        if queue is None or not queue.known or queue.paused == paused:
            return
        queue.paused = paused
        self.batch.queues[name] = paused
        self.changes += 1
        if not paused:
            self._serve(queue, now)

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs, its name and its pause. Jobs that are elsewhere
        (scheduled, leased, dead) stay, and open it anew when they come back.
        """
        queue = self.queues.get(name)
        if queue is None or not queue.known:
            return
        queue.known = False
        queue.paused = True  # nobody shall get a job that is about to go
        self.batch.queues[name] = None
        for job in list(queue.ready):
            self.cancel(job, now)  # which may bring back others, and with them the queue
        queue.paused = False
        if queue.known:
            self.batch.queues[name] = False
            self._serve(queue, now)
        self.queue_set.drop_if_unused(queue)
        self.changes += 1

    def forget_queue(self, name: str) -> None:
        """Forget a queue's name and its pause; its jobs stay, and the next push opens it anew."""
        queue = self.queues.get(name)
        if queue is None or not queue.known:
            return
        queue.known = queue.paused = False
        self.batch.queues[name] = None
        self.queue_set.drop_if_unused(queue)
        self.changes += 1

    def forget_statistics(self, queues: Iterable[str]) -> None:
        """Forget what was counted of these queues until now."""
        self.count().drop(queues)
        self.changes += 1

    def flush(self, now: int, origin: int = NO_PROTOCOL) -> None:
        """Remove every job, queue, load and counter, or only the jobs pushed over one protocol.
        Waiting clients continue to wait.
        """
        if origin != NO_PROTOCOL:
            for _ in self.flush_steps(lambda: now, origin):
                pass
            return
        self._wipe()
        old, self.batch = self.batch, Batch()
        self.batch.cleared = True
        self.batch.events, self.batch.notes = old.events, old.notes
        self.batch.folded = old.folded
        for key in [key for key in self.notes if key.startswith((LOADS, DAYS))]:
            self.note(key, None)
        last = self.next_seq - 1
        nothing = (0,) * 7
        self.batch.events.append(
            (now, "flushed", last, "", "", "", 0, 0, "", 0, GONE, *nothing, GONE, 0)
        )
        self.changes += 1

    def flush_steps(self, clock: Callable[[], int], origin: int) -> Iterator[int]:
        """Remove the jobs of one protocol, FLUSH_BATCH_SIZE at a time, and yield their number.
        Jobs pushed after the first step stay.
        """
        seqs = list(self.jobs)
        done = 0
        # The newest first, so that dependents are removed before they could become ready.
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
