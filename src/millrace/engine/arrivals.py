"""New jobs: their seq, their position, their other fields and their first state."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .errors import NoSuchJob
from .job import Extra, Job, NewJob, id_from_seq
from .job_timers import TTL_KEY_OFFSET
from .states import NEW, READY

if TYPE_CHECKING:
    from .engine import Engine


class Arrivals:
    """Adds new jobs to the components of an engine."""

    __slots__ = ("_engine", "_own_clock", "_positions", "_queues", "_table", "_transitions")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._own_clock = engine.rules.own_clock_protocols
        self._queues, self._table = engine.queues, engine.table
        self._positions = engine.positions
        self._transitions = engine.transitions

    def push(self, push: NewJob, now: int) -> Job:
        """Add a job; it is ready, scheduled or blocked."""
        engine = self._engine
        queue = self._queues.get(push.queue)
        if queue is None or not queue.registered:
            queue = engine.queue_set.open(push.queue, engine.change_set)
        seq = engine.next_seq
        engine.next_seq = seq + 1
        position = push.position
        if not position:
            if push.origin in self._own_clock:
                position = self._positions.tied.position_of_new_job(push.queue, now)
            elif now > self._positions.last:  # the usual case, inlined
                self._positions.last = position = now
            else:
                position = self._positions.next(now)
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
            push.kind,
            push.payload,
            push.origin,
            now,
            push.lease_duration,
            push.retries,
            push.wire_fields,
            queue.name,
            NEW,
            push.rank,
            position,
            push.due_at,
            0,
            None,
            extra,
            push.expires_at,
            push.max_attempts,
        )
        self._table.add(job)
        if extra is not None and extra.tags:
            engine.annotations.add(job)
        if engine.records_transitions:
            engine.change_set.new[seq] = job
        if push.expires_at:
            engine.timers.set(seq + TTL_KEY_OFFSET, push.expires_at)
        state = (
            READY
            if extra is None and push.due_at <= now
            else self._transitions.start_state(job, now)
        )
        self._transitions.apply(job, queue, "pushed", state, now, push.origin)
        engine.caller.must_wait = True
        return job

    def push_many(self, pushes: Iterable[NewJob], now: int) -> list[Job]:
        """Push several jobs as one change. A blocker of -1 is the previous job of the list."""
        jobs: list[Job] = []
        pushes = list(pushes)
        for number, push in enumerate(pushes):
            if any(b == 0 or b < -number for b in push.blockers):
                raise NoSuchJob(f"job {number} waits for a job that does not precede it")
        for push in pushes:
            if push.blockers:
                push.blockers = [b if b > 0 else jobs[b].seq for b in push.blockers]
            jobs.append(self.push(push, now))
        return jobs

    def _extra(self, push: NewJob, seq: int) -> Extra | None:
        """The rare fields of a job, or None if it has none of them."""
        unique = dict.fromkeys(push.blockers)
        dependencies = self._engine.dependencies
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
