"""Cascades: the consequences of a job's end for its dependents, a bounded number per turn.

A job can have any number of dependents. When it ends, the engine handles the first
CASCADE_BATCH_SIZE of them at once, and a timer continues with the rest. If dependents remain, the
change set that ends the job also contains a durable setting that records this, so a restart or a
refused commit loses none of them.

Many jobs can end in one step of the server, such as the removal of a queue. After STEP_LIMIT
dependents of all these jobs, only the first dependent of each further job is handled immediately. A
step begins when the server begins to execute commands, a slice of a command, or timers; it then
sets `Engine.dependents_left`.
"""

from typing import TYPE_CHECKING, Final

from .job import Job
from .states import BLOCKED, DONE

if TYPE_CHECKING:
    from .engine import Engine

#: The number of dependents of one job that are handled immediately, and the number that one tick
#: handles.
CASCADE_BATCH_SIZE: Final = 40
#: The number of dependents of all jobs that one step of the server handles, before it handles only
#: the first dependent of each job.
STEP_LIMIT: Final = 100
#: Settings of unfinished cascades: this prefix and the seq of the blocker.
CASCADE_PREFIX: Final = "cascades/"
CASCADE_TIMER: Final = "cascades"
#: What happens to the dependents: they no longer wait, or they fail with the blocker.
UNBLOCK: Final = b"unblock"
FAIL: Final = b"fail"


class Cascades:
    __slots__ = ("_engine", "_position", "pending")

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        #: Unfinished cascades by the seq of the blocker. The last one continues first.
        self.pending = engine.dependencies.ending
        #: Blocker -> the last dependent that its cascade of failures has examined.
        self._position: dict[int, int] = {}

    def load(self, settings: dict[str, bytes]) -> None:
        """Read the unfinished cascades from the settings."""
        found = sorted(
            (int(key[len(CASCADE_PREFIX) :]), kind)
            for key, kind in settings.items()
            if key.startswith(CASCADE_PREFIX)
        )
        self.pending.clear()
        self.pending.update(found)
        self._position.clear()
        if found:
            self._engine.timers.set(CASCADE_TIMER, 0)

    def unblock(self, blocker: int, now: int) -> None:
        """Remove an ended blocker from its dependents, and start those without other blockers."""
        # A cascade of failures unblocks the remaining dependents at its end.
        if self.pending.get(blocker) != FAIL:
            self._unblock_some(blocker, now, self._limit())

    def fail(self, blocker: int, now: int) -> None:
        """After the final failure of a blocker, fail the dependents whose policy requires it, then
        their own dependents.
        """
        self._fail_some([blocker], now, self._limit())

    def tick(self, now: int) -> None:
        """Continue unfinished cascades."""
        left = CASCADE_BATCH_SIZE
        while self.pending and left > 0:
            blocker, kind = next(reversed(self.pending.items()))
            if kind == FAIL:
                self._fail_some(self._last_failing(), now, left)
                break
            left -= max(1, self._unblock_some(blocker, now, left))
        if self.pending:
            self._engine.timers.set(CASCADE_TIMER, now)

    def _last_failing(self) -> list[int]:
        """The last blockers with unfinished cascades of failures, in their order."""
        found: list[int] = []
        for blocker, kind in reversed(self.pending.items()):
            if kind == FAIL:
                found.append(blocker)
            if len(found) == CASCADE_BATCH_SIZE:
                break
        found.reverse()
        return found

    def _limit(self) -> int:
        """The number of dependents of the next job that are handled immediately."""
        return max(1, min(CASCADE_BATCH_SIZE, self._engine.dependents_left))

    def _unblock_some(self, blocker: int, now: int, limit: int) -> int:
        """Unblock up to `limit` dependents, and return their number."""
        engine, count = self._engine, 0
        with engine.hold_queues(now):
            for job in engine.dependencies.take_dependents(blocker, limit):
                count += 1
                assert job.extra is not None
                if job.state == BLOCKED and not job.extra.blockers and not job.extra.load:
                    engine.transitions.start_unblocked(job, now)
                else:
                    engine.change_set.record(job)
        engine.dependents_left -= count
        self._set_pending(
            blocker, UNBLOCK if blocker in engine.dependencies.by_blocker else None, now
        )
        return count

    def _fail_some(self, failing: list[int], now: int, limit: int) -> None:
        """Fail up to `limit` dependents of these blockers, depth first, starting with the last
        blocker.
        """
        engine, attempts, position = self._engine, self._engine.attempts, self._position
        next_dependent = engine.dependencies.next_dependent
        left = limit
        while failing and left:
            blocker = failing[-1]
            seq = next_dependent(blocker, position.get(blocker, 0))
            if seq:
                position[blocker] = seq
                left -= 1
                engine.dependents_left -= 1
            job = engine.jobs.get(seq)
            fails = job is not None and job.state == BLOCKED and self._fails_with_blocker(job)
            if fails and job is not None:
                attempts.fail_blocked(job, now)
            if not next_dependent(blocker, position.get(blocker, 0)):
                failing.pop()
                self._end_failures(blocker, now)
            if fails:
                failing.append(seq)
        for blocker in failing:
            self._set_pending(blocker, FAIL, now)
        if engine.retention.has_surplus:
            attempts.trim_dead(now)

    def _fails_with_blocker(self, job: Job) -> bool:
        return self._engine.rules.policies[job.origin].fails_with_blocker

    def _end_failures(self, blocker: int, now: int) -> None:
        """End a cascade of failures; unblock the other dependents of a removed or done blocker."""
        self._position.pop(blocker, None)
        self._set_pending(blocker, None, now)
        job = self._engine.jobs.get(blocker)
        if job is None or job.state == DONE:
            self._unblock_some(blocker, now, self._limit())

    def _set_pending(self, blocker: int, kind: bytes | None, now: int) -> None:
        """Record the unfinished work for the dependents of a blocker."""
        if self.pending.get(blocker) == kind:
            return
        if kind is None:
            del self.pending[blocker]
        else:
            if not self.pending:
                self._engine.timers.set(CASCADE_TIMER, self._engine.caller.server_time(now))
            self.pending[blocker] = kind
        self._engine.set_setting(f"{CASCADE_PREFIX}{blocker}", kind)
