"""Transitions: the only code that changes a job's state and moves it between indexes."""

from typing import TYPE_CHECKING, Final

from .events import make_event
from .job import (
    AFTER_ARRIVALS,
    NO_PROTOCOL,
    Job,
    add_time,
    ensure_history,
    ensure_totals,
)
from .leases import leave_front
from .queues import Queue
from .states import (
    BLOCKED,
    DEAD,
    DONE,
    FAILURE_CAUSES,
    GONE,
    LEASED,
    LEGAL_TRANSITIONS,
    NEW,
    READY,
    SCHEDULED,
)

if TYPE_CHECKING:
    from .engine import Engine

#: Causes that put a job behind the ready jobs. After other causes it returns to its old place.
_ARRIVAL_CAUSES: Final = frozenset({"due", "unblocked", "requeued", "moved"})
#: Causes that also put it behind jobs that became ready in the same microsecond.
_BEHIND_CAUSES: Final = frozenset({"moved", "unblocked"})
#: The arrival causes for jobs whose clients have their own clocks.
_OWN_CLOCK_ARRIVALS: Final = _ARRIVAL_CAUSES | {"failed"}


class Transitions:
    """Carries out the transitions of the table on the components of an engine."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._rules = engine.rules
        self._untimed = engine.rules.untimed_protocols
        self._own_clock = engine.rules.own_clock_protocols
        # Components that most transitions use.
        self._timers, self._leased = engine.timers, engine.leased
        self._limits, self._cascades = engine.limits, engine.cascades
        self._dependencies, self._deadlines = engine.dependencies, engine.deadlines
        self._leases, self._bound = engine.leases, engine.rules.bound_protocols
        self._restoration, self._positions = engine.restoration, engine.positions
        self._state_components = engine.state_components

    def use_leased(self, leased: dict[int, Job]) -> None:
        """Use this index of leased jobs: a flush has replaced the old one."""
        self._leased = leased

    def apply(
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
        """Change a job's state, move it between indexes and append its event. `source` is the
        previous queue of a moved job.

        This method accounts for most of the cost of a command, so it contains the code of the
        frequent transitions. The rare transitions use `leave` and `enter`.
        """
        engine = self._engine
        before, seq, change_set = job.state, job.seq, engine.change_set
        if before * 8 + to not in LEGAL_TRANSITIONS[cause]:
            raise AssertionError(f"job {seq}: {cause} does not lead from {before} to {to}")
        queue.version += 1

        limits_changed = False
        if before == LEASED:
            queue.counts[LEASED] -= 1
            del self._leased[seq]
            history = job.history
            if history.holder_protocol in self._bound:
                self._leases.end(job)
            if self._limits.in_use:
                self._limits.leave(job)
                limits_changed = True
            self._timers.cancel(seq)
            # `is_first_lease` and `first_wait`, inlined.
            if (
                to == GONE
                and history.totals is None
                and history.attempt == 1
                and not history.failures
            ):
                start, ready_at = history.leased_at, job.ready_at
                wait = start - ready_at if start > ready_at else 0
            else:
                totals = ensure_totals(job)
                totals.run += run
                wait = totals.lease_wait
        elif before != NEW:
            if cause == "leased":
                queue.counts[READY] -= 1  # the caller has popped it
            else:
                self.leave(job)
                limits_changed = self._limits.in_use

        job.state = to
        if to == READY:
            if job.terms.origin in self._own_clock:
                job.ready_at = engine.time_of(job, now)
                if cause in _OWN_CLOCK_ARRIVALS:
                    self._arrive_by_own_clock(job, cause)
            else:
                caller = engine.caller
                engine.last_known_time = job.ready_at = (
                    caller.server_time(now) if caller.own_clock else now
                )
                if cause in _ARRIVAL_CAUSES:
                    self._move_behind_ready(job, cause)
            if seq < self._restoration.restored_seq:
                self._restoration.ready_after_restore.add(seq)
        elif to >= DONE:
            if to == DEAD:
                job.due_at = job.expires_at or add_time(
                    now, self._rules.policies[job.origin].dead_retention
                )
                self._move_behind_dead(job, now)
            if before < DONE and to != GONE:
                history = ensure_history(job)
                history.ended_at = now
                history.outcome = cause
        engine.tallies.count(cause, queue.name, now, to, wait, run)
        change_set.event_count += 1
        recorded = engine.records_transitions
        if recorded:
            change_set.events.append(
                make_event(job, cause, before, now, actor, wait, run, source, repeat)
            )
        if job.extra is not None and job.extra.details is not None:
            if engine.caller.own_clock:
                job.extra.details.clock_offset = engine.caller.clock_offset
            if cause == "leased":
                job.extra.details.lapsed_at = None
                if job.extra.details.front:
                    leave_front(job)
            elif cause == "completed":
                job.extra.details.done_at = engine.time_of(job, now)

        if to == GONE:
            self.forget(job)
            if recorded and change_set.new.pop(seq, None) is None:
                change_set.changed.pop(seq, None)
                change_set.rewritten.pop(seq, None)
                change_set.removed[seq] = None
            if self._dependencies.by_blocker and cause not in FAILURE_CAUSES:
                self._cascades.unblock(seq, now)
            if not queue.registered:
                engine.queue_set.drop_if_unused(queue)
            if limits_changed and not engine.caller.own_clock:
                self._limits.unpark_freed(now)
            return
        if recorded and seq not in change_set.new:
            change_set.changed[seq] = job
        if to == READY:
            if not queue.registered and not queue.forgotten:
                # The queue was removed while the job was not ready.
                engine.queue_set.open(queue.name, change_set)
            queue.counts[READY] += 1
            queue.ready.add(job)
            if queue.waiters:
                engine.assignments.serve_waiters(queue, now)
        elif to == LEASED:
            queue.counts[LEASED] += 1
            self._leased[seq] = job
            if actor not in self._untimed:
                self._timers.set(seq, job.history.deadline)
            else:
                self._deadlines.add(job)
                self._leases.add(job)
            if self._limits.in_use:
                self._limits.add_new_lease(job)
        else:
            self.enter(job)
            if to == DONE and self._dependencies.by_blocker and cause != "advanced":
                self._cascades.unblock(seq, now)
        if limits_changed and not engine.caller.own_clock:
            self._limits.unpark_freed(now)

    def _move_behind_ready(self, job: Job, cause: str) -> None:
        """Put a job that became ready behind the ready jobs, unless its position is fixed."""
        if not 0 <= job.position < AFTER_ARRIVALS:
            return
        if (
            cause == "due"
            and job.history.failures
            and job.origin in self._rules.keep_position_protocols
        ):
            return
        job.position = self._positions.next(job.ready_at, behind=cause in _BEHIND_CAUSES)

    def _move_behind_dead(self, job: Job, now: int) -> None:
        """Store the order in which jobs died: several can die at the same time. A job that becomes
        ready again gets another position.
        """
        caller = self._engine.caller
        if 0 <= job.position < AFTER_ARRIVALS:
            server_now = caller.server_time(now) if caller.own_clock else now
            job.position = self._positions.next_dead(server_now)

    def _arrive_by_own_clock(self, job: Job, cause: str) -> None:
        """Put a job behind the ready jobs by the clock of its client."""
        if cause == "due":
            job.position = job.due_at
        else:
            job.position = self._positions.tied.position_behind(job.queue, job.ready_at)

    def leave(self, job: Job) -> None:
        """Remove a job from the indexes of its state."""
        for component in self._state_components:
            component.remove(job)

    def enter(self, job: Job) -> None:
        """Add a job to the indexes of its state."""
        for component in self._state_components:
            component.add(job)

    def start_state(self, job: Job, now: int) -> int:
        """The state of a new, moved or unblocked job."""
        engine = self._engine
        if job.extra is not None and (job.extra.blockers or job.extra.load):
            return BLOCKED
        return SCHEDULED if job.due_at > engine.time_of(job, now) else READY

    def start_unblocked(self, job: Job, now: int) -> None:
        """Start a job that has no more blockers. The times of a job follow the server's clock, even
        if a client with its own clock ended the blocker. Jobs of protocols with client clocks are
        the exception.
        """
        engine = self._engine
        caller = engine.caller
        own_clock = caller.own_clock
        if own_clock and job.origin not in self._own_clock:
            now = caller.server_time(now)
            caller.own_clock = False
        try:
            queue = engine.queues[job.queue]
            self.apply(job, queue, "unblocked", self.start_state(job, now), now, NO_PROTOCOL)
        finally:
            caller.own_clock = own_clock

    def forget(self, job: Job) -> None:
        """Remove a job from the components that do not depend on its state."""
        engine = self._engine
        if job.extra is None and not job.expires_at:
            engine.table.remove(job)  # the other components do not have it
        else:
            for component in engine.record_components:
                component.remove(job)
        if self._restoration.ready_after_restore:
            self._restoration.ready_after_restore.discard(job.seq)
