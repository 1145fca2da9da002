"""Statistics per queue and day: wait times, run times and failures.

The engine counts transitions as they happen. `Statistics.add_events` counts the events of a journal
with the same code, so live figures equal figures computed from the journal.
"""

from collections.abc import Iterable
from typing import Any, Final

from .durations import RecentDurations
from .states import DEAD, LEASED

DAY: Final = 86_400_000_000
#: The number of days with statistics per queue.
KEPT_DAYS: Final = 30
#: The number of days with totals over all queues.
HISTORY_DAYS: Final = 180
#: The slots of a histogram: 60 seconds, 59 minutes, 23 hours, 6 days.
HISTOGRAM_BUCKETS: Final = 148


_ENDED: Final = frozenset({"completed", "advanced"})
_COUNTED: Final = _ENDED | {"leased", "failed", "expired", "doomed"}


def histogram_slot(microseconds: int) -> int | None:
    """The slot of a duration, one of 148; None above a week."""
    seconds = microseconds // 1_000_000
    if seconds < 60:
        return max(0, seconds)
    if seconds < 3600:
        return 59 + seconds // 60
    if seconds < 86_400:
        return 118 + seconds // 3600
    days = seconds // 86_400
    return 141 + days if days < 7 else None


class DurationSummary:
    """Count, mean and variance by Welford's method, and the histogram, in seconds."""

    __slots__ = ("count", "histogram", "mean", "vk")

    def __init__(
        self,
        count: int = 0,
        mean: float = 0.0,
        vk: float = 0.0,
        histogram: dict[int, int] | None = None,
    ) -> None:
        self.count = count
        self.mean = mean
        self.vk = vk
        self.histogram = {} if histogram is None else histogram

    def add_all(self, durations: Iterable[int]) -> None:
        """Add durations in microseconds."""
        count, mean, vk, below_a_second = self.count, self.mean, self.vk, 0
        histogram = self.histogram
        for duration in durations:
            count += 1
            value = duration / 1_000_000
            delta = value - mean
            mean += delta / count
            vk += delta * (value - mean)
            if duration < 1_000_000:
                below_a_second += 1
            else:
                slot = histogram_slot(duration)
                if slot is not None:
                    histogram[slot] = histogram.get(slot, 0) + 1
        self.count, self.mean, self.vk = count, mean, vk
        if below_a_second:
            histogram[0] = histogram.get(0, 0) + below_a_second

    def merge(self, other: "DurationSummary") -> None:
        """Add the durations of another record."""
        count = self.count + other.count
        if not count:
            return
        delta = other.mean - self.mean
        self.vk += other.vk + delta * delta * self.count * other.count / count
        self.mean += delta * other.count / count
        self.count = count
        for slot, number in other.histogram.items():
            self.histogram[slot] = self.histogram.get(slot, 0) + number

    @property
    def variance(self) -> float:
        return self.vk / (self.count - 1) if self.count > 1 else 0.0


class QueueDay:
    """One queue on one day. `failures` counts failed attempts, `failed` counts dead jobs."""

    __slots__ = ("day", "failed", "failures", "queue", "retries", "run", "wait")

    def __init__(
        self,
        queue: str,
        day: int,
        wait: DurationSummary | None = None,
        run: DurationSummary | None = None,
        failures: int = 0,
        failed: int = 0,
        retries: int = 0,
    ) -> None:
        self.queue = queue
        self.day = day
        self.wait = DurationSummary() if wait is None else wait
        self.run = DurationSummary() if run is None else run
        self.failures = failures
        self.failed = failed
        self.retries = retries


class DayTotal:
    """All queues on one day: ended attempts and failed attempts."""

    __slots__ = ("failures", "processed")

    def __init__(self, processed: int = 0, failures: int = 0) -> None:
        self.processed = processed
        self.failures = failures


class QueueTally:
    """Transitions of one queue on one day that are not in the statistics yet."""

    __slots__ = ("day", "end", "failed", "failures", "queue", "retries", "runs", "start", "waits")

    def __init__(self, queue: str, day: int) -> None:
        self.queue = queue
        self.day = day
        self.start = day * DAY
        self.end = self.start + DAY
        self.waits: list[int] = []
        self.runs: list[int] = []
        self.failures = 0
        self.failed = 0
        self.retries = 0


class Tallies:
    """Transitions that are not in the statistics yet. Adding many durations at a time is faster."""

    __slots__ = ("_all", "_by_queue", "_pushed")

    def __init__(self) -> None:
        self._pushed = 0
        self._all: list[QueueTally] = []
        #: The latest tally of each queue.
        self._by_queue: dict[str, QueueTally] = {}

    def count(self, cause: str, queue: str, now: int, state: int, wait: int, run: int) -> None:
        """Count a transition of a job to this state."""
        if cause == "pushed":
            self._pushed += 1
            return
        if cause not in _COUNTED:
            return
        tally = self._by_queue.get(queue)
        if tally is None or not tally.start <= now < tally.end:
            tally = self._by_queue[queue] = QueueTally(queue, now // DAY)
            self._all.append(tally)
        if cause == "leased":
            tally.waits.append(wait)
        elif cause in _ENDED:
            tally.runs.append(run)
        else:
            tally.failures += cause != "doomed" and state != LEASED
            tally.retries += cause == "expired"
            tally.failed += state == DEAD

    def add_to(self, statistics: "Statistics", recent: RecentDurations) -> None:
        """Add all that was counted to the statistics and to the recent durations."""
        recent.pushed += self._pushed
        self._pushed = 0
        if not self._all:
            return
        for tally in self._all:
            statistics.add(tally)
            recent.failed += tally.failures
            if tally.waits:
                recent.add_waits(tally.queue, tally.waits)
            if tally.runs:
                recent.add_runs(tally.queue, tally.runs)
        self._all.clear()
        self._by_queue.clear()


class Statistics:
    __slots__ = ("_totals", "days", "dirty", "dropped", "keep_days", "merged")

    def __init__(self, keep_days: int = KEPT_DAYS) -> None:
        self.days: dict[tuple[str, int], QueueDay] = {}
        self._totals: dict[int, DayTotal] | None = None
        #: Days that have changed since the store last wrote statistics.
        self.dirty: set[tuple[str, int]] = set()
        #: The number of days whose statistics are retained.
        self.keep_days = keep_days
        #: Days that were dropped since the store last wrote statistics.
        self.dropped: set[tuple[str, int]] = set()
        #: Days that were merged since the store last wrote statistics: no event contains them.
        self.merged: list[QueueDay] = []

    def merge(self, added: QueueDay) -> None:
        """Add statistics from another server, which the events of this journal do not include."""
        total = self._total(added.day)
        total.processed += added.run.count + added.failures
        total.failures += added.failures
        key = (added.queue, added.day)
        day = self.days.setdefault(key, QueueDay(*key))
        day.wait.merge(added.wait)
        day.run.merge(added.run)
        day.failures += added.failures
        day.failed += added.failed
        day.retries += added.retries
        self.dirty.add(key)
        self.merged.append(added)

    def drop(self, queues: Iterable[str]) -> None:
        """Drop all days of these queues."""
        names = set(queues)
        removed = [key for key in self.days if key[0] in names]
        for key in removed:
            del self.days[key]
        self.dirty.difference_update(removed)
        self.dropped.update(removed)

    def add(self, tally: QueueTally) -> None:
        """Add the transitions of one queue on one day."""
        key = (tally.queue, tally.day)
        day = self.days.get(key)
        if day is None:
            day = self.days[key] = QueueDay(tally.queue, tally.day)
        self.dirty.add(key)
        total = self._total(tally.day)
        day.wait.add_all(tally.waits)
        day.run.add_all(tally.runs)
        day.failures += tally.failures
        day.failed += tally.failed
        day.retries += tally.retries
        total.processed += len(tally.runs) + tally.failures
        total.failures += tally.failures

    def add_events(self, events: Iterable[Any], recent: RecentDurations | None = None) -> None:
        """Add events of the engine or the store. `recent`, if given, gets their durations too."""
        if recent is None:
            recent = RecentDurations()
        tallies = Tallies()
        for event in events:
            cause = event[1]
            if cause == "flushed":
                tallies.add_to(self, recent)
                self.clear()
                recent.clear()
            else:
                tallies.count(cause, event[4], event[0], event[10], event[14], event[15])
        tallies.add_to(self, recent)

    def clear(self) -> None:
        self.days.clear()
        self.dirty.clear()
        self._totals = None

    def totals(self) -> dict[int, DayTotal]:
        """Totals by day over all queues, in no particular order."""
        if self._totals is None:
            totals = self._totals = {}
            for day in self.days.values():
                total = totals.setdefault(day.day, DayTotal())
                total.processed += day.run.count + day.failures
                total.failures += day.failures
        return self._totals

    def first_retained_day(self, clock: int) -> int:
        """The first day of the retained statistics. It does not depend only on the newest day,
        because the clock of the server or of a client may have been ahead.
        """
        newest = max((day for _, day in self.days), default=0)
        return (min(newest, clock // DAY) if clock else newest) - self.keep_days

    def forget(self, before_day: int) -> list[tuple[str, int]]:
        """Drop days before `before_day`, and return their keys."""
        totals = self.totals()
        old = [key for key in self.days if key[1] < before_day]
        for key in old:
            del self.days[key]
            self.dirty.discard(key)
        for number in [number for number in totals if number < before_day - HISTORY_DAYS]:
            del totals[number]
        return old

    def _total(self, day: int) -> DayTotal:
        totals = self.totals()
        total = totals.get(day)
        if total is None:
            total = totals[day] = DayTotal()
        return total
