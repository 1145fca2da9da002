"""Failures, grouped by the fingerprint of the error."""

from collections.abc import Iterable
from datetime import date
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipeline.snapshot import Snapshot
from millrace.pipeline.tables import FAILURE_GROUPS

from .model import Failures, Group, Seen

GROUPS: Final = 25
#: Maximum number of queues and kinds listed per group.
_NAMED: Final = 5
_COLUMNS: Final = [
    "fingerprint", "queue", "kind", "error_group", "n", "jobs", "died", "first_seen", "last_seen",
    "sample_jid", "sample_message", "day",
]  # fmt: skip
_MAX_ROWS: Final = 2_000_000
_SUMS: Final = [("n", "sum"), ("jobs", "sum"), ("died", "sum")]


def failures(snapshot: Snapshot, first: date, last: date, queue: str | None) -> Failures:
    """Return the most frequent groups first."""
    rows = snapshot.read(
        FAILURE_GROUPS,
        first,
        last,
        columns=_COLUMNS,
        where=None if queue is None else pc.field("queue") == queue,
        limit=_MAX_ROWS,
    )
    totals = rows.group_by("fingerprint").aggregate(_SUMS)
    totals = totals.sort_by([("n_sum", "descending"), ("fingerprint", "ascending")])
    shown = totals.slice(0, GROUPS).to_pylist()
    names = [each["fingerprint"] for each in shown]
    of_shown = rows.filter(pc.is_in(rows["fingerprint"], pa.array(names, pa.string())))
    detailed = sorted(of_shown.to_pylist(), key=itemgetter("fingerprint", "first_seen"))
    details = {name: list(of) for name, of in groupby(detailed, key=itemgetter("fingerprint"))}
    left_out = totals.slice(GROUPS)
    return Failures(
        rows=[_group(total, details[name]) for name, total in zip(names, shown, strict=True)],
        more=left_out.num_rows,
        more_n=pc.sum(left_out["n_sum"]).as_py() or 0,
    )


def _group(total: dict[str, Any], rows: list[dict[str, Any]]) -> Group:
    """Build a group from all its rows, which are ordered by `first_seen`."""
    first = rows[0]
    return Group(
        fingerprint=first["fingerprint"],
        error_group=first["error_group"],
        queues=_named(rows, "queue"),
        kinds=_named(rows, "kind"),
        n=total["n_sum"],
        jobs=total["jobs_sum"],
        died=total["died_sum"],
        first=first["first_seen"],
        last=max(row["last_seen"] for row in rows),
        sample_jid=first["sample_jid"],
        sample_message=first["sample_message"] or "",
        days=[
            Seen(
                day=day,
                n=sum(row["n"] for row in of),
                first=min(row["first_seen"] for row in of),
                last=max(row["last_seen"] for row in of),
            )
            for day, of in _by_day(rows)
        ],
    )


def _by_day(rows: Iterable[dict[str, Any]]) -> list[tuple[date, list[dict[str, Any]]]]:
    ordered = sorted(rows, key=itemgetter("day"))
    return [(day, list(of)) for day, of in groupby(ordered, key=itemgetter("day"))]


def _named(rows: Iterable[dict[str, Any]], column: str) -> list[str]:
    """Return the names with the most failures."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row[column]] = counts.get(row[column], 0) + row["n"]
    return sorted(counts, key=lambda name: (-counts[name], name))[:_NAMED]
