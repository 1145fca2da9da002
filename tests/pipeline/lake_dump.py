"""Everything that a lake's tables say, to be compared with another lake."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.pipeline.lake import Lake
from millrace.pipeline.reading import files
from millrace.pipeline.tables import EVENTS, QUARANTINE, TABLES, Table

Rows = dict[str, list[tuple[Any, ...]]]
#: Sums of floats may be added up in another order.
CLOSE = 1e-12


def dump(lake: Lake) -> Rows:
    """The rows of every table, by key. Of quarantined ones only which they are and why: they tell
    their batch and file, which differ.
    """
    told = {}
    for name, table in TABLES.items():
        if name != QUARANTINE.name:
            days = bool(table.day) and name != EVENTS.name
            found = [(path, path.parent.name if days else "") for path in files(lake, name)]
            told[name] = _sorted(found, table)
    return told


def _sorted(files: list[tuple[Path, str]], table: Table) -> list[tuple[Any, ...]]:
    places = [table.columns.index(name) for name in table.key]
    rows = [
        (day, *(_plain(row[name]) for name in table.columns))
        for path, day in files
        for row in _read(path).to_pylist()
    ]
    return sorted(rows, key=lambda row: (row[0], *(str(row[place + 1]) for place in places)))


def _read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def differences(one: Rows, other: Rows) -> list[str]:
    """Where two lakes differ, in words; nothing if they say the same."""
    assert one.keys() == other.keys()
    found = []
    for name in one:
        if len(one[name]) != len(other[name]):
            found.append(f"{name}: {len(one[name])} rows, and {len(other[name])}")
            continue
        pairs = zip(one[name], other[name], strict=True)
        found += [f"{name}: {a} and {b}" for a, b in pairs if not _equal(a, b)][:3]
    return found


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isclose(a, b, rel_tol=CLOSE)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
