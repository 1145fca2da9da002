"""Ordered lists of intervals that do not overlap. An interval has a start and a later end."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

Interval = tuple[int, int]
_end = itemgetter(1)


class IntervalCount:
    """Counts the intervals that contain a point in time. These intervals may overlap."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, intervals: Iterable[Interval]) -> None:
        found = [each for each in intervals if each[1] > each[0]]
        self._starts = sorted(start for start, _ in found)
        self._ends = sorted(end for _, end in found)

    def at(self, time: int) -> int:
        return bisect_right(self._starts, time) - bisect_right(self._ends, time)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in any order, merged where they overlap."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def gaps(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """The parts of the time from `start` to `end` that no interval covers."""
    found = []
    for began, over in intervals:
        if began > start:
            found.append((start, began))
        start = max(start, over)
    if end > start:
        found.append((start, end))
    return found


def intersection(some: Iterable[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The parts of some intervals that other intervals cover."""
    found = []
    for start, end in some:
        for number in range(bisect_right(others, start, key=_end), len(others)):
            began, over = others[number]
            if began >= end:
                break
            found.append((max(start, began), min(end, over)))
    return found


def difference(some: Iterable[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The parts of some intervals that no other interval covers."""
    found = []
    for start, end in some:
        found += gaps(intersection([(start, end)], others), start, end)
    return found


def containing(intervals: Sequence[Interval], time: int) -> Interval | None:
    """The interval that contains a point in time."""
    number = bisect_left(intervals, (time + 1,)) - 1
    return intervals[number] if number >= 0 and time < intervals[number][1] else None
