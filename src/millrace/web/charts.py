"""Sparklines, rates and histogram slots, computed without a chart library."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.engine.statistics import HISTOGRAM_BUCKETS
from millrace.records import DayTotals, DurationSpread, Sample

SECOND: Final = 1_000_000
#: Minimum time span for a rate. Rates over shorter spans are too noisy.
LEAST: Final = 4 * SECOND
#: Time span of the error rate: five minutes.
LATELY: Final = 300 * SECOND
WIDTH: Final = 100
HEIGHT: Final = 24

_MINUTES: Final = 60
_HOURS: Final = 119
_DAYS: Final = 142


class Rates(NamedTuple):
    """Numbers of jobs per second."""

    pushed: float
    completed: float
    failed: float


def rates(samples: Sequence[Sample]) -> Rates:
    """Compute the rates of the last few seconds. base.js uses the same method."""
    if len(samples) < 2:
        return Rates(0, 0, 0)
    last = samples[-1]
    first = _before(samples, LEAST)
    seconds = max(0.001, (last.at - first.at) / SECOND)
    return Rates(
        max(0, last.pushed - first.pushed) / seconds,
        max(0, last.completed - first.completed) / seconds,
        max(0, last.failed - first.failed) / seconds,
    )


def error_rate(samples: Sequence[Sample]) -> float | None:
    """Return the fraction of failed attempts in the last five minutes; None if none has ended."""
    if len(samples) < 2:
        return None
    last, first = samples[-1], _before(samples, LATELY)
    failed, completed = last.failed - first.failed, last.completed - first.completed
    return failed / (failed + completed) if failed + completed > 0 else None


def _before(samples: Sequence[Sample], span: int) -> Sample:
    """Return the newest sample at least `span` older than the last, or else the oldest sample."""
    last = samples[-1].at
    return next((s for s in reversed(samples) if last - s.at >= span), samples[0])


def history(days: Sequence[DayTotals], today: int, most: int) -> list[DayTotals]:
    """Return the totals of the last `most` days up to today, with zeros for days without data."""
    known = {day.day: day for day in days}
    return [known.get(n) or DayTotals(n, 0, 0) for n in range(today - most + 1, today + 1)]


def spark(numbers: Sequence[int]) -> str:
    """Return an SVG path through the numbers, scaled from zero to the largest number."""
    if not numbers:
        return ""
    if len(numbers) == 1:
        numbers = [numbers[0], numbers[0]]
    largest = max(1, *numbers)
    step = WIDTH / (len(numbers) - 1)
    points = (
        f"{i * step:.4g} {HEIGHT - 1 - number / largest * (HEIGHT - 2):.4g}"
        for i, number in enumerate(numbers)
    )
    return "M" + " L".join(points)


class HistogramSlot(NamedTuple):
    """One of the 148 slots of Qless's histograms."""

    number: int
    label: str
    jobs: int


def slot_label(number: int) -> str:
    """Return a label: `12 to 13 s`, `5 to 6 min`, `3 to 4 h`, `2 to 3 d`."""
    for first, least, unit in (
        (_DAYS, 1, "d"),
        (_HOURS, 1, "h"),
        (_MINUTES, 1, "min"),
        (0, 0, "s"),
    ):
        if number >= first:
            size = number - first + least
            return f"{size} to {size + 1} {unit}"
    raise ValueError(number)


def slots(spread: DurationSpread) -> list[HistogramSlot]:
    """Return the slots of the histogram that contain jobs."""
    return [
        HistogramSlot(number, slot_label(number), jobs)
        for number, jobs in sorted(spread.histogram.items())
        if 0 <= number < HISTOGRAM_BUCKETS
    ]
