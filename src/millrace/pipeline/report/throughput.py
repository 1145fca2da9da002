"""Jobs pushed, started and ended over time, and the backlog."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline import reading, refreshed
from millrace.pipeline.lake import Lake
from millrace.pipeline.tables import DEPTH_DAY, THROUGHPUT_MINUTE

from .model import Line, Timeline
from .steps import Axis, axis

COUNTS: Final = ("pushed", "started", "completed", "failures", "died")
#: Maximum number of queues with a separate line.
LINES: Final = 7
_WAITING: Final = ("ready", "scheduled", "blocked")
_COLUMNS: Final = ["server", "queue", "minute", *COUNTS, "backlog"]
#: Maximum number of rows (one per minute and queue) in memory, about 100 bytes each.
_MOST: Final = 20_000_000

#: Backlogs by server and queue.
Opening = dict[tuple[str, str], int]


class Flush(NamedTuple):
    """A FLUSH of a server."""

    server: str
    minute: datetime


def flushes(lake: Lake, last: date) -> list[Flush]:
    """Return the flushes recorded in the tables, up to the day `last`."""
    known = [
        Flush(each.server, each.time.replace(second=0, microsecond=0))
        for each in refreshed.mark(lake).flushes
    ]
    return [flush for flush in known if flush.minute.date() <= last]


def opening(lake: Lake, first: date, queue: str | None, emptied: Sequence[Flush]) -> Opening:
    """Return the backlogs at the start of the first day: the sums over the current epoch."""
    before = [day for day in reading.days(lake, DEPTH_DAY) if day < first]
    if not before:
        return {}
    rows = reading.read(
        lake,
        DEPTH_DAY,
        before[0],
        before[-1],
        columns=["server", "queue", "epoch", *_WAITING],
        where=None if queue is None else pc.field("queue") == queue,
    )
    rows = rows.group_by(["server", "queue", "epoch"]).aggregate([(c, "sum") for c in _WAITING])
    epochs = Counter(flush.server for flush in emptied if flush.minute.date() < first)
    return {
        (row["server"], row["queue"]): sum(row[f"{name}_sum"] for name in _WAITING)
        for row in rows.to_pylist()
        if row["epoch"] == epochs[row["server"]]
    }


def minutes(
    lake: Lake,
    first: date,
    last: date,
    queue: str | None,
    before: Opening,
    emptied: Sequence[Flush],
) -> pa.Table:
    """Return the rows of the table and, for each flush, a row with backlog 0 for every queue of the
    server. The column `change` is the difference from the previous backlog of the queue.
    """
    rows = reading.read(
        lake,
        THROUGHPUT_MINUTE,
        first,
        last,
        columns=_COLUMNS,
        where=None if queue is None else pc.field("queue") == queue,
        most=_MOST,
    )
    emptied = [flush for flush in emptied if first <= flush.minute.date()]
    return _changes(_emptied(rows, before, emptied) if emptied else rows, before)


def _emptied(rows: pa.Table, before: Opening, emptied: Sequence[Flush]) -> pa.Table:
    at = pa.array({flush.minute for flush in emptied}, rows.schema.field("minute").type)
    there = rows.filter(pc.is_in(rows["minute"], at))
    told = set(zip(*_lists(there, "server", "queue", "minute"), strict=True))
    distinct = rows.group_by(["server", "queue"]).aggregate([])
    queues = {*zip(*_lists(distinct, "server", "queue"), strict=True), *before}
    empty = [
        {"server": server, "queue": name, "minute": flush.minute, "backlog": 0}
        | dict.fromkeys(COUNTS, 0)
        for flush in set(emptied)
        for server, name in queues
        if server == flush.server and (server, name, flush.minute) not in told
    ]
    return pa.concat_tables([rows, pa.Table.from_pylist(empty, rows.schema)])


def timeline(rows: pa.Table, before: Opening) -> Timeline:
    """Build the timeline from the minutes of the range and the backlogs before it."""
    steps = axis(rows["minute"])
    rows = rows.append_column("step", steps.step_of(rows["minute"]))
    counts = _counts(rows, steps)
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
    """Return the backlog of every queue at the end of the range."""
    found: dict[str, int] = {}
    for (_, queue), depth in before.items():
        found[queue] = found.get(queue, 0) + depth
    added = rows.group_by("queue").aggregate([("change", "sum")])
    for queue, change in zip(*_lists(added, "queue", "change_sum"), strict=True):
        found[queue] = found.get(queue, 0) + change
    return found


def peak(rows: pa.Table) -> tuple[Any, int]:
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


def _changes(rows: pa.Table, before: Opening) -> pa.Table:
    if not rows.num_rows:
        return rows.append_column("change", pa.array([], pa.int64()))
    # Sort names by their dictionary indices: there are millions of rows and few distinct names.
    numbers = {n: _array(rows[n]).dictionary_encode().indices for n in ("server", "queue")}
    keys = pa.table(numbers | {"minute": rows["minute"]})
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    rows, keys = rows.take(order).combine_chunks(), keys.take(order).combine_chunks()
    above = _array(rows["backlog"]).slice(0, rows.num_rows - 1)
    earlier = pa.concat_arrays([pa.nulls(1, pa.int64()), above])
    new = _is_new(keys)
    firsts = zip(*_lists(rows.filter(new), "server", "queue"), strict=True)
    opened = pa.array([before.get(key, 0) for key in firsts], pa.int64())
    start = pc.replace_with_mask(earlier, new, opened)
    return rows.append_column("change", pc.subtract(rows["backlog"], start))


def _is_new(keys: pa.Table) -> pa.Array:
    """Return whether each row belongs to a different queue than the previous row."""
    above = keys.num_rows - 1
    differs = [
        pc.not_equal(_array(keys[name]).slice(1), _array(keys[name]).slice(0, above))
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
    """Return the queues with the largest peak backlogs. Ties are sorted by name."""
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
