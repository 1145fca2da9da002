"""Statistics per queue and day: how long jobs waited and ran, and how often they failed.

They are a fold over events, so the live numbers and those made from the journal cannot differ.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from .states import DEAD, LEASED

DAY: Final = 86_400_000_000
#: They are kept for so many days.
KEPT_DAYS: Final = 30
#: 60 seconds, 59 minutes, 23 hours, 6 days.
SLOTS: Final = 148


_ENDED: Final = frozenset({"completed", "advanced"})
_COUNTED: Final = _ENDED | {"leased", "failed", "expired", "doomed", "flushed"}


def slot(microseconds: int) -> int | None:
    """Which of the 148 slots a span falls into; None beyond a week."""
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
    """Count, mean and variance by Welford's method, and the histogram; spans are in seconds."""

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
    """One queue on one day. `failures` counts attempts, `failed` jobs that died of it."""

    queue: str
    day: int
    wait: Spread = msgspec.field(default_factory=Spread)
    run: Spread = msgspec.field(default_factory=Spread)
    failures: int = 0
    failed: int = 0
    retries: int = 0


class Statistics:
    __slots__ = ("days", "dirty")

    def __init__(self) -> None:
        self.days: dict[tuple[str, int], QueueDay] = {}
        #: Days that changed since the store last wrote them down.
        self.dirty: set[tuple[str, int]] = set()

    def fold(self, events: Iterable[Any]) -> None:
        """Take in events, as the engine made them or as the store gives them back."""
        name, number = "", -1  # events of one queue and day mostly come together
        day = QueueDay("", -1)
        for event in events:
            kind = event[1]
            if kind not in _COUNTED:
                continue
            if kind == "flushed":
                self.days.clear()
                self.dirty.clear()
                name, number = "", -1
                continue
            if event[4] != name or event[0] // DAY != number:
                day = self._of(event)
                name, number = day.queue, day.day
            if kind == "leased":
                day.wait.add(event[14])
            elif kind in _ENDED:
                day.run.add(event[15])
            else:
                day.failures += kind != "doomed" and event[10] != LEASED
                day.retries += kind == "expired"
                day.failed += event[10] == DEAD

    def since(self, latest: int) -> int:
        """The first day that is kept, where the last job became ready at `latest`. Not by the
        newest day alone: a caller of Qless may have any clock.
        """
        newest = max((day for _, day in self.days), default=0)
        return (min(newest, latest // DAY) if latest else newest) - KEPT_DAYS

    def forget(self, before_day: int) -> list[tuple[str, int]]:
        """Drop days older than `before_day`, and say which."""
        old = [key for key in self.days if key[1] < before_day]
        for key in old:
            del self.days[key]
            self.dirty.discard(key)
        return old

    def _of(self, event: Any) -> QueueDay:
        key = (event[4], event[0] // DAY)
        day = self.days.get(key)
        if day is None:
            day = self.days[key] = QueueDay(*key)
        self.dirty.add(key)
        return day
