"""Inspects landing files before Spark reads them: whether a file is readable and matches its
name.

A sealed file holds the events of one server from the first to the last number, in order. If the
server and id columns prove this, the rows need no checks for ids, duplicates and servers. This
is the normal case; only damage and accidents cause exceptions.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.journal import schema
from millrace.journal.landing import Landed

from .errors import PipelineError
from .lake import Lake
from .reasons import NEVER_NEGATIVE, TIMES

_MOST: Final = (1 << 63) - 1
#: Exceptions from reading a file: disk errors, and files that are damaged or not Parquet.
_UNREADABLE: Final = (OSError, pa.ArrowException)


class Inspected(NamedTuple):
    landed: Landed
    rows: int
    #: Whether the file holds exactly the events in its name.
    exact: bool
    #: Whether the statistics prove that no value is missing or negative, and all times are valid.
    proved: bool
    #: Why the file is rejected; empty if it is usable.
    refused: str

    @property
    def name(self) -> str:
        return self.landed.name


def inspect(lake: Lake, landed: Landed) -> Inspected:
    """Check the schema, the statistics and the ids of a file."""
    if not 1 <= landed.first <= landed.last <= _MOST:
        return Inspected(landed, 0, False, False, "its name says events that cannot be")
    path = lake.landing / landed.name
    try:
        with pq.ParquetFile(path, read_dictionary=["server"]) as file:
            refused = foreign(file.schema_arrow)
            rows = file.metadata.num_rows
            exact = not refused and _is_exact(file, landed)
            proved = not refused and _is_proved(file)
    except FileNotFoundError:
        return Inspected(landed, 0, False, False, "it is not there any more")
    except _UNREADABLE as error:
        if (
            isinstance(error, OSError) and error.errno
        ):  # an error of the disk or the system, not of the file
            raise PipelineError(f"cannot read {path}: {error.strerror or error}") from error
        return Inspected(landed, 0, False, False, _unreadable(error))
    return Inspected(landed, 0 if refused else rows, exact, proved, refused)


def torn(lake: Lake, landed: Landed) -> str:
    """Return why a file cannot be read to its end; empty if it is readable."""
    try:
        with pq.ParquetFile(lake.landing / landed.name) as file:
            for _ in file.iter_batches():
                pass
    except _UNREADABLE as error:
        return _unreadable(error)
    return ""


def foreign(found: pa.Schema) -> str:
    """Return why the columns of a file are not valid event columns; empty if they are valid.

    Columns that were added in later versions may be missing, and the file may have columns of a
    newer version.
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
    """Return the files that, by their names, share events with another file."""
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
    if rows != landed.events:
        return False
    columns = file.read(["server", "event_id"])
    ids = columns.column("event_id").combine_chunks()
    if ids.null_count or ids[0].as_py() != landed.first or ids[-1].as_py() != landed.last:
        return False
    if pc.unique(columns.column("server")).to_pylist() != [landed.server]:
        return False
    steps = pc.unique(pc.subtract(ids[1:], ids[:-1])).to_pylist()
    return steps in ([], [1])


def _is_proved(file: pq.ParquetFile) -> bool:
    """Check the Parquet statistics of each row group; every column must be present."""
    known = file.schema_arrow
    if known.names != list(schema.NAMES):
        return False
    required = {field.name for field in schema.FIELDS if field.required}
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            name = column.path_in_schema
            if name in required and known.field(name).nullable and _may_be_null(column.statistics):
                return False
            if name in TIMES and not _is_within(column.statistics):
                return False
            if name in NEVER_NEGATIVE and not _is_within(column.statistics, 0):
                return False
    return True


def _may_be_null(found: Any) -> bool:
    return found is None or not found.has_null_count or found.null_count > 0


def _is_within(found: Any, least: int | None = None) -> bool:
    """Check that all values are at least `least`, and that Python can represent them. The years of
    Python's times are 1 to 9999, as in the rules.
    """
    if found is None:
        return False
    if not found.has_min_max:
        return bool(found.has_null_count and found.num_values == 0)
    try:
        low, _ = found.min, found.max
    except (ValueError, OverflowError):
        return False
    return least is None or bool(low >= least)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the plain type for types that are equivalent in Parquet."""
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
