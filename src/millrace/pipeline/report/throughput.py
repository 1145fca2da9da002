"""What was pushed, started and ended over time, and how many jobs waited meanwhile."""

from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline import reading
from millrace.pipeline.lake import Lake
from millrace.pipeline.tables import DEPTH_DAY, THROUGHPUT_MINUTE

from .model import Line, Timeline
from .steps import Axis, axis

COUNTS: Final = ("pushed", "started", "completed", "failures", "died")
#: Queues that have a line of their own.
LINES: Final = 7
_WAITING: Final = ("ready", "scheduled", "blocked")
_COLUMNS: Final = ["server", "queue", "minute", *COUNTS, "backlog"]
#: Minutes of all queues that are held at once: some 100 bytes each.
_MOST: Final = 20_000_000

Opening = dict[tuple[str, str], int]


def minutes(lake: Lake, first: date, last: date, queue: str | None) -> pa.Table:
    return reading.read(
        lake,
        THROUGHPUT_MINUTE,
        first,
        last,
        columns=_COLUMNS,
        where=None if queue is None else pc.field("queue") == queue,
        most=_MOST,
    )


def opening(lake: Lake, first: date, queue: str | None) -> Opening:
    """The backlog of each server's queues when the first day began. What was before a server's
    last FLUSH is no more.
    """
    before = [day for day in reading.days(lake, DEPTH_DAY) if day < first]
    if not before:
        return {}
    columns = ["server", "queue", "epoch", *_WAITING]
    rows = reading.read(lake, DEPTH_DAY, None, before[-1], columns=columns)
    added = rows.group_by(["server", "queue", "epoch"]).aggregate([(c, "sum") for c in _WAITING])
    found: Opening = {}
    epochs: dict[str, int] = {}
    for row in added.to_pylist():
        epochs[row["server"]] = max(row["epoch"], epochs.get(row["server"], 0))
    for row in added.to_pylist():
        wanted = queue is None or row["queue"] == queue
        if wanted and row["epoch"] == epochs[row["server"]]:
            found[row["server"], row["queue"]] = sum(row[f"{name}_sum"] for name in _WAITING)
    return found


def timeline(rows: pa.Table, before: Opening) -> Timeline:
    """Of the minutes of the range, and what there was before."""
    steps = axis(rows["minute"])
    rows = rows.append_column("step", steps.index(rows["minute"]))
    counts = _counts(rows, steps)
    rows = _changes(rows, before)
    backlog = _running(rows, steps, sum(before.values()))
    lines = [
        Line(
            queue=queue,
            backlog=_running(
                rows.filter(pc.field("queue") == queue),
                steps,
                sum(depth for (_, name), depth in before.items() if name == queue),
            ),
        )
        for queue in _largest(rows, before)
    ]
    others = [
        whole - sum(line.backlog[index] for line in lines) for index, whole in enumerate(backlog)
    ]
    return Timeline(
        step=steps.width, at=steps.at, **counts, backlog=backlog, queues=lines, others=others
    )


def backlogs(rows: pa.Table, before: Opening) -> dict[str, int]:
    """Of every queue, at the end of the range."""
    found: dict[str, int] = {}
    for (_, queue), depth in before.items():
        found[queue] = found.get(queue, 0) + depth
    added = _changes(rows, before).group_by("queue").aggregate([("change", "sum")])
    for queue, change in zip(*_lists(added, "queue", "change_sum"), strict=True):
        found[queue] = found.get(queue, 0) + change
    return found


def peak(rows: pa.Table) -> tuple[Any, int]:
    """The minute in which the most jobs were completed, the first of them, and how many."""
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


def _changes(rows: pa.Table, before: Opening) -> pa.Table:
    """With a column `change`: by how much a queue's backlog differs from its minute before."""
    rows = rows.sort_by([(name, "ascending") for name in ("server", "queue", "minute")])
    rows = rows.combine_chunks()
    if not rows.num_rows:
        return rows.append_column("change", pa.array([], pa.int64()))
    earlier = pa.array([None, *[]], pa.int64())
    earlier = pa.concat_arrays([earlier, _array(rows["backlog"]).slice(0, rows.num_rows - 1)])
    new = _is_new(rows)
    firsts = rows.filter(new)
    opened = iter([
        before.get(key, 0) for key in zip(*_lists(firsts, "server", "queue"), strict=True)
    ])
    start = pc.replace_with_mask(earlier, new, pa.array(opened, pa.int64()))
    return rows.append_column("change", pc.subtract(rows["backlog"], start))


def _is_new(rows: pa.Table) -> pa.Array:
    """Where a row is of another queue than the one above it."""
    above = rows.num_rows - 1
    differs = [
        pc.not_equal(_array(rows[name]).slice(1), _array(rows[name]).slice(0, above))
        for name in ("server", "queue")
    ]
    return pa.concat_arrays([pa.array([True]), pc.or_(*differs)])


def _running(rows: pa.Table, steps: Axis, start: int) -> list[int]:
    added = rows.group_by("step").aggregate([("change", "sum")])
    changes = dict(zip(*_lists(added, "step", "change_sum"), strict=True))
    line = []
    for step in range(steps.count):
        start += changes.get(step, 0)
        line.append(start)
    return line


def _largest(rows: pa.Table, before: Opening) -> list[str]:
    """The queues with the largest backlogs at any time, by name where they are the same."""
    highest = rows.group_by("queue").aggregate([("backlog", "max")])
    peaks = dict(zip(*_lists(highest, "queue", "backlog_max"), strict=True))
    for (_, queue), depth in before.items():
        peaks[queue] = max(peaks.get(queue, 0), depth)
    order = sorted(peaks, key=lambda queue: (-peaks[queue], queue))
    return [queue for queue in order[:LINES] if peaks[queue]]


def _lists(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def _array(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
