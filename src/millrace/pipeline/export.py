"""Exports tables of the lake as CSV, JSON lines, or one Parquet file.

The export reads and writes in pieces, so the size of a table is not limited by memory.
"""

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from .errors import PipelineError
from .outfile import output_file
from .progress import Progress, silent
from .snapshot import Extent, Snapshot
from .snapshot import schema as arrow_schema
from .tables import TABLES, Derived

Pieces = Iterator[pa.RecordBatch]


class Exported(NamedTuple):
    table: str
    rows: int


class Listed(NamedTuple):
    table: Derived
    extent: Extent


def listed(snapshot: Snapshot) -> list[Listed]:
    """Return all tables and their sizes."""
    return [Listed(table, snapshot.extent(table)) for table in TABLES.values()]


def export(
    snapshot: Snapshot,
    table: Derived,
    form: str,
    out: str,
    first: date | None = None,
    last: date | None = None,
    *,
    progress: Progress = silent,
) -> Exported:
    """Write a table, or its days from `first` to `last`, to the file `out`."""
    if form not in FORMS:
        raise PipelineError(f"Unknown format {form!r}. Formats: {', '.join(FORMS)}.")
    total = snapshot.extent(table, first, last).rows
    done = 0

    def counted() -> Pieces:
        nonlocal done
        for piece in snapshot.batches(table, first, last):
            yield piece
            done += piece.num_rows
            progress(table.name, done, total)

    with output_file(out) as file:
        FORMS[form](counted(), arrow_schema(table), file)
    return Exported(table.name, done)


def _csv(pieces: Pieces, schema: pa.Schema, file: BinaryIO) -> None:
    """Write CSV, with times in ISO 8601 format and lists as JSON."""
    flat = pa.schema([(f.name, _flat(f.type)) for f in schema])
    with pyarrow.csv.CSVWriter(file, flat) as writer:
        for piece in pieces:
            arrays = [_flattened(piece.column(f.name)) for f in schema]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=flat))


def _flat(kind: pa.DataType) -> pa.DataType:
    written = pa.types.is_nested(kind) or pa.types.is_timestamp(kind)
    return pa.string() if written else kind


def _flattened(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_nested(column.type):
        texts = (None if each is None else _encoded(each) for each in column.to_pylist())
        return pa.array(texts, pa.string())
    return column


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _json(pieces: Pieces, schema: pa.Schema, file: BinaryIO) -> None:
    """Write one JSON object per line."""
    del schema
    file.writelines(msgspec.json.Encoder().encode_lines(piece.to_pylist()) for piece in pieces)


def _parquet(pieces: Pieces, schema: pa.Schema, file: BinaryIO) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for piece in pieces:
            writer.write_batch(piece)


FORMS: Final[dict[str, Callable[[Pieces, pa.Schema, BinaryIO], None]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
