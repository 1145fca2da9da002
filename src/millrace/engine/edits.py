"""Changes to jobs and queues that are not transitions: they have no event, and the reply waits for
them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .dependencies import StagedBlockers
from .details import Number
from .errors import WrongState
from .job import Job
from .parked_jobs import parked_of
from .states import BLOCKED, READY

if TYPE_CHECKING:
    from .engine import Engine


class Edits:
    """Changes fields of jobs and queues, and records changes without an event."""

    __slots__ = ("_engine",)

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    # Records of changes

    def record(self) -> None:
        """Record that the change set has a change without an event. The reply waits for it."""
        self._engine.change_set.edits += 1
        self._engine.caller.must_wait = True

    def record_job(self, job: Job) -> None:
        """Record a change to a job that is not a transition. The reply waits for it."""
        self._engine.change_set.record(job)
        self.record()

    # Fields

    def update(self, job: Job, kind: str | None, payload: bytes | None, retries: int) -> None:
        """Change fields of a job that were set by its push."""
        if payload is not None:
            job.inline_payload, job.stored_size = payload, 0
        terms = job.terms
        job.change_terms(
            terms.kind if kind is None else kind, terms.retries if retries < 0 else retries
        )
        change_set = self._engine.change_set
        if job.seq not in change_set.new:
            change_set.rewritten[job.seq] = job
        self.record()

    def set_rank(self, job: Job, rank: Number, position: int) -> None:
        """Change the rank and the position of a job."""
        queue = self._engine.queues[job.queue]
        queue.version += 1
        ready = queue.ready if job.state == READY else None
        parked = parked_of(job)
        if parked is not None:
            ready, parked.rank = None, rank
        if ready is not None:
            ready.remove(job)
        job.rank, job.position = rank, position
        if ready is not None:
            ready.add(job)
        self.record_job(job)

    def pause_queue(self, name: str, *, paused: bool, now: int) -> None:
        """Pause or resume a queue. An unknown queue is not created."""
        engine = self._engine
        queue = engine.queues.get(name)
        if queue is None or not queue.registered or queue.paused == paused:
            return
        queue.paused = paused
        engine.change_set.queues[name] = paused
        self.record()
        if not paused:
            engine.assignments.serve_waiters(queue, now)

    # Blocked jobs

    def block(self, job: Job, blockers: list[int]) -> None:
        """Add blockers to a blocked job."""
        if job.state != BLOCKED:
            raise WrongState
        self._engine.dependencies.block(job, blockers)
        self.record_job(job)

    def block_staged(self, job: Job, staged: StagedBlockers) -> None:
        """Add staged blockers to a blocked job at once."""
        if job.state != BLOCKED:
            raise WrongState
        self._engine.dependencies.block_staged(job, staged)
        self.record_job(job)

    def unblock(self, job: Job, blockers: Iterable[int], now: int) -> None:
        """Remove blockers from a blocked job, and start the job if none remains."""
        if job.state != BLOCKED or job.extra is None:
            raise WrongState
        engine = self._engine
        engine.dependencies.unblock(job, blockers)
        self.record_job(job)
        if not job.extra.blockers and not job.extra.load:
            engine.transitions.start_unblocked(job, now)

    def release_from_load(self, job: Job, now: int) -> None:
        """Release a job from its bulk load. It becomes ready or scheduled, or stays blocked."""
        if job.state != BLOCKED:
            raise WrongState
        self.leave_load(job)
        if job.extra is None or not job.extra.blockers:
            self._engine.transitions.start_unblocked(job, now)
        self.record_job(job)

    def leave_load(self, job: Job) -> None:
        """Remove a blocked job from its bulk load, if it has one."""
        if job.extra is not None and job.extra.load:
            self._engine.states.unstage(job)
            job.extra.load = ""
            if job.extra.is_empty:
                job.extra = None
