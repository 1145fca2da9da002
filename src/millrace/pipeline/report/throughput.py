"""Jobs pushed, started and ended over time, and the backlog."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from itertools import accumulate
from typing import Any, Final

from millrace.pipeline.tables import QUEUE_DAY, QUEUE_MINUTE

from .model import Line, Timeline
from .rows import ReportRows
from .time_axis import Axis, axis_of

COUNTS: Final = ("pushed", "started", "completed", "failures", "died")
#: Maximum number of queues with a separate line.
LINES: Final = 7
_WAITING: Final = ("ready", "scheduled", "blocked")

#: Backlogs by queue.
Backlogs = dict[str, int]


def opening(selection: ReportRows) -> Backlogs:
    """Return the backlogs at the start of the first day: the sums of the changes before it."""
    earlier = selection._replace(first=date.min, last=selection.first)
    where = f"day < DATE '{selection.first}'"
    return {row["queue"]: _change(row) for row in earlier.sums(QUEUE_DAY, _WAITING, "queue", where)}


def timeline(selection: ReportRows, before: Backlogs) -> Timeline:
    """Build the timeline of the range from the backlogs before it."""
    steps = axis_of(selection, QUEUE_MINUTE, "minute")
    by = f"queue, {steps.step_of('minute')}"
    query = ", ".join(f"sum({name}) AS {name}" for name in (*COUNTS, *_WAITING))
    rows = selection.rows(
        QUEUE_MINUTE,
        f"SELECT queue, {steps.step_of('minute')} AS step, {query} FROM selected GROUP BY {by}",
    )
    by_queue = _running(rows, steps, before)
    backlog = [sum(line[step] for line in by_queue.values()) for step in range(steps.count)]
    lines = [Line(queue=queue, backlog=by_queue[queue]) for queue in _largest(by_queue)]
    others = [
        total - sum(line.backlog[index] for line in lines) for index, total in enumerate(backlog)
    ]
    counts = {name: [0] * steps.count for name in COUNTS}
    for row in rows:
        for name, line in counts.items():
            line[row["step"]] += row[name]
    return Timeline(
        step=steps.width, at=steps.at, **counts, backlog=backlog, queues=lines, others=others
    )


def backlogs(selection: ReportRows, before: Backlogs) -> Backlogs:
    """Return the backlog of every queue at the end of the range."""
    found = Counter(before)
    for row in selection.sums(QUEUE_MINUTE, _WAITING, "queue"):
        found[row["queue"]] += _change(row)
    return dict(found)


def peak(selection: ReportRows) -> tuple[datetime | None, int]:
    """Return the first minute with the highest number of completed jobs, and that number."""
    query = """SELECT minute, sum(completed) AS completed FROM selected GROUP BY minute
        HAVING sum(completed) > 0 ORDER BY completed DESC, minute LIMIT 1"""
    for row in selection.rows(QUEUE_MINUTE, query):
        return row["minute"], row["completed"]
    return None, 0


def _change(row: dict[str, Any]) -> int:
    return sum(row[name] for name in _WAITING)


def _running(rows: Iterable[dict[str, Any]], steps: Axis, before: Backlogs) -> dict[str, list[int]]:
    """Return the backlog of each queue at the end of each step."""
    changes: dict[str, Counter[int]] = defaultdict(Counter, {queue: Counter() for queue in before})
    for row in rows:
        changes[row["queue"]][row["step"]] += _change(row)
    found = {}
    for queue, by_step in changes.items():
        depths = accumulate((by_step[n] for n in range(steps.count)), initial=before.get(queue, 0))
        found[queue] = list(depths)[1:]
    return found


def _largest(by_queue: dict[str, list[int]]) -> list[str]:
    """Return the queues with the largest backlogs. Ties are sorted by name."""
    peaks = {queue: max(line, default=0) for queue, line in by_queue.items()}
    order = sorted(peaks, key=lambda queue: (-peaks[queue], queue))
    return [queue for queue in order[:LINES] if peaks[queue] > 0]
