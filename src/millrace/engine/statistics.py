"""Statistics per queue and day: wait times, run times and failures.

The engine computes them from events, so live figures equal figures computed from the journal.
"""

from collections.abc import Iterable
from typing import Any, Final

from .change_set import ChangeSet
from .durations import RecentDurations
from .states import DEAD, LEASED

DAY: Final = 86_400_000_000
#: The number of days with statistics per queue.
KEPT_DAYS: Final = 30
#: The number of days with totals over all queues.
HISTORY_DAYS: Final = 180
#: The slots of a histogram: 60 seconds, 59 minutes, 23 hours, 6 days.
SLOTS: Final = 148


_ENDED: Final = frozenset({"completed", "advanced"})
_COUNTED: Final = _ENDED | {"leased", "failed", "expired", "doomed", "flushed"}


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


class Spread:
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

    def merge(self, other: "Spread") -> None:
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
        wait: Spread | None = None,
        run: Spread | None = None,
        failures: int = 0,
        failed: int = 0,
        retries: int = 0,
    ) -> None:
        self.queue = queue
        self.day = day
        self.wait = Spread() if wait is None else wait
        self.run = Spread() if run is None else run
        self.failures = failures
        self.failed = failed
        self.retries = retries


class DayTotal:
    """All queues on one day: ended attempts and failed attempts."""

    __slots__ = ("failures", "processed")

    def __init__(self, processed: int = 0, failures: int = 0) -> None:
        self.processed = processed
        self.failures = failures


class Statistics:
    __slots__ = ("_totals", "days", "dirty", "dropped", "keep_days", "merged")

    def __init__(self) -> None:
        self.days: dict[tuple[str, int], QueueDay] = {}
        self._totals: dict[int, DayTotal] | None = None
        #: Days that have changed since the store last wrote statistics.
        self.dirty: set[tuple[str, int]] = set()
        #: The number of days whose statistics are retained.
        self.keep_days = KEPT_DAYS
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

    def update(self, changes: ChangeSet, recent: RecentDurations) -> None:
        """Add the events of a change set that the statistics do not include yet."""
        events, folded = changes.events, changes.folded
        if folded < len(events):
            self.fold(events[folded:] if folded else events, recent)
            changes.folded = len(events)

    def fold(self, events: Iterable[Any], recent: RecentDurations | None = None) -> None:
        """Add events of the engine or the store. `recent`, if given, gets their durations too."""
        if recent is None:
            recent = RecentDurations()
        name, start, end = "", 0, 0  # events of one queue and day are mostly adjacent
        day, total = QueueDay("", -1), DayTotal()
        waits: list[int] = []
        runs: list[int] = []
        for event in events:
            kind = event[1]
            if kind == "pushed":
                recent.pushed += 1
                continue
            if kind not in _COUNTED:
                continue
            if event[4] != name or not start <= event[0] < end:
                _add_durations(day, total, waits, runs, recent)
                day = self._day_of(event)
                total = self._total(day.day)
                name, start, end = day.queue, day.day * DAY, (day.day + 1) * DAY
            if kind == "leased":
                waits.append(event[14])
            elif kind in _ENDED:
                runs.append(event[15])
            elif kind == "flushed":
                _add_durations(day, total, waits, runs, recent)
                self._clear()
                recent.clear()
                name, end = "", 0
            else:
                if kind != "doomed" and event[10] != LEASED:
                    day.failures += 1
                    total.failures += 1
                    total.processed += 1
                    recent.failed += 1
                day.retries += kind == "expired"
                day.failed += event[10] == DEAD
        _add_durations(day, total, waits, runs, recent)

    def _clear(self) -> None:
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

    def since(self, clock: int) -> int:
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

    def _day_of(self, event: Any) -> QueueDay:
        key = (event[4], event[0] // DAY)
        day = self.days.get(key)
        if day is None:
            day = self.days[key] = QueueDay(key[0], key[1])
        self.dirty.add(key)
        return day


def _add_durations(
    day: QueueDay, total: DayTotal, waits: list[int], runs: list[int], recent: RecentDurations
) -> None:
    """Add the durations of adjacent events of one queue and day, and empty both lists."""
    if waits:
        day.wait.add_all(waits)
        recent.add_waits(day.queue, waits)
        waits.clear()
    if runs:
        day.run.add_all(runs)
        recent.add_runs(day.queue, runs)
        total.processed += len(runs)
        runs.clear()
