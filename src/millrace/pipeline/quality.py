"""Data quality rules. Every run checks them, and a broken rule can fail the run.

Batch rules check the record of a batch. Table rules compare the sums of a table with the events
that it was computed from, and detect duplicate keys. The rules read one or two columns with
Arrow and do not need Spark. The results are in ops/quality/b-BATCH.json. (rules.py has the rules
for single rows.)
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.journal import schema
from millrace.journal.landing import parsed

from . import commit, events
from .commit import DATA
from .lake import Lake
from .ledger import Batch, Ledger, Touched, touched
from .reasons import DUPLICATE
from .tables import (
    ATTEMPTS,
    DEPTH_DAY,
    FAILURE_GROUPS,
    JOBS,
    LATENCY_HIST,
    PROTOCOL_DAY,
    QUEUE_DAY,
    THROUGHPUT_MINUTE,
    WORKER_HOUR,
    Table,
)

Severity = Literal["error", "warn"]


class Check(msgspec.Struct, frozen=True):
    """The result of one rule."""

    rule: str
    severity: Severity
    #: One sentence for each violation; empty if the rule holds.
    found: list[str]

    @property
    def failed(self) -> bool:
        return bool(self.found) and self.severity == "error"


class Quality(msgspec.Struct, frozen=True):
    """The results of all checks after a batch."""

    batch: int
    checks: list[Check]
    #: The first batch that the same run checked.
    first: int = 0


class BatchRule(NamedTuple):
    name: str
    severity: Severity
    find: Callable[[Batch, Ledger], Iterator[str]]


class Sum(NamedTuple):
    """For each day, the sum of a table's column must equal a number of events."""

    table: Table
    #: The column to sum. If empty, the rule counts rows.
    column: str
    types: tuple[str, ...]
    #: The events' column that determines the table's day.
    day: str = "time"
    #: Restricts the rows: a column, and the value that it must have.
    where: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return f"{self.table.name}.{self.column or 'rows'} is the number of {_listed(self.types)}"


#: Maximum number of sentences in the result of a rule.
_MOST: Final = 20
_WORKED: Final = ("completed", "advanced")
_OF_JOBS: Final = tuple(each for each in schema.TYPES if each != schema.FLUSHED)

SUMS: Final = (
    Sum(QUEUE_DAY, "pushed", ("pushed",)),
    Sum(QUEUE_DAY, "wait_n", ("leased",)),
    Sum(QUEUE_DAY, "run_n", _WORKED),
    Sum(QUEUE_DAY, "retries", ("expired",)),
    Sum(LATENCY_HIST, "n", ("leased",), where=("metric", "wait")),
    Sum(LATENCY_HIST, "n", _WORKED, where=("metric", "run")),
    Sum(THROUGHPUT_MINUTE, "pushed", ("pushed",)),
    Sum(THROUGHPUT_MINUTE, "started", ("leased",)),
    Sum(THROUGHPUT_MINUTE, "completed", _WORKED),
    Sum(PROTOCOL_DAY, "events", _OF_JOBS),
    Sum(ATTEMPTS, "", ("leased",), day="leased_at"),
    Sum(JOBS, "whole", ("pushed",), day="created"),
)
#: For each table, the field of Touched that lists the days to recompute.
_KEYS: Final = (
    (QUEUE_DAY, "events"),
    (LATENCY_HIST, "events"),
    (DEPTH_DAY, "events"),
    (THROUGHPUT_MINUTE, "events"),
    (FAILURE_GROUPS, "events"),
    (PROTOCOL_DAY, "events"),
    (WORKER_HOUR, "events"),
    (ATTEMPTS, "leases"),
    (JOBS, "pushes"),
)


def check(lake: Lake) -> list[Check]:
    """Check every unchecked batch and the tables of the days that these batches touched, and
    write the results to files.
    """
    ledger = Ledger(lake)
    batches = [each for each in ledger.batches() if not _path(lake, each.batch).exists()]
    found = {batch.batch: check_batch(batch, ledger) for batch in batches}
    if batches:
        found[batches[-1].batch] += check_tables(lake, touched(batches))
    # Write the last batch first: its file has the results for the tables of all batches.
    for number, checks in reversed(found.items()):
        commit.write_json(_path(lake, number), Quality(number, checks, batches[0].batch))
    return [check for checks in found.values() for check in checks]


def is_checked(lake: Lake, ledger: Ledger) -> bool:
    """Return whether the last batch has been checked."""
    return not ledger.last or _path(lake, ledger.last).exists()


def last_run(lake: Lake) -> tuple[Path, list[Check]] | None:
    """Return the checks of the last run and its last result file; None if there was no run."""
    paths = sorted((lake.ops / "quality").glob("b-*.json"))
    if not paths:
        return None
    last = msgspec.json.decode(paths[-1].read_bytes(), type=Quality)
    same_run = [path for path in paths if path >= _path(lake, last.first or last.batch)]
    found = [msgspec.json.decode(path.read_bytes(), type=Quality) for path in same_run]
    return paths[-1], [check for each in found for check in each.checks]


def check_batch(batch: Batch, ledger: Ledger) -> list[Check]:
    return [Check(rule.name, rule.severity, list(rule.find(batch, ledger))) for rule in BATCH_RULES]


def check_tables(lake: Lake, days: Touched) -> list[Check]:
    counts = {
        "time": _counted(lake, days.events, "time"),
        "leased_at": _counted(lake, days.leases, "leased_at"),
        "created": _counted(lake, days.pushes, "created"),
    }
    checks = [Check(rule.name, "error", _unequal(lake, rule, counts[rule.day])) for rule in SUMS]
    for table, which in _KEYS:
        found = list(_twice(lake, table, getattr(days, which)))
        checks.append(Check(f"{table.name} has every key once", "error", found))
    return checks


def _path(lake: Lake, batch: int) -> Path:
    return lake.ops / "quality" / f"b-{batch:08}.json"


# Batch rules


def _refused(batch: Batch, _: Ledger) -> Iterator[str]:
    for each in batch.refused:
        yield f"landing/{each.file} was not taken: {each.reason}."


def _no_events(batch: Batch, _: Ledger) -> Iterator[str]:
    for reason, count in batch.reasons.items():
        if reason != DUPLICATE:
            yield (
                f"{count} {'rows are no events' if count > 1 else 'row is no event'}: {reason}. "
                f"See tables/quarantine/b-{batch.batch:08}.parquet."
            )


def _doubled(batch: Batch, _: Ledger) -> Iterator[str]:
    if count := batch.reasons.get(DUPLICATE, 0):
        yield f"{count} events came again, and were left out."


def _holes(batch: Batch, ledger: Ledger) -> Iterator[str]:
    """Find gaps between the files of this batch and the files of all batches up to it."""
    names = {name for each in ledger.batches() if each.batch <= batch.batch for name in each.files}
    files = sorted(found for name in names if (found := parsed(name)) is not None)
    mine = set(batch.files)
    reach: dict[str, int] = {}
    for each in files:
        last = reach.get(each.server)
        if last is not None and each.first > last + 1 and each.name in mine:
            hole = f"{last + 1} to {each.first - 1}"
            yield f"The lake has no events {hole} of the server {each.server}."
        reach[each.server] = max(each.last, last or 0)


BATCH_RULES: Final = (
    BatchRule("every landing file can be read", "error", _refused),
    BatchRule("every row is an event", "error", _no_events),
    BatchRule("no event comes twice", "warn", _doubled),
    BatchRule("no events are missing between files", "warn", _holes),
)


# Table rules


def _listed(types: tuple[str, ...]) -> str:
    return "all events of jobs" if types == _OF_JOBS else " and ".join(types) + " events"


def _counted(lake: Lake, days: list[date], column: str) -> dict[date, dict[str, int]]:
    """Count events by the day of `column` and by type. For `leased_at` and `created`, only the
    types that a rule uses are counted.
    """
    counts: dict[date, dict[str, int]] = {day: {} for day in days}
    ledger = Ledger(lake)
    held = {"leased_at": "leases", "created": "pushes"}.get(column)
    types = {each for rule in SUMS if rule.day == column for each in rule.types}
    where = days if held is None else ledger.event_days(**{held: days})
    found = events.files(lake, where, ledger=ledger)
    for path in (*found.hot, *found.cold):
        of_folder = date.fromisoformat(path.parent.name.removeprefix("day="))
        for kind, day, n in _days_of(path, column, types) if held else _types_of(path):
            counted = counts.get(day or of_folder)
            if counted is not None:
                counted[kind] = counted.get(kind, 0) + n
    return counts


def _types_of(path: Path) -> Iterator[tuple[str, None, int]]:
    """Count the events of each type in a file. All events of a file have the same day."""
    for rows in _batches(path, ["type"]):
        for each in pc.value_counts(rows.column("type")).to_pylist():
            yield each["values"], None, each["counts"]


def _days_of(path: Path, column: str, types: Iterable[str]) -> Iterator[tuple[str, date, int]]:
    """Count the events of the given types by the day in `column`."""
    for rows in _batches(path, ["type", column]):
        kinds = rows.column("type")
        for kind in types:
            place = kinds.dictionary.index(kind)
            days = rows.column(column).filter(pc.equal(kinds.indices, place)).drop_null()
            for each in pc.value_counts(days.cast(pa.date32(), safe=False)).to_pylist():
                yield kind, each["values"], each["counts"]


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, read_dictionary=["type"]) as file:
        yield from file.iter_batches(1 << 20, columns=columns)


def _unequal(lake: Lake, rule: Sum, counts: dict[date, dict[str, int]]) -> list[str]:
    found = []
    for day, by_type in sorted(counts.items()):
        expected = sum(by_type.get(each, 0) for each in rule.types)
        actual = _summed(lake.day(rule.table.name, day) / DATA, rule)
        if actual != expected:
            found.append(
                f"{rule.table.name} says {actual} for {day}, where there are {expected} "
                f"{_listed(rule.types)}. `millrace pipeline refresh --days {day}` makes it anew."
            )
    return found[:_MOST]


def _summed(path: Path, rule: Sum) -> int:
    if not path.exists():
        return 0
    columns = [rule.column] if rule.column else []
    columns += [rule.where[0]] if rule.where else []
    with pq.ParquetFile(path) as file:
        if not columns:
            return int(file.metadata.num_rows)
        rows = file.read(columns)
    if rule.where:
        rows = rows.filter(pc.equal(rows.column(rule.where[0]), rule.where[1]))
    return int(pc.sum(rows.column(rule.column)).as_py() or 0)


def _twice(lake: Lake, table: Table, days: Iterable[date]) -> Iterator[str]:
    for day in days:
        path = lake.day(table.name, day) / DATA
        if not path.exists():
            continue
        with pq.ParquetFile(path) as file:
            keys = file.read(list(table.key))
        different = keys.group_by(list(table.key)).aggregate([]).num_rows
        if different != keys.num_rows:
            yield f"{table.name} has {keys.num_rows - different} rows too many for {day}."
