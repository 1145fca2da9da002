"""Leases: their renewal and release, and the fields of a job that a lease sets.

Some leases end with a connection, which is their holder. The engine knows the leases of each open
connection. The server sends a lease before it is durable, and a refused commit can undo a lease or
its end. The client still has the job then, so the engine remembers an undone lease until the job is
leased again, or until the next revert after the job is removed.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from .annotations import ensure_details, read_details
from .change_set import ChangeSet
from .component import Component, IndexProblem, Problems
from .errors import NotLeased
from .events import make_event
from .job import NO_PROTOCOL, Job, ensure_history, ensure_totals
from .states import LEASED, READY
from .timers import UNAVAILABLE_RETRY

if TYPE_CHECKING:
    from .engine import Engine

#: The timer that ends the leases of closed connections, and the number of leases per tick.
LEASES_TIMER: Final = "leases"
LEASES_BATCH_SIZE: Final = 100

#: The rank of a job after a command ended its lease; it is above every priority.
FRONT_RANK: Final = 1 << 62


def clear_holder(job: Job) -> None:
    """Clear the last holder of a job that is about to start again."""
    if job.history.holder or job.history.deadline:
        history = ensure_history(job)
        history.holder, history.deadline = "", 0


def end_grace(job: Job) -> None:
    """Give a lease in its grace period the deadline that it had before."""
    details = ensure_details(job)
    if details.lapsed_at is not None:
        ensure_history(job).deadline, details.lapsed_at = details.lapsed_at, None


def convert_lease_start(job: Job) -> None:
    """Convert the start of a lease from the clock of its holder to the clock of the server."""
    ensure_history(job).leased_at -= read_details(job).lease_offset


def put_in_front(job: Job) -> None:
    """Put a job ahead of all other jobs of its queue, as soon as it is ready."""
    details = ensure_details(job)
    details.front, details.lapsed_at = True, None
    job.rank, ensure_history(job).deadline = FRONT_RANK, 0


def leave_front(job: Job) -> None:
    """Give a job the rank of its priority again. A ready job must be about to leave its queue."""
    details = ensure_details(job)
    details.front, job.rank = False, details.rank


def _is_last_attempt(job: Job) -> bool:
    """Whether a job may not be leased again after this attempt."""
    is_transient = job.extra is not None and job.extra.transient
    return is_transient or 0 < job.max_attempts <= job.attempt


class LeaseSet(Component):
    """The leases of connections, by holder."""

    __slots__ = (
        "_bound",
        "_ending",
        "_engine",
        "_holder_of",
        "_undone",
        "_untimed",
        "by_holder",
        "holders",
    )

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._bound, self._untimed = engine.rules.bound_protocols, engine.rules.untimed_protocols
        #: Open connections that can hold leases.
        self.holders: set[str] = set()
        #: Holder -> seqs of its leases, the oldest lease first.
        self.by_holder: dict[str, dict[int, None]] = {}
        self._holder_of: dict[int, str] = {}
        #: Seq -> the connection that has the job, although a refused commit has undone the lease.
        self._undone: dict[int, str] = {}
        #: Leases of closed connections that have not ended yet: holder and seq.
        self._ending: deque[tuple[str, int]] = deque()

    # Views

    def holds(self, holder: str, seq: int) -> bool:
        """Whether a connection has a job that it has not ended."""
        has = self._holder_of.get(seq) == holder or self._undone.get(seq) == holder
        return has and not self._engine.transactions.completes(seq)

    def of_holder(self, holder: str) -> list[int]:
        """The seqs of the jobs that a connection has, the oldest lease first."""
        undone = [seq for seq, each in self._undone.items() if each == holder]
        found = [*self.by_holder.get(holder, ()), *undone]
        return [seq for seq in found if not self._engine.transactions.completes(seq)]

    # Changes

    def renew(self, job: Job, deadline: int, now: int, *, expired: bool = False) -> None:
        """Change the deadline of a lease. If it has `expired`, its holder keeps it for a grace
        period. Only leases without a timer have a grace period.
        """
        if job.state != LEASED:
            raise NotLeased
        engine = self._engine
        ensure_history(job).deadline = deadline
        engine.queues[job.queue].version += 1
        actor = job.history.holder_protocol
        if not expired:
            ensure_totals(job).renewals += 1
        if expired or actor in self._untimed:
            engine.deadlines.add(job)
        else:
            engine.timers.set(job.seq, deadline)
        cause, by = ("expired", NO_PROTOCOL) if expired else ("renewed", actor)
        engine.tallies.count(cause, job.queue, now, LEASED, 0, 0)
        engine.change_set.event_count += 1
        if engine.records_transitions:
            engine.change_set.events.append(make_event(job, cause, LEASED, now, by))
        engine.edits.record_job(job)

    def release(self, job: Job, now: int, *, counted: bool = False) -> None:
        """Release a lease; see Engine.release."""
        engine = self._engine
        if job.state != LEASED or engine.jobs.get(job.seq) is not job:
            raise NotLeased
        if counted and _is_last_attempt(job):
            actor, message = job.history.holder_protocol, "returned on its last attempt"
            engine.attempts.fail(job, now, actor, "Released", message, [], cause="expired")
            return
        ensure_totals(job)  # before the number of the attempt changes
        if not counted:
            ensure_history(job).attempt -= 1
        engine.transitions.apply(
            job, engine.queues[job.queue], "released", READY, now, job.history.holder_protocol
        )
        engine.caller.must_wait = True

    def reclaim_one_of(self, jobs: Iterable[Job], holder: str, actor: int, now: int) -> Job | None:
        """Lease one of these jobs again to a holder that claims to have held it before a restart.

        The server sends a lease before it is durable, so a crash or a refused commit can undo it. A
        worker may still hold a job that has been ready since then.
        """
        for job in jobs:
            if job.state == READY and self.reclaim(job, holder, actor, now):
                return job
        return None

    def reclaim(
        self, job: Job, holder: str, actor: int, now: int, leased_at: int | None = None
    ) -> bool:
        """Lease this job to that holder again if possible. Return whether it holds the lease; see
        Engine.reclaim.
        """
        engine = self._engine
        if engine.jobs.get(job.seq) is not job:
            return False
        if job.state == LEASED:
            return job.history.holder == holder and job.history.holder_protocol == actor
        if (
            job.state != READY
            or not engine.restoration.is_untouched(job)
            or engine.unavailable_reason
        ):
            return False
        engine.assignments.lease_job(job, holder, actor, now)
        if leased_at is not None:
            ensure_totals(job)  # the totals must exist before `leased_at` changes
            ensure_history(job).leased_at = leased_at
        return True

    def end_after_disconnect(self, job: Job, now: int, message: str) -> None:
        """End a lease after its connection closed; while the store fails, a timer ends it later."""
        engine = self._engine
        if job.state != LEASED or engine.jobs.get(job.seq) is not job:
            raise NotLeased
        if engine.unavailable_reason:
            engine.timers.set(job.seq, now + UNAVAILABLE_RETRY)
        else:
            engine.attempts.fail(
                job,
                now,
                job.history.holder_protocol,
                "ConnectionLost",
                message,
                [],
                cause="expired",
            )

    # The index

    def add(self, job: Job) -> None:
        """Add a leased job."""
        if job.state == LEASED and job.history.holder_protocol in self._bound:
            self.by_holder.setdefault(job.history.holder, {})[job.seq] = None
            self._holder_of[job.seq] = job.history.holder
            self._undone.pop(job.seq, None)

    def remove(self, job: Job) -> None:
        """Remove a job. Its holder may have been cleared before."""
        holder = self._holder_of.pop(job.seq, None)
        if holder is not None:
            seqs = self.by_holder[holder]
            del seqs[job.seq]
            if not seqs:
                del self.by_holder[holder]

    def end(self, job: Job) -> None:
        """Remove a job whose lease ends, so that a refused commit can return it to its holder."""
        holder = self._holder_of.get(job.seq)
        if holder is not None:
            self._engine.change_set.ended_leases.setdefault(job.seq, holder)
            self.remove(job)

    def record_ends(self) -> None:
        """Record the ends of all leases, before `clear` removes them."""
        for seq, holder in self._holder_of.items():
            self._engine.change_set.ended_leases.setdefault(seq, holder)

    def clear(self) -> None:
        self.by_holder.clear()
        self._holder_of.clear()
        self._undone.clear()

    def discard(self) -> list[Any]:
        old: list[Any] = [self.by_holder, self._holder_of]
        self.by_holder, self._holder_of = {}, {}
        self.clear()
        return old

    # Refused commits

    def held_before(self, change_sets: Iterable[ChangeSet]) -> dict[int, str]:
        """The jobs in these change sets that connections have or had, each with the first holder.
        A later holder got no reply, because its reply waited for these change sets.
        """
        found: dict[int, str] = {}
        for change_set in change_sets:
            for seq, holder in change_set.ended_leases.items():
                found.setdefault(seq, holder)
        for change_set in change_sets:
            for seq in (*change_set.new, *change_set.changed, *change_set.rewritten):
                if seq in self._holder_of:
                    found.setdefault(seq, self._holder_of[seq])
        return found

    def restore_undone(self, held: dict[int, str]) -> None:
        """After a revert, remember the connections that have jobs whose leases it has undone."""
        for seq in [seq for seq in self._undone if seq not in self._engine.jobs]:
            del self._undone[seq]
        for seq, holder in held.items():
            if holder in self.holders and seq in self._engine.jobs and seq not in self._holder_of:
                self._undone[seq] = holder

    # Closed connections

    def close(self, holder: str, now: int) -> None:
        """End the leases of a closed connection, a batch in each turn."""
        self.holders.discard(holder)
        waiting = bool(self._ending)
        self._ending.extend((holder, seq) for seq in self.of_holder(holder))
        for seq in [seq for seq, each in self._undone.items() if each == holder]:
            del self._undone[seq]
        if not waiting:
            self.tick(now)

    def tick(self, now: int) -> None:
        """End the next leases of closed connections. Leases that have ended are skipped."""
        engine = self._engine
        for _ in range(min(LEASES_BATCH_SIZE, len(self._ending))):
            holder, seq = self._ending.popleft()
            job = engine.jobs.get(seq)
            if job is not None and job.state == LEASED and job.history.holder == holder:
                queue = job.queue
                self.end_after_disconnect(job, now, f"the connection {holder} was closed")
                engine.removal.remove_queue_if_empty(job, queue, now)
        if self._ending:
            engine.timers.set(LEASES_TIMER, now)

    # Checks

    def problems(self) -> Problems:
        """Yield each mismatch between the leases of connections and the leased jobs, and None for
        each item examined.
        """
        engine = self._engine  # a flush replaces its index of leased jobs
        for seq in list(engine.leased):
            yield None
            job = engine.leased.get(seq)
            bound = job is not None and job.history.holder_protocol in self._bound
            if bound and seq not in self._holder_of:
                yield IndexProblem(
                    "lease", "the job is not listed as a lease of its holder", job=job
                )
        for seq in list(self._holder_of):
            yield None
            holder = self._holder_of.get(seq)
            if holder is not None and (
                seq not in engine.leased or seq not in self.by_holder.get(holder, ())
            ):
                yield IndexProblem("lease", f"job {seq} is wrongly listed as a lease of {holder}")
