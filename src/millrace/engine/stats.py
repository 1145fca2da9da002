"""Statistics per queue and day: wait times, run times and failures.

They are computed from events, so live figures and figures computed from the journal are equal.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from .spans import Counts, Lately
from .states import DEAD, LEASED

DAY: Final = 86_400_000_000
#: Days with statistics per queue.
KEPT_DAYS: Final = 30
#: Days with totals over all queues.
HISTORY_DAYS: Final = 180
#: 60 seconds, 59 minutes, 23 hours, 6 days.
SLOTS: Final = 148


_ENDED: Final = frozenset({"completed", "advanced"})
_COUNTED: Final = _ENDED | {"leased", "failed", "expired", "doomed", "flushed"}


def slot(microseconds: int) -> int | None:
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


class Spread(msgspec.Struct, array_like=True, gc=False):
    """Count, mean and variance by Welford's method, and the histogram, in seconds."""

    count: int = 0
    mean: float = 0.0
    vk: float = 0.0
    histogram: dict[int, int] = {}

    def add(self, microseconds: int) -> None:
        value = microseconds / 1_000_000
        self.count = count = self.count + 1
        mean = self.mean
        delta = value - mean
        self.mean = mean = mean + delta / count
        self.vk += delta * (value - mean)
        where = 0 if microseconds < 1_000_000 else slot(microseconds)
        if where is not None:
            histogram = self.histogram
            histogram[where] = histogram.get(where, 0) + 1

    @property
    def variance(self) -> float:
        return self.vk / (self.count - 1) if self.count > 1 else 0.0


class QueueDay(msgspec.Struct, array_like=True, gc=False):
    """One queue on one day. `failures` counts attempts, `failed` counts dead jobs."""

    queue: str
    day: int
    wait: Spread = msgspec.field(default_factory=Spread)
    run: Spread = msgspec.field(default_factory=Spread)
    failures: int = 0
    failed: int = 0
    retries: int = 0


class DayTotal:
    """All queues on one day: ended attempts and failed attempts."""

    __slots__ = ("failures", "processed")

    def __init__(self, processed: int = 0, failures: int = 0) -> None:
        self.processed = processed
        self.failures = failures


class Statistics:
    __slots__ = ("_totals", "days", "dirty", "dropped", "keep_days")

    def __init__(self) -> None:
        self.days: dict[tuple[str, int], QueueDay] = {}
        self._totals: dict[int, DayTotal] | None = None
        #: Days that changed since the store wrote them.
        self.dirty: set[tuple[str, int]] = set()
        #: How many days are kept.
        self.keep_days = KEPT_DAYS
        #: Days that were dropped since the store wrote them.
        self.dropped: set[tuple[str, int]] = set()

    def drop(self, queues: Iterable[str]) -> None:
        """Drop all days of these queues."""
        names = set(queues)
        gone = [key for key in self.days if key[0] in names]
        for key in gone:
            del self.days[key]
        self.dirty.difference_update(gone)
        self.dropped.update(gone)

    def fold(self, events: Iterable[Any], lately: Lately | None = None) -> None:
        """Add events of the engine or the store, and the durations of new events."""
        if lately is None:
            lately = Lately()
        name, number = "", -1  # events of one queue and day are mostly adjacent
        day, total = QueueDay("", -1), DayTotal()
        waits = runs = Counts(int)
        all_waits, all_runs = lately.waits, lately.runs
        pushed = waited = ran = 0
        for event in events:
            kind = event[1]
            if kind == "pushed":
                pushed += 1
                continue
            if kind not in _COUNTED:
                continue
            if kind == "flushed":
                self._clear()
                lately.clear()
                name, number = "", -1
                continue
            if event[4] != name or event[0] // DAY != number:
                day = self._of(event)
                name, number = day.queue, day.day
                total = self._total(number)
                waits, runs = lately.of(name)
            if kind == "leased":
                span = event[14]
                day.wait.add(span)
                # The slot of spans.py.
                bits = span.bit_length()
                slot = 4 * bits - 12 + (span >> bits - 3) if bits > 2 else span
                all_waits[slot] += 1
                waits[slot] += 1
                waited += span
            elif kind in _ENDED:
                span = event[15]
                day.run.add(span)
                bits = span.bit_length()
                slot = 4 * bits - 12 + (span >> bits - 3) if bits > 2 else span
                all_runs[slot] += 1
                runs[slot] += 1
                ran += span
                total.processed += 1
            else:
                if kind != "doomed" and event[10] != LEASED:
                    day.failures += 1
                    total.failures += 1
                    total.processed += 1
                    lately.failed += 1
                day.retries += kind == "expired"
                day.failed += event[10] == DEAD
        lately.pushed += pushed
        lately.wait_sum += waited
        lately.run_sum += ran

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
        """The first day that is kept. The newest day alone does not decide: the clock of the server
        or of a Qless client may have been ahead.
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

    def _of(self, event: Any) -> QueueDay:
        key = (event[4], event[0] // DAY)
        day = self.days.get(key)
        if day is None:
            day = self.days[key] = QueueDay(*key)
        self.dirty.add(key)
        return day
