"""A model of the engine: jobs in plain dictionaries, updated from the events. Each event must be
legal for the job in the model and must follow the rules: a leased job was the first of its queue,
an expired lease is past its deadline, and so on.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from millrace.engine.events import Event
from millrace.engine.job import (
    AFTER_ARRIVALS,
    BEFORE_ARRIVALS,
    FOREVER,
    NO_PROTOCOL,
    SECOND,
    SEQ_ID_PREFIX,
    NewJob,
)
from millrace.engine.states import BLOCKED, DEAD, DONE, GONE, LEASED, NEW, READY, SCHEDULED
from millrace.protocols.registry import GOQUEUE, MASENKO, WORKQ

#: Retention of dead jobs that have no retention of their own.
DEAD_FOR = 180 * 86_400 * SECOND


@dataclass
class ModelJob:
    seq: int
    push: NewJob
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
    #: Subjects of the next `pushed`, `renewed` and `completed` events.
    pushing: list[tuple[NewJob, set[int]]] = field(default_factory=list)
    renewing: int = 0
    keeping: int = 0
    #: The next lease restores a lease of the same holder, so it does not follow the queue order.
    regaining: bool = False
    #: A client without a lease reports the next success or failure.
    unleased: bool = False
    #: Open connections. Leases bound to other connections are about to end.
    holders: set[str] = field(default_factory=set)
    #: Jobs that must move to their dead queues next, or fail with their blocker.
    moving: set[int] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)

    def copy(self) -> "Model":
        return deepcopy(self)

    def ready(self, queue: str) -> list[ModelJob]:
        """The ready jobs of a queue, in the order of their delivery."""
        found = [j for j in self.jobs.values() if j.queue == queue and j.state == READY]
        return sorted(found, key=lambda job: job.order)

    def next_of(self, queues: tuple[str, ...]) -> ModelJob | None:
        """The job that a lease from these queues must return."""
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
        assert event.type == "moved" or not self.moving, "another job must move first"
        getattr(self, f"_{event.type}")(job, event)
        assert event.state == job.state, event
        assert event.attempt == job.attempt, event

    def _pushed(self, event: Event) -> None:
        push, blockers = self.pushing.pop(0)
        assert event.seq not in self.jobs
        assert all(event.seq > seq for seq in self.jobs), "a seq was used before"
        jid = push.jid or f"{SEQ_ID_PREFIX}{event.seq:012x}"
        assert (event.jid, event.queue) == (jid, push.queue)
        job = ModelJob(event.seq, push, jid, push.queue, push.dead_queue, blockers)
        job.place, job.due = push.position or self._next_position(event), push.due_at
        self.jobs[event.seq] = job
        self._start(job, event)
        assert event.state == job.state, event

    def _start(self, job: ModelJob, event: Event) -> None:
        if job.blockers:
            job.state = BLOCKED
        elif job.push.due_at > event.time:
            job.state = SCHEDULED
        else:
            self._make_ready(job, event)

    def _make_ready(self, job: ModelJob, event: Event, *, arrives: bool = True) -> None:
        """The job goes behind the others if it arrives, unless its position is fixed. Otherwise it
        returns to its old position.
        """
        assert event.ready_at == event.time
        job.state = READY
        if arrives and event.type != "pushed" and 0 <= job.place < AFTER_ARRIVALS:
            job.place = self._next_position(event)
        self.queues.setdefault(job.queue, False)

    def _next_position(self, event: Event) -> int:
        if event.time > self.position:
            self.position = event.time
        elif event.time < self.position or event.type in {"moved", "unblocked"}:
            self.position += 1
        return self.position

    def _ended(self, job: ModelJob, state: int) -> None:
        """The job blocks no other job from now on."""
        job.state = state
        if state == GONE:
            del self.jobs[job.seq]
        for other in self.jobs.values():
            other.blockers.discard(job.seq)

    def _due(self, job: ModelJob, event: Event) -> None:
        assert job.state == SCHEDULED
        assert job.due <= event.time
        failed = job.push.origin == GOQUEUE and job.failures
        self._make_ready(job, event, arrives=not failed)  # the failure counts as an expiry

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
        job.deadline = FOREVER if job.bound else event.time + job.push.lease_duration
        job.holder = event.worker

    def _renewed(self, job: ModelJob, event: Event) -> None:
        assert job.state == LEASED
        job.deadline, self.renewing = self.renewing, 0

    def _released(self, job: ModelJob, event: Event) -> None:
        """The lease was returned unused, or a restart ended the connection it was bound to."""
        assert job.state == LEASED
        if event.actor == NO_PROTOCOL:
            assert self.has_lost_its_connection(job)
        else:
            job.attempt -= 1
        self._make_ready(job, event, arrives=False)

    def _completed(self, job: ModelJob, event: Event) -> None:
        self._check_held(job)
        self.processed += 1
        keep_until = job.push.expires_at or self.keeping
        if keep_until > event.time:
            job.due = keep_until
            self._ended(job, DONE)
        else:
            self._ended(job, GONE)
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
            self._fail_dependents(job)
            self._ended(job, GONE)
        elif count >= job.push.retries:
            self._bury(job, event)
        else:
            shortest = count**4 + 15
            delay = (event.due - event.time) // SECOND - shortest
            if not self._keeps_due(job, event.time + shortest * SECOND) or event.due != job.due:
                assert delay in range(0, 30 * (count + 1), count + 1)
                assert job.state != SCHEDULED or event.due >= job.due
            job.state, job.due = SCHEDULED, event.due

    def _failed_by_workq(self, job: ModelJob, event: Event) -> None:
        """An expiry is not a failure. A failure with attempts left has no delay."""
        job.failures += event.type == "failed"
        too_often = event.type == "failed" and job.failures >= job.push.retries
        if too_often or 0 < job.push.max_attempts <= job.attempt:
            self._bury(job, event)
        elif job.state != SCHEDULED or job.due <= event.time:
            self._make_ready(job, event, arrives=False)

    def _failed_by_masenko(self, job: ModelJob, event: Event) -> None:
        job.failures += 1
        if job.failures > job.push.retries:
            self._bury(job, event)
            return
        due = (event.time // SECOND + job.failures**4) * SECOND
        if not self._keeps_due(job, due):
            job.state, job.due, job.place = SCHEDULED, due, BEFORE_ARRIVALS + due

    def _keeps_due(self, job: ModelJob, retry_due: int) -> bool:
        """Whether a job that failed before it was due keeps its due time because that time is later
        than the retry.
        """
        return job.state == SCHEDULED and job.due > retry_due

    def _failed_by_goqueue(self, job: ModelJob, event: Event) -> None:
        """A failed job returns at the time at which its lease would have expired."""
        job.failures += 1
        over = job.leased_at + job.push.lease_duration
        if 0 < job.push.max_attempts <= job.attempt:
            self._bury(job, event)
        elif event.type == "failed" and over > event.time:
            if not self._keeps_due(job, over):
                job.state, job.due = SCHEDULED, over
        elif job.state != SCHEDULED or job.due <= event.time:
            self._make_ready(job, event, arrives=False)

    def _bury(self, job: ModelJob, event: Event) -> None:
        job.state, job.due = DEAD, job.push.expires_at or event.time + DEAD_FOR
        if job.dead_queue and event.type != "killed":
            self.moving.add(job.seq)
        self._fail_dependents(job)

    def _fail_dependents(self, job: ModelJob) -> None:
        """A Masenko job fails with the job that it waits for."""
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

    def has_lost_its_connection(self, job: ModelJob) -> bool:
        return job.bound and job.holder not in self.holders

    def _expired(self, job: ModelJob, event: Event) -> None:
        assert job.deadline <= event.time or self.has_lost_its_connection(job)
        self._failed(job, event)

    def _evicted(self, job: ModelJob, event: Event) -> None:
        assert job.state not in {DONE, DEAD}
        assert 0 < job.push.expires_at <= event.time
        self._ended(job, GONE)

    def _requeued(self, job: ModelJob, event: Event) -> None:
        assert job.state in {SCHEDULED, DEAD}
        self._make_ready(job, event)

    def _killed(self, job: ModelJob, event: Event) -> None:
        assert job.state in {SCHEDULED, BLOCKED, READY, DEAD}
        self._bury(job, event)

    def _cancelled(self, job: ModelJob, event: Event) -> None:
        self._ended(job, GONE)

    def _purged(self, job: ModelJob, event: Event) -> None:
        assert job.state in {DONE, DEAD}
        if job.due > event.time:
            dead = [
                self.jobs[s].due for s in self.of_state(DEAD) if not self.jobs[s].push.expires_at
            ]
            assert len(dead) > self.dead_max, "purged before its time"
            assert not job.push.expires_at
            assert job.due == min(dead), "the purged job was not the oldest dead job"
        self._ended(job, GONE)
