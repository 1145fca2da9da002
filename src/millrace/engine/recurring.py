"""Recurring jobs: records from which the engine pushes a job at every interval.

A record is lazy: its jobs are pushed when a client of any protocol requests jobs from its queue, or
at the due time while clients wait for the queue. A `timed` record pushes its jobs at the due times.
If several intervals have passed, the engine pushes one job for each; `backlog`, if set, limits the
number of older ones.

At the due time, a round examines all records and pushes their due jobs in steps, one per turn.

A record is a durable setting. Its times are those of the clock of the client that created it.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .details import JobDetails, Number
from .job import FOREVER, NewJob

if TYPE_CHECKING:
    from .engine import Engine

#: The prefix of the settings with recurring jobs. Do not change it: existing databases use it.
RECURRING_PREFIX: Final = "qless/recurring/"
#: The key of the timer for the next due time that cannot wait for a request.
RECURRING_TIMER: Final = "recurring jobs"
#: Maximum number of jobs that one request pushes. The next request pushes the remaining ones.
MAX_SPAWNED: Final = 10_000
#: The number of jobs that one step of a round pushes, and the number of records that it examines.
STEP_JOBS: Final = 40
STEP_RECORDS: Final = 500
#: The duration of a lease of these jobs.
LEASE_DURATION: Final = 1800 * 1_000_000
#: Longer intervals are shortened to this number of seconds, so that times fit into 63 bits.
MAX_INTERVAL: Final = 1e11
#: While new jobs are refused, due records are examined again after this time.
REFUSED_RETRY: Final = 1_000_000


class RecurringJob:
    """A record; `next` is the next due time in microseconds, `interval` is in seconds. Its durable
    setting is an array of the fields in the order of `fields`; add new fields at the end.
    """

    __slots__ = (
        "backlog",
        "clock_offset",
        "count",
        "has_queue_limit",
        "interval",
        "jid",
        "kind",
        "limits",
        "lower_first",
        "next",
        "origin",
        "payload",
        "prefix",
        "priority",
        "pushed_at",
        "queue",
        "retries",
        "tags",
        "timed",
    )

    def __init__(
        self,
        jid: str,
        kind: str,
        payload: bytes,
        queue: str,
        interval: Number,
        priority: Number,
        retries: int,
        backlog: Number,
        tags: list[Any],
        next: int,  # noqa: A002 - the name of the field
        count: int = 0,
        limits: list[str] | None = None,
        lower_first: bool = False,
        has_queue_limit: bool = True,
        clock_offset: int = 0,
        origin: int = 0,
        prefix: str = "",
        timed: bool = False,
        pushed_at: int = 0,
    ) -> None:
        self.jid = jid
        self.kind = kind
        self.payload = payload
        self.queue = queue
        self.interval = interval
        self.priority = priority
        self.retries = retries
        self.backlog = backlog
        self.tags = tags
        self.next = next
        self.count = count
        self.limits = [] if limits is None else limits
        self.lower_first = lower_first
        #: Whether the limit of its queue is one of its limits.
        self.has_queue_limit = has_queue_limit
        #: How far the clock of the client is ahead of the server's.
        self.clock_offset = clock_offset
        #: The protocol of its jobs. Older records have none; all of them follow a client's clock.
        self.origin = origin
        #: The prefix that the protocol removes from the id and the queue before a client sees them.
        self.prefix = prefix
        self.timed = timed
        #: The time of the last push. 0: none yet.
        self.pushed_at = pushed_at

    def fields(self) -> tuple[Any, ...]:
        """All fields, in the order of the constructor; without the last one if it is not set."""
        fields = (
            self.jid,
            self.kind,
            self.payload,
            self.queue,
            self.interval,
            self.priority,
            self.retries,
            self.backlog,
            self.tags,
            self.next,
            self.count,
            self.limits,
            self.lower_first,
            self.has_queue_limit,
            self.clock_offset,
            self.origin,
            self.prefix,
            self.timed,
        )
        return (*fields, self.pushed_at) if self.pushed_at else fields


class RecurringJobs:
    """All records, by id and by queue."""

    __slots__ = ("_engine", "_next_round_at", "_round", "_step_at", "by_id", "by_queue")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.by_id: dict[str, RecurringJob] = {}
        self.by_queue: dict[str, dict[str, RecurringJob]] = {}
        #: The round that is not complete.
        self._round: Iterator[None] | None = None
        #: The time of the next round, as far as this round knows.
        self._next_round_at = FOREVER
        #: The time of the current step.
        self._step_at = 0

    # Records

    def load(self, settings: dict[str, bytes]) -> None:
        """Read all records from the durable settings."""
        self.by_id.clear()
        self.by_queue.clear()
        for key, value in settings.items():
            if key.startswith(RECURRING_PREFIX):
                self._enter(read_recurring(value))
        self._round = None
        for record in self.by_id.values():
            self._plan_round(record)

    def put(self, record: RecurringJob) -> None:
        """Add or replace a record."""
        caller = self._engine.caller
        if caller.own_clock and not record.timed:
            record.clock_offset = caller.clock_offset
        self._remove(record.jid)
        self._enter(record)
        self._store(record)
        self._plan_round(record)

    def delete(self, jid: str) -> bool:
        """Delete a record, and return whether it existed."""
        found = self._remove(jid)
        if found:
            self._engine.set_setting(RECURRING_PREFIX + jid, None)
        return found

    def _enter(self, record: RecurringJob) -> None:
        self.by_id[record.jid] = record
        self.by_queue.setdefault(record.queue, {})[record.jid] = record

    def _remove(self, jid: str) -> bool:
        record = self.by_id.pop(jid, None)
        if record is None:
            return False
        queues = [record.queue]
        if jid not in self.by_queue.get(record.queue, {}):
            queues = list(self.by_queue)  # a client is changing its queue
        for queue in queues:
            records = self.by_queue[queue]
            if records.pop(jid, None) is not None and not records:
                del self.by_queue[queue]
        return True

    def _store(self, record: RecurringJob) -> None:
        self._engine.set_setting(
            RECURRING_PREFIX + record.jid, msgspec.msgpack.encode(record.fields())
        )

    # Pushing

    def push_on_request(self, queue: str, now: int) -> None:
        """Push a due job when a client of a protocol without client clocks requests a job."""
        known = self._engine.queues.get(queue)
        is_closed = known is not None and known.is_closed
        if queue in self.by_queue and not is_closed and not self._engine.caller.own_clock:
            self.spawn(queue, now, 1)

    def set_timer_for_waiter(self, queues: tuple[str, ...]) -> None:
        """Set the timer when a client starts to wait for jobs from these queues."""
        for queue in queues:
            for record in self.by_queue.get(queue, {}).values():
                self._plan_round(record)

    def spawn(self, queue: str, now: int, limit: Number) -> int:
        """Push the due jobs of a queue's records, at most `limit` of them. Return their number."""
        engine = self._engine
        records = self.by_queue.get(queue)
        if not records or limit <= 0 or engine.unavailable_reason or engine.push_refusal_reason:
            return 0
        pushed, limit = 0, min(limit, MAX_SPAWNED)
        with engine.hold_queues(now):  # a waiter's lease begins now, not at the due time
            for record in self._due(queue, now):
                pushed += self._spawn(record, self._time(record, now), limit - pushed)
        return pushed

    def _due(self, queue: str, now: int) -> list[RecurringJob]:
        """The due records of a queue, in the order of their due times."""
        records = self.by_queue[queue].values()
        due = [each for each in records if each.next <= self._time(each, now)]
        return sorted(due, key=lambda each: (each.next, each.jid))

    def _time(self, record: RecurringJob, now: int) -> int:
        """The time of the current command by the clock of a record. A timed record follows
        the server's clock, so that a client whose clock is ahead does not push its jobs early.
        """
        caller = self._engine.caller
        if record.timed:
            return caller.server_time(now) + record.clock_offset
        return caller.time(now, record.clock_offset)

    def _spawn(self, record: RecurringJob, now: int, limit: Number) -> int:
        """Push the due jobs of one record, and return their number. Its clock gives `now`."""
        interval = max(1, round(min(MAX_INTERVAL, record.interval) * 1_000_000))
        due = record.next // 1_000_000 * 1_000_000
        if record.backlog:
            missed = (now - due) / interval
            if missed > record.backlog:
                due += math.ceil(missed - record.backlog) * interval
        pushed = 0
        while due <= now and pushed < limit:
            self._push(record, due, now)
            pushed += 1
            due += interval
            record.next = due
        if pushed:
            record.pushed_at = now
            self._store(record)
        return pushed

    def _push(self, record: RecurringJob, due: int, now: int) -> None:
        """Push one job, as of the time at which it was due."""
        engine = self._engine
        record.count += 1
        while f"{record.jid}-{record.count}" in engine.by_jid:
            record.count += 1  # an earlier record with the same id pushed this job
        shown_queue = record.queue.removeprefix(record.prefix)
        details = JobDetails(
            record.priority,
            [(due // 1_000_000, "put", {"q": shown_queue})],
            [(tag, now) for tag in record.tags],
            spawned_from=record.jid.removeprefix(record.prefix),
            limits=list(record.limits),
            waiting_since=due,
            lower_first=record.lower_first,
            clock_offset=record.clock_offset,
        )
        push = NewJob(
            f"{record.jid}-{record.count}",
            record.kind,
            record.payload,
            record.origin or min(engine.rules.own_clock_protocols),
            record.queue,
            record.retries,
            LEASE_DURATION,
            rank=details.rank,
            position=due,
            tags=[str(tag) for tag in record.tags],
            details=details,
        )
        engine.arrivals.push(push, due if engine.caller.own_clock else due - record.clock_offset)

    # Time

    def schedule_check(self) -> None:
        """Examine the records after a restart, or after the clock was set."""
        if any(each.timed for each in self.by_id.values()):
            self._round = None
            self._engine.timers.set(RECURRING_TIMER, 0)

    def tick(self, now: int) -> None:
        """Push the due jobs of timed records, and of queues that clients wait for: a step of a
        round.
        """
        timers = self._engine.timers
        if self._engine.push_refusal_reason:
            self._round = None
            timers.set(RECURRING_TIMER, now + REFUSED_RETRY)
            return
        if self._round is None:
            self._round, self._next_round_at = self._push_all_due(now), FOREVER
        self._step_at = now
        next_tick = now + 1  # this tick would handle a timer that is due now
        for _ in self._round:
            timers.set(RECURRING_TIMER, next_tick)
            return
        self._round = None
        if self._next_round_at < FOREVER:
            timers.set(RECURRING_TIMER, max(next_tick, self._next_round_at))

    def _push_all_due(self, now: int) -> Iterator[None]:
        """Push the jobs that are due at `now`, at most MAX_SPAWNED for each queue."""
        left, examined = STEP_JOBS, 0
        for name in list(self.by_queue):
            records = list(self.by_queue.get(name, {}).values())
            if not records:
                continue
            examined += len(records)
            if examined >= STEP_RECORDS:
                yield
                left, examined = STEP_JOBS, 0
            for record in records:
                self._continue_after_clock_set_back(record, now)
            wanted = self._wanted(name)
            due = self._due(name, now) if wanted and name in self.by_queue else []
            for record in due:
                # A step pushes some of the jobs of a record, which then has a later due time.
                while wanted > 0 and self.by_id.get(record.jid) is record:
                    with self._engine.hold_queues(self._step_at):
                        pushed = self._spawn(record, self._time(record, now), min(wanted, left))
                    wanted -= pushed
                    left -= pushed
                    if left > 0:
                        break
                    yield
                    left, examined = STEP_JOBS, 0
                    wanted = min(wanted, self._wanted(name))
            for record in records:
                self._plan_round(record)

    def _wanted(self, name: str) -> int:
        """The number of jobs of a queue that a round pushes without a request."""
        if any(each.timed for each in self.by_queue.get(name, {}).values()):
            return MAX_SPAWNED
        queue = self._engine.queues.get(name)
        return 0 if queue is None else len(queue.waiters)

    def _continue_after_clock_set_back(self, record: RecurringJob, now: int) -> None:
        """A record that pushed a job in what is now the future continues one interval from now."""
        time = self._time(record, now)
        if record.timed and record.pushed_at > time:
            record.pushed_at = time
            record.next = time + round(min(MAX_INTERVAL, record.interval) * 1_000_000)
            self._store(record)

    def _plan_round(self, record: RecurringJob) -> None:
        """Begin the next round no later than the due time of a record, if the record is timed or
        clients wait for its queue.
        """
        queue = self._engine.queues.get(record.queue)
        if not record.timed and (queue is None or not queue.waiters):
            return
        due, timers = max(0, record.next - record.clock_offset), self._engine.timers
        if self._round is not None:
            self._next_round_at = min(self._next_round_at, due)
            return
        planned = timers.when(RECURRING_TIMER)
        if planned is None or due < planned:
            timers.set(RECURRING_TIMER, due)


def read_recurring(setting: bytes) -> RecurringJob:
    """A recurring job from its durable setting."""
    return RecurringJob(*msgspec.msgpack.decode(setting))
