"""Handling of due timers for jobs, waiters, alarms and the engine's components."""

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Final

from .cascades import CASCADE_TIMER, STEP_LIMIT
from .dependencies import LINKS_TIMER
from .details import Number
from .errors import WrongState
from .job import NO_PROTOCOL, Job
from .job_timers import TTL_KEY_OFFSET
from .leases import LEASES_TIMER
from .limits import LIMITS_TIMER
from .recurring import RECURRING_TIMER
from .restoration import DISCARD_TIMER
from .retention import TRIM_TIMER
from .states import GONE, LEASED, READY, SCHEDULED
from .timers import UNAVAILABLE_RETRY
from .transactions import TRANSACTION_TIMER

if TYPE_CHECKING:
    from .engine import Engine

#: Timers of the engine's components; other keys that are not numbers are alarms.
_COMPONENT_TIMERS: Final = frozenset(
    {
        TRIM_TIMER,
        LIMITS_TIMER,
        RECURRING_TIMER,
        CASCADE_TIMER,
        TRANSACTION_TIMER,
        DISCARD_TIMER,
        LEASES_TIMER,
        LINKS_TIMER,
    }
)


class DueTimers:
    """Handles the timers that are due."""

    __slots__ = ("_engine", "_timers", "_waiters")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._timers, self._waiters = engine.timers, engine.waiters

    def tick(self, now: int, limit: int) -> None:
        """Handle due timers, at most `limit` of them."""
        engine, timers = self._engine, self._timers
        engine.dependents_left = STEP_LIMIT
        self._waiters.tick()
        long_work: list[Callable[[int], None]] = []
        try:
            self._handle(timers.due(now, limit), now, long_work)
        finally:
            engine.assignments.serve_held(now)
        for step in long_work:  # one step per tick: each sets its timer again
            step(now)

    def _handle(
        self, keys: Iterator[Hashable], now: int, long_work: list[Callable[[int], None]]
    ) -> None:
        """Handle due timers, and collect the long work. Jobs that become due and jobs whose leases
        end at the same time become ready together: a waiter gets the first of them.
        """
        engine, timers = self._engine, self._timers
        due_at = 0
        for key in keys:
            next_due_at = self._due_at(key)
            if next_due_at != due_at:
                due_at = next_due_at
                engine.assignments.serve_held(now)
            if due_at:
                engine.assignments.hold()
            if not isinstance(key, int):
                if key not in _COMPONENT_TIMERS:
                    engine.alarms.append(key)
                elif engine.unavailable_reason:
                    timers.set(key, now + UNAVAILABLE_RETRY)
                elif key == LIMITS_TIMER:
                    engine.limits.tick(now)
                elif key == RECURRING_TIMER:
                    engine.recurring.tick(now)
                else:
                    long_work.append(self._long_work(key))
            elif key < 0:
                self._waiters.time_out(key, now)
            elif engine.unavailable_reason:
                timers.set(key, now + UNAVAILABLE_RETRY)
            elif key < TTL_KEY_OFFSET:
                self._handle_due_job(engine.jobs[key], now)
            elif key - TTL_KEY_OFFSET in engine.jobs:
                engine.removal.remove_expired(engine.jobs[key - TTL_KEY_OFFSET], now)

    def _due_at(self, key: Hashable) -> int:
        """The due time of the scheduled job with this timer, or the end of the lease of the leased
        job; 0 for other timers.
        """
        job = self._engine.jobs.get(key) if isinstance(key, int) else None
        if job is None:
            return 0
        if job.state == SCHEDULED:
            return job.due_at
        return job.history.deadline if job.state == LEASED else 0

    def _long_work(self, key: Hashable) -> Callable[[int], None]:
        engine = self._engine
        if key == CASCADE_TIMER:
            return engine.cascades.tick
        if key == LEASES_TIMER:
            return engine.leases.tick
        if key == LINKS_TIMER:
            return engine.dependencies.tick
        if key == DISCARD_TIMER:
            return engine.restoration.free_discarded
        return engine.transactions.tick if key == TRANSACTION_TIMER else engine.attempts.trim_dead

    def clock_moved(self, by: int) -> None:
        """Adjust the timers if the clock was set after the last tick."""
        self._timers.move(self._is_duration, by)
        self._engine.recurring.schedule_check()

    def _is_duration(self, key: Hashable) -> bool:
        """Whether a timer measures a duration; the others fire at a fixed point in time."""
        if isinstance(key, int):
            return self._waiters.waited_at_last_tick(key)
        return key not in _COMPONENT_TIMERS or key == TRIM_TIMER

    def _handle_due_job(self, job: Job, now: int) -> None:
        engine = self._engine
        queue, counts = engine.queues[job.queue], engine.timer_counts
        if job.state == SCHEDULED:
            if job.history.failures:
                counts.retried += 1
            else:
                counts.started += 1
            engine.transitions.apply(job, queue, "due", READY, now, NO_PROTOCOL)
        elif job.state == LEASED:
            if engine.restoration.was_interrupted(job):
                engine.restoration.release_interrupted(job, now)
                return
            counts.expired += 1
            group, message = engine.rules.policies[job.origin].expiry_error
            engine.attempts.fail(job, now, NO_PROTOCOL, group, message, [], cause="expired")
            return
        else:
            counts.purged += 1
            engine.transitions.apply(job, queue, "purged", GONE, now, NO_PROTOCOL)
        engine.caller.must_wait = True

    # Scheduled jobs that are due according to clients' clocks

    def promote(self, job: Job, now: int) -> None:
        """Make a scheduled job ready when it is due by the clock of the client."""
        if job.state != SCHEDULED:
            raise WrongState
        self._engine.deadlines.remove(job)
        self._handle_due_job(job, now)

    def promote_due(self, queue: str, now: int, limit: Number) -> None:
        """Make ready up to `limit` scheduled jobs of a queue that are due by the clock of the
        client, and all jobs that a client has found due before.
        """
        if not self._engine.unavailable_reason:
            for job in self._engine.deadlines.take_due(queue, now, limit):
                self.promote(job, now)
