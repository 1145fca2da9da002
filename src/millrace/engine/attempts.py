"""Ends of attempts and their consequences: retention, retries, dead queues, failing dependents."""

from itertools import islice
from typing import TYPE_CHECKING, Final

from .errors import NotLeased, WrongState
from .events import fingerprint
from .job import FOREVER, NO_PROTOCOL, EarlierFailure, Failure, Job, extra_of, lifetime_of
from .leases import use_server_clock
from .policies import RetryDecision
from .retention import RETENTION_SETTING, TRIM_BATCH_SIZE, TRIM_TIMER
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from .waiters import JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

#: A job keeps the backtraces of this many earlier failures, with at most this many characters: each
#: change of the job writes them.
MAX_EARLIER_FAILURES: Final = 10
EARLIER_FAILURES_LIMIT: Final = 8_000
MAX_EARLIER_MESSAGE: Final = 300


class Attempts:
    """Ends attempts and jobs, with the consequences for their dependents."""

    __slots__ = (
        "_core",
        "_kept",
        "_own_clock",
        "_queues",
        "_retention",
        "_transitions",
        "_waiters",
    )

    def __init__(self, core: "Engine") -> None:
        self._core = core
        self._own_clock, self._kept = core.rules.own_clock, core.rules.kept
        self._queues, self._retention = core.queues, core.retention
        self._waiters, self._transitions = core.waiters, core.transitions

    def complete(
        self,
        job: Job,
        now: int,
        actor: int,
        result: bytes | None,
        keep_until: int,
        unleased: bool,
    ) -> None:
        """End a job with success; see Engine.complete."""
        if job.state != LEASED and not (unleased and job.state in {READY, SCHEDULED}):
            raise NotLeased
        core = self._core
        if core.caller.own_clock and job.origin not in self._own_clock:
            now = self._use_server_clock(job, now)
            try:
                self.complete(job, now, actor, result, keep_until, unleased)
            finally:
                core.caller.own_clock = True
            return
        core.totals.processed += 1
        run = max(0, now - job.leased_at) if job.state == LEASED else 0
        queue = self._queues[job.queue]
        if job.expires_at:
            keep_until = job.expires_at
        elif job.origin in self._kept:
            keep_until = FOREVER
        elif not keep_until and (
            result or job.extra is not None or RETENTION_SETTING in core.settings
        ):
            setting = core.settings.get(RETENTION_SETTING)
            keep_until = self._retention.end_of(job, result, setting, now)
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "completed", True, result or b""))
        if keep_until > now:
            if result is not None or job.extra is not None:
                extra_of(job).result = result
            job.due_at = keep_until
            self._transitions.apply(job, queue, "completed", DONE, now, actor, 0, run)
        else:
            self._transitions.apply(job, queue, "completed", GONE, now, actor, 0, run)
        core.caller.must_wait = True

    def advance(self, job: Job, now: int, actor: int) -> None:
        """End a successful step of a job that the caller then moves to the next queue."""
        if job.state != LEASED:
            raise NotLeased
        self._core.totals.processed += 1
        run = max(0, now - job.leased_at)
        queue = self._queues[job.queue]
        self._transitions.apply(job, queue, "advanced", DONE, now, actor, 0, run)
        self._core.caller.must_wait = True

    def fail(
        self,
        job: Job,
        now: int,
        actor: int,
        group: str,
        message: str,
        backtrace: list[str],
        cause: str = "failed",
        result: bytes | None = None,
        unleased: bool = False,
        final: bool = False,
        again_at: int | None = None,
        uses_try: bool = True,
        removes_queue: bool = False,
    ) -> None:
        """End an attempt with a failure. The retry policy of the job's origin decides the next
        state, unless the failure is `final`; `again_at` overrides the time of a retry. Clients that
        wait for the end receive `result`, or the message if there is no result. Without `uses_try`,
        the failure does not count when the job is retried later. With `removes_queue`, the engine
        also removes the queue if the job has left it empty and the policy requires it.
        """
        core = self._core
        caller = core.caller
        if caller.own_clock and job.origin not in self._own_clock:
            again_at = None if again_at is None else caller.server_time(again_at)
            now = self._use_server_clock(job, now)
            try:
                self.fail(
                    job,
                    now,
                    actor,
                    group,
                    message,
                    backtrace,
                    cause=cause,
                    result=result,
                    unleased=unleased,
                    final=final,
                    again_at=again_at,
                    uses_try=uses_try,
                    removes_queue=removes_queue,
                )
            finally:
                caller.own_clock = True
            return
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
        ended = state in {DEAD, GONE}
        if ended and (job.expires_at or job.seq in self._waiters.by_job):
            if result is None:
                result = message.encode("utf-8", "replace") if cause == "failed" else b""
            extra_of(job).result = result
            self._waiters.job_ended(JobOutcome(job, cause, False, result))
        queue = self._queues[job.queue]
        self._transitions.apply(job, queue, cause, state, now, actor, 0, run, repeat=int(repeat))
        if ended:
            self._move_to_dead_queue(job, now)
            self.fail_dependents(job, now)
        if not uses_try:
            job.failures -= 1
        core.caller.must_wait = True
        if removes_queue:
            core.removal.remove_queue_if_left(job, queue.name, now)

    def _use_server_clock(self, job: Job, now: int) -> int:
        """Let the server's clock apply to the rest of the command, and return its time. The policy
        of the job decides about its retries and its retention, and uses this clock.
        """
        caller = self._core.caller
        now = caller.server_time(now)
        caller.own_clock = False
        if job.state == LEASED and job.holder_protocol in self._own_clock:
            use_server_clock(job)  # the clock of the lease, not of this command
        return now

    def kill(self, job: Job, now: int, failure: Failure | None) -> None:
        """Move a job that is not leased to the dead set, with this failure if given."""
        if job.state in {LEASED, DONE}:
            raise WrongState
        core = self._core
        if core.caller.own_clock and job.origin not in self._own_clock:
            now = self._use_server_clock(job, now)
            try:
                self.kill(job, now, failure)
            finally:
                core.caller.own_clock = True
            return
        if failure is not None:
            job.failure = failure
        if job.state == BLOCKED:
            core.edits.leave_load(job)
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "killed", False, b""))
        self._transitions.apply(job, self._queues[job.queue], "killed", DEAD, now, NO_PROTOCOL)
        self.fail_dependents(job, now)
        core.caller.must_wait = True

    def retry_now(self, job: Job, now: int) -> None:
        """Make a scheduled or dead job ready now."""
        if job.state not in {SCHEDULED, DEAD}:
            raise WrongState
        if job.state == DEAD:
            job.due_at = 0  # until now this was the end of its retention
        self._transitions.apply(job, self._queues[job.queue], "requeued", READY, now, NO_PROTOCOL)
        self._core.caller.must_wait = True

    def fail_dependents(self, job: Job, now: int) -> None:
        """After the final failure of a job, fail each dependent with a policy that requires it, and
        then the dependents of that job.
        """
        core = self._core
        if core.dependencies:
            core.cascades.fail(job.seq, now)
        elif self._retention.is_over:
            self.trim_dead(now)

    def fail_blocked(self, job: Job, now: int) -> None:
        """Fail a blocked job together with a job that it waits for."""
        core = self._core
        core.dependencies.remove(job)
        message = "a job that it waited for has failed for good"
        job.failure = Failure(now, now, "BlockerFailed", message, [])
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "doomed", False, message.encode()))
        self._transitions.apply(job, self._queues[job.queue], "doomed", DEAD, now, NO_PROTOCOL)
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
        old, queue = self._queues[job.queue], core.open_queue(name)
        self._transitions.leave(job)
        lifetime = lifetime_of(job)
        if not lifetime.first_queue:
            lifetime.first_queue = old.name
        job.queue, job.failures, job.position, job.due_at = queue.name, 0, 0, due
        if blockers is not None:
            core.dependencies.remove(job)
            core.dependencies.block(job, blockers)
        self._transitions.enter(job)
        state = self._transitions.start_state(job, now)
        self._transitions.apply(job, queue, "moved", state, now, actor, source=old.name)
        core.queue_set.drop_if_unused(old)
        core.caller.must_wait = True

    def trim_dead(self, now: int) -> None:
        """Drop the oldest dead jobs above the maximum: one change set now, the rest by a timer."""
        core = self._core
        for job in list(islice(core.dead.values(), TRIM_BATCH_SIZE)):
            if not self._retention.is_over:
                return
            self._retention.dead_dropped += 1
            self._transitions.apply(job, self._queues[job.queue], "purged", GONE, now, NO_PROTOCOL)
            core.caller.must_wait = True
        if self._retention.is_over:
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
