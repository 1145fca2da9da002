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

    def push(self, new_job: NewJob, now: int) -> Job:
        """Add a job; it is ready, scheduled or blocked."""
        engine = self._engine
        queue = self._queues.get(new_job.queue)
        if queue is None or not queue.registered:
            queue = engine.queue_set.open(new_job.queue, engine.change_set)
        seq = engine.next_seq
        engine.next_seq = seq + 1
        position = new_job.position
        if not position:
            if new_job.origin in self._own_clock:
                position = self._positions.tied.position_of_new_job(new_job.queue, now)
            elif now > self._positions.last:  # the usual case, inlined
                self._positions.last = position = now
            else:
                position = self._positions.next(now)
        extra = None
        if (
            new_job.tags
            or new_job.blockers
            or new_job.transient
            or new_job.dead_queue
            or new_job.details is not None
            or new_job.load
            or new_job.retention >= 0
        ):
            extra = self._extra(new_job, seq)
        jid = new_job.jid or id_from_seq(seq)
        job = Job(
            seq,
            jid,
            new_job.kind,
            new_job.payload,
            new_job.origin,
            now,
            new_job.lease_duration,
            new_job.retries,
            new_job.wire_fields,
            queue.name,
            NEW,
            new_job.rank,
            position,
            new_job.due_at,
            0,
            None,
            extra,
            new_job.expires_at,
            new_job.max_attempts,
        )
        self._table.add(job)
        if extra is not None and extra.tags:
            engine.annotations.add(job)
        if engine.records_transitions:
            engine.change_set.new[seq] = job
        if new_job.expires_at:
            engine.timers.set(seq + TTL_KEY_OFFSET, new_job.expires_at)
        state = (
            READY
            if extra is None and new_job.due_at <= now
            else self._transitions.start_state(job, now)
        )
        self._transitions.apply(job, queue, "pushed", state, now, new_job.origin)
        engine.caller.must_wait = True
        return job

    def push_many(self, pushes: Iterable[NewJob], now: int) -> list[Job]:
        """Push several jobs as one change. A blocker of -1 refers to the previous job in the
        list.
        """
        jobs: list[Job] = []
        pushes = list(pushes)
        for number, new_job in enumerate(pushes):
            if any(b == 0 or b < -number for b in new_job.blockers):
                raise NoSuchJob(f"job {number} waits for a job that does not precede it")
        with self._engine.hold_queues(now):
            for new_job in pushes:
                if new_job.blockers:
                    new_job.blockers = [b if b > 0 else jobs[b].seq for b in new_job.blockers]
                jobs.append(self.push(new_job, now))
        return jobs

    def _extra(self, new_job: NewJob, seq: int) -> Extra | None:
        """The rarely used fields of a job, or None if it has none of them."""
        unique = dict.fromkeys(new_job.blockers)
        dependencies = self._engine.dependencies
        blockers = [b for b in unique if b == seq or dependencies.can_block(b, new_job.origin)]
        for blocker in blockers:
            dependencies.link(blocker, seq)
        extra = Extra(
            new_job.tags,
            blockers,
            None,
            new_job.transient,
            new_job.dead_queue,
            new_job.details,
            new_job.load,
            new_job.retention,
        )
        return None if extra.is_empty else extra
