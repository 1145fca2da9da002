"""How attempts fail, and what follows: retries, dead queues, failing dependents."""

from itertools import islice

from .errors import NotLeased
from .events import fingerprint
from .job import NO_PROTOCOL, Failure, Job, extra_of, lifetime_of
from .policy import POLICIES, Verdict
from .retention import TRIM_BATCH_SIZE, TRIM_TIMER
from .states import BLOCKED, DEAD, GONE, LEASED, READY, SCHEDULED
from .transitions import Transitions
from .waiters import JobOutcome


class Attempts:
    __slots__ = ("_core",)

    def __init__(self, core: Transitions) -> None:
        self._core = core

    def fail(
        self,
        job: Job,
        now: int,
        actor: int,
        group: str,
        message: str,
        backtrace: list[str],
        *,
        cause: str = "failed",
        result: bytes | None = None,
        unleased: bool = False,
        final: bool = False,
        again_at: int | None = None,
    ) -> None:
        """End an attempt with a failure. The retry policy of the job's origin decides what follows,
        unless the failure is `final`; `again_at` overrides the time of a retry. Clients that wait
        for the end receive `result`, or else the message.
        """
        core = self._core
        before = job.state
        if before != LEASED and not (unleased and before in {READY, SCHEDULED}):
            raise NotLeased
        policy = POLICIES[job.origin]
        core.totals.processed += 1
        core.totals.failures += 1
        lifetime_of(job).failures += 1
        if cause == "failed" or policy.expiry_fails:
            if before == SCHEDULED and not job.failures:
                core.retrying += 1  # `leave` subtracts it
            job.failures += 1
        previous = job.failure
        repeat = previous is not None and (
            fingerprint(previous.group, previous.message) == fingerprint(group, message)
        )
        first_at = now if previous is None else previous.first_at
        job.failure = Failure(first_at, now, group, message, backtrace)
        if final:
            decision = Verdict(DEAD)
        elif cause == "failed":
            decision = policy.after_failure(job, now, core.random)
        else:
            decision = policy.after_expiry(job, now, core.random)
        if again_at is not None and decision.state in {READY, SCHEDULED}:
            decision = Verdict(SCHEDULED if again_at > now else READY, again_at)
        state = decision.state
        if before == SCHEDULED and state == READY and job.due > now:
            state = SCHEDULED  # it is not due yet
        else:
            job.due = decision.due
            job.place = decision.place or job.place
        run = max(0, now - job.leased_at) if before == LEASED else 0
        if state in {DEAD, GONE} and (job.expires or job.seq in core.waiters.by_job):
            if result is None:
                result = message.encode("utf-8", "replace") if cause == "failed" else b""
            extra_of(job).result = result
            core.waiters.job_ended(JobOutcome(job, cause, False, result))
        queue = core.queues[job.queue]
        core.apply(job, queue, cause, state, now, actor, 0, run, repeat=int(repeat))
        if state in {DEAD, GONE}:
            self._move_to_dead_queue(job, now)
            self.fail_dependents(job, now)
        core.changes += 1

    def fail_dependents(self, job: Job, now: int) -> None:
        """After the final failure of a job, fail its dependents whose policy says so, each followed
        by its own dependents.
        """
        core = self._core
        failing = core.dependencies.failing_with(job)
        while failing:
            failed = failing.pop()
            if failed.state == BLOCKED:  # or it failed already with another blocker
                self._fail_blocked(failed, now)
                failing += core.dependencies.failing_with(failed)
        if job.state == GONE:
            core.unblock_dependents(job, now)
        if core.retention.is_over:
            self.trim_dead(now)

    def _fail_blocked(self, job: Job, now: int) -> None:
        core = self._core
        core.dependencies.remove(job)
        message = "a job that it waited for has failed for good"
        job.failure = Failure(now, now, "BlockerFailed", message, [])
        if job.seq in core.waiters.by_job:
            core.waiters.job_ended(JobOutcome(job, "doomed", False, message.encode()))
        core.apply(job, core.queues[job.queue], "doomed", DEAD, now, NO_PROTOCOL)
        self._move_to_dead_queue(job, now)

    def _move_to_dead_queue(self, job: Job, now: int) -> None:
        """Move a dead job to its dead queue, if it has one; there it starts again."""
        if job.state != DEAD or job.extra is None or not job.extra.dead_queue:
            return
        name, job.extra.dead_queue = job.extra.dead_queue, ""
        self.move(job, name, now, NO_PROTOCOL)

    def move(
        self,
        job: Job,
        name: str,
        now: int,
        actor: int,
        *,
        due: int = 0,
        blockers: list[int] | None = None,
    ) -> None:
        """Move a job in any state to a queue, where it starts again. `blockers` replace its own."""
        core = self._core
        old, queue = core.queues[job.queue], core.open_queue(name)
        core.leave(job, old)
        lifetime = lifetime_of(job)
        if not lifetime.first_queue:
            lifetime.first_queue = old.name
        job.queue, job.failures, job.place, job.due = queue.name, 0, 0, due
        if blockers is not None:
            core.dependencies.remove(job)
            core.dependencies.block(job, blockers)
        core.enter(job, queue)
        state = core.start_state(job, now)
        core.apply(job, queue, "moved", state, now, actor, source=old.name)
        core.queue_set.drop_if_unused(old)
        core.changes += 1

    def trim_dead(self, now: int) -> None:
        """Drop the oldest dead jobs above the bound, some now and the rest by a timer."""
        core = self._core
        for job in list(islice(core.dead.values(), TRIM_BATCH_SIZE)):
            if not core.retention.is_over:
                return
            core.retention.dead_dropped += 1
            core.apply(job, core.queues[job.queue], "purged", GONE, now, NO_PROTOCOL)
            core.changes += 1
        if core.retention.is_over:
            core.timers.set(TRIM_TIMER, now)
