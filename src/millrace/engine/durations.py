"""Durations, recent and since the server started.

This module counts durations in histogram buckets of growing width, four per power of two of
microseconds. Each percentile is therefore accurate to within 20%, and recording a duration takes
constant time. A restart clears all counts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Enough for durations up to 2**65 microseconds.
BUCKET_COUNT: Final = 256

#: Slot -> count; create it with `Counts(int)`.
Counts = defaultdict[int, int]


def duration_slot(microseconds: int) -> int:
    """The slot of a duration. `_count` contains the same code."""
    if microseconds < 4:
        return max(0, microseconds)
    bits = microseconds.bit_length()
    return min(BUCKET_COUNT - 1, 4 * bits - 12 + (microseconds >> bits - 3))


def slot_limit(slot: int) -> int:
    """The smallest duration above a slot."""
    if slot < 4:
        return slot + 1
    power, quarter = divmod(slot, 4)
    return 5 + quarter << power - 1


#: The count, and the 50th, 95th and 99th percentiles of the durations.
Percentiles = tuple[int, int, int, int]


def percentiles(*groups: Mapping[int, int]) -> Percentiles:
    """Percentiles over all of these counts."""
    total_counts = Counts(int)
    for counts in groups:
        for slot, count in counts.items():
            total_counts[slot] += count
    total = sum(total_counts.values())
    if not total:
        return (0, 0, 0, 0)
    slots = sorted(total_counts.items())
    p50, p95, p99 = (_percentile(slots, total * part) for part in (0.5, 0.95, 0.99))
    return total, p50, p95, p99


def _percentile(slots: Iterable[tuple[int, int]], wanted: float) -> int:
    """The middle of the slot in which the running count reaches `wanted`."""
    seen = 0
    for slot, count in slots:
        seen += count
        if seen >= wanted:
            return (slot_limit(slot - 1) + slot_limit(slot) - 1) // 2 if slot else 0
    return 0


def count_below(counts: Sequence[int], power: int) -> int:
    """The number of counted durations below 2**power microseconds."""
    return sum(counts[: 4 * (power - 1)])


class Durations:
    """Durations of one kind."""

    __slots__ = ("before", "counts", "recent", "sum")

    def __init__(self) -> None:
        #: Since the server started.
        self.counts = [0] * BUCKET_COUNT
        self.sum = 0
        #: In the current window and in the one before.
        self.recent = Counts(int)
        self.before = Counts(int)

    def add(self, microseconds: int) -> None:
        slot = duration_slot(microseconds)
        self.counts[slot] += 1
        self.sum += microseconds
        self.recent[slot] += 1

    def next_window(self) -> None:
        """Start the next window."""
        self.recent, self.before = Counts(int), self.recent

    def recent_percentiles(self) -> Percentiles:
        return percentiles(self.recent, self.before)


class ServerDurations:
    """Measurements of the server: durations of commits, and delays of the loop."""

    __slots__ = ("commits", "lag")

    def __init__(self) -> None:
        self.commits = Durations()
        self.lag = Durations()

    def next_window(self) -> None:
        self.commits.next_window()
        self.lag.next_window()


class RecentDurations:
    """Wait and run times of jobs, by queue, computed from events."""

    __slots__ = ("_before", "_recent", "failed", "pushed", "run_sum", "runs", "wait_sum", "waits")

    def __init__(self) -> None:
        # Since the server started, including events of refused commits.
        self.pushed = 0
        #: The number of failed attempts.
        self.failed = 0
        self.waits = [0] * BUCKET_COUNT
        self.wait_sum = 0
        self.runs = [0] * BUCKET_COUNT
        self.run_sum = 0
        #: Queue -> waits and runs, in windows as in Durations.
        self._recent: dict[str, tuple[Counts, Counts]] = {}
        self._before: dict[str, tuple[Counts, Counts]] = {}

    @property
    def completed(self) -> int:
        return sum(self.runs)

    def add_waits(self, queue: str, waits: list[int]) -> None:
        _count(waits, self.waits, self._counts_of(queue)[0])
        self.wait_sum += sum(waits)

    def add_runs(self, queue: str, runs: list[int]) -> None:
        _count(runs, self.runs, self._counts_of(queue)[1])
        self.run_sum += sum(runs)

    def _counts_of(self, queue: str) -> tuple[Counts, Counts]:
        """The current counts of waits and runs of a queue."""
        found = self._recent.get(queue)
        if found is None:
            found = self._recent[queue] = (Counts(int), Counts(int))
        return found

    def next_window(self) -> None:
        """Start the next window; idle queues are forgotten."""
        self._recent, self._before = {}, self._recent

    def clear(self) -> None:
        """Forget all queues."""
        self._recent, self._before = {}, {}

    def wait_percentiles(self, queue: str) -> Percentiles:
        return percentiles(*[each[queue][0] for each in self._windows if queue in each])

    def run_percentiles(self, queue: str) -> Percentiles:
        return percentiles(*[each[queue][1] for each in self._windows if queue in each])

    @property
    def _windows(self) -> tuple[dict[str, tuple[Counts, Counts]], ...]:
        return self._recent, self._before

    def __len__(self) -> int:
        """The number of remembered queues."""
        return len(self._recent) + len(self._before)


def _count(durations: Iterable[int], counts: list[int], recent: Counts) -> None:
    """Count durations in both collections, without a function call for each duration."""
    for duration in durations:
        bits = duration.bit_length()
        slot = 4 * bits - 12 + (duration >> bits - 3) if bits > 2 else duration
        counts[slot] += 1
        recent[slot] += 1
