"""What a landing file is, before Spark reads it: can it be read, and is it as its name says?

A sealed file holds the events of one server from its first to its last, in order. Where one column
proves that, nothing need be asked of its rows about ids, doubles and servers; which is how it is
but for damage and accidents.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.journal import schema
from millrace.journal.landing import Landed

from .lake import Lake

_MOST: Final = (1 << 63) - 1
#: What reading a file may raise: of the disk, and of what is not Parquet or is damaged.
_UNREADABLE: Final = (OSError, pa.ArrowException)


class Inspected(NamedTuple):
    landed: Landed
    rows: int
    #: It holds exactly the events that its name says.
    exact: bool
    #: Why nothing can be taken of it; empty if all is well.
    refused: str

    @property
    def name(self) -> str:
        return self.landed.name


def inspect(lake: Lake, landed: Landed) -> Inspected:
    """Look at the form of a file, and at its ids."""
    if not 1 <= landed.first <= landed.last <= _MOST:
        return Inspected(landed, 0, False, "its name says events that cannot be")
    path = lake.landing / landed.name
    try:
        with pq.ParquetFile(path, read_dictionary=["server"]) as file:
            refused = foreign(file.schema_arrow)
            rows = file.metadata.num_rows
            exact = not refused and _is_exact(file, landed)
    except FileNotFoundError:
        return Inspected(landed, 0, False, "it is not there any more")
    except _UNREADABLE as error:
        return Inspected(landed, 0, False, _unreadable(error))
    return Inspected(landed, 0 if refused else rows, exact, refused)


def torn(lake: Lake, landed: Landed) -> str:
    """Why a file cannot be read to its end; empty if it can."""
    try:
        with pq.ParquetFile(lake.landing / landed.name) as file:
            for _ in file.iter_batches():
                pass
    except _UNREADABLE as error:
        return _unreadable(error)
    return ""


def foreign(found: pa.Schema) -> str:
    """What keeps a file's columns from being those of events; empty if nothing does.

    Columns that were added later may be missing, and there may be some of a later version.
    """
    for field in schema.arrow():
        if field.name not in found.names:
            if not field.nullable:
                return f"it has no column `{field.name}`"
            continue
        kind = _plain(found.field(field.name).type)
        if kind != field.type:
            return f"its column `{field.name}` is {kind}, not {field.type}"
    return ""


def overlapping(files: Iterable[Landed], others: Iterable[Landed]) -> set[Landed]:
    """Those of the files that share events with another one, by their names."""
    mine = set(files)
    found: set[Landed] = set()
    widest: Landed | None = None
    for each in sorted({*mine, *others}):
        if widest is not None and each.server == widest.server and each.first <= widest.last:
            found |= {each, widest} & mine
            widest = max(widest, each, key=lambda landed: landed.last)
        else:
            widest = each
    return found


def _is_exact(file: pq.ParquetFile, landed: Landed) -> bool:
    rows = file.metadata.num_rows
    if rows != landed.last - landed.first + 1:
        return False
    columns = file.read(["server", "event_id"])
    ids = columns.column("event_id").combine_chunks()
    if ids.null_count or ids[0].as_py() != landed.first or ids[-1].as_py() != landed.last:
        return False
    if pc.unique(columns.column("server")).to_pylist() != [landed.server]:
        return False
    steps = pc.unique(pc.subtract(ids[1:], ids[:-1])).to_pylist()
    return steps in ([], [1])


def _plain(kind: pa.DataType) -> pa.DataType:
    """What Parquet does not tell apart."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def _unreadable(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"it cannot be read: {words[:200]}"
