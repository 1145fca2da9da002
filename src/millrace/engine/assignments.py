"""Leases of ready jobs, for workers that request a job and for clients that wait for one."""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING

from .annotations import ensure_details
from .errors import WrongState
from .job import FOREVER, NO_HISTORY, Job, LeaseHistory, add_time, ensure_totals
from .queues import Queue
from .states import LEASED, READY

if TYPE_CHECKING:
    from .engine import Engine


class Assignments:
    """Leases ready jobs, subject to the limits and pauses of their queues."""

    __slots__ = (
        "_bound",
        "_engine",
        "_held",
        "_limits",
        "_queues",
        "_recurring",
        "_transitions",
        "_waiters",
    )

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._bound = engine.rules.bound_protocols
        self._queues, self._waiters = engine.queues, engine.waiters
        self._limits, self._recurring = engine.limits, engine.recurring
        self._transitions = engine.transitions
        #: The queues that `serve_held` serves; None if `serve_waiters` serves them at once.
        self._held: dict[str, Queue] | None = None

    def lease(
        self,
        queues: Iterable[str],
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> Job | None:
        """Lease the first ready job of these queues, in their order."""
        engine = self._engine
        if engine.unavailable_reason:
            return None
        has_buried = False
        for name in queues:
            if self._recurring.by_queue:
                self._recurring.push_on_request(name, now)
            queue = self._queues.get(name)
            if queue is None or queue.is_closed:
                continue
            if not self._limits.in_use:
                job = queue.ready.pop()
            else:
                job = self._limits.next_job(queue, now, concurrency_checked=engine.caller.own_clock)
            while job is not None and job.stored_size and self._bury_if_damaged(job, queue, now):
                has_buried = True
                job = self._next_job(queue, now, concurrency_checked=engine.caller.own_clock)
            if job is not None:
                if self._lease_to(job, queue, holder, actor, now, until, since):
                    engine.caller.must_wait = True
                return job
            queue.last_requested_at = now
        # A dependent of a buried job may have become ready in a queue that was examined before.
        return self.lease(queues, holder, actor, now, until, since) if has_buried else None

    def lease_from_random_queue(
        self, queues: Iterable[str], holder: str, actor: int, now: int
    ) -> Job | None:
        """Choose a random queue of this list that has ready jobs, and lease its first job."""
        engine = self._engine
        if engine.unavailable_reason:
            return None
        queues = tuple(queues)
        if self._recurring.by_queue:
            for name in queues:
                self._recurring.push_on_request(name, now)
        found = [self._queues[name] for name in queues if name in self._queues]
        found = [queue for queue in found if queue.counts[READY] and not queue.is_closed]
        while found:
            index = engine.random.randrange(len(found)) if len(found) > 1 else 0
            queue = found[index]
            job = self._next_job(queue, now)
            if job is not None and job.stored_size and self._bury_if_damaged(job, queue, now):
                # Its dependents may have become ready in any of the queues.
                return self.lease_from_random_queue(queues, holder, actor, now)
            if job is not None:
                if self._lease_to(job, queue, holder, actor, now):
                    engine.caller.must_wait = True
                return job
            assert self._limits.in_use, "the queue's counter is wrong"
            queue.last_requested_at = now
            del found[index]
        return None

    def lease_job(
        self,
        job: Job,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> None:
        """Lease this ready job."""
        if job.state != READY:
            raise WrongState
        queue = self._queues[job.queue]
        queue.ready.remove(job)
        if self._limits.in_use:
            self._limits.leave_ready(job)
        if self._lease_to(job, queue, holder, actor, now, until, since):
            self._engine.caller.must_wait = True

    def serve_waiters(self, queue: Queue, now: int) -> None:
        """Lease ready jobs to waiters, using the server's clock. The client that has waited longest
        is served first.
        """
        if self._held is not None:
            self._held[queue.name] = queue
            return
        caller = self._engine.caller
        if not caller.own_clock:
            self._serve_queue(queue, now)
            return
        now = caller.server_time(now)
        with caller.on_server_clock():
            self._serve_queue(queue, now)

    def _serve_queue(self, queue: Queue, now: int) -> None:
        engine = self._engine
        while queue.waiters and not queue.is_closed and not engine.unavailable_reason:
            if not self._serve_first(queue, now):
                return

    def _serve_first(self, queue: Queue, now: int) -> bool:
        """Lease the first ready job to the first waiter; False if there is none. A job with a
        damaged payload dies instead.
        """
        job = self._next_job(queue, now)
        if job is None:
            return False
        if job.stored_size and self._bury_if_damaged(job, queue, now):
            return True
        if not queue.waiters:  # `_next_job` can unpark jobs and give them to these waiters
            queue.ready.add(job)
            return False
        waiter = next(iter(queue.waiters.values()))
        self._waiters.remove(waiter)
        until = add_time(now, waiter.lease_duration) if waiter.lease_duration else None
        waiter.must_wait = self._lease_to(job, queue, waiter.holder, waiter.actor, now, until)
        self._waiters.deliveries.append((waiter, job))
        return True

    def hold(self) -> bool:
        """Serve no queue until `serve_held`, so that several jobs become ready before a waiter gets
        the first of them. Return False if the queues are held already.
        """
        if self._held is not None:
            return False
        self._held = {}
        return True

    def serve_held(self, now: int) -> None:
        """Serve the queues whose jobs became ready since `hold`. The client that has waited longest
        is served first, and gets a job from the first of its queues that has one.
        """
        held, self._held = self._held, None
        if not held:
            return
        if len(held) == 1:
            for queue in held.values():
                self.serve_waiters(queue, now)
            return
        caller = self._engine.caller
        now = caller.server_time(now)
        with caller.on_server_clock():
            self._serve_queues(held, now)

    def _serve_queues(self, queues: dict[str, Queue], now: int) -> None:
        """Lease ready jobs of these queues to waiters."""
        # The first waiter of each queue. The keys of waiters are negative; later ones are lower.
        first: list[tuple[int, str]] = []
        for name, each in queues.items():
            if _has_waiter_and_job(each):
                first.append((-next(iter(each.waiters)), name))
        heapify(first)
        while first and not self._engine.unavailable_reason:
            key, name = heappop(first)
            queue = queues.get(name)
            if queue is None or not _has_waiter_and_job(queue):
                continue
            waiter = next(iter(queue.waiters.values()))
            if key == -waiter.key:
                chosen = next(wanted for wanted in waiter.queues if _has_job(queues.get(wanted)))
                if not self._serve_first(queues[chosen], now):
                    del queues[chosen]  # the limits permit none of its jobs
            if queue.waiters:
                heappush(first, (-next(iter(queue.waiters)), name))

    def serve_all(self, now: int) -> None:
        """Lease ready jobs of all queues to waiters."""
        for queue in list(self._queues.values()):
            self.serve_waiters(queue, now)

    def _next_job(self, queue: Queue, now: int, *, concurrency_checked: bool = False) -> Job | None:
        """Remove the next ready job that the limits permit from its queue, and return it."""
        if not self._limits.in_use:
            return queue.ready.pop()
        return self._limits.next_job(queue, now, concurrency_checked=concurrency_checked)

    def _bury_if_damaged(self, job: Job, queue: Queue, now: int) -> bool:
        """Bury a job that was removed from the ready jobs of its queue if its payload is damaged.
        Return whether it was damaged.
        """
        damage = self._engine.payloads.find_damage(job)
        if damage:
            queue.ready.add(job)
            self._engine.attempts.bury_damaged(job, now, damage)
        return bool(damage)

    def _lease_to(
        self,
        job: Job,
        queue: Queue,
        holder: str,
        actor: int,
        now: int,
        until: int | None = None,
        since: Callable[[Job], int] | None = None,
    ) -> bool:
        """Lease a job that was removed from the ready jobs. Return whether an earlier change to the
        job, such as its push or its transition to ready, is not committed: the reply with the lease
        must then wait.
        """
        engine = self._engine
        start = job.ready_at if since is None else since(job)
        wait = now - start if now > start else 0
        history = job.history
        was_tried = history is not NO_HISTORY and (
            history.attempt or history.failures or history.totals is not None
        )
        if was_tried or since is not None:
            totals = ensure_totals(job)
            totals.first_leased_at = totals.first_leased_at if totals.leases else now
            totals.leases += 1
            totals.wait += wait
            totals.lease_wait = wait
            totals.renewals = 0
        if until is None:
            duration = job.terms.lease_duration  # `add_time`, inlined
            has_end = duration <= FOREVER - now and actor not in self._bound
            until = now + duration if has_end else FOREVER
        history = job.history  # `ensure_totals` can have created it
        if history is NO_HISTORY:
            job.history = LeaseHistory(1, 0, now, until, holder, actor)
        else:
            history.attempt += 1
            history.leased_at = now
            history.deadline = until
            history.holder = holder
            history.holder_protocol = actor
        queue.last_requested_at = now
        if engine.caller.own_clock:
            ensure_details(job).lease_offset = engine.caller.clock_offset
        change_set, committing, seq = engine.change_set, engine.committing, job.seq
        is_uncommitted = engine.durable and (
            change_set.touches(seq) or (committing is not None and committing.touches(seq))
        )
        change_set.leases += 1
        self._transitions.apply(job, queue, "leased", LEASED, now, actor, wait)
        return is_uncommitted


def _has_job(queue: Queue | None) -> bool:
    """Whether a waiter may get a job of this queue."""
    return queue is not None and queue.counts[READY] > 0 and not queue.is_closed


def _has_waiter_and_job(queue: Queue) -> bool:
    """Whether a queue has a waiter and a job for it."""
    return bool(queue.waiters) and _has_job(queue)


class HeldQueues:
    """See `Engine.hold_queues`. It may be nested: the outermost one serves the queues."""

    __slots__ = ("_assignments", "_now", "_outermost")

    def __init__(self, assignments: Assignments, now: int) -> None:
        self._assignments = assignments
        self._now = now
        self._outermost = False

    def __enter__(self) -> None:
        self._outermost = self._assignments.hold()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._outermost:
            self._assignments.serve_held(self._now)
