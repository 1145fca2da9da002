"""Results of a replay, and of the recording, by queue."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from millrace.pipeline.buckets import bucket_of

from .visits import Period, Visit

MINUTE: Final = 60_000_000


@dataclass(slots=True)
class QueueResult:
    """The results of one queue: leases by bucket of their wait, and the backlog by minute."""

    started: int = 0
    failures: int = 0
    #: Jobs that wait at the end.
    unserved: int = 0
    busy: int = 0
    #: Number, minimum and maximum of the waits of a bucket.
    waits: dict[int, list[int]] = field(default_factory=dict)
    backlog: dict[int, int] = field(default_factory=dict)

    def add_wait(self, wait: int) -> None:
        self.started += 1
        found = self.waits.setdefault(bucket_of(wait), [0, wait, wait])
        found[0] += 1
        found[1] = min(found[1], wait)
        found[2] = max(found[2], wait)


def recorded(visits: Iterable[Visit], period: Period) -> dict[str, QueueResult]:
    """The recorded results of the same period."""
    found: dict[str, QueueResult] = defaultdict(QueueResult)
    backlogs: dict[str, Counter[int]] = defaultdict(Counter)
    for visit in visits:
        result = found[visit.queue]
        if visit.leased in period:
            result.add_wait(visit.wait + visit.early)
            result.busy += min(visit.ended, period.end) - visit.leased
            result.failures += visit.outcome in {"failed", "expired"} and visit.ended in period
        left = min(visit.leased, visit.ended)
        result.unserved += visit.ready < period.end <= left
        changes = backlogs[visit.queue]
        changes[max(visit.ready, period.start) // MINUTE] += 1
        changes[min(left, period.end) // MINUTE] -= 1
    for queue, changes in backlogs.items():
        waiting = 0
        for minute in range(period.start // MINUTE, period.end // MINUTE):
            waiting += changes[minute]
            found[queue].backlog[minute * MINUTE] = waiting
    return found
