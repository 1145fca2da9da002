"""How long things took: lately, and since the start.

Spans are counted by slots that grow with them, four to each power of two of microseconds, so any
percentile is known to within a fifth of it, and a span costs one count. Nothing of it is kept over
a restart.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: No span is longer than 2**65 microseconds.
SLOTS: Final = 256

#: Slot -> how many: `Counts(int)`.
Counts = defaultdict[int, int]


def slot(microseconds: int) -> int:
    """Which slot a span falls into. Statistics.fold has the same, written out."""
    if microseconds < 4:
        return max(0, microseconds)
    bits = microseconds.bit_length()
    return min(SLOTS - 1, 4 * bits - 12 + (microseconds >> bits - 3))


def limit(slot: int) -> int:
    """The least span that is too long for a slot, and for those before it."""
    if slot < 4:
        return slot + 1
    power, quarter = divmod(slot, 4)
    return 5 + quarter << power - 1


#: How many there were, and of their spans the 50th, 95th and 99th percentile.
Percentiles = tuple[int, int, int, int]


def percentiles(*some: Mapping[int, int]) -> Percentiles:
    """Of what was counted in any of these."""
    together = Counts(int)
    for counts in some:
        for where, count in counts.items():
            together[where] += count
    total = sum(together.values())
    if not total:
        return (0, 0, 0, 0)
    slots = sorted(together.items())
    p50, p95, p99 = (_share(slots, total * part) for part in (0.5, 0.95, 0.99))
    return total, p50, p95, p99


def _share(slots: Iterable[tuple[int, int]], wanted: float) -> int:
    """The middle of the slot below whose end so many spans are."""
    seen = 0
    for where, count in slots:
        seen += count
        if seen >= wanted:
            return (limit(where - 1) + limit(where) - 1) // 2 if where else 0
    return 0


def below(counts: Sequence[int], power: int) -> int:
    """How many of the spans that were counted by slot are shorter than 2**power microseconds."""
    return sum(counts[: 4 * (power - 1)])


class Durations:
    """Of one kind of thing, for all there is of it."""

    __slots__ = ("before", "counts", "recent", "sum")

    def __init__(self) -> None:
        #: Since the start.
        self.counts = [0] * SLOTS
        self.sum = 0
        #: Since the last turn of the windows, and from the turn before to that one.
        self.recent = Counts(int)
        self.before = Counts(int)

    def add(self, microseconds: int) -> None:
        where = slot(microseconds)
        self.counts[where] += 1
        self.sum += microseconds
        self.recent[where] += 1

    def turn(self) -> None:
        """A window is over."""
        self.recent, self.before = Counts(int), self.recent

    def lately(self) -> Percentiles:
        return percentiles(self.recent, self.before)


class Measured:
    """What the server measures of itself: how long commits take, and how late the loop is."""

    __slots__ = ("commits", "lag")

    def __init__(self) -> None:
        self.commits = Durations()
        self.lag = Durations()

    def turn(self) -> None:
        self.commits.turn()
        self.lag.turn()


class Lately:
    """What the events tell: how long jobs waited and ran, by queue, and how many there were."""

    __slots__ = ("_before", "_recent", "failed", "pushed", "run_sum", "runs", "wait_sum", "waits")

    def __init__(self) -> None:
        # Since the start. What could not be written counts as well: it did happen.
        self.pushed = 0
        #: Attempts.
        self.failed = 0
        self.waits = [0] * SLOTS
        self.wait_sum = 0
        self.runs = [0] * SLOTS
        self.run_sum = 0
        #: Queue -> waits, runs: as Durations have it.
        self._recent: dict[str, tuple[Counts, Counts]] = {}
        self._before: dict[str, tuple[Counts, Counts]] = {}

    @property
    def completed(self) -> int:
        return sum(self.runs)

    def of(self, queue: str) -> tuple[Counts, Counts]:
        """Where the waits and runs of a queue are counted now."""
        found = self._recent.get(queue)
        if found is None:
            found = self._recent[queue] = (Counts(int), Counts(int))
        return found

    def turn(self) -> None:
        """A window is over; queues in which nothing happened are forgotten."""
        self._recent, self._before = {}, self._recent

    def clear(self) -> None:
        """There are no queues any more."""
        self._recent, self._before = {}, {}

    def waited(self, queue: str) -> Percentiles:
        return percentiles(*(each[queue][0] for each in self._windows if queue in each))

    def ran(self, queue: str) -> Percentiles:
        return percentiles(*(each[queue][1] for each in self._windows if queue in each))

    @property
    def _windows(self) -> tuple[dict[str, tuple[Counts, Counts]], ...]:
        return self._recent, self._before

    def __len__(self) -> int:
        """How many queues are being remembered."""
        return len(self._recent) + len(self._before)
