"""Failed attempts and their consequences: retries, dead queues, failing dependents."""

from itertools import islice
from typing import TYPE_CHECKING, Final

from .errors import NotLeased
from .events import fingerprint
from .job import NO_PROTOCOL, EarlierFailure, Failure, Job, extra_of, lifetime_of
from .policies import RetryDecision
from .retention import TRIM_BATCH_SIZE, TRIM_TIMER
from .states import DEAD, GONE, LEASED, READY, SCHEDULED
from .waiters import JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

#: A job keeps the backtraces of this many earlier failures, with at most this many characters: each
#: change of the job writes them.
MAX_EARLIER_FAILURES: Final = 10
EARLIER_FAILURES_LIMIT: Final = 8_000
MAX_EARLIER_MESSAGE: Final = 300


class Attempts:
    __slots__ = ("_core",)

    def __init__(self, core: "Engine") -> None:
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
        uses_try: bool = True,
    ) -> None:
        """End an attempt with a failure. The retry policy of the job's origin decides the next
        state, unless the failure is `final`; `again_at` overrides the time of a retry. Clients that
        wait for the end receive `result`, or the message if there is no result. Without `uses_try`,
        the failure does not count when the job is retried later.
        """
        core = self._core
        before = job.state
        if before != LEASED and not (unleased and before in {READY, SCHEDULED}):
            raise NotLeased
        policy = core.rules.policies[job.origin]
        core.totals.processed += 1
        core.totals.failures += 1
        lifetime_of(job).failures += 1
        if cause == "failed" or policy.expiry_fails:
            if before == SCHEDULED and not job.failures:
                core.states.retrying += 1  # `leave` subtracts this one
            job.failures += 1
        previous = job.failure
        repeat = previous is not None and (
            fingerprint(previous.group, previous.message) == fingerprint(group, message)
        )
        first_at = now if previous is None else previous.first_at
        earlier = None if previous is None else _earlier_failures(previous)
        job.failure = Failure(first_at, now, group, message, backtrace, job.attempt, earlier)
        if final:
            decision = RetryDecision(DEAD)
        elif cause == "failed":
            decision = policy.after_failure(job, now, core.random)
        else:
            decision = policy.after_expiry(job, now, core.random)
        if again_at is not None and decision.state in {READY, SCHEDULED}:
            decision = RetryDecision(SCHEDULED if again_at > now else READY, again_at)
        state = decision.state
        if before == SCHEDULED and state == READY and job.due_at > now:
            state = SCHEDULED  # the job is not due yet
        else:
            job.due_at = decision.due_at
            job.position = decision.position or job.position
        run = max(0, now - job.leased_at) if before == LEASED else 0
        if state in {DEAD, GONE} and (job.expires_at or job.seq in core.waiters.by_job):
            if result is None:
                result = message.encode("utf-8", "replace") if cause == "failed" else b""
            extra_of(job).result = result
            core.waiters.job_ended(JobOutcome(job, cause, False, result))
        queue = core.queues[job.queue]
        core.transitions.apply(job, queue, cause, state, now, actor, 0, run, repeat=int(repeat))
        if state in {DEAD, GONE}:
            self._move_to_dead_queue(job, now)
            self.fail_dependents(job, now)
        if not uses_try:
            job.failures -= 1
        core.caller.must_wait = True

    def fail_dependents(self, job: Job, now: int) -> None:
        """After the final failure of a job, fail each dependent with a policy that requires it, and
        then the dependents of that job.
        """
        core = self._core
        if core.dependencies:
            core.cascades.fail(job.seq, now)
        elif core.retention.is_over:
            self.trim_dead(now)

    def fail_blocked(self, job: Job, now: int) -> None:
        """Fail a blocked job together with a job that it waits for."""
        core = self._core
        core.dependencies.remove(job)
        message = "a job that it waited for has failed for good"
        job.failure = Failure(now, now, "BlockerFailed", message, [])
        if job.seq in core.waiters.by_job:
            core.waiters.job_ended(JobOutcome(job, "doomed", False, message.encode()))
        core.transitions.apply(job, core.queues[job.queue], "doomed", DEAD, now, NO_PROTOCOL)
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
        """Move a job in any state to a queue and start it again. `blockers` replace its own."""
        core = self._core
        old, queue = core.queues[job.queue], core.open_queue(name)
        core.transitions.leave(job)
        lifetime = lifetime_of(job)
        if not lifetime.first_queue:
            lifetime.first_queue = old.name
        job.queue, job.failures, job.position, job.due_at = queue.name, 0, 0, due
        if blockers is not None:
            core.dependencies.remove(job)
            core.dependencies.block(job, blockers)
        core.transitions.enter(job)
        state = core.transitions.start_state(job, now)
        core.transitions.apply(job, queue, "moved", state, now, actor, source=old.name)
        core.queue_set.drop_if_unused(old)
        core.caller.must_wait = True

    def trim_dead(self, now: int) -> None:
        """Drop the oldest dead jobs above the maximum: one change set now, the rest by a timer."""
        core = self._core
        for job in list(islice(core.dead.values(), TRIM_BATCH_SIZE)):
            if not core.retention.is_over:
                return
            core.retention.dead_dropped += 1
            core.transitions.apply(job, core.queues[job.queue], "purged", GONE, now, NO_PROTOCOL)
            core.caller.must_wait = True
        if core.retention.is_over:
            core.timers.set(TRIM_TIMER, now)


def clear_failures(job: Job) -> None:
    """Forget the failures of a job that is about to succeed."""
    job.failures = 0


def _earlier_failures(last: Failure) -> list[EarlierFailure] | None:
    """The failures with backtraces that a job keeps when another failure follows `last`."""
    if not last.backtrace:
        return last.earlier
    message = last.message[:MAX_EARLIER_MESSAGE]
    found: list[EarlierFailure] = [
        (last.attempt, last.last_at, last.group, message, last.backtrace)
    ]
    size = sum(map(len, last.backtrace))
    for failure in last.earlier or ():
        size += sum(map(len, failure[4]))
        if len(found) == MAX_EARLIER_FAILURES or size > EARLIER_FAILURES_LIMIT:
            break
        found.append(failure)
    return found
