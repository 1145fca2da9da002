"""Positions of jobs whose clients have their own clocks.

The position of such a job is the time at which it became ready, by the clock of its client. Several
jobs can become ready at the same time: jobs that were pushed then are ordered by their seqs, and
older jobs are behind them, in the order in which they became ready.
"""

from typing import Final

#: Times per queue for which the last position is remembered, and the number of such queues.
MAX_TIES: Final = 64
MAX_TIED_QUEUES: Final = 10_000


class TiedPositions:
    __slots__ = ("_ties",)

    def __init__(self) -> None:
        #: Queue -> time -> distance of the last position of that time from the time.
        self._ties: dict[str, dict[int, int]] = {}

    def of_new_job(self, queue: str, now: int) -> int:
        """The position of a new job. Its seq sorts it behind all jobs of the same position."""
        ties = self._ties.get(queue) if self._ties else None
        return now if ties is None else now + ties.get(now, 0)

    def behind(self, queue: str, now: int) -> int:
        """The position of an older job that is ready again: behind all jobs of the same time."""
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
