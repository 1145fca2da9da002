"""Rows of several tables in one DataFrame, so that one query computes all of them.

Every query of Spark costs half a second of CPU, whatever its size. A small refresh therefore packs
the rows of all tables into the same columns: the first string of each table is in `string_0`, the
second one in `string_1`, and so on. The driver collects them as Arrow and writes the files.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .snapshot import schema
from .tables import DERIVED, Derived

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TABLE: Final = "packed_table"
#: Characters of a type that a name cannot have.
_NAME: Final = str.maketrans({"<": "_", ">": None})


class Slot(NamedTuple):
    """A column of the packed rows that has the values of a column of a table."""

    column: str
    type: str
    name: str


def slots(table: Derived) -> list[Slot]:
    """The columns of a table, each with its slot. The first free slot of the type is used."""
    used: Counter[str] = Counter()
    found = []
    for column, kind in table.all_types.items():
        slot = f"{kind.lower().translate(_NAME)}_{used[kind]}"
        used[kind] += 1
        found.append(Slot(column, kind, slot))
    return found


def pack(rows: "Mapping[str, DataFrame]") -> "DataFrame":
    """One DataFrame with the rows of these tables, in one partition."""
    types = {slot.name: slot.type for name in rows for slot in slots(DERIVED[name])}
    parts = []
    for name, frame in rows.items():
        own = {slot.name: slot for slot in slots(DERIVED[name])}
        columns = [
            f"CAST({own[slot].column} AS {kind}) AS {slot}"
            if slot in own
            else f"CAST(null AS {kind}) AS {slot}"
            for slot, kind in types.items()
        ]
        parts.append(frame.selectExpr(f"'{name}' AS {_TABLE}", *columns))
    return reduce(lambda one, other: one.unionAll(other), parts).coalesce(1)


def unpack(packed: pa.Table, table: Derived) -> pa.Table:
    """The rows of one table."""
    own = packed.filter(pc.equal(packed[_TABLE], table.name))
    found = [slot for slot in slots(table) if slot.name in packed.column_names]
    return own.select([slot.name for slot in found]).rename_columns([slot.column for slot in found])


def write(rows: pa.Table, table: Derived, folder: Path) -> None:
    """Write rows as Spark writes a table: one folder for each value of the partition column."""
    rows = rows.cast(schema(table))
    for value, some in _partitions(rows, table.partition):
        place = folder / f"{table.partition}={value}"
        place.mkdir(parents=True)
        pq.write_table(
            some,
            place / "part-0.parquet",
            compression="zstd",
            compression_level=1,
            store_schema=False,
        )


def _partitions(rows: pa.Table, column: str) -> Iterator[tuple[Any, pa.Table]]:
    for value in pc.unique(rows[column]).to_pylist():
        yield value, rows.filter(pc.equal(rows[column], value)).drop_columns([column])
