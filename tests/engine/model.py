"""What the engine is checked against: jobs in plain dictionaries, moved by reading the events.

Each event must be legal for the job as the model has it, and follow from the rules: whoever is
leased was the first of its queue, whoever expires is past its deadline, and so on.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from millrace.engine.events import Event
from millrace.engine.job import (
    ALIAS,
    EARLIER,
    FOREVER,
    GOQUEUE,
    LATER,
    MASENKO,
    NO_PROTOCOL,
    WORKQ,
    Push,
)
from millrace.engine.policy import SECOND
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, NEW, READY, SCHEDULED

#: How long the dead are kept that have no time of their own.
DEAD_FOR = 180 * 86_400 * SECOND


@dataclass
class ModelJob:
    seq: int
    push: Push
    jid: str
    queue: str
    dead_queue: str
    blockers: set[int]
    state: int = NEW
    place: int = 0
    due: int = 0
    attempt: int = 0
    failures: int = 0
    leased_at: int = 0
    deadline: int = 0
    holder: str = ""
    #: Its lease lasts as long as the holder's connection.
    bound: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        return (-self.push.rank, self.place, self.seq)


@dataclass
class Model:
    dead_max: int
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    #: Known queues, and whether they are paused.
    queues: dict[str, bool] = field(default_factory=dict)
    position: int = 0
    processed: int = 0
    failed: int = 0
    #: What the next `pushed`, `renewed` and `completed` events are about.
    pushing: list[tuple[Push, set[int]]] = field(default_factory=list)
    renewing: int = 0
    keeping: int = 0
    #: The next lease is of a job that its holder had before: it needs no turn.
    regaining: bool = False
    #: The next success or failure is told by somebody who holds no lease.
    unleased: bool = False
    #: The connections that are there: leases bound to others are about to end.
    holders: set[str] = field(default_factory=set)
    #: Jobs that must move to their dead queues next, or fail with one that they waited for.
    moving: set[int] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)

    def copy(self) -> "Model":
        return deepcopy(self)

    def ready(self, queue: str) -> list[ModelJob]:
        """The ready jobs of a queue, in the order in which they must be handed out."""
        found = [j for j in self.jobs.values() if j.queue == queue and j.state == READY]
        return sorted(found, key=lambda job: job.order)

    def next_of(self, queues: tuple[str, ...]) -> ModelJob | None:
        """What somebody who asks these queues must get."""
        for queue in queues:
            if not self.queues.get(queue, False) and (jobs := self.ready(queue)):
                return jobs[0]
        return None

    def of_state(self, *states: int) -> list[int]:
        return [seq for seq, job in self.jobs.items() if job.state in states]

    # Reading events

    def absorb(self, event: Event) -> None:
        if event.type == "pushed":
            self._pushed(event)
            return
        job = self.jobs[event.seq]
        assert event.jid == job.jid
        assert event.queue == (job.dead_queue if event.type == "moved" else job.queue)
        assert event.type == "moved" or not self.moving, "a job was to move first"
        getattr(self, f"_{event.type}")(job, event)
        assert event.state == job.state, event
        assert event.attempt == job.attempt, event

    def _pushed(self, event: Event) -> None:
        push, blockers = self.pushing.pop(0)
        assert event.seq not in self.jobs
        assert all(event.seq > seq for seq in self.jobs), "a seq was used before"
        jid = push.jid or f"{ALIAS}{event.seq:012x}"
        assert (event.jid, event.queue) == (jid, push.queue)
        job = ModelJob(event.seq, push, jid, push.queue, push.dead_queue, blockers)
        job.place, job.due = push.place or self._next_position(event), push.due
        self.jobs[event.seq] = job
        self._start(job, event)
        assert event.state == job.state, event

    def _start(self, job: ModelJob, event: Event) -> None:
        if job.blockers:
            job.state = BLOCKED
        elif job.push.due > event.time:
            job.state = SCHEDULED
        else:
            self._make_ready(job, event)

    def _make_ready(self, job: ModelJob, event: Event, *, arrives: bool = True) -> None:
        """Behind the others if it arrives, unless its place is fixed; else at its old place."""
        assert event.ready_at == event.time
        job.state = READY
        if arrives and event.type != "pushed" and 0 <= job.place < LATER:
            job.place = self._next_position(event)
        self.queues.setdefault(job.queue, False)

    def _next_position(self, event: Event) -> int:
        if event.time > self.position:
            self.position = event.time
        elif event.time < self.position or event.type in {"moved", "unblocked"}:
            self.position += 1
        return self.position

    def _over(self, job: ModelJob, state: int) -> None:
        """The job blocks nobody any more."""
        job.state = state
        if state == GONE:
            del self.jobs[job.seq]
        for other in self.jobs.values():
            other.blockers.discard(job.seq)

    def _due(self, job: ModelJob, event: Event) -> None:
        assert job.state == SCHEDULED
        assert job.due <= event.time
        failed = job.push.origin == GOQUEUE and job.failures
        self._make_ready(job, event, arrives=not failed)  # that failure is as an expiry

    def _unblocked(self, job: ModelJob, event: Event) -> None:
        assert job.state == BLOCKED
        assert not job.blockers
        assert job.seq not in self.doomed
        self._start(job, event)

    def _leased(self, job: ModelJob, event: Event) -> None:
        if not self.regaining:
            assert not self.queues[job.queue], "leased from a paused queue"
            assert self.ready(job.queue)[0] is job, "leased out of order"
        job.state = LEASED
        job.attempt += 1
        job.leased_at = event.time
        job.bound = event.actor == MASENKO
        job.deadline = FOREVER if job.bound else event.time + job.push.lease_for
        job.holder = event.worker

    def _renewed(self, job: ModelJob, event: Event) -> None:
        assert job.state == LEASED
        job.deadline, self.renewing = self.renewing, 0

    def _released(self, job: ModelJob, event: Event) -> None:
        """Given back unused; or bound to a connection that a restart ended."""
        assert job.state == LEASED
        if event.actor == NO_PROTOCOL:
            assert self.is_forsaken(job)
        else:
            job.attempt -= 1
        self._make_ready(job, event, arrives=False)

    def _completed(self, job: ModelJob, event: Event) -> None:
        self._check_held(job)
        self.processed += 1
        keep_until = job.push.expires or self.keeping
        if keep_until > event.time:
            job.due = keep_until
            self._over(job, DONE)
        else:
            self._over(job, GONE)
        self.keeping = 0

    def _check_held(self, job: ModelJob) -> None:
        assert job.state == LEASED or (self.unleased and job.state in {READY, SCHEDULED})
        self.unleased = False

    def _failed(self, job: ModelJob, event: Event) -> None:
        self._check_held(job)
        self.processed += 1
        self.failed += 1
        origin = job.push.origin
        if origin == WORKQ:
            self._failed_by_workq(job, event)
        elif origin == MASENKO:
            self._failed_by_masenko(job, event)
        elif origin == GOQUEUE:
            self._failed_by_goqueue(job, event)
        else:
            self._failed_by_faktory(job, event)

    def _failed_by_faktory(self, job: ModelJob, event: Event) -> None:
        count, job.failures = job.failures, job.failures + 1
        if job.push.retries == 0:
            self._fell(job)
            self._over(job, GONE)
        elif count >= job.push.retries:
            self._bury(job, event)
        else:
            job.state, job.due = SCHEDULED, event.due
            delay = (event.due - event.time) // SECOND - count**4 - 15
            assert delay in range(0, 30 * (count + 1), count + 1)

    def _failed_by_workq(self, job: ModelJob, event: Event) -> None:
        """An expiry is no failure, and after what is not the end there is no delay."""
        job.failures += event.type == "failed"
        too_often = event.type == "failed" and job.failures >= job.push.retries
        if too_often or 0 < job.push.most_attempts <= job.attempt:
            self._bury(job, event)
        elif job.state != SCHEDULED or job.due <= event.time:
            self._make_ready(job, event, arrives=False)

    def _failed_by_masenko(self, job: ModelJob, event: Event) -> None:
        job.failures += 1
        if job.failures > job.push.retries:
            self._bury(job, event)
        else:
            job.state = SCHEDULED
            job.due = (event.time // SECOND + job.failures**4) * SECOND
            job.place = EARLIER + job.due

    def _failed_by_goqueue(self, job: ModelJob, event: Event) -> None:
        """A failure comes back when an expiry would have."""
        job.failures += 1
        over = job.leased_at + job.push.lease_for
        if 0 < job.push.most_attempts <= job.attempt:
            self._bury(job, event)
        elif event.type == "failed" and over > event.time:
            job.state, job.due = SCHEDULED, over
        elif job.state != SCHEDULED or job.due <= event.time:
            self._make_ready(job, event, arrives=False)

    def _bury(self, job: ModelJob, event: Event) -> None:
        job.state, job.due = DEAD, job.push.expires or event.time + DEAD_FOR
        if job.dead_queue and event.type != "killed":
            self.moving.add(job.seq)
        self._fell(job)

    def _fell(self, job: ModelJob) -> None:
        """Masenko's jobs do not outlive those that they wait for."""
        for other in self.jobs.values():
            if other.push.origin == MASENKO and other.state == BLOCKED:
                self.doomed |= {other.seq} if job.seq in other.blockers else set()

    def _doomed(self, job: ModelJob, event: Event) -> None:
        assert job.state == BLOCKED
        self.doomed.remove(job.seq)
        job.blockers.clear()
        self._bury(job, event)

    def _moved(self, job: ModelJob, event: Event) -> None:
        assert job.state == DEAD
        self.moving.remove(job.seq)
        job.queue, job.dead_queue = job.dead_queue, ""
        job.failures, job.place, job.due = 0, 0, 0
        self._make_ready(job, event)

    def is_forsaken(self, job: ModelJob) -> bool:
        return job.bound and job.holder not in self.holders

    def _expired(self, job: ModelJob, event: Event) -> None:
        assert job.deadline <= event.time or self.is_forsaken(job)
        self._failed(job, event)

    def _evicted(self, job: ModelJob, event: Event) -> None:
        assert job.state not in {DONE, DEAD}
        assert 0 < job.push.expires <= event.time
        self._over(job, GONE)

    def _requeued(self, job: ModelJob, event: Event) -> None:
        assert job.state in {SCHEDULED, DEAD}
        self._make_ready(job, event)

    def _killed(self, job: ModelJob, event: Event) -> None:
        assert job.state in {SCHEDULED, BLOCKED, READY, DEAD}
        self._bury(job, event)

    def _cancelled(self, job: ModelJob, event: Event) -> None:
        self._over(job, GONE)

    def _purged(self, job: ModelJob, event: Event) -> None:
        assert job.state in {DONE, DEAD}
        if job.due > event.time:
            dead = [self.jobs[s].due for s in self.of_state(DEAD) if not self.jobs[s].push.expires]
            assert len(dead) > self.dead_max, "purged before its time"
            assert not job.push.expires
            assert job.due == min(dead), "not the oldest of the dead was purged"
        self._over(job, GONE)
