"""Ends of attempts and their consequences: retention, retries, dead queues, failing dependents."""

from itertools import islice
from typing import TYPE_CHECKING, Final

from .errors import NotLeased, WrongState
from .events import fingerprint
from .job import (
    FOREVER,
    NO_PROTOCOL,
    EarlierFailure,
    Failure,
    Job,
    ensure_extra,
    ensure_history,
    ensure_totals,
)
from .leases import convert_lease_start
from .policies import RetryDecision
from .retention import RETENTION_SETTING, TRIM_BATCH_SIZE, TRIM_TIMER
from .states import BLOCKED, DEAD, DONE, GONE, LEASED, READY, SCHEDULED
from .waiters import JobOutcome

if TYPE_CHECKING:
    from .engine import Engine

# The store writes the earlier failures of a job again with each change to the job.
#: Maximum number of earlier failures whose backtraces a job keeps.
MAX_EARLIER_FAILURES: Final = 10
#: Maximum total number of characters in these backtraces.
MAX_EARLIER_BACKTRACE_CHARS: Final = 8_000
#: Maximum number of characters in the message of each earlier failure.
MAX_EARLIER_MESSAGE_CHARS: Final = 300
#: The failure group of jobs with a damaged payload.
DAMAGED_GROUP: Final = "PayloadDamaged"


class Attempts:
    """Ends attempts and jobs, with the consequences for their dependents."""

    __slots__ = (
        "_engine",
        "_kept",
        "_own_clock",
        "_queues",
        "_retention",
        "_transitions",
        "_waiters",
    )

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._own_clock, self._kept = (
            engine.rules.own_clock_protocols,
            engine.rules.retaining_protocols,
        )
        self._queues, self._retention = engine.queues, engine.retention
        self._waiters, self._transitions = engine.waiters, engine.transitions

    def complete(
        self,
        job: Job,
        now: int,
        actor: int,
        result: bytes | None,
        keep_until: int,
        allow_unleased: bool,
    ) -> None:
        """Complete a job; see Engine.complete."""
        is_leased = job.state == LEASED
        if not is_leased and not (allow_unleased and job.state in {READY, SCHEDULED}):
            raise NotLeased
        engine = self._engine
        if engine.caller.own_clock and job.origin not in self._own_clock:
            now = self._use_server_clock(job, now)
            try:
                self.complete(job, now, actor, result, keep_until, allow_unleased)
            finally:
                engine.caller.own_clock = True
            return
        engine.totals.processed += 1
        leased_at = job.history.leased_at
        run = now - leased_at if is_leased and now > leased_at else 0
        queue = self._queues[job.queue]
        if job.expires_at:
            keep_until = job.expires_at
        elif job.terms.origin in self._kept:
            keep_until = FOREVER
        elif not keep_until and (
            result or job.extra is not None or RETENTION_SETTING in engine.settings
        ):
            setting = engine.settings.get(RETENTION_SETTING)
            keep_until = self._retention.end_of(job, result, setting, now)
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "completed", True, result or b""))
        if keep_until > now:
            if result is not None or job.extra is not None:
                ensure_extra(job).result = result
            job.due_at = keep_until
            self._transitions.apply(job, queue, "completed", DONE, now, actor, 0, run)
        else:
            self._transitions.apply(job, queue, "completed", GONE, now, actor, 0, run)
        engine.caller.must_wait = True

    def advance(self, job: Job, now: int, actor: int) -> None:
        """End a successful step of a job that the caller then moves to the next queue."""
        if job.state != LEASED:
            raise NotLeased
        self._engine.totals.processed += 1
        run = max(0, now - job.history.leased_at)
        queue = self._queues[job.queue]
        self._transitions.apply(job, queue, "advanced", DONE, now, actor, 0, run)
        self._engine.caller.must_wait = True

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
        allow_unleased: bool = False,
        final: bool = False,
        retry_at: int | None = None,
        counts_failure: bool = True,
        remove_queue_if_empty: bool = False,
    ) -> None:
        """End an attempt with a failure. The retry policy of the job's origin decides the next
        state, unless the failure is `final`; `retry_at` overrides the time of a retry. Clients that
        wait for the end receive `result`, or the message if there is no result. Without
        `counts_failure`, the failure does not count when the job is retried later. With
        `remove_queue_if_empty`, the engine also removes the queue if the job has left it empty and
        the policy requires it.
        """
        engine = self._engine
        caller = engine.caller
        if caller.own_clock and job.origin not in self._own_clock:
            retry_at = None if retry_at is None else caller.server_time(retry_at)
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
                    allow_unleased=allow_unleased,
                    final=final,
                    retry_at=retry_at,
                    counts_failure=counts_failure,
                    remove_queue_if_empty=remove_queue_if_empty,
                )
            finally:
                caller.own_clock = True
            return
        before = job.state
        if before != LEASED and not (allow_unleased and before in {READY, SCHEDULED}):
            raise NotLeased
        policy = engine.rules.policies[job.origin]
        engine.totals.processed += 1
        engine.totals.failures += 1
        ensure_totals(job).failures += 1
        if cause == "failed" or policy.expiry_counts_as_failure:
            if before == SCHEDULED and not job.history.failures:
                engine.states.count_retry(job.queue, 1)  # `Transitions.leave` subtracts 1 again
            ensure_history(job).failures += 1
        previous = job.history.failure
        repeat = previous is not None and (
            fingerprint(previous.group, previous.message) == fingerprint(group, message)
        )
        first_at = now if previous is None else previous.first_at
        earlier = None if previous is None else _earlier_failures(previous)
        failure = Failure(first_at, now, group, message, backtrace, job.history.attempt, earlier)
        ensure_history(job).failure = failure
        if final:
            decision = RetryDecision(DEAD)
        elif cause == "failed":
            decision = policy.after_failure(job, now, engine.random)
        else:
            decision = policy.after_expiry(job, now, engine.random)
        if retry_at is not None and decision.state in {READY, SCHEDULED}:
            decision = RetryDecision(SCHEDULED if retry_at > now else READY, retry_at)
        state = decision.state
        retries = state in {READY, SCHEDULED}
        if before == SCHEDULED and retries and job.due_at > max(now, decision.due_at):
            state = SCHEDULED  # the job is not due yet
        else:
            job.due_at = decision.due_at
            job.position = decision.position or job.position
        run = max(0, now - job.history.leased_at) if before == LEASED else 0
        ended = state in {DEAD, GONE}
        if ended and (job.expires_at or job.seq in self._waiters.by_job):
            if result is None:
                result = message.encode("utf-8", "replace") if cause == "failed" else b""
            ensure_extra(job).result = result
            self._waiters.job_ended(JobOutcome(job, cause, False, result))
        queue = self._queues[job.queue]
        self._transitions.apply(job, queue, cause, state, now, actor, 0, run, repeat=int(repeat))
        if ended:
            self._move_to_dead_queue(job, now)
            self.fail_dependents(job, now)
        if not counts_failure:
            ensure_history(job).failures -= 1
        engine.caller.must_wait = True
        if remove_queue_if_empty:
            engine.removal.remove_queue_if_empty(job, queue.name, now)

    def _use_server_clock(self, job: Job, now: int) -> int:
        """Use the server's clock for the rest of the command, and return its time. The policy of
        the job, which decides on its retries and its retention, uses this clock.
        """
        caller = self._engine.caller
        now = caller.server_time(now)
        caller.own_clock = False
        if job.state == LEASED and job.history.holder_protocol in self._own_clock:
            convert_lease_start(job)  # the clock of the lease, not of this command
        return now

    def kill(self, job: Job, now: int, failure: Failure | None) -> None:
        """Move a job that is neither leased nor done to the dead set, with the given failure."""
        if job.state in {LEASED, DONE}:
            raise WrongState
        engine = self._engine
        if engine.caller.own_clock and job.origin not in self._own_clock:
            now = self._use_server_clock(job, now)
            try:
                self.kill(job, now, failure)
            finally:
                engine.caller.own_clock = True
            return
        if failure is not None:
            ensure_history(job).failure = failure
        if job.state == BLOCKED:
            engine.edits.leave_load(job)
        if job.seq in self._waiters.by_job:
            self._waiters.job_ended(JobOutcome(job, "killed", False, b""))
        self._transitions.apply(job, self._queues[job.queue], "killed", DEAD, now, NO_PROTOCOL)
        self.fail_dependents(job, now)
        engine.caller.must_wait = True

    def bury_damaged(self, job: Job, now: int, message: str) -> None:
        """Move a ready or leased job to the dead set because its payload is damaged. The job is not
        retried or moved to a dead queue, so no other worker receives it.
        """
        if job.extra is not None:
            job.extra.dead_queue = ""
        message = f"{message}; run millrace check"
        self.fail(
            job,
            now,
            NO_PROTOCOL,
            DAMAGED_GROUP,
            message,
            [],
            allow_unleased=True,
            final=True,
        )
        found = self._engine.payloads.damage_found
        if found is not None:
            found(job, message)

    def retry_now(self, job: Job, now: int) -> None:
        """Make a scheduled or dead job ready now."""
        if job.state not in {SCHEDULED, DEAD}:
            raise WrongState
        if job.state == DEAD:
            job.due_at = 0  # until now this was the end of its retention
        self._transitions.apply(job, self._queues[job.queue], "requeued", READY, now, NO_PROTOCOL)
        self._engine.caller.must_wait = True

    def fail_dependents(self, job: Job, now: int) -> None:
        """After the final failure of a job, fail each dependent whose policy requires it, and then
        the dependents of these dependents.
        """
        engine = self._engine
        if engine.dependencies:
            engine.cascades.fail(job.seq, now)
        elif self._retention.has_surplus:
            self.trim_dead(now)

    def fail_blocked(self, job: Job, now: int) -> None:
        """Fail a blocked job together with a job that it waits for."""
        engine = self._engine
        engine.dependencies.remove(job)
        message = "a job that it waited for has failed permanently"
        ensure_history(job).failure = Failure(now, now, "BlockerFailed", message, [])
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
        engine = self._engine
        old, queue = self._queues[job.queue], engine.queue_set.open(name, engine.change_set)
        self._transitions.leave(job)
        totals = ensure_totals(job)
        if not totals.first_queue:
            totals.first_queue = old.name
        ensure_history(job).failures = 0
        job.queue, job.position, job.due_at = queue.name, 0, due
        if blockers is not None:
            engine.dependencies.remove(job)
            engine.dependencies.block(job, blockers)
        self._transitions.enter(job)
        state = self._transitions.start_state(job, now)
        self._transitions.apply(job, queue, "moved", state, now, actor, source=old.name)
        engine.queue_set.drop_if_unused(old)
        engine.caller.must_wait = True

    def trim_dead(self, now: int) -> None:
        """Drop the oldest dead jobs above the maximum: one batch now, the rest by a timer."""
        engine = self._engine
        for job in list(islice(engine.dead.values(), TRIM_BATCH_SIZE)):
            if not self._retention.has_surplus:
                return
            self._retention.dead_dropped += 1
            self._transitions.apply(job, self._queues[job.queue], "purged", GONE, now, NO_PROTOCOL)
            engine.caller.must_wait = True
        if self._retention.has_surplus:
            engine.timers.set(TRIM_TIMER, now)


def clear_failures(job: Job) -> None:
    """Reset the number of failures of a job that is about to succeed."""
    if job.history.failures:
        ensure_history(job).failures = 0


def _earlier_failures(last: Failure) -> list[EarlierFailure] | None:
    """The failures with backtraces that a job keeps when another failure follows `last`."""
    if not last.backtrace:
        return last.earlier
    message = last.message[:MAX_EARLIER_MESSAGE_CHARS]
    found: list[EarlierFailure] = [
        (last.attempt, last.last_at, last.group, message, last.backtrace)
    ]
    size = sum(map(len, last.backtrace))
    for failure in last.earlier or ():
        size += sum(map(len, failure[4]))
        if len(found) == MAX_EARLIER_FAILURES or size > MAX_EARLIER_BACKTRACE_CHARS:
            break
        found.append(failure)
    return found
