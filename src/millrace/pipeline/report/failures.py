"""Failures, grouped by the fingerprint of the error."""

from collections import Counter
from collections.abc import Iterable
from datetime import date
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from millrace.pipeline.tables import FAILURE_GROUPS

from .model import Failures, Group, Seen
from .rows import ReportRows, among

GROUPS: Final = 25
#: Maximum number of queues and kinds listed per group.
_NAMED: Final = 5
_SUMS: Final = ("n", "jobs", "died")


def failures(selection: ReportRows) -> Failures:
    """Return the most frequent groups first."""
    totals = selection.sums(FAILURE_GROUPS, _SUMS, "fingerprint")
    totals.sort(key=lambda row: (-row["n"], row["fingerprint"]))
    shown, left_out = totals[:GROUPS], totals[GROUPS:]
    of_shown = among("fingerprint", (row["fingerprint"] for row in shown))
    rows = selection.rows(
        FAILURE_GROUPS,
        f"SELECT * FROM selected WHERE {of_shown} ORDER BY fingerprint, first_seen",
    )
    details = {name: list(own) for name, own in groupby(rows, key=itemgetter("fingerprint"))}
    return Failures(
        rows=[_group(total, details[total["fingerprint"]]) for total in shown],
        more=len(left_out),
        more_n=sum(row["n"] for row in left_out),
    )


def _group(total: dict[str, Any], rows: list[dict[str, Any]]) -> Group:
    """Build a group from all its rows, which are ordered by `first_seen`."""
    first = rows[0]
    return Group(
        fingerprint=first["fingerprint"],
        error_group=first["error_group"],
        queues=_named(rows, "queue"),
        kinds=_named(rows, "kind"),
        n=total["n"],
        jobs=total["jobs"],
        died=total["died"],
        first=first["first_seen"],
        last=max(row["last_seen"] for row in rows),
        sample_jid=first["sample_jid"],
        sample_message=first["sample_message"] or "",
        days=[
            Seen(
                day=day,
                n=sum(row["n"] for row in of_day),
                first=min(row["first_seen"] for row in of_day),
                last=max(row["last_seen"] for row in of_day),
            )
            for day, of_day in _by_day(rows)
        ],
    )


def _by_day(rows: Iterable[dict[str, Any]]) -> list[tuple[date, list[dict[str, Any]]]]:
    ordered = sorted(rows, key=itemgetter("day"))
    return [(day, list(of_day)) for day, of_day in groupby(ordered, key=itemgetter("day"))]


def _named(rows: Iterable[dict[str, Any]], column: str) -> list[str]:
    """Return the names with the most failures."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row[column]] += row["n"]
    return sorted(counts, key=lambda name: (-counts[name], name))[:_NAMED]
