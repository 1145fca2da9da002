"""Reads tables of the lake as Arrow tables, without Spark or Java.

Readers never see the unfinished output of a run. They read only files that were renamed to their
final names, which lake.py defines. A table that does not exist yet is empty.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from . import events
from .commit import DATA
from .errors import PipelineError
from .lake import Lake
from .ledger import Ledger
from .tables import EVENTS, QUARANTINE, TABLES, Table

if TYPE_CHECKING:
    from pyarrow.compute import Expression

_SIMPLE: Final = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}
_TOKEN: Final = re.compile(r"\w+|[<>:,]")
_ROWS_AT_ONCE: Final = 1 << 17


class Part(NamedTuple):
    """A file of a table, and its day."""

    path: Path
    day: date | None


class Extent(NamedTuple):
    """The size of a table."""

    rows: int
    bytes: int
    files: int
    days: int
    first: date | None
    last: date | None


class Unreadable(PipelineError):
    """A file of the lake is damaged."""


class TooMuch(PipelineError):
    """A table has more rows than its reader can hold."""


def schema(table: Table) -> pa.Schema:
    """Return the columns of a table. If the table is divided by day, `day` is the last column."""
    tokens = iter([*_TOKEN.findall(table.ddl), ","])
    fields, name = [], next(tokens, "")
    while name and name != ",":
        kind, _ = _kind(next(tokens), tokens)
        fields.append(pa.field(name, kind))
        name = next(tokens, "")
    if table.day:
        fields.append(pa.field("day", pa.date32()))
    return pa.schema(fields)


def _kind(word: str, tokens: Iterator[str]) -> tuple[pa.DataType, str]:
    """Parse the type that starts with the token `word`. Returns the type and the token after it."""
    if word in _SIMPLE:
        return _SIMPLE[word], next(tokens)
    next(tokens)  # the "<"
    if word == "ARRAY":
        inner, _ = _kind(next(tokens), tokens)
        return pa.list_(inner), next(tokens)
    fields, after = [], ","
    while after == ",":
        name = next(tokens)
        next(tokens)  # the ":"
        inner, after = _kind(next(tokens), tokens)
        fields.append(pa.field(name, inner))
    return pa.struct(fields), next(tokens)


def parts(
    lake: Lake, table: Table, first: date | None = None, last: date | None = None
) -> list[Part]:
    """Return the files of a table in order of day, optionally from `first` to `last`."""
    if table is EVENTS:
        found = _events(lake)
    elif table is QUARANTINE:
        found = [Part(path, None) for path in sorted(lake.table(table.name).glob("b-*.parquet"))]
    elif table.day:
        found = [Part(lake.day(table.name, day) / DATA, day) for day in lake.days(table.name)]
    else:
        found = [Part(lake.table(table.name) / DATA, None)]
    return [
        part
        for part in found
        if part.path.exists()
        and (first is None or part.day is None or part.day >= first)
        and (last is None or part.day is None or part.day <= last)
    ]


def files(lake: Lake, name: str) -> list[Path]:
    """Return the files of a table, given its name. Other readers use this list instead of a
    pattern, because a pattern would also match files that no longer belong to the table.
    """
    return [part.path for part in parts(lake, TABLES[name])]


def _events(lake: Lake) -> list[Part]:
    """Return, for each day, the compacted files and the files of later batches."""
    ledger = Ledger(lake)
    found = []
    for day in ledger.days():
        hot, cold = events.files(lake, [day], ledger=ledger)
        found += [Part(path, day) for path in (*cold, *hot)]
    return found


def days(lake: Lake, table: Table) -> list[date]:
    """Return the days of a table that have readable files."""
    return sorted({part.day for part in parts(lake, table) if part.day is not None})


def extent(lake: Lake, table: Table, first: date | None = None, last: date | None = None) -> Extent:
    """Return the size of a table. Reads only the footers of the files."""
    found = parts(lake, table, first, last)
    of = sorted({part.day for part in found if part.day is not None})
    return Extent(
        rows=sum(_opened(part).metadata.num_rows for part in found),
        bytes=sum(part.path.stat().st_size for part in found),
        files=len(found),
        days=len(of),
        first=of[0] if of else None,
        last=of[-1] if of else None,
    )


def read(
    lake: Lake,
    table: Table,
    first: date | None = None,
    last: date | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: "Expression | None" = None,
    most: int | None = None,
) -> pa.Table:
    """Read a table, or some of its `columns`, for the days from `first` to `last`. `where`
    filters the rows and may use only the selected columns. If there are more than `most` rows,
    TooMuch is raised before any row is read.
    """
    if most is not None and (there := extent(lake, table, first, last).rows) > most:
        raise TooMuch(
            f"{table.name} has {there:,} rows in these days, and at most {most:,} are read at "
            "once: ask for fewer days"
        )
    wanted = _wanted(table, columns)
    found = batches(lake, table, first, last, columns=columns, where=where)
    return pa.Table.from_batches(found, wanted)


def batches(
    lake: Lake,
    table: Table,
    first: date | None = None,
    last: date | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: "Expression | None" = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces, for tables that are larger than memory."""
    wanted = _wanted(table, columns)
    for part in parts(lake, table, first, last):
        yield from _pieces(part, wanted, where)


def _wanted(table: Table, columns: Sequence[str] | None) -> pa.Schema:
    whole = schema(table)
    return whole if columns is None else pa.schema([whole.field(name) for name in columns])


def _pieces(part: Part, wanted: pa.Schema, where: "Expression | None") -> Iterator[pa.RecordBatch]:
    file = _opened(part)
    in_file = set(file.schema_arrow.names)
    names = [name for name in wanted.names if name in in_file]
    try:
        for piece in file.iter_batches(_ROWS_AT_ONCE, columns=names):
            told = _conformed(piece, part, wanted, piece.num_rows)
            yield from (told if where is None else told.filter(where)).to_batches()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(part, error) from error


def _conformed(piece: pa.RecordBatch, part: Part, wanted: pa.Schema, rows: int) -> pa.Table:
    """Convert a piece to the given columns and types; columns that an older file lacks are null."""
    arrays: list[Any] = []
    for field in wanted:
        if field.name == "day":
            arrays.append(pa.repeat(pa.scalar(part.day, pa.date32()), rows))
        elif field.name in piece.schema.names:
            arrays.append(piece.column(field.name).cast(field.type))
        else:
            arrays.append(pa.nulls(rows, field.type))
    return pa.Table.from_arrays(arrays, schema=wanted)


def _opened(part: Part) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(part.path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(part, error) from error


def _damaged(part: Part, error: Exception) -> Unreadable:
    if isinstance(error, FileNotFoundError):
        return Unreadable(f"{part.path} went while it was read: a run works on the lake. Try again")
    told = str(error).partition("\n")[0].rstrip(".")
    return Unreadable(f"{part.path} cannot be read ({told}): {_remedy(part)}")


def _remedy(part: Part) -> str:
    if part.path.name != DATA:
        return "restore it, or begin a new lake"
    if part.day is None:
        return "`millrace pipeline audit` makes it anew"
    return f"`millrace pipeline refresh --days {part.day}..{part.day}` makes it anew"
