"""Two lakes side by side: whether all their tables say the same."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace.pipeline.lake import Lake
from millrace.pipeline.reading import files
from millrace.pipeline.tables import TABLES

#: Sums of floats depend on their order, which nobody promises.
CLOSE = 1e-9
Row = tuple[Any, ...]


def tables(lake: Path) -> dict[str, list[Row]]:
    """The rows of every table with files, in an order that only depends on them."""
    return {name: rows(lake, name) for name in TABLES if files(Lake(lake), name)}


def rows(lake: Path, name: str) -> list[Row]:
    """The rows of a table; `day` is the last column."""
    found: list[Row] = []
    for path in files(Lake(lake), name):
        day = path.parent.name.removeprefix("day=") if "day=" in path.parent.name else ""
        columns = [column.to_pylist() for column in pq.ParquetFile(path).read().columns]
        found += [(*row, day) for row in zip(*columns, strict=True)]
    return sorted(found, key=lambda row: repr([_rough(value) for value in row]))


def records(lake: Path, table: str) -> list[dict[str, Any]]:
    """A table's rows by the names of their columns, without the day; none if there is no table."""
    shown = files(Lake(lake), table)
    return [row for path in shown for row in pq.ParquetFile(path).read().to_pylist()]


def differences(one: Path, other: Path) -> list[str]:
    """What differs, in words, a line for each table."""
    left, right = tables(one), tables(other)
    found = [f"{name} is only in one of them" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        if len(left[name]) != len(right[name]):
            found.append(f"{name}: {len(left[name])} rows and {len(right[name])}")
        elif wrong := list(_unequal(left[name], right[name])):
            found.append(f"{name}: {len(wrong)} rows differ, as {wrong[0]}")
    return found


def _unequal(left: list[Row], right: list[Row]) -> Iterator[tuple[Row, Row]]:
    for one, other in zip(left, right, strict=True):
        if not all(map(_equal, one, other)):
            yield one, other


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(one == other)


def _rough(value: Any) -> Any:
    """So that a last digit does not change the order of rows."""
    return f"{value:.6g}" if isinstance(value, float) else value
