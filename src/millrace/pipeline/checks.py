"""Checks of the tables after each run: the sums of a table against the events, and the keys.

The checks read the log and the rows of the days that the run has changed. They use DataFusion,
which is part of `deltalake`, and do not need Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from millrace.journal.location import EVENTS
from millrace.journal.table_files import File

from . import tables as d
from .delta import files, query

if TYPE_CHECKING:
    from deltalake import DeltaTable

Severity = Literal["error", "warn"]
#: Maximum number of findings of a check.
MAX_FINDINGS: Final = 20
_MERGED: Final = tuple(table for table in d.DERIVED.values() if table.kind == "merge")


class Check(msgspec.Struct, frozen=True):
    """The result of one rule."""

    rule: str
    severity: Severity
    #: One sentence for each violation; empty if the rule holds.
    found: list[str]

    @property
    def failed(self) -> bool:
        return bool(self.found) and self.severity == "error"


def check(
    root: Path,
    events: "DeltaTable",
    tables: "Mapping[str, DeltaTable]",
    days: Mapping[str, Iterable[str]],
) -> list[Check]:
    """Check the events of every server, and the given days of each table."""
    shipped = files(events, root, EVENTS)
    touched = sorted({*days.get(d.KIND_HOUR.name, ()), *days.get(d.QUEUE_MINUTE.name, ())})
    checks = [Check("every event exists once", "warn", _gaps(shipped))]
    if touched:
        checks.append(_events(shipped, events, tables, touched))
        checks += [_equal(tables, touched, *rule) for rule in _SUMS]
    for table in _MERGED:
        if chosen := sorted(days.get(table.name, ())):
            checks.append(_keys(table, tables[table.name], chosen))
    return checks


def _gaps(shipped: Sequence[File]) -> list[str]:
    """Compare the number of events of each server with its first and last event number."""
    found = []
    for server in sorted({file.server or "" for file in shipped}):
        own = [file for file in shipped if file.server == server]
        first, last = min(file.first_event for file in own), max(file.last_event for file in own)
        rows, expected = sum(file.rows for file in own), last - first + 1
        if rows != expected:
            found.append(
                f"Server {server} has {rows:,} events numbered from {first:,} to {last:,}, "
                f"expected {expected:,}."
            )
    return found


def _events(
    shipped: Sequence[File],
    events: "DeltaTable",
    tables: "Mapping[str, DeltaTable]",
    days: Sequence[str],
) -> Check:
    wanted = dict.fromkeys(days, 0)
    for file in shipped:
        if file.day is not None and file.day.isoformat() in wanted:
            wanted[file.day.isoformat()] += file.rows
    for day, n in _counts(events, "count(*)", days, "type = 'flushed'").items():
        wanted[day] -= n
    made = _counts(tables[d.KIND_HOUR.name], "sum(events)", days)
    return _compared("kind_hour.events is the number of events of jobs", wanted, made)


#: Columns of two tables with the same sums, and the condition on the rows of the second table.
_SUMS: Final = (
    ("queue_minute.started", "latency_day.n", "metric = 'wait'"),
    ("queue_minute.completed", "latency_day.n", "metric = 'run'"),
    ("kind_hour.pushed", "queue_minute.pushed", ""),
    ("queue_minute.failures", "queue_day.failures", ""),
    ("latency_hour.n", "latency_day.n", ""),
)


def _equal(
    tables: "Mapping[str, DeltaTable]", days: Sequence[str], one: str, other: str, where: str
) -> Check:
    def sums(column: str, where: str = "") -> dict[str, int]:
        table, _, name = column.partition(".")
        return _counts(tables[table], f"sum({name})", days, where)

    return _compared(f"{other} is {one}", sums(one), sums(other, where))


def _compared(rule: str, wanted: Mapping[str, int], made: Mapping[str, int]) -> Check:
    found = [
        f"{rule}: {made.get(day, 0):,} on {day}, expected {wanted.get(day, 0):,}."
        for day in sorted({*wanted, *made})
        if made.get(day, 0) != wanted.get(day, 0)
    ]
    return Check(rule, "error", found[:MAX_FINDINGS])


def _keys(table: d.Derived, target: "DeltaTable", days: Sequence[str]) -> Check:
    keys = ", ".join(table.key)
    rows = query(
        target,
        "t",
        f"SELECT count(*) AS twice FROM (SELECT {keys}, day FROM t WHERE {_of(days)} "
        f"GROUP BY {keys}, day HAVING count(*) > 1)",
    )
    twice = rows[0]["twice"]
    found = [f"{table.name} has {twice:,} keys more than once."] if twice else []
    return Check(f"{table.name} has every key once", "error", found)


def _counts(
    table: "DeltaTable", aggregate: str, days: Sequence[str], where: str = ""
) -> dict[str, int]:
    condition = f"{_of(days)} AND {where}" if where else _of(days)
    rows = query(table, "t", f"SELECT day, {aggregate} AS n FROM t WHERE {condition} GROUP BY day")
    return {row["day"].isoformat(): int(row["n"]) for row in rows if row["n"]}


def _of(days: Sequence[str]) -> str:
    listed = ", ".join(f"DATE '{day}'" for day in days)
    return f"day IN ({listed})"
