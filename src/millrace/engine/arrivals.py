"""New jobs: their number, their position, their fields and their first state."""

from collections.abc import Iterable
from sys import intern
from typing import TYPE_CHECKING

from .errors import NoSuchJob
from .job import NO_PROTOCOL, Extra, Job, NewJob, id_from_seq
from .job_timers import LIFETIME_TIMER
from .states import NEW, READY

if TYPE_CHECKING:
    from .engine import Engine


class Arrivals:
    """Adds new jobs to the components of an engine."""

    __slots__ = ("_core", "_own_clock", "_positions", "_queues", "_table", "_transitions")

    def __init__(self, core: "Engine") -> None:
        self._core = core
        self._own_clock = core.rules.own_clock
        self._queues, self._table = core.queues, core.table
        self._positions = core.positions
        self._transitions = core.transitions

    def push(self, push: NewJob, now: int) -> Job:
        """Add a job; it is ready, scheduled or blocked."""
        core = self._core
        queue = self._queues.get(push.queue)
        if queue is None or not queue.registered:
            queue = core.open_queue(push.queue)
        seq = core.next_seq
        core.next_seq = seq + 1
        place = push.position
        if not place:
            if push.origin in self._own_clock:
                place = self._positions.tied.of_new_job(push.queue, now)
            elif now > self._positions.last:  # the usual case, without a call
                self._positions.last = place = now
            else:
                place = self._positions.next(now)
        extra = None
        if (
            push.tags
            or push.blockers
            or push.transient
            or push.dead_queue
            or push.details is not None
            or push.load
            or push.retention >= 0
        ):
            extra = self._extra(push, seq)
        jid = push.jid or id_from_seq(seq)
        job = Job(
            seq,
            jid,
            intern(push.kind),
            push.payload,
            push.origin,
            now,
            push.lease_duration,
            push.retries,
            push.wire_fields,
            queue.name,
            NEW,
            push.rank,
            place,
            push.due_at,
            0,
            0,
            0,
            0,
            0,
            "",
            NO_PROTOCOL,
            None,
            extra,
            push.expires_at,
            push.max_attempts,
        )
        self._table.add(job)
        if extra is not None and extra.tags:
            core.annotations.add(job)
        core.change_set.new[seq] = job
        if push.expires_at:
            core.timers.set(seq + LIFETIME_TIMER, push.expires_at)
        state = (
            READY
            if extra is None and push.due_at <= now
            else self._transitions.start_state(job, now)
        )
        self._transitions.apply(job, queue, "pushed", state, now, push.origin)
        core.caller.must_wait = True
        return job

    def push_many(self, pushes: Iterable[NewJob], now: int) -> list[Job]:
        """Push several jobs as one change. A blocker of -1 is the previous job of the list."""
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

    def _extra(self, push: NewJob, seq: int) -> Extra | None:
        """The rare fields of a job, or None if it has none of them."""
        unique = dict.fromkeys(push.blockers)
        dependencies = self._core.dependencies
        blockers = [b for b in unique if b == seq or dependencies.can_block(b, push.origin)]
        for blocker in blockers:
            dependencies.link(blocker, seq)
        extra = Extra(
            push.tags,
            blockers,
            None,
            push.transient,
            push.dead_queue,
            push.details,
            push.load,
            push.retention,
        )
        return None if extra.is_empty else extra
