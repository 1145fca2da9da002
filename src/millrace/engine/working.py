"""Working jobs: push, lease, wait, complete, fail, and what time does meanwhile."""

from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from sys import intern

from .errors import NoSuchJob, NotLeased, WrongState
from .events import fingerprint
from .job import FOREVER, NO_PROTOCOL, QLESS, Extra, Failure, Job, Push, alias, lifetime_of
from .jobs import HALTED_RETRY, LIFE, Jobs
from .policy import BOUND, KEPT, POLICIES, UNTIMED, Verdict
from .retention import TRIM_BATCH_SIZE, TRIM_TIMER
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, NEW, READY, SCHEDULED
from .waiters import JobOutcome, Waiter


class Working(Jobs):
    # Pushing

    def push(self, push: Push, now: int) -> Job:
        """Take in a job; it is ready, scheduled or blocked."""
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
        state = READY if extra is None and push.due <= now else self._start(job, now)
        self._change(job, queue, "pushed", state, now, push.origin)
        self.changes += 1
        return job

    def push_many(self, pushes: Iterable[Push], now: int) -> list[Job]:
        """Push all of them as one change. A blocker of -1 is the job pushed just before."""
        jobs: list[Job] = []
        pushes = list(pushes)
        for number, push in enumerate(pushes):
            if any(b == 0 or b < -number for b in push.blockers):
                raise NoSuchJob(f"job {number} of the batch waits for one that is not before it")
        for push in pushes:
            if push.blockers:
                push.blockers = [b if b > 0 else jobs[b].seq for b in push.blockers]
            jobs.append(self.push(push, now))
        return jobs

    def burn(self, count: int) -> None:
        """Give so many numbers to nobody."""
        self.next_seq += count

    def _extra(self, push: Push, seq: int) -> Extra | None:
        """What few jobs have, and nothing for all others."""
        unique = dict.fromkeys(push.blockers)
        blockers = [b for b in unique if b == seq or self._dependents.can_block(b, push.origin)]
        for blocker in blockers:
            self._dependents.link(blocker, seq)
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
        """The first ready job of these queues, in their order, for one attempt by `holder`.

        `since` may say when its wait began, if not when it became ready.
        """
        if self.halted:
            return None
        for name in queues:
            queue = self.queues.get(name)
            if queue is None or queue.paused:
                continue
            job = queue.ready.pop()
            if job is not None:
                self._lease(job, queue, holder, actor, now, until, since)
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
        """Lease a certain job that is ready; `since` as above."""
        if job.state != READY:
            raise WrongState
        queue = self.queues[job.queue]
        queue.ready.remove(job)
        self._lease(job, queue, holder, actor, now, until, since)

    def lease_any(self, queues: Iterable[str], holder: str, actor: int, now: int) -> Job | None:
        """The first ready job of one of these queues: each that has one is as likely."""
        if self.halted:
            return None
        found = [self.queues[name] for name in queues if name in self.queues]
        found = [queue for queue in found if queue.counts[READY] and not queue.paused]
        if not found:
            return None
        queue = found[self.random.randrange(len(found)) if len(found) > 1 else 0]
        job = queue.ready.pop()
        assert job is not None, "the queue's counter is wrong"
        self._lease(job, queue, holder, actor, now)
        return job

    def regain(self, jid: str, holder: str, actor: int, now: int) -> Job | None:
        """Lease a job anew to somebody who says that it had it before a crash.

        A lease is given before it is durable, so a crash can forget it, and a failed commit can
        undo it. A job that has been ready ever since may have been with a worker all the time.
        """
        for job in self.find_all(jid):
            if job.state == READY and self.reclaim(job, holder, actor, now):
                return job
        return None

    def reclaim(
        self, job: Job, holder: str, actor: int, now: int, leased_at: int | None = None
    ) -> bool:
        """Is this job leased to that holder? If it may have been, as above, it is again. The lease
        began at `leased_at`, where the holder knows that.
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
        """Move the end of a lease."""
        if job.state != LEASED:
            raise NotLeased
        job.deadline = deadline
        lifetime_of(job).renewals += 1
        if job.actor not in UNTIMED:
            self.timers.set(job.seq, deadline)
        self.batch.events.append(self._event(job, "renewed", LEASED, now, job.actor))
        self.touch(job)

    def lapse(self, job: Job, deadline: int, now: int) -> None:
        """A lease has run out, but its holder has some grace before anybody else gets the job."""
        if job.state != LEASED:
            raise NotLeased
        job.deadline = deadline
        self.batch.events.append(self._event(job, "expired", LEASED, now, NO_PROTOCOL))
        self.touch(job)

    def forsake(self, job: Job, now: int, message: str) -> None:
        """The connection that a lease is bound to is gone. If nothing can be changed now, the lease
        ends later.
        """
        if job.state != LEASED or self.jobs.get(job.seq) is not job:
            raise NotLeased
        if self.halted:
            self.timers.set(job.seq, now + HALTED_RETRY)
        else:
            self.fail(job, now, job.actor, "ConnectionLost", message, [], cause="expired")

    def release(self, job: Job, now: int, *, counted: bool = False) -> None:
        """Give back a lease that never reached its holder: no attempt is counted. With `counted` it
        did, and it is: nobody else's lease shall have the number that the holder knows.
        """
        if job.state != LEASED or self.jobs.get(job.seq) is not job:
            raise NotLeased
        if not counted:
            job.attempt -= 1
        self._change(job, self.queues[job.queue], "released", READY, now, job.actor)
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

    # Ending an attempt

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
        """The attempt succeeded. The job is kept until `keep_until` if that is in the future; if it
        has a time to live, until that is over. With `unleased` nobody need hold it.
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
        if self.waiters.is_awaited(job.seq):
            self.waiters.job_ended(JobOutcome(job, "completed", True, result or b""))
        if keep_until > now:
            if result is not None or job.extra is not None:
                self._keep(job, result)
            job.due = keep_until
            self._change(job, queue, "completed", DONE, now, actor, 0, run)
        else:
            self._change(job, queue, "completed", GONE, now, actor, 0, run)
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
        """The attempt failed: the policy of the job's origin says what follows. It is the last one
        if it is `final`; if there is to be another, `again_at` may say when. `result` is for those
        who ask for one; without it they get the message.
        """
        before = job.state
        if before != LEASED and not (unleased and before in {READY, SCHEDULED}):
            raise NotLeased
        policy = POLICIES[job.origin]
        self.totals.processed += 1
        self.totals.failures += 1
        lifetime_of(job).failures += 1
        if cause == "failed" or policy.expiry_fails:
            if before == SCHEDULED and not job.failures:
                self.retrying += 1  # so it is counted while it leaves
            job.failures += 1
        previous = job.failure
        repeat = previous is not None and (
            fingerprint(previous.group, previous.message) == fingerprint(group, message)
        )
        first_at = now if previous is None else previous.first_at
        job.failure = Failure(first_at, now, group, message, backtrace)
        if final:
            verdict = Verdict(DEAD)
        elif cause == "failed":
            verdict = policy.after_failure(job, now, self.random)
        else:
            verdict = policy.after_expiry(job, now, self.random)
        if again_at is not None and verdict.state in {READY, SCHEDULED}:
            verdict = Verdict(SCHEDULED if again_at > now else READY, again_at)
        state = verdict.state
        if before == SCHEDULED and state == READY and job.due > now:
            state = SCHEDULED  # its moment is still to come
        else:
            job.due = verdict.due
            job.place = verdict.place or job.place
        run = max(0, now - job.leased_at) if before == LEASED else 0
        if state in {DEAD, GONE} and (job.expires or self.waiters.is_awaited(job.seq)):
            if result is None:
                result = message.encode("utf-8", "replace") if cause == "failed" else b""
            self._keep(job, result)
            self.waiters.job_ended(JobOutcome(job, cause, False, result))
        queue = self.queues[job.queue]
        self._change(job, queue, cause, state, now, actor, 0, run, repeat=int(repeat))
        if state in {DEAD, GONE}:
            self._bury(job, now)
            self._fell(job, now)
        self.changes += 1

    def _keep(self, job: Job, result: bytes | None) -> None:
        if job.extra is None:
            job.extra = Extra()
        job.extra.result = result

    # Failing for good

    def _fell(self, job: Job, now: int) -> None:
        """A job has failed for good: so do those who waited for it where their policy says so, each
        with its own dependents behind it.
        """
        falling = self._dependents.failing_with(job)
        while falling:
            fallen = falling.pop()
            if fallen.state == BLOCKED:  # or it fell already, with another one
                self._doom(fallen, now)
                falling += self._dependents.failing_with(fallen)
        if job.state == GONE:
            self._unblock(job, now)
        if self.retention.is_over:
            self._trim_dead(now)

    def _doom(self, job: Job, now: int) -> None:
        self._dependents.remove(job)
        message = "a job that it waited for has failed for good"
        job.failure = Failure(now, now, "BlockerFailed", message, [])
        if self.waiters.is_awaited(job.seq):
            self.waiters.job_ended(JobOutcome(job, "doomed", False, message.encode()))
        self._change(job, self.queues[job.queue], "doomed", DEAD, now, NO_PROTOCOL)
        self._bury(job, now)

    def _bury(self, job: Job, now: int) -> None:
        """Move a job that died to its dead queue, if it has one; there it begins anew."""
        if job.state != DEAD or job.extra is None or not job.extra.dead_queue:
            return
        name, job.extra.dead_queue = job.extra.dead_queue, ""
        self.move(job, name, now, NO_PROTOCOL)

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
        """Put a job into a queue, whatever it is doing; there it begins anew. It waits for others
        than before if `blockers` are given.
        """
        old, queue = self.queues[job.queue], self.open_queue(name)
        self._leave(job, old)
        lifetime = lifetime_of(job)
        if not lifetime.first_queue:
            lifetime.first_queue = old.name
        job.queue, job.failures, job.place, job.due = queue.name, 0, 0, due
        if blockers is not None:
            self._dependents.remove(job)
            self._dependents.block(job, blockers)
        self._enter(job, queue)
        state = self._start(job, now)
        self._change(job, queue, "moved", state, now, actor, source=old.name)
        self.queue_set.drop_if_unused(old)
        self.changes += 1

    def _trim_dead(self, now: int) -> None:
        """Drop the oldest dead jobs above the bound, some now and the rest by a timer."""
        for job in list(islice(self.dead.values(), TRIM_BATCH_SIZE)):
            if not self.retention.is_over:
                return
            self.retention.dead_dropped += 1
            self._change(job, self.queues[job.queue], "purged", GONE, now, NO_PROTOCOL)
            self.changes += 1
        if self.retention.is_over:
            self.timers.set(TRIM_TIMER, now)

    # Time

    def next_timer(self) -> int | None:
        return self.timers.next()

    def tick(self, now: int, most: int = 1000) -> None:
        """Do what has fallen due, at most so much at once."""
        self.waiters.tick()
        for key in self.timers.due(now, most):
            if not isinstance(key, int):
                if key != TRIM_TIMER:
                    self.alarms.append(key)
                elif self.halted:
                    self.timers.set(key, now + HALTED_RETRY)
                else:
                    self._trim_dead(now)
            elif key < 0:
                self.waiters.time_out(key, now)
            elif self.halted:
                self.timers.set(key, now + HALTED_RETRY)
            elif key < LIFE:
                self._fall_due(self.jobs[key], now)
            elif key - LIFE in self.jobs:
                self._outlive(self.jobs[key - LIFE], now)

    def clock_moved(self, by: int) -> None:
        """The clock was set since the last tick. Those who had been waiting then wait as long as
        they asked for all the same, and alarms, which are about spans, keep theirs. What is about a
        moment, as are leases and due times, outlives the process, and goes by the clock.
        """

        def is_span(key: Hashable) -> bool:
            return not isinstance(key, int) or self.waiters.waited_at_last_tick(key)

        self.timers.move(is_span, by)

    def resume(self, now: int) -> None:
        """Changes can be made durable again: those who waited meanwhile get their jobs, but none of
        somebody who was told meanwhile that nothing came of it.
        """
        self.halted = ""
        for job in self._forlorn():
            self._outlive(job, now)
        for queue in list(self.queues.values()):
            self._serve(queue, now)

    def alarm(self, key: Hashable, when: int) -> None:
        """Put `key` into `alarms` at that time. It must not be a number."""
        self.timers.set(key, when)

    def unalarm(self, key: Hashable) -> None:
        self.timers.cancel(key)

    def _fall_due(self, job: Job, now: int) -> None:
        queue = self.queues[job.queue]
        if job.state == SCHEDULED:
            if job.failures:
                self.clocked.retried += 1
            else:
                self.clocked.started += 1
            self._change(job, queue, "due", READY, now, NO_PROTOCOL)
        elif job.state == LEASED:
            if job.actor in BOUND and self._unbound.get(job.seq) == job.attempt:
                self._unbind(job, now)
                return
            self.clocked.expired += 1
            group, message = POLICIES[job.origin].expired
            self.fail(job, now, NO_PROTOCOL, group, message, [], cause="expired")
            return
        else:
            self.clocked.purged += 1
            self._change(job, queue, "purged", GONE, now, NO_PROTOCOL)
        self.changes += 1

    def _unbind(self, job: Job, now: int) -> None:
        """A lease ends without a failure, because all connections ended."""
        self._change(job, self.queues[job.queue], "released", READY, now, NO_PROTOCOL)
        self.changes += 1

    def _outlive(self, job: Job, now: int) -> None:
        """A job's time to live is over."""
        if job.state in {DONE, DEAD}:
            self.clocked.purged += 1
            cause = "purged"
        elif job.extra is not None and job.extra.fleeting:
            cause = "cancelled"
        else:
            self.clocked.evicted += 1
            cause = "evicted"
            if self.waiters.is_awaited(job.seq):
                self.waiters.job_ended(JobOutcome(job, cause, False, b""))
        self._change(job, self.queues[job.queue], cause, GONE, now, NO_PROTOCOL)
        self.changes += 1
