"""The engine: commands in; results, deliveries, events and the next timer out.

It does no I/O and has no clock: every command takes `now`, in microseconds since 1970. The rules of
the protocols that push and lease jobs are in policy.py.

After its commands a caller hands `deliveries`, `outcomes` and `timeouts` to the owners of the
waiters, and `take_batch()` to the store. Only this package assigns fields of a job or a queue.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from random import Random
from sys import intern
from typing import Final

from .attempts import Attempts
from .batch import Batch
from .errors import NoSuchJob, NotLeased, WrongState
from .job import FOREVER, NO_PROTOCOL, QLESS, Extra, Job, Push, alias, extra_of, lifetime_of
from .policy import BOUND, KEPT, POLICIES, UNTIMED
from .retention import TRIM_TIMER
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, NEW, READY, SCHEDULED
from .transitions import HALTED_RETRY, LIFE, Transitions, in_order
from .waiters import JobOutcome, Waiter

#: Settings of bulk loads have this prefix; see loads.py.
LOADS: Final = "loads/"
#: Totals of past days over all queues have this prefix.
DAYS: Final = "days/"
#: Jobs removed in one step of a flush.
FLUSH_BATCH_SIZE: Final = 100
#: Jobs of a queue that is removed, in one step.
REMOVAL_BATCH_SIZE: Final = 100
_NOTHING_EXTRA: Final = Extra()


class Engine(Transitions):
    """All commands of clients, protocols and the server."""

    def __init__(self, random: Random, *, dead_max: int = 100_000) -> None:
        super().__init__(random, dead_max=dead_max)
        self._attempts = Attempts(self)

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

    # Pushing

    def push(self, push: Push, now: int) -> Job:
        """Add a job; it is ready, scheduled or blocked."""
        queue = self.queues.get(push.queue)
        if queue is None or not queue.known:
            queue = self.open_queue(push.queue)
        seq = self.next_seq
        self.next_seq = seq + 1
        place = push.place
        if not place:
            place = now if push.origin == QLESS else self.next_position(now)
        extra = None
        if (
            push.tags
            or push.blockers
            or push.fleeting
            or push.dead_queue
            or push.own is not None
            or push.load
        ):
            extra = self._extra(push, seq)
        jid = push.jid or alias(seq)
        job = Job(
            seq,
            jid,
            intern(push.kind),
            push.payload,
            push.origin,
            now,
            push.lease_for,
            push.retries,
            push.spec,
            queue.name,
            NEW,
            push.rank,
            place,
            push.due,
            0,
            0,
            0,
            0,
            0,
            "",
            NO_PROTOCOL,
            None,
            extra,
            push.expires,
            push.most_attempts,
        )
        self.table.add(job)
        self.batch.new[seq] = job
        if push.expires:
            self.timers.set(seq + LIFE, push.expires)
        state = READY if extra is None and push.due <= now else self.start_state(job, now)
        self.apply(job, queue, "pushed", state, now, push.origin)
        self.changes += 1
        return job

    def push_many(self, pushes: Iterable[Push], now: int) -> list[Job]:
        """Push all of them as one change. A blocker of -1 is the job before in the list."""
        jobs: list[Job] = []
        pushes = list(pushes)
        for number, push in enumerate(pushes):
            if any(b == 0 or b < -number for b in push.blockers):
                raise NoSuchJob(f"job {number} of the batch waits for a job that is not before it")
        for push in pushes:
            if push.blockers:
                push.blockers = [b if b > 0 else jobs[b].seq for b in push.blockers]
            jobs.append(self.push(push, now))
        return jobs

    def burn(self, count: int) -> None:
        """Leave this number of seqs unused."""
        self.next_seq += count

    def _extra(self, push: Push, seq: int) -> Extra | None:
        """The rare fields of a job, or None if it has none of them."""
        unique = dict.fromkeys(push.blockers)
        blockers = [b for b in unique if b == seq or self.dependencies.can_block(b, push.origin)]
        for blocker in blockers:
            self.dependencies.link(blocker, seq)
        own, load = push.own, push.load
        if not (
            push.tags or blockers or push.fleeting or push.dead_queue or own is not None or load
        ):
            return None
        return Extra(push.tags, blockers, None, push.fleeting, push.dead_queue, own, load)

    # Leasing

    def lease(
        self,
        queues: Iterable[str],
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> Job | None:
        """Lease the first ready job of these queues, in their order.

        `since` gives the start of its wait; without it, the wait began when the job became ready.
        """
        if self.halted:
            return None
        for name in queues:
            queue = self.queues.get(name)
            if queue is None or queue.paused:
                continue
            job = queue.ready.pop()
            if job is not None:
                self.lease_to(job, queue, holder, actor, now, until, since)
                return job
            queue.asked = now
        return None

    def lease_this(
        self,
        job: Job,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> None:
        """Lease this ready job; `since` as above."""
        if job.state != READY:
            raise WrongState
        queue = self.queues[job.queue]
        queue.ready.remove(job)
        self.lease_to(job, queue, holder, actor, now, until, since)

    def lease_any(self, queues: Iterable[str], holder: str, actor: int, now: int) -> Job | None:
        """Lease the first ready job of a random queue among these that have one."""
        if self.halted:
            return None
        found = [self.queues[name] for name in queues if name in self.queues]
        found = [queue for queue in found if queue.counts[READY] and not queue.paused]
        if not found:
            return None
        queue = found[self.random.randrange(len(found)) if len(found) > 1 else 0]
        job = queue.ready.pop()
        assert job is not None, "the queue's counter is wrong"
        self.lease_to(job, queue, holder, actor, now)
        return job

    def regain(self, jid: str, holder: str, actor: int, now: int) -> Job | None:
        """Lease a job again to a holder that claims to have held it before a restart.

        A lease is sent before it is durable, so a crash or a refused commit can undo it. A job that
        has been ready since then may have been with a worker all the time.
        """
        for job in self.find_all(jid):
            if job.state == READY and self.reclaim(job, holder, actor, now):
                return job
        return None

    def reclaim(
        self, job: Job, holder: str, actor: int, now: int, leased_at: int | None = None
    ) -> bool:
        """Whether this job is leased to that holder. If an undone lease is possible, as above, the
        job is leased again. `leased_at` is the start of the lease, if the holder knows it.
        """
        if self.jobs.get(job.seq) is not job:
            return False
        if job.state == LEASED:
            return job.holder == holder and job.actor == actor
        untouched = job.seq < self.restored_seq and job.seq not in self._ready_since
        if job.state != READY or not untouched or self.halted:
            return False
        self.lease_this(job, holder, actor, now)
        if leased_at is not None:
            job.leased_at = leased_at
        return True

    def renew(self, job: Job, deadline: int, now: int) -> None:
        """Change the deadline of a lease."""
        if job.state != LEASED:
            raise NotLeased
        job.deadline = deadline
        lifetime_of(job).renewals += 1
        if job.actor not in UNTIMED:
            self.timers.set(job.seq, deadline)
        self.batch.events.append(self.make_event(job, "renewed", LEASED, now, job.actor))
        self.touch(job)

    def lapse(self, job: Job, deadline: int, now: int) -> None:
        """A lease has expired, but its holder keeps it for a grace period."""
        if job.state != LEASED:
            raise NotLeased
        job.deadline = deadline
        self.batch.events.append(self.make_event(job, "expired", LEASED, now, NO_PROTOCOL))
        self.touch(job)

    def forsake(self, job: Job, now: int, message: str) -> None:
        """End a lease whose connection is closed; while the store fails, a timer ends it later."""
        if job.state != LEASED or self.jobs.get(job.seq) is not job:
            raise NotLeased
        if self.halted:
            self.timers.set(job.seq, now + HALTED_RETRY)
        else:
            self.fail(job, now, job.actor, "ConnectionLost", message, [], cause="expired")

    def release(self, job: Job, now: int, *, counted: bool = False) -> None:
        """Return a lease that did not reach its holder, without counting the attempt. If the holder
        knows the attempt's number, it is `counted`, so that no other lease has this number.
        """
        if job.state != LEASED or self.jobs.get(job.seq) is not job:
            raise NotLeased
        if not counted:
            job.attempt -= 1
        self.apply(job, self.queues[job.queue], "released", READY, now, job.actor)
        self.changes += 1

    # Waiting

    def wait(self, waiter: Waiter, until: int) -> None:
        """Deliver the next job of the waiter's queues, or report a timeout at `until`."""
        self.waiters.add(waiter, until)

    def wait_for_end(self, job: Job, waiter: Waiter, until: int) -> None:
        """Report the end of the job to the waiter, or a timeout at `until`."""
        self.waiters.add_for_end(job, waiter, until)

    def unwait(self, waiter: Waiter) -> None:
        """Forget a waiter whose connection is closed."""
        self.waiters.remove(waiter)

    def deafen(self, waiter: Waiter) -> None:
        """Let a waiter wait until its timeout without a job."""
        self.waiters.stop_offering(waiter)

    def deafen_all(self) -> None:
        """Let all waiters wait until their timeouts without a job."""
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
        """End the job with success. It is kept until the end of its time to live, or until
        `keep_until`. With `unleased` it need not be leased.
        """
        if job.state != LEASED and not (unleased and job.state in {READY, SCHEDULED}):
            raise NotLeased
        self.totals.processed += 1
        run = max(0, now - job.leased_at) if job.state == LEASED else 0
        queue = self.queues[job.queue]
        if job.expires:
            keep_until = job.expires
        elif job.origin in KEPT:
            keep_until = FOREVER
        if job.seq in self.waiters.by_job:
            self.waiters.job_ended(JobOutcome(job, "completed", True, result or b""))
        if keep_until > now:
            if result is not None or job.extra is not None:
                extra_of(job).result = result
            job.due = keep_until
            self.apply(job, queue, "completed", DONE, now, actor, 0, run)
        else:
            self.apply(job, queue, "completed", GONE, now, actor, 0, run)
        self.changes += 1

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
    ) -> None:
        """End an attempt with a failure; see Attempts.fail."""
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
        )

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

    # Time

    def next_timer(self) -> int | None:
        return self.timers.next()

    def tick(self, now: int, limit: int = 1000) -> None:
        """Handle due timers, at most `limit` of them."""
        self.waiters.tick()
        for key in self.timers.due(now, limit):
            if not isinstance(key, int):
                if key != TRIM_TIMER:
                    self.alarms.append(key)
                elif self.halted:
                    self.timers.set(key, now + HALTED_RETRY)
                else:
                    self._attempts.trim_dead(now)
            elif key < 0:
                self.waiters.time_out(key, now)
            elif self.halted:
                self.timers.set(key, now + HALTED_RETRY)
            elif key < LIFE:
                self._timer_due(self.jobs[key], now)
            elif key - LIFE in self.jobs:
                self._end_of_life(self.jobs[key - LIFE], now)

    def clock_moved(self, by: int) -> None:
        """The clock was set since the last tick. Timeouts of waiters and alarms keep their
        durations. Leases and due times are points in time and follow the clock.
        """

        def is_duration(key: Hashable) -> bool:
            return not isinstance(key, int) or self.waiters.waited_at_last_tick(key)

        self.timers.move(is_duration, by)

    def resume(self, now: int) -> None:
        """The store works again: remove orphaned transient jobs, and serve waiters."""
        self.halted = ""
        for job in self.orphaned_transients():
            self._end_of_life(job, now)
        for queue in list(self.queues.values()):
            self.serve(queue, now)

    def alarm(self, key: Hashable, when: int) -> None:
        """Put `key`, which is not a number, into `alarms` at that time."""
        self.timers.set(key, when)

    def unalarm(self, key: Hashable) -> None:
        self.timers.cancel(key)

    def _timer_due(self, job: Job, now: int) -> None:
        queue = self.queues[job.queue]
        if job.state == SCHEDULED:
            if job.failures:
                self.clocked.retried += 1
            else:
                self.clocked.started += 1
            self.apply(job, queue, "due", READY, now, NO_PROTOCOL)
        elif job.state == LEASED:
            if job.actor in BOUND and self.interrupted.get(job.seq) == job.attempt:
                self._return_after_restart(job, now)
                return
            self.clocked.expired += 1
            group, message = POLICIES[job.origin].expired
            self.fail(job, now, NO_PROTOCOL, group, message, [], cause="expired")
            return
        else:
            self.clocked.purged += 1
            self.apply(job, queue, "purged", GONE, now, NO_PROTOCOL)
        self.changes += 1

    def _return_after_restart(self, job: Job, now: int) -> None:
        """Return a lease without a failure: a restart ended its connection."""
        self.apply(job, self.queues[job.queue], "released", READY, now, NO_PROTOCOL)
        self.changes += 1

    def _end_of_life(self, job: Job, now: int) -> None:
        """A job's time to live has ended."""
        if job.state in {DONE, DEAD}:
            self.clocked.purged += 1
            cause = "purged"
        elif job.extra is not None and job.extra.fleeting:
            cause = "cancelled"
        else:
            self.clocked.evicted += 1
            cause = "evicted"
            if job.seq in self.waiters.by_job:
                self.waiters.job_ended(JobOutcome(job, cause, False, b""))
        self.apply(job, self.queues[job.queue], cause, GONE, now, NO_PROTOCOL)
        self.changes += 1

    # Other changes of jobs

    def requeue(self, job: Job, now: int) -> None:
        """Make a scheduled or dead job ready now."""
        if job.state not in {SCHEDULED, DEAD}:
            raise WrongState
        if job.state == DEAD:
            job.due = 0  # it was the end of its retention
        self.apply(job, self.queues[job.queue], "requeued", READY, now, NO_PROTOCOL)
        self.changes += 1

    def kill(self, job: Job, now: int) -> None:
        """Move a job that is not leased to the dead set."""
        if job.state in {LEASED, DONE}:
            raise WrongState
        if job.state == BLOCKED:
            self._leave_load(job)
        if job.seq in self.waiters.by_job:
            self.waiters.job_ended(JobOutcome(job, "killed", False, b""))
        self.apply(job, self.queues[job.queue], "killed", DEAD, now, NO_PROTOCOL)
        self._attempts.fail_dependents(job, now)
        self.changes += 1

    def cancel(self, job: Job, now: int, actor: int = NO_PROTOCOL) -> None:
        """Remove a job in any state."""
        self.apply(job, self.queues[job.queue], "cancelled", GONE, now, actor)
        self.changes += 1

    def abandon(self, job: Job, now: int) -> None:
        """Remove a transient job whose client is gone, or later if the store fails now."""
        if self.halted:
            self.timers.set(job.seq + LIFE, now + HALTED_RETRY)
        else:
            self.cancel(job, now)

    def begin_anew(self, now: int) -> None:
        """After a restart all connections are closed: remove transient jobs, and return the leases
        that were bound to connections, without a failure.
        """
        self.clock = now
        for job in self.orphaned_transients():
            self.cancel(job, now)
        bound = [job for job in self.leased.values() if job.actor in BOUND]
        self.interrupted = {job.seq: job.attempt for job in bound}
        for job in in_order(bound):
            self._return_after_restart(job, now)

    def amend(
        self, job: Job, *, kind: str | None = None, payload: bytes | None = None, retries: int = -1
    ) -> None:
        """Change pushed fields of a job."""
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
        """Change the order of a job."""
        ready = self.queues[job.queue].ready if job.state == READY else None
        if ready is not None:
            ready.remove(job)
        job.rank, job.place = rank, place
        if ready is not None:
            ready.add(job)
        self.touch(job)

    def advance(self, job: Job, now: int, actor: int) -> None:
        """End a successful step of a job that the caller then moves to the next queue."""
        if job.state != LEASED:
            raise NotLeased
        self.totals.processed += 1
        run = max(0, now - job.leased_at)
        self.apply(job, self.queues[job.queue], "advanced", DONE, now, actor, 0, run)
        self.changes += 1

    def block(self, job: Job, blockers: list[int]) -> None:
        """Let a blocked job also wait for these jobs."""
        if job.state != BLOCKED:
            raise WrongState
        self.dependencies.block(job, blockers)
        self.touch(job)

    def unblock(self, job: Job, blockers: Iterable[int], now: int) -> None:
        """Let a blocked job no longer wait for these jobs."""
        if job.state != BLOCKED or job.extra is None:
            raise WrongState
        for seq in blockers:
            if seq in job.extra.blockers:
                job.extra.blockers.remove(seq)
                self.dependencies.unlink(seq, job.seq)
        self.touch(job)
        if not job.extra.blockers and not job.extra.load:
            self.start_unblocked(job, now)

    def let_go(self, job: Job, now: int) -> None:
        """Release a job from its bulk load: it is ready, scheduled, or waits for other jobs."""
        if job.state != BLOCKED:
            raise WrongState
        self._leave_load(job)
        if job.extra is None or not job.extra.blockers:
            self.start_unblocked(job, now)
        self.touch(job)

    def _leave_load(self, job: Job) -> None:
        if job.extra is not None and job.extra.load:
            self.unstage(job)
            job.extra.load = ""
            if job.extra == _NOTHING_EXTRA:
                job.extra = None

    def detach(self, job: Job) -> None:
        """Remove all blockers of a job that is about to be removed."""
        self.dependencies.remove(job)

    def fall_due(self, job: Job, now: int) -> None:
        """Make a scheduled job ready that is due by the clock of the client."""
        if job.state != SCHEDULED:
            raise WrongState
        self._timer_due(job, now)

    # Queues

    def pause(self, name: str, *, paused: bool, now: int) -> None:
        """Pause or resume a queue. An unknown queue stays unknown."""
        queue = self.queues.get(name)
        if queue is None or not queue.known or queue.paused == paused:
            return
        queue.paused = paused
        self.batch.queues[name] = paused
        self.changes += 1
        if not paused:
            self.serve(queue, now)

    def remove_queue(self, name: str, now: int) -> None:
        """Remove a queue with its ready jobs, its name and its pause. Jobs in other states stay;
        they open the queue again when they become ready.
        """
        for _ in self.remove_queue_in_slices(name, now):
            pass

    def remove_queue_in_slices(self, name: str, now: int) -> Iterator[None]:
        """The same in several steps. The queue and the jobs that were ready at the beginning are
        hidden from the first step on. If the caller stops early, the other jobs stay.
        """
        queue = self.queues.get(name)
        if queue is None or not queue.known:
            return
        queue.known = False
        queue.paused = True  # so that no waiter receives a job that is about to be removed
        self.batch.queues[name] = None
        self.changes += 1
        reverts = self.reverts
        try:
            for number, job in enumerate(list(queue.ready), 1):
                if job.state == READY and self.jobs.get(job.seq) is job:
                    self.cancel(job, now)  # this can unblock a job, which opens the queue again
                if number % REMOVAL_BATCH_SIZE == 0:
                    yield
                    if self.reverts != reverts:
                        return  # the store has refused a step, and the engine has reverted it
        finally:
            if self.reverts == reverts and self.queues.get(name) is queue:
                queue.paused = False
                if queue.counts[READY] and not queue.known:
                    self.open_queue(name)
                if queue.known:
                    self.batch.queues[name] = False
                    self.serve(queue, now)
                self.queue_set.drop_if_unused(queue)

    def forget_queue(self, name: str) -> None:
        """Forget a queue's name and its pause; its jobs stay, and the next push opens it again."""
        queue = self.queues.get(name)
        if queue is None or not queue.known:
            return
        queue.known = queue.paused = False
        self.batch.queues[name] = None
        self.queue_set.drop_if_unused(queue)
        self.changes += 1

    def forget_statistics(self, queues: Iterable[str]) -> None:
        """Remove the statistics of these queues."""
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
        self.clear()
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
