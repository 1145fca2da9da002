"""The engine: commands in; replies, deliveries, events and the next timer out.

It does no I/O and knows no clock: every command takes `now`, in microseconds since 1970. Nothing in
it is of one protocol; what differs by origin is in policy.py.

What a caller must do after its commands: tell the owners of `deliveries`, `outcomes`, `timeouts`,
and hand `take_batch()` to the store. What a caller must not do is change a job's fields.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from random import Random
from sys import intern
from typing import Final, NamedTuple

from .batch import Batch
from .errors import NoSuchJob, NotLeased, WrongState
from .events import Row, fingerprint
from .job import FOREVER, LATER, NO_PROTOCOL, QLESS, Extra, Failure, Job, Push, alias
from .policy import BOUND, KEPT, POLICIES, RETURNING, UNTIMED, Verdict
from .queues import Queue, Waiter
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, LEGAL, NEW, READY, SCHEDULED
from .stats import Statistics
from .timers import Timers

#: How often a job that fell due while the store was failing is looked at again.
HALTED_RETRY = 1_000_000
#: A job's time to live is a timer of its own, beside that of its state: the key is seq + LIFE.
LIFE: Final = 1 << 64
#: What puts a job behind those that are ready already; whatever else makes it ready lets it come
#: back to its old place.
_ARRIVES: Final = frozenset({"due", "unblocked", "requeued", "moved"})
#: And of those, what puts it also behind all that became ready in the same moment.
_BEHIND: Final = frozenset({"moved", "unblocked"})
#: What ends a job without anybody having done its work.
_FAILURES: Final = frozenset({"failed", "expired", "doomed"})


class Outcome(NamedTuple):
    """How a job ended: by which cause, and with what."""

    job: Job
    cause: str
    succeeded: bool
    result: bytes


class Totals:
    """Counters since the beginning, or the last flush."""

    __slots__ = ("failures", "processed")

    def __init__(self) -> None:
        self.processed = 0
        self.failures = 0


class Clocked:
    """How many jobs the clock moved since the start."""

    __slots__ = ("evicted", "expired", "purged", "retried", "started")

    def __init__(self) -> None:
        self.started = 0
        self.retried = 0
        self.expired = 0
        self.purged = 0
        self.evicted = 0


class Engine:
    def __init__(self, random: Random, *, dead_max: int = 100_000) -> None:
        self.random = random
        self.dead_max = dead_max
        self.dead_dropped = 0
        #: Why nothing can be made durable, or empty. Meanwhile no job changes; waiting goes on.
        self.halted = ""

        self.next_seq = 1
        self.latest = 0
        self.jobs: dict[int, Job] = {}
        #: One job of each jid, the oldest; the others are in `_twins`.
        self.by_jid: dict[str, Job] = {}
        self._twins: dict[str, list[Job]] = {}
        self.queues: dict[str, Queue] = {}
        self.scheduled: dict[int, Job] = {}
        self.blocked: dict[int, Job] = {}
        self.leased: dict[int, Job] = {}
        self.done: dict[int, Job] = {}
        self.dead: OrderedDict[int, Job] = OrderedDict()
        #: Dead jobs that go at a moment of their own, or never by themselves: nobody drops them.
        self.dying: dict[int, Job] = {}
        #: Done jobs that stay until somebody takes them away, the oldest first.
        self.kept: OrderedDict[int, Job] = OrderedDict()
        self._index: dict[int, dict[int, Job]] = {
            SCHEDULED: self.scheduled,
            BLOCKED: self.blocked,
            LEASED: self.leased,
            DONE: self.done,
            DEAD: self.dead,
        }
        self._dependents: dict[int, list[int]] = {}
        self.retrying = 0
        self.totals = Totals()
        self.statistics = Statistics()
        self.clocked = Clocked()

        self.timers = Timers()
        #: How far the clock of whoever is being served is ahead of ours.
        self.skew = 0
        #: What protocols keep beside jobs. Change it with `note`.
        self.notes: dict[str, bytes] = {}
        #: Connections to which leases are bound. One that is not here has lost its leases.
        self.holders: set[str] = set()
        self._waits = 0
        self._waiters: dict[int, Waiter] = {}
        #: (waiter, job) pairs to be told; each job is already leased to its waiter.
        self.deliveries: list[tuple[Waiter, Job]] = []
        #: Those who wait for the end of a job, by its seq.
        self._awaited: dict[int, list[Waiter]] = {}
        #: What those who waited for the end of a job are to be told.
        self.outcomes: list[tuple[Waiter, Outcome]] = []
        #: Waiters that got nothing in time.
        self.timeouts: list[Waiter] = []
        #: Keys given to `alarm` whose moment has come.
        self.alarms: list[Hashable] = []

        self.batch = Batch()
        #: Counts changes that must be durable before they are acknowledged. A lease is not among
        #: them: after a crash the job is merely handed out again.
        self.changes = 0
        #: Leases that ended with the connections of the process before this one: seq -> attempt.
        self._unbound: dict[int, int] = {}
        #: Up to here jobs became ready before they were read back from the store.
        self.restored_at = 0
        #: The same by the clocks of those who bring their own.
        self.restored_theirs = 0
        #: Counts batches: which one is being filled.
        self.turn = 0
        #: How often batches were undone.
        self.reverts = 0
        #: Jobs from this seq on may still be refused, because their push is not durable yet.
        self.synced_seq = 1 << 63

    # Pushing

    def push(self, push: Push, now: int) -> Job:
        """Take in a job; it is ready, scheduled or blocked."""
        queue = self.queues.get(push.queue)
        if queue is None or not queue.known:
            queue = self.open_queue(push.queue)
        seq = self.next_seq
        self.next_seq = seq + 1
        if push.origin != QLESS:  # its callers bring their own clock
            self.latest = now = max(now, self.latest)
        extra = None
        if push.tags or push.blockers or push.fleeting or push.dead_queue or push.own is not None:
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
            push.place or now,
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
        self.jobs[seq] = job
        if self.by_jid.setdefault(jid, job) is not job:
            self._twins.setdefault(jid, []).append(job)
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

    def open_queue(self, name: str) -> Queue:
        """The queue of that name, made if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        if not queue.known:
            self.queues[name] = self.queues.pop(name)  # in the order of their first pushes
            queue.known = True
            self.batch.queues[name] = queue.paused
        return queue

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
        return None

    def lease_this(
        self,
        job: Job,
        holder: str,
        actor: int,
        now: int,
        until: int,
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

    def reclaim(self, job: Job, holder: str, actor: int, now: int) -> bool:
        """Is this job leased to that holder? If it may have been, as above, it is again."""
        if self.jobs.get(job.seq) is not job:
            return False
        if job.state == LEASED:
            return job.holder == holder and job.actor == actor
        restored_at = self.restored_theirs if job.origin == QLESS else self.restored_at
        if job.state != READY or job.ready_at > restored_at or self.halted:
            return False
        queue = self.queues[job.queue]
        queue.ready.remove(job)
        self._lease(job, queue, holder, actor, now)
        return True

    def wait(self, waiter: Waiter, until: int) -> None:
        """Deliver the next job of its queues, or tell the waiter at `until` that none came."""
        self._waits -= 1
        waiter.key = key = self._waits
        if until != FOREVER:
            self.timers.set(key, until)
        for name in waiter.queues:
            queue = self.queues.get(name)
            if queue is None:
                queue = self.queues[name] = Queue(name)  # not known yet: nobody pushed to it
            queue.waiters[key] = waiter
        self._waiters[key] = waiter

    def wait_for_end(self, job: Job, waiter: Waiter, until: int) -> None:
        """Tell the waiter how the job ends, or at `until` that it has not."""
        waiter.seq = job.seq
        self.wait(waiter, until)
        self._awaited.setdefault(job.seq, []).append(waiter)

    def unwait(self, waiter: Waiter) -> None:
        """Forget a waiter: its connection is gone, or it was served."""
        self.deafen(waiter)
        peers = self._awaited.get(waiter.seq) if self._awaited else None
        if peers is not None and waiter in peers:
            peers.remove(waiter)
            if not peers:
                del self._awaited[waiter.seq]
        if self._waiters.pop(waiter.key, None) is not None:
            self.timers.cancel(waiter.key)

    def deafen_all(self) -> None:
        """Give nothing to anybody who waits now."""
        for waiter in self._waiters.values():
            self.deafen(waiter)

    def deafen(self, waiter: Waiter) -> None:
        """Let a waiter wait on to its end, but give it nothing."""
        for name in waiter.queues:
            queue = self.queues.get(name)
            if queue is not None and queue.waiters.pop(waiter.key, None) is not None:
                self._drop_if_unused(queue)

    def renew(self, job: Job, deadline: int, now: int) -> None:
        """Move the end of a lease."""
        if job.state != LEASED:
            raise NotLeased
        job.deadline = deadline
        if job.actor not in UNTIMED:
            self.timers.set(job.seq, deadline)
        self.batch.events.append(self._event(job, "renewed", now, job.actor))
        self.touch(job)

    def lapse(self, job: Job, deadline: int, now: int) -> None:
        """A lease has run out, but its holder has some grace before anybody else gets the job."""
        if job.state != LEASED:
            raise NotLeased
        job.deadline = deadline
        self.batch.events.append(self._event(job, "expired", now, NO_PROTOCOL))
        self.touch(job)

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
        if self._awaited:
            self._tell(Outcome(job, "completed", True, result or b""))
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
        if cause == "failed" or policy.expiry_fails:
            if before == SCHEDULED and not job.failures:
                self.retrying += 1  # so it is counted while it leaves
            job.failures += 1
        first_at = now if job.failure is None else job.failure.first_at
        job.failure = Failure(first_at, now, group, message, backtrace)
        if final:
            verdict = Verdict(DEAD)
        elif cause == "failed":
            verdict = policy.after_failure(job, now, self.random)
        else:
            verdict = policy.after_expiry(job, now, self.random)
        if again_at is not None and verdict.state != DEAD:
            verdict = Verdict(SCHEDULED if again_at > now else READY, again_at)
        state = verdict.state
        if before == SCHEDULED and state == READY and job.due > now:
            state = SCHEDULED  # its moment is still to come
        else:
            job.due = verdict.due
            job.place = verdict.place or job.place
        run = max(0, now - job.leased_at) if before == LEASED else 0
        if state in {DEAD, GONE} and (job.expires or job.seq in self._awaited):
            if result is None:
                result = message.encode("utf-8", "replace") if cause == "failed" else b""
            self._keep(job, result)
            self._tell(Outcome(job, cause, False, result))
        self._change(job, self.queues[job.queue], cause, state, now, actor, 0, run)
        if state in {DEAD, GONE}:
            self._bury(job, now)
            self._fell(job, now)
        self.changes += 1

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

    def release(self, job: Job, now: int) -> None:
        """Give back a lease that never reached its holder: no attempt is counted."""
        if job.state != LEASED or self.jobs.get(job.seq) is not job:
            raise NotLeased
        job.attempt -= 1
        self._change(job, self.queues[job.queue], "released", READY, now, job.actor)
        self.changes += 1

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
        fleeting = [j for j in self.jobs.values() if j.extra is not None and j.extra.fleeting]
        for job in fleeting:
            self.cancel(job, now)
        bound = [job for job in self.leased.values() if job.actor in BOUND]
        self._unbound = {job.seq: job.attempt for job in bound}
        for job in in_order(bound):
            self._unbind(job, now)

    def _unbind(self, job: Job, now: int) -> None:
        """A lease ends without a failure, because all connections ended."""
        self._change(job, self.queues[job.queue], "released", READY, now, NO_PROTOCOL)
        self.changes += 1

    # What protocols do to jobs beside working them

    def note(self, key: str, value: bytes | None) -> None:
        """Keep something beside jobs, or forget it."""
        if value is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = value
        self.batch.notes[key] = value
        self.changes += 1

    def touch(self, job: Job) -> None:
        """Something of a job has changed that is not its state."""
        if job.seq not in self.batch.new:
            self.batch.changed[job.seq] = job
        self.changes += 1

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
        job.queue, job.failures, job.place, job.due = queue.name, 0, 0, due
        if blockers is not None:
            self._stop_waiting(job)
            self._wait_for(job, blockers)
        self._enter(job, queue)
        self._change(job, queue, "moved", self._start(job, now), now, actor)
        self._drop_if_unused(old)
        self.changes += 1

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
        self._wait_for(job, blockers)
        self.touch(job)

    def unblock(self, job: Job, blockers: Iterable[int], now: int) -> None:
        """Let a blocked job wait for these no longer."""
        if job.state != BLOCKED or job.extra is None:
            raise WrongState
        for seq in blockers:
            if seq in job.extra.blockers:
                job.extra.blockers.remove(seq)
                self._unnote_dependent(seq, job.seq)
        self.touch(job)
        if not job.extra.blockers:
            queue = self.queues[job.queue]
            self._change(job, queue, "unblocked", self._start(job, now), now, NO_PROTOCOL)

    def detach(self, job: Job) -> None:
        """Let a job that is about to go wait for nobody."""
        self._stop_waiting(job)

    def fall_due(self, job: Job, now: int) -> None:
        """A scheduled job's moment has come, by the clock of whoever asks."""
        if job.state != SCHEDULED:
            raise WrongState
        self._fall_due(job, now)

    def dependents(self, job: Job) -> list[Job]:
        """Those who wait for this job."""
        if job.seq not in self._dependents:
            return []
        found = [self.jobs.get(seq) for seq in dict.fromkeys(self._dependents.get(job.seq, ()))]
        return [j for j in found if j and j.extra is not None and job.seq in j.extra.blockers]

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
        self._drop_if_unused(queue)
        self.changes += 1

    def forget_queue(self, name: str) -> None:
        """Forget a queue's name and its pause; its jobs stay, and the next push opens it anew."""
        queue = self.queues.get(name)
        if queue is None or not queue.known:
            return
        queue.known = queue.paused = False
        self.batch.queues[name] = None
        self._drop_if_unused(queue)
        self.changes += 1

    def flush(self, now: int) -> None:
        """Forget every job, queue and counter. Those who wait go on waiting."""
        self._wipe()
        events = self.batch.events
        self.batch = Batch()
        self.batch.cleared = True
        self.batch.events = events
        last = self.next_seq - 1
        self.batch.events.append((now, "flushed", last, "", "", "", 0, 0, "", 0, GONE, *(0,) * 7))
        self.changes += 1

    # Time

    def next_timer(self) -> int | None:
        return self.timers.next()

    def tick(self, now: int, most: int = 1000) -> None:
        """Do what has fallen due, at most so much at once."""
        for key in self.timers.due(now, most):
            if not isinstance(key, int):
                self.alarms.append(key)
            elif key < 0:
                waiter = self._waiters[key]
                self.unwait(waiter)
                self.timeouts.append(waiter)
            elif self.halted:
                self.timers.set(key, now + HALTED_RETRY)
            elif key < LIFE:
                self._fall_due(self.jobs[key], now)
            elif key - LIFE in self.jobs:
                self._outlive(self.jobs[key - LIFE], now)

    def resume(self, now: int) -> None:
        """Changes can be made durable again: those who waited meanwhile get their jobs."""
        self.halted = ""
        for queue in list(self.queues.values()):
            self._serve(queue, now)

    def alarm(self, key: Hashable, when: int) -> None:
        """Put `key` into `alarms` at that time. It must not be a number."""
        self.timers.set(key, when)

    def unalarm(self, key: Hashable) -> None:
        self.timers.cancel(key)

    # Looking

    def find(self, jid: str) -> Job | None:
        """A job of that id; of several, the oldest."""
        return self.by_jid.get(jid)

    def find_all(self, jid: str) -> list[Job]:
        job = self.by_jid.get(jid)
        return [] if job is None else [job, *self._twins.get(jid, ())]

    def find_newest(self, jid: str, most: int) -> list[Job]:
        """Jobs of that id, the newest, and the oldest."""
        job = self.by_jid.get(jid)
        return [] if job is None else [job, *self._twins.get(jid, ())[-most:]]

    def find_leased(self, jid: str) -> Job | None:
        """The leased job of that id."""
        job = self.by_jid.get(jid)
        if job is None or job.state == LEASED:
            return job
        return next((twin for twin in self._twins.get(jid, ()) if twin.state == LEASED), None)

    def ready_count(self) -> int:
        return sum(queue.counts[READY] for queue in self.queues.values())

    # Keeping

    def depend(self) -> None:
        """What is about to be answered rests on what is in memory: it must wait for the sync."""
        self.changes += 1

    def count(self) -> Statistics:
        """The statistics, with all that has happened until now."""
        batch = self.batch
        if batch.folded < len(batch.events):
            self.statistics.fold(batch.events[batch.folded :] if batch.folded else batch.events)
            batch.folded = len(batch.events)
        return self.statistics

    def take_batch(self) -> Batch:
        """What has changed since it was last taken."""
        self.count()
        batch = self.batch
        self.batch = Batch()
        self.turn += 1
        return batch

    def restore(self, jobs: Iterable[Job], queues: dict[str, bool]) -> None:
        """Put jobs back where their records say. Ready jobs should come in the order of `place`."""
        for name, paused in queues.items():
            queue = self.queues.get(name)
            if queue is None:
                queue = self.queues[name] = Queue(name)
            queue.paused = paused
            queue.known = True
        for job in jobs:
            self._restore(job)
        self.restored_at = self.latest
        self.latest += 1  # whatever becomes ready from now on does so later
        for job in sorted(self.dead.values(), key=lambda dead: dead.due):
            self.dead.move_to_end(job.seq)  # the oldest first, as they died

    def revert(
        self, batches: Iterable[Batch], jobs: Iterable[Job], queues: dict[str, bool]
    ) -> None:
        """Undo batches that could not be written, as a crash would have: `jobs` and `queues` are
        what the store still has of what those batches touched, or of everything if one cleared it.
        """
        batches = list(batches)
        if any(batch.cleared for batch in batches):
            self._wipe()
        for batch in batches:
            for seq in (*batch.new, *batch.changed, *batch.rewritten):
                job = self.jobs.get(seq)
                if job is not None:
                    self._leave(job, self.queues[job.queue])
                    self._forget(job)
        for batch in batches:
            for name in batch.queues:
                queue = self.queues.get(name)
                if queue is not None and name not in queues:
                    queue.paused = queue.known = False
                    self._drop_if_unused(queue)
        self.restore(in_order(jobs), queues)
        # Connections that are gone have ended their leases, and what went with them: once more.
        for job in self.leased.values():
            if job.actor in BOUND and job.holder not in self.holders:
                self.timers.set(job.seq, self.latest)
        for job in self.jobs.values():
            fleeting = job.extra is not None and job.extra.fleeting
            if fleeting and job.seq not in self._awaited:
                self.timers.set(job.seq + LIFE, self.latest)
        self.reverts += 1
        self.batch = Batch()

    # Within

    def _start(self, job: Job, now: int) -> int:
        """Where a job begins when nothing has happened to it yet."""
        if job.extra is not None and job.extra.blockers:
            return BLOCKED
        return SCHEDULED if job.due > now else READY

    def _extra(self, push: Push, seq: int) -> Extra | None:
        """What few jobs have, and nothing for all others."""
        blockers = [b for b in dict.fromkeys(push.blockers) if self._blocks(b, push.origin)]
        for blocker in blockers:
            self._note_dependent(blocker, seq)
        if not (push.tags or blockers or push.fleeting or push.dead_queue or push.own is not None):
            return None
        return Extra(push.tags, blockers, None, push.fleeting, push.dead_queue, push.own)

    def _wait_for(self, job: Job, blockers: list[int]) -> None:
        if job.extra is None:
            job.extra = Extra()
        for seq in blockers:
            blocks = seq == job.seq or self._blocks(seq, job.origin)  # it may wait for itself
            if blocks and seq not in job.extra.blockers:
                job.extra.blockers.append(seq)
                self._note_dependent(seq, job.seq)

    def _note_dependent(self, blocker: int, seq: int) -> None:
        """The older ones first, also after a restart."""
        peers = self._dependents.setdefault(blocker, [])
        if not peers or peers[-1] < seq:
            peers.append(seq)
            return
        at = bisect_left(peers, seq)
        if peers[at] != seq:
            peers.insert(at, seq)

    def _stop_waiting(self, job: Job) -> None:
        """Let a job wait for nobody."""
        if job.extra is None:
            return
        blockers, job.extra.blockers = job.extra.blockers, []
        for blocker in blockers:
            self._unnote_dependent(blocker, job.seq)

    def _unnote_dependent(self, blocker: int, seq: int) -> None:
        peers = self._dependents.get(blocker, [])
        at = bisect_left(peers, seq)
        if at < len(peers) and peers[at] == seq:
            del peers[at]
        if not peers:
            self._dependents.pop(blocker, None)

    def _blocks(self, seq: int, origin: int) -> bool:
        """Is there such a job, and is there something to wait for?"""
        blocker = self.jobs.get(seq)
        if blocker is None or blocker.state == DONE:
            return False
        return blocker.state != DEAD or not POLICIES[origin].dies_with_blocker

    def _lease(
        self,
        job: Job,
        queue: Queue,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> None:
        wait = now - (job.ready_at if since is None else since(job))
        job.attempt += 1
        job.leased_at = now
        if until is None:
            until = FOREVER if actor in BOUND else now + job.lease_for
        job.deadline = until
        job.holder = holder
        job.actor = actor
        self._change(job, queue, "leased", LEASED, now, actor, max(0, wait))

    def _serve(self, queue: Queue, now: int) -> None:
        """Bring waiting jobs and waiting workers together, the longest waiter first."""
        while queue.waiters and not queue.paused and not self.halted:
            job = queue.ready.pop()
            if job is None:
                return
            waiter = next(iter(queue.waiters.values()))
            self.unwait(waiter)
            self._lease(job, queue, waiter.holder, waiter.actor, now)
            self.deliveries.append((waiter, job))

    def _unblock(self, blocker: Job, now: int) -> None:
        """Let go of those who waited for this job."""
        for seq in self._dependents.pop(blocker.seq, ()):
            job = self.jobs.get(seq)
            if job is None or job.extra is None or blocker.seq not in job.extra.blockers:
                continue
            job.extra.blockers.remove(blocker.seq)
            if job.state == BLOCKED and not job.extra.blockers:
                queue = self.queues[job.queue]
                self._change(job, queue, "unblocked", self._start(job, now), now, NO_PROTOCOL)
            elif job.seq not in self.batch.new:
                self.batch.changed[job.seq] = job

    def _fell(self, job: Job, now: int) -> None:
        """A job has failed for good: so do those who waited for it where their policy says so, each
        with its own dependents behind it.
        """
        falling = self._dying_with(job)
        while falling:
            fallen = falling.pop()
            if fallen.state == BLOCKED:  # or it fell already, with another one
                self._doom(fallen, now)
                falling += self._dying_with(fallen)
        if job.state == GONE:
            self._unblock(job, now)
        while len(self.dead) > self.dead_max:
            self._drop_oldest_dead(now)

    def _dying_with(self, job: Job) -> list[Job]:
        """Those who wait for this job and will not outlive it, the last one first."""
        found = map(self.jobs.get, reversed(self._dependents.get(job.seq, ())))
        return [each for each in found if each and POLICIES[each.origin].dies_with_blocker]

    def _doom(self, job: Job, now: int) -> None:
        self._stop_waiting(job)
        message = "a job that it waited for has failed for good"
        job.failure = Failure(now, now, "BlockerFailed", message, [])
        if job.seq in self._awaited:
            self._tell(Outcome(job, "doomed", False, message.encode()))
        self._change(job, self.queues[job.queue], "doomed", DEAD, now, NO_PROTOCOL)
        self._bury(job, now)

    def _bury(self, job: Job, now: int) -> None:
        """Move a job that died to its dead queue, if it has one; there it begins anew."""
        if job.state != DEAD or job.extra is None or not job.extra.dead_queue:
            return
        name, job.extra.dead_queue = job.extra.dead_queue, ""
        self.move(job, name, now, NO_PROTOCOL)

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
        self._change(job, self.queues[job.queue], cause, GONE, now, NO_PROTOCOL)
        self.changes += 1

    def _keep(self, job: Job, result: bytes | None) -> None:
        if job.extra is None:
            job.extra = Extra()
        job.extra.result = result

    def _tell(self, outcome: Outcome) -> None:
        """Tell all who wait for this job's end."""
        for waiter in list(self._awaited.get(outcome.job.seq, ())):
            self.unwait(waiter)
            self.outcomes.append((waiter, outcome))

    def _change(
        self,
        job: Job,
        queue: Queue,
        cause: str,
        to: int,
        now: int,
        actor: int,
        wait: int = 0,
        run: int = 0,
    ) -> None:
        """The one place where a job's state changes.

        It is most of what a command costs, so what most jobs do (pushed, leased, completed) is
        written out here; what few do is in `_leave` and `_enter`.
        """
        before, seq, batch = job.state, job.seq, self.batch
        if before * 8 + to not in LEGAL[cause]:
            raise AssertionError(f"job {seq}: {cause} may not lead from {before} to {to}")

        if before == LEASED:
            queue.counts[LEASED] -= 1
            del self.leased[seq]
            self.timers.cancel(seq)
        elif cause == "leased":
            queue.counts[READY] -= 1  # whoever leases has popped it already
        elif before != NEW:
            self._leave(job, queue)

        job.state = to
        if to == READY:
            if job.origin == QLESS:
                latest = now
            else:
                self.latest = latest = max(now, self.latest + (cause in _BEHIND))
            job.ready_at = latest
            returns = job.failures and job.origin in RETURNING
            if cause in _ARRIVES and 0 <= job.place < LATER and not returns:
                job.place = latest
        elif to == DEAD:
            job.due = job.expires or min(FOREVER, now + POLICIES[job.origin].dead_for)
        batch.events.append(
            (
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
            )
            if job.failure is None and job.extra is None
            else self._event(job, cause, now, actor, wait, run)
        )

        if to == GONE:
            self._forget(job)
            if batch.new.pop(seq, None) is None:
                batch.changed.pop(seq, None)
                batch.rewritten.pop(seq, None)
                batch.gone[seq] = None
            if self._dependents and cause not in _FAILURES:
                self._unblock(job, now)
            if not queue.known:
                self._drop_if_unused(queue)
            return
        if seq not in batch.new:
            batch.changed[seq] = job
        if to == READY:
            if not queue.known:
                self.open_queue(queue.name)  # it was removed while this job was elsewhere
            queue.counts[READY] += 1
            queue.ready.add(job)
            if queue.waiters:
                self._serve(queue, now)
        elif to == LEASED:
            queue.counts[LEASED] += 1
            self.leased[seq] = job
            if actor not in UNTIMED:
                self.timers.set(seq, job.deadline)
        else:
            self._enter(job, queue)
            if to == DONE and self._dependents and cause != "advanced":
                self._unblock(job, now)

    def _event(
        self, job: Job, cause: str, now: int, actor: int, wait: int = 0, run: int = 0
    ) -> Row:
        """An event with everything, in the order of events.Event. Those of jobs that never failed
        and have nothing extra are shorter, and made where they happen.
        """
        failure, extra = job.failure, job.extra
        group = message = shape = ""
        if failure is not None and cause in _FAILURES:
            group, message = failure.group, failure.message
            shape = fingerprint(group, message)
        return (
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
            job.state,
            job.rank,
            job.ready_at,
            job.leased_at,
            wait,
            run,
            job.due,
            len(job.payload),
            group,
            message,
            shape,
            () if extra is None else tuple(extra.tags),
        )

    def _leave(self, job: Job, queue: Queue) -> None:
        """Take a job out of wherever its state has put it."""
        state = job.state
        queue.counts[state] -= 1
        if state == READY:
            queue.ready.remove(job)
            return
        del self._place_of(job)[job.seq]
        self.timers.cancel(job.seq)
        if state == SCHEDULED and job.failures:
            self.retrying -= 1

    def _enter(self, job: Job, queue: Queue) -> None:
        """Put a job where its state says."""
        state = job.state
        queue.counts[state] += 1
        if state == READY:
            queue.ready.add(job)
            return
        self._place_of(job)[job.seq] = job
        if state == LEASED:
            if job.actor not in UNTIMED:
                self.timers.set(job.seq, job.deadline)
        elif state == SCHEDULED:
            self.timers.set(job.seq, job.due - self.skew)
            if job.failures:
                self.retrying += 1
        elif state != BLOCKED and not job.expires and job.due != FOREVER:
            self.timers.set(job.seq, job.due)

    def _place_of(self, job: Job) -> dict[int, Job]:
        if job.state == DEAD and (job.expires or job.origin in KEPT):
            return self.dying
        if job.state == DONE and job.origin in KEPT:
            return self.kept
        return self._index[job.state]

    def _forget(self, job: Job) -> None:
        """Drop a job from the indexes of ids, and its time to live."""
        del self.jobs[job.seq]
        if job.expires:
            self.timers.cancel(job.seq + LIFE)
        if job.extra is not None and job.extra.blockers:
            self._stop_waiting(job)
        twins = self._twins.get(job.jid) if self._twins else None
        if twins is None:
            del self.by_jid[job.jid]
            return
        if self.by_jid[job.jid] is job:
            self.by_jid[job.jid] = twins.pop(0)
        else:
            twins.remove(job)
        if not twins:
            del self._twins[job.jid]

    def _restore(self, job: Job) -> None:
        queue = self.queues.get(job.queue)
        if queue is None:
            queue = self.queues[job.queue] = Queue(job.queue)
        job.queue, job.kind = queue.name, intern(job.kind)  # a million jobs share few of these
        self.jobs[job.seq] = job
        if self.by_jid.setdefault(job.jid, job) is not job:
            self._restore_twin(job)
        if job.seq >= self.next_seq:
            self.next_seq = job.seq + 1
        arrived = job.place if job.place < LATER else 0
        if job.origin == QLESS:  # a clock of theirs that is wrong shall not become ours
            self.restored_theirs = max(self.restored_theirs, job.ready_at)
        else:
            self.latest = max(self.latest, arrived, job.ready_at)
        if job.expires:
            self.timers.set(job.seq + LIFE, job.expires)
        if job.extra is not None:
            for blocker in job.extra.blockers:
                self._note_dependent(blocker, job.seq)
        self._enter(job, queue)

    def _restore_twin(self, job: Job) -> None:
        """Put a job among others of its jid: the oldest is found first."""
        oldest = self.by_jid[job.jid]
        if job.seq < oldest.seq:
            self.by_jid[job.jid], job = job, oldest
        insort(self._twins.setdefault(job.jid, []), job, key=lambda twin: twin.seq)

    def _wipe(self) -> None:
        for queue in self.queues.values():
            queue.paused = queue.known = False
            queue.ready = type(queue.ready)()
            queue.counts = [0] * 6
        self.queues = {name: queue for name, queue in self.queues.items() if queue.waiters}
        for seq in self.jobs:
            self.timers.cancel(seq)
            self.timers.cancel(seq + LIFE)
        self.jobs.clear()
        self.by_jid.clear()
        self._twins.clear()
        for index in (*self._index.values(), self.dying, self.kept):
            index.clear()
        self._dependents.clear()
        self.retrying = 0
        self.totals = Totals()
        self.statistics = Statistics()

    def _drop_if_unused(self, queue: Queue) -> None:
        """Queues that nobody pushed to exist only while somebody waits."""
        unused = not queue.known and not queue.waiters and not any(queue.counts)
        if unused and self.queues.get(queue.name) is queue:
            del self.queues[queue.name]

    def _drop_oldest_dead(self, now: int) -> None:
        oldest = next(iter(self.dead.values()))
        self.dead_dropped += 1
        self._change(oldest, self.queues[oldest.queue], "purged", GONE, now, NO_PROTOCOL)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Jobs in the order in which `restore` wants them."""
    return sorted(jobs, key=lambda job: (job.place, job.seq))
