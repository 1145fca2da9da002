"""Samples of the totals and of queue depths, every five seconds for the last ten minutes.

The search for the deepest queues runs in slices, because all connections wait during a slice.
"""

from collections import deque
from heapq import nlargest
from typing import Final

from millrace.engine.durations import ServerDurations
from millrace.engine.engine import Engine
from millrace.engine.queues import Queue
from millrace.engine.settings import DAYS_PREFIX
from millrace.engine.states import BLOCKED, READY, SCHEDULED
from millrace.engine.statistics import DAY, HISTORY_DAYS
from millrace.records import DayTotals, Sample

SECOND: Final = 1_000_000
SAMPLE_INTERVAL: Final = 5 * SECOND
SAMPLE_HISTORY_SIZE: Final = 120
#: Recent statistics cover one or two of these windows.
LATENCY_WINDOW: Final = 300 * SECOND
#: Number of the deepest queues for which the depth is recorded.
MAX_SAMPLED_QUEUES: Final = 500
#: Queues examined per slice.
SAMPLE_SLICE_SIZE: Final = 500


class Samples:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.totals: deque[Sample] = deque(maxlen=SAMPLE_HISTORY_SIZE)
        #: Queue name -> depths, the newest last. Only the deepest queues have an entry.
        self.depths: dict[str, deque[int]] = {}
        self.measured = ServerDurations()  # the server replaces this object
        #: End of the current window, queues left to examine, and the deepest queues so far.
        self._turns_at = 0
        self._names: list[str] = []
        self._found: list[tuple[int, str]] = []

    def take(self, now: int) -> int:
        """Start or continue a sample. Return the time of the next call."""
        if not self._names:
            self.totals.append(total(self._engine, now))
            self._names = list(self._engine.tables.queues)
            self._turn(now)
        self._look(self._names[-SAMPLE_SLICE_SIZE:])
        del self._names[-SAMPLE_SLICE_SIZE:]
        if self._names:
            return now
        self._keep()
        return now + SAMPLE_INTERVAL

    def _turn(self, now: int) -> None:
        if (
            now < self._turns_at <= now + LATENCY_WINDOW
        ):  # false at the end of the window, or if the clock was set
            return
        if self._turns_at:
            self.measured.next_window()
            self._engine.recent_durations.next_window()
        self._turns_at = now + LATENCY_WINDOW
        note_days(self._engine, now)

    def _look(self, names: list[str]) -> None:
        queues = self._engine.tables.queues
        some = [(depth(queues[name]), name) for name in names if name in queues]
        self._found = nlargest(MAX_SAMPLED_QUEUES, self._found + some)

    def _keep(self) -> None:
        before = self.depths
        self.depths = {}
        for deep, name in self._found:
            known = self.depths[name] = before.get(name) or deque(maxlen=SAMPLE_HISTORY_SIZE)
            known.append(deep)
        self._found = []


def depth(queue: Queue) -> int:
    counts = queue.counts
    return counts[READY] + counts[SCHEDULED] + counts[BLOCKED]


def ready(engine: Engine) -> int:
    """Return the number of ready jobs: all jobs that are in no other state."""
    return len(engine.tables.jobs) - sum(by_state(engine))


def by_state(engine: Engine) -> list[int]:
    """Return the number of jobs per state, with 0 for ready jobs."""
    return [
        len(engine.tables.scheduled),
        len(engine.tables.blocked),
        0,
        len(engine.tables.leased),
        len(engine.tables.done) + len(engine.tables.done_untrimmed),
        len(engine.tables.dead) + len(engine.tables.dead_untrimmed),
    ]


def total(engine: Engine, now: int) -> Sample:
    engine.current_statistics()
    recent = engine.recent_durations
    return Sample(
        at=now,
        pushed=recent.pushed,
        completed=recent.completed,
        failed=recent.failed,
        backlog=ready(engine) + len(engine.tables.scheduled) + len(engine.tables.blocked),
        leased=len(engine.tables.leased),
    )


# Days


def days(engine: Engine, now: int) -> list[DayTotals]:
    """Return the totals of the last days that have any, the newest last."""
    today = now // DAY
    found = (day_totals(engine, day) for day in range(today - HISTORY_DAYS + 1, today + 1))
    return [day for day in found if day is not None]


def note_days(engine: Engine, now: int) -> None:
    """Store the totals of past days in settings, because the statistics expire earlier."""
    if engine.unavailable_reason:
        return
    today = now // DAY
    for number in range(today - HISTORY_DAYS + 1, today):
        day = day_totals(engine, number)
        if day is not None:
            value = b"%d %d" % (day.processed, day.failures)
            if engine.settings.get(f"{DAYS_PREFIX}{number}") != value:
                engine.set_setting(f"{DAYS_PREFIX}{number}", value)
    for number in range(today - 2 * HISTORY_DAYS, today - HISTORY_DAYS + 1):
        if f"{DAYS_PREFIX}{number}" in engine.settings:
            engine.set_setting(f"{DAYS_PREFIX}{number}", None)


def day_totals(engine: Engine, number: int) -> DayTotals | None:
    """Return the totals of a day from the settings or from the statistics, whichever has more jobs.
    The statistics of an expired day may still count a late job.
    """
    total, noted = (
        engine.current_statistics().totals().get(number),
        engine.settings.get(f"{DAYS_PREFIX}{number}"),
    )
    processed, failures = (0, 0) if noted is None else map(int, noted.split())
    if total is not None and total.processed >= processed:
        return DayTotals(number, total.processed, total.failures)
    return None if noted is None else DayTotals(number, processed, failures)
