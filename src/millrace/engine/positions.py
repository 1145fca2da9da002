"""Positions of ready jobs. A job arrives when it goes behind the ready jobs: after its push, or
when it becomes ready again.

The position of a job is the time of its arrival by the server's clock. If the clients of a job have
their own clocks, it is the time at which the job became ready, by the clock of its client. Several
such jobs can become ready at the same time: jobs that were pushed then are ordered by their seqs,
and older jobs are behind them, in the order in which they became ready.
"""

from typing import Final

#: Maximum number of timestamps per queue whose last position is remembered, and maximum number of
#: such queues.
MAX_TIES: Final = 64
MAX_TIED_QUEUES: Final = 10_000


class Positions:
    """The positions of jobs that arrive."""

    __slots__ = ("_last_dead", "last", "tied")

    def __init__(self) -> None:
        #: The position of the job that arrived last. It orders jobs and never decreases. It starts
        #: from the clock, but is ahead of it after the clock is set back.
        self.last = 0
        self.tied = TiedPositions()
        self._last_dead = 0

    def next(self, now: int, *, behind: bool = False) -> int:
        """The position of a job that arrives now. Jobs that arrive in the same microsecond share
        one and are ordered by seq, unless the clock was set back or the job is to be `behind`.
        """
        if now > self.last:
            self.last = now
        elif behind or now < self.last:
            self.last += 1
        return self.last

    def next_dead(self, now: int) -> int:
        """The position of a job that dies now: behind all that died before, so that the order of
        dead jobs is the same after a restart.
        """
        self._last_dead = max(now, self._last_dead + 1)
        return self._last_dead


class TiedPositions:
    """The positions of jobs by the clocks of their clients."""

    __slots__ = ("_ties",)

    def __init__(self) -> None:
        #: Queue -> time -> the last position of jobs of that time, as a distance from the time.
        self._ties: dict[str, dict[int, int]] = {}

    def position_of_new_job(self, queue: str, now: int) -> int:
        """The position of a new job. Its seq sorts it behind all jobs with the same position."""
        ties = self._ties.get(queue) if self._ties else None
        return now if ties is None else now + ties.get(now, 0)

    def position_behind(self, queue: str, now: int) -> int:
        """The position of an older job that is ready again: behind all jobs with the same time."""
        if len(self._ties) > MAX_TIED_QUEUES:
            self._ties.clear()
        ties = self._ties.setdefault(queue, {})
        behind = ties.pop(now, 0) + 1
        ties[now] = behind
        if len(ties) > MAX_TIES:
            del ties[next(iter(ties))]
        return now + behind

    def clear(self) -> None:
        self._ties.clear()
