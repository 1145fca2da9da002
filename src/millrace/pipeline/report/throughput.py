"""Jobs pushed, started and ended over time, and the backlog."""

from collections import defaultdict
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import QUEUE_DAY, QUEUE_MINUTE

from .model import Line, Timeline
from .time_axis import Axis, axis

COUNTS: Final = ("pushed", "started", "completed", "failures", "died")
#: Maximum number of queues with a separate line.
LINES: Final = 7
_WAITING: Final = ("ready", "scheduled", "blocked")
#: Maximum number of rows (one per minute and queue) in memory, about 100 bytes each.
_MAX_ROWS: Final = 20_000_000

#: Backlogs by queue.
Backlogs = dict[str, int]


def opening(snapshot: Snapshot, first: date, queue: str | None) -> Backlogs:
    """Return the backlogs at the start of the first day: the sums of the changes before it."""
    rows = _read(snapshot, QUEUE_DAY, None, first, queue, ["queue", *_WAITING, "day"])
    return _changes(rows.filter(pc.field("day") < first))


def minutes(snapshot: Snapshot, first: date, last: date, queue: str | None) -> pa.Table:
    """Return the counts of each minute. The column `change` is the change of the backlog."""
    columns = ["queue", "minute", *COUNTS, *_WAITING]
    rows = _read(snapshot, QUEUE_MINUTE, first, last, queue, columns)
    return rows.append_column("change", _change(rows))


def _read(
    snapshot: Snapshot,
    table: Any,
    first: date | None,
    last: date,
    queue: str | None,
    columns: list[str],
) -> pa.Table:
    return snapshot.read(
        table,
        first,
        last,
        columns=columns,
        where=None if queue is None else pc.field("queue") == queue,
        limit=_MAX_ROWS,
    )


def _change(rows: pa.Table) -> pa.ChunkedArray:
    return pc.add(pc.add(rows["ready"], rows["scheduled"]), rows["blocked"])


def _changes(rows: pa.Table) -> Backlogs:
    if "change" not in rows.column_names:
        rows = rows.append_column("change", _change(rows))
    added = rows.group_by("queue").aggregate([("change", "sum")])
    return dict(zip(*_lists(added, "queue", "change_sum"), strict=True))


def timeline(rows: pa.Table, before: Backlogs) -> Timeline:
    """Build the timeline from the minutes of the range and the backlogs before it."""
    steps = axis(rows["minute"])
    rows = rows.append_column("step", steps.step_of(rows["minute"]))
    by_queue = _running(rows, steps, before)
    backlog = [sum(line[step] for line in by_queue.values()) for step in range(steps.count)]
    lines = [Line(queue=queue, backlog=by_queue[queue]) for queue in _largest(by_queue)]
    others = [
        total - sum(line.backlog[index] for line in lines) for index, total in enumerate(backlog)
    ]
    return Timeline(
        step=steps.width,
        at=steps.at,
        **_counts(rows, steps),
        backlog=backlog,
        queues=lines,
        others=others,
    )


def backlogs(rows: pa.Table, before: Backlogs) -> Backlogs:
    """Return the backlog of every queue at the end of the range."""
    found = defaultdict(int, before)
    for queue, change in _changes(rows).items():
        found[queue] += change
    return dict(found)


def peak(rows: pa.Table) -> tuple[datetime | None, int]:
    """Return the first minute with the highest number of completed jobs, and that number."""
    added = rows.group_by("minute").aggregate([("completed", "sum")])
    best = added.sort_by([("completed_sum", "descending"), ("minute", "ascending")]).slice(0, 1)
    if not best.num_rows or not best["completed_sum"][0].as_py():
        return None, 0
    return best["minute"][0].as_py(), best["completed_sum"][0].as_py()


def _counts(rows: pa.Table, steps: Axis) -> dict[str, list[int]]:
    added = rows.group_by("step").aggregate([(name, "sum") for name in COUNTS])
    found = {}
    for name in COUNTS:
        line = [0] * steps.count
        for step, count in zip(*_lists(added, "step", f"{name}_sum"), strict=True):
            line[step] = count
        found[name] = line
    return found


def _running(rows: pa.Table, steps: Axis, before: Backlogs) -> dict[str, list[int]]:
    """Return the backlog of each queue at the end of each step."""
    added = rows.group_by(["queue", "step"]).aggregate([("change", "sum")])
    changes: dict[str, dict[int, int]] = {queue: {} for queue in before}
    for queue, step, change in zip(*_lists(added, "queue", "step", "change_sum"), strict=True):
        changes.setdefault(queue, {})[step] = change
    found = {}
    for queue, of in changes.items():
        depth, line = before.get(queue, 0), []
        for step in range(steps.count):
            depth += of.get(step, 0)
            line.append(depth)
        found[queue] = line
    return found


def _largest(by_queue: dict[str, list[int]]) -> list[str]:
    """Return the queues with the largest backlogs. Ties are sorted by name."""
    peaks = {queue: max(line, default=0) for queue, line in by_queue.items()}
    order = sorted(peaks, key=lambda queue: (-peaks[queue], queue))
    return [queue for queue in order[:LINES] if peaks[queue] > 0]


def _lists(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]
