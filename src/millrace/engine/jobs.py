"""The jobs: where each is, and the one place where a job's state changes.

Engine, in engine.py, adds the commands. Here is what they all rest on: the indexes by state, queue,
id and dependency, the timers, the batch that is being filled, and how jobs come back from a store.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from random import Random
from sys import intern
from typing import Final

from .batch import Batch
from .counters import Clocked, Totals
from .dependents import Dependents
from .events import Row, fingerprint
from .failing import Failing
from .job import FOREVER, LATER, NO_PROTOCOL, QLESS, Extra, Job, add_time, lifetime_of
from .policy import BOUND, EXCLUSIVE, KEPT, POLICIES, RETURNING, UNTIMED
from .queues import Outcome, Queue, Waiter
from .retention import TRIM_TIMER
from .spans import Lately
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, LEGAL, NEW, READY, SCHEDULED
from .stats import Statistics
from .timers import Timers

#: How often a job that fell due while the store was failing is looked at again.
HALTED_RETRY = 1_000_000
#: A job's time to live is a timer of its own, beside that of its state: the key is seq + LIFE.
LIFE: Final = 1 << 62
#: What puts a job behind those that are ready already; whatever else makes it ready lets it come
#: back to its old place.
_ARRIVES: Final = frozenset({"due", "unblocked", "requeued", "moved"})
#: And of those, what puts it also behind all that became ready in the same moment.
_BEHIND: Final = frozenset({"moved", "unblocked"})
#: What ends a job without anybody having done its work.
_FAILURES: Final = frozenset({"failed", "expired", "doomed"})


class Jobs:
    def __init__(self, random: Random, *, dead_max: int = 100_000) -> None:
        self.random = random
        self.dead_max = dead_max
        self.dead_dropped = 0
        #: Why nothing can be made durable, or empty. Meanwhile no job changes; waiting goes on.
        self.halted = ""
        #: Why new jobs are refused; empty if they are accepted. The protocols check it.
        self.pushes_refused = ""

        self.next_seq = 1
        #: The position of the job that arrived last. It orders jobs and never decreases. It starts
        #: from the clock, but is ahead of it after the clock was set back.
        self.position = 0
        #: The server's clock when a job last became ready.
        self.clock = 0
        self.jobs: dict[int, Job] = {}
        #: One job of each jid, the oldest; the others are in `_twins`.
        self.by_jid: dict[str, Job] = {}
        self._twins: dict[str, list[Job]] = {}
        self.queues: dict[str, Queue] = {}
        self.scheduled: dict[int, Job] = {}
        self.blocked: dict[int, Job] = {}
        #: Those of them that wait for the release of their load, by its name.
        self.staged: dict[str, dict[int, Job]] = {}
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
        self._dependents = Dependents()
        self.retrying = 0
        #: The dead, and those that wait for another try, by what they failed of.
        self.failing = Failing()
        self.totals = Totals()
        self.statistics = Statistics()
        self.lately = Lately()
        self.clocked = Clocked()

        self.timers = Timers()
        #: How far the clock of whoever is being served is ahead of ours.
        self.skew = 0
        #: The same of whoever was last served that brings a clock: it stands for the clocks of jobs
        #: like theirs, when somebody else does something to them.
        self.theirs = 0
        #: Told of each change of a job that has a part of its protocol's own, whoever makes it:
        #: job, cause, actor, now. The job's state is the new one.
        self.keeper: Callable[[Job, str, int, int], None] = _no_keeper
        #: What protocols keep beside jobs. Change it with `note`.
        self.notes: dict[str, bytes] = {}
        #: Connections to which leases are bound. One that is not here has lost its leases.
        self.holders: set[str] = set()
        self._waits = 0
        #: The last of them that there was at the last tick.
        self._waits_known = 0
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
        #: Ready jobs below this seq were ready when the store was read, unless they are in
        #: `_ready_since`: those have become ready since.
        self.restored_seq = 0
        self._ready_since: set[int] = set()
        #: Counts batches: which one is being filled.
        self.turn = 0
        #: How often batches were undone, and how often all jobs were forgotten.
        self.reverts = 0
        self.wipes = 0
        #: Whether a store makes changes durable. Without one, no reply waits.
        self.durable = False
        #: The batch whose commit is under way.
        self.committing: Batch | None = None
        #: Jobs that were leased in this turn although an earlier change of theirs, such as the push
        #: or the transition to ready, is not committed. The replies with these leases must wait.
        self.unsettled: set[int] = set()

    # What is not committed yet

    @property
    def has_uncommitted(self) -> bool:
        """Whether the memory has any change that the store may still lose."""
        return self.durable and (self.committing is not None or bool(self.batch))

    def is_note_uncommitted(self, key: str) -> bool:
        committing = self.committing
        return key in self.batch.notes or (committing is not None and key in committing.notes)

    # Looking

    def find(self, jid: str) -> Job | None:
        """A job of that id; of several, the oldest."""
        return self.by_jid.get(jid)

    def find_all(self, jid: str) -> list[Job]:
        job = self.by_jid.get(jid)
        return [] if job is None else [job, *self._twins.get(jid, ())]

    def count_of(self, jid: str) -> int:
        """How many jobs have that id."""
        return 0 if jid not in self.by_jid else 1 + len(self._twins.get(jid, ()))

    def find_below(self, jid: str, below: int, most: int) -> list[Job]:
        """Jobs of that id whose number is lower, the newest first."""
        oldest = self.by_jid.get(jid)
        if oldest is None:
            return []
        twins = self._twins.get(jid, [])
        end = bisect_left(twins, below, key=lambda twin: twin.seq)
        found = twins[max(0, end - most) : end][::-1]
        return [*found, oldest] if len(found) < most and oldest.seq < below else found

    def find_newest(self, jid: str, most: int) -> list[Job]:
        """Jobs of that id, the newest, and the oldest."""
        job = self.by_jid.get(jid)
        return [] if job is None else [job, *self._twins.get(jid, ())[-most:]]

    def find_leased(self, jid: str, actor: int, holder: str = "") -> Job | None:
        """The leased job of that id which a worker of this protocol may end: of several its own."""
        job = self.by_jid.get(jid)
        if job is None or (self._twins and jid in self._twins):
            return self._find_twin(jid, actor, holder)
        if job.state != LEASED or (job.actor != actor and job.actor in EXCLUSIVE):
            return None
        return job

    def _find_twin(self, jid: str, actor: int, holder: str) -> Job | None:
        held = [job for job in self.find_all(jid) if job.state == LEASED]
        mine = [job for job in held if job.actor == actor]
        for job in mine:
            if job.holder == holder:
                return job
        return next((job for job in (*mine, *held) if job.actor not in EXCLUSIVE), None)

    def ready_count(self) -> int:
        return sum(queue.counts[READY] for queue in self.queues.values())

    def dependents(self, job: Job) -> list[Job]:
        """Those who wait for this job."""
        if job.seq not in self._dependents:
            return []
        found = [self.jobs.get(seq) for seq in dict.fromkeys(self._dependents.get(job.seq, ()))]
        return [j for j in found if j and j.extra is not None and job.seq in j.extra.blockers]

    def some_dependents(self, job: Job, most: int) -> tuple[list[Job], int]:
        """The first of those who wait for this job, and how many others do."""
        seqs = self._dependents.get(job.seq, [])
        found = [self.jobs[seq] for seq in seqs[:most] if seq in self.jobs]
        return found, len(seqs) - len(found)

    def next_dependent(self, job: Job, behind: int) -> int:
        """The number of the next one that waits for this job, behind another; 0 if there is none.
        It may be among many, and may come and go.
        """
        return self._dependents.behind(job.seq, behind)

    # Keeping

    def depend(self) -> None:
        """The reply to this command depends on state in memory: it must wait for the commit."""
        self.changes += 1

    def note(self, key: str, value: bytes | None) -> None:
        """Keep something beside jobs, or forget it."""
        if value is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = value
        self.batch.notes[key] = value
        self.changes += 1

    def note_unacknowledged(self, key: str, value: bytes) -> None:
        """Keep something that no reply waits for."""
        self.notes[key] = value
        self.batch.notes[key] = value

    def touch(self, job: Job) -> None:
        """Something of a job has changed that is not its state."""
        if job.seq not in self.batch.new:
            self.batch.changed[job.seq] = job
        self.changes += 1

    def count(self) -> Statistics:
        """The statistics, with all that has happened until now."""
        batch = self.batch
        if batch.folded < len(batch.events):
            events = batch.events[batch.folded :] if batch.folded else batch.events
            self.statistics.fold(events, self.lately)
            batch.folded = len(batch.events)
        return self.statistics

    def take_batch(self) -> Batch:
        """What has changed since it was last taken."""
        self.count()
        batch = self.batch
        self.batch = Batch()
        self.unsettled.clear()
        self.turn += 1
        return batch

    def restore(self, jobs: Iterable[Job], queues: dict[str, bool]) -> None:
        """Put jobs back where their records say. Ready jobs should come in the order of `place`."""
        for name, paused in queues.items():
            queue = self.queues.pop(name, None)
            if queue is None:
                queue = Queue(name)
            self.queues[name] = queue  # behind those before it: their order is kept, too
            queue.paused = paused
            queue.known = True
        self.failing.deferring = True
        for job in jobs:
            self._restore(job)
        self.failing.deferring = False
        self.restored_seq = self.next_seq
        self._ready_since.clear()
        self.position += 1  # later arrivals are behind every restored job
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
        jobs = in_order(jobs)
        self.restore(jobs, queues)
        for load in {job.extra.load for job in jobs if job.extra is not None and job.extra.load}:
            if load in self.staged:  # the restored jobs are behind the others: sort them in
                self.staged[load] = dict(sorted(self.staged[load].items()))
        # Connections that are gone have ended their leases, and what went with them: once more.
        for job in self.leased.values():
            if job.actor in BOUND and job.holder not in self.holders:
                self.timers.set(job.seq, 0)
        for job in self._forlorn():
            self.timers.set(job.seq + LIFE, 0)
        self.reverts += 1
        self.batch = Batch()
        self.unsettled.clear()

    def _forlorn(self) -> list[Job]:
        """Fleeting jobs whose clients are gone."""
        return [
            job
            for job in self.jobs.values()
            if job.extra is not None and job.extra.fleeting and job.seq not in self._awaited
        ]

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
        # Positions of Qless jobs come from the clocks of its clients, which may be wrong.
        if job.place < LATER and job.origin != QLESS:
            self.position = max(self.position, job.place)
        if job.expires:
            self.timers.set(job.seq + LIFE, job.expires)
        if job.extra is not None:
            for blocker in job.extra.blockers:
                self._dependents.note(blocker, job.seq)
        self._enter(job, queue)

    def _restore_twin(self, job: Job) -> None:
        """Put a job among others of its jid: the oldest is found first."""
        oldest = self.by_jid[job.jid]
        if job.seq < oldest.seq:
            self.by_jid[job.jid], job = job, oldest
        insort(self._twins.setdefault(job.jid, []), job, key=lambda twin: twin.seq)

    def _forget(self, job: Job) -> None:
        """Drop a job from the indexes of ids, and its time to live."""
        del self.jobs[job.seq]
        if job.expires:
            self.timers.cancel(job.seq + LIFE)
        if self._ready_since:
            self._ready_since.discard(job.seq)
        if job.extra is not None:
            if job.extra.fleeting:
                self.timers.cancel(job.seq + LIFE)  # it may have been abandoned
            if job.extra.blockers:
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

    def _wipe(self) -> None:
        for queue in self.queues.values():
            queue.paused = queue.known = False
            queue.ready = type(queue.ready)()
            queue.counts = [0] * 6
        self.queues = {name: queue for name, queue in self.queues.items() if queue.waiters}
        for seq in self.jobs:
            self.timers.cancel(seq)
            self.timers.cancel(seq + LIFE)
        self.timers.cancel(TRIM_TIMER)
        self.wipes += 1
        self.jobs.clear()
        self.by_jid.clear()
        self._twins.clear()
        for index in (*self._index.values(), self.dying, self.kept):
            index.clear()
        self.staged.clear()
        self._ready_since.clear()
        self._dependents.clear()
        self.failing.clear()
        self.retrying = 0
        self.totals = Totals()
        self.statistics = Statistics()

    # Changing a job's state

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
        source: str = "",
        repeat: int = 0,
    ) -> None:
        """The one place where a job's state changes. `source` is the queue that it comes from.

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
            lifetime = lifetime_of(job)
            lifetime.run += run
            wait = lifetime.lease_wait
        elif cause == "leased":
            queue.counts[READY] -= 1  # whoever leases has popped it already
        elif before != NEW:
            self._leave(job, queue)

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
        if (
            to <= LEASED
            and before != LEASED
            and job.failure is None
            and job.extra is None
            and not source
        ):
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
        else:
            event = self._event(job, cause, before, now, actor, wait, run, source, repeat)
            if job.extra is not None and job.extra.own is not None:
                self.keeper(job, cause, actor, now)
        batch.events.append(event)

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

    def _event(
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
        its cause. The shortest form is built in `_change`.
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

    def _leave(self, job: Job, queue: Queue) -> None:
        """Take a job out of wherever its state has put it."""
        state = job.state
        queue.counts[state] -= 1
        if state == READY:
            queue.ready.remove(job)
            return
        del self._place_of(job)[job.seq]
        self.timers.cancel(job.seq)
        if state == DEAD:
            self.failing.leave(job.seq)
        elif state == SCHEDULED and job.failures:
            self.retrying -= 1
            self.failing.leave(job.seq)
        elif state == BLOCKED and job.extra is not None and job.extra.load:
            self._unstage(job)

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

    def _unstage(self, job: Job) -> None:
        assert job.extra is not None
        staged = self.staged[job.extra.load]
        del staged[job.seq]
        if not staged:
            del self.staged[job.extra.load]

    def _place_of(self, job: Job) -> dict[int, Job]:
        if job.state == DEAD and (job.expires or job.origin in KEPT):
            return self.dying
        if job.state == DONE and job.origin in KEPT:
            return self.kept
        return self._index[job.state]

    def _start(self, job: Job, now: int) -> int:
        """Where a job begins when nothing has happened to it yet."""
        if job.extra is not None and (job.extra.blockers or job.extra.load):
            return BLOCKED
        if job.origin == QLESS:
            now += self.theirs - self.skew
        return SCHEDULED if job.due > now else READY

    # Queues, and who waits for their jobs

    def open_queue(self, name: str) -> Queue:
        """The queue of that name, made if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        if not queue.known:
            self.queues[name] = self.queues.pop(name)  # in the order of their first pushes
            queue.known = True
            self.batch.queues.pop(name, None)
            self.batch.queues[name] = queue.paused
            self.batch.opened.add(name)
        return queue

    def _drop_if_unused(self, queue: Queue) -> None:
        """Queues that nobody pushed to exist only while somebody waits."""
        unused = not queue.known and not queue.waiters and not any(queue.counts)
        if unused and self.queues.get(queue.name) is queue:
            del self.queues[queue.name]

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
        wait = max(0, now - (job.ready_at if since is None else since(job)))
        lifetime = lifetime_of(job)
        if not lifetime.leases:
            lifetime.first_leased_at = now
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
        self._change(job, queue, "leased", LEASED, now, actor, wait)

    def _serve(self, queue: Queue, now: int) -> None:
        """Bring waiting jobs and waiting workers together, the longest waiter first. Whoever waits
        goes by our clock, also if somebody with another one brought the job.
        """
        now -= self.skew
        while queue.waiters and not queue.paused and not self.halted:
            job = queue.ready.pop()
            if job is None:
                return
            waiter = next(iter(queue.waiters.values()))
            self.unwait(waiter)
            until = add_time(now, waiter.lease_for) if waiter.lease_for else None
            self._lease(job, queue, waiter.holder, waiter.actor, now, until)
            self.deliveries.append((waiter, job))

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

    def deafen(self, waiter: Waiter) -> None:
        """Let a waiter wait on to its end, but give it nothing."""
        for name in waiter.queues:
            queue = self.queues.get(name)
            if queue is not None and queue.waiters.pop(waiter.key, None) is not None:
                self._drop_if_unused(queue)

    # Who waits for whom

    def _wait_for(self, job: Job, blockers: list[int]) -> None:
        if job.extra is None:
            job.extra = Extra()
        for seq in blockers:
            blocks = seq == job.seq or self._blocks(seq, job.origin)  # it may wait for itself
            if blocks and seq not in job.extra.blockers:
                job.extra.blockers.append(seq)
                self._dependents.note(seq, job.seq)

    def _stop_waiting(self, job: Job) -> None:
        """Let a job wait for nobody."""
        if job.extra is None:
            return
        blockers, job.extra.blockers = job.extra.blockers, []
        for blocker in blockers:
            self._dependents.unnote(blocker, job.seq)

    def _blocks(self, seq: int, origin: int) -> bool:
        """Is there such a job, and is there something to wait for?"""
        blocker = self.jobs.get(seq)
        if blocker is None or blocker.state == DONE:
            return False
        return blocker.state != DEAD or not POLICIES[origin].dies_with_blocker

    def _unblock(self, blocker: Job, now: int) -> None:
        """Let go of those who waited for this job."""
        for seq in self._dependents.pop(blocker.seq, ()):
            job = self.jobs.get(seq)
            if job is None or job.extra is None or blocker.seq not in job.extra.blockers:
                continue
            job.extra.blockers.remove(blocker.seq)
            if job.state == BLOCKED and not job.extra.blockers and not job.extra.load:
                queue = self.queues[job.queue]
                self._change(job, queue, "unblocked", self._start(job, now), now, NO_PROTOCOL)
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
    """Nobody keeps parts of jobs here."""


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Jobs in the order in which `restore` wants them."""
    return sorted(jobs, key=lambda job: (job.place, job.seq))
