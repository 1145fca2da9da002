"""Sealed files in the landing folder of the lake: each is complete and durable, or does not exist.

The shipper writes a file under a temporary name, syncs and renames it, and then syncs the folder.
The name contains the range of the events. An existing file is never overwritten.
"""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.lasting import make, sync

from .crash_points import crash_point
from .landing import FOLDER, Landed

#: Rows per row group: enough for good compression, few enough to read one group at a time.
ROWS: Final = 65_536
#: Columns with few different values. In other columns, Parquet would build a dictionary and
#: discard it.
_FEW: Final = (
    "server", "type", "queue", "kind", "origin", "actor", "worker", "before", "state", "priority",
    "error_group", "error_message", "fingerprint", "source", "attempt", "payload_bytes", "version",
    "tags.list.element",
)  # fmt: skip


class OtherContent(Exception):
    """A file of that name is there, and has other events in it."""


def seal(lake: Path, table: pa.Table) -> Landed:
    """Write a table of the events of one server, without gaps, to the lake."""
    ids = table.column("event_id")
    landed = Landed(table.column("server")[0].as_py(), ids[0].as_py(), ids[-1].as_py())
    if landed.events != table.num_rows:
        raise ValueError(f"events {landed.first} to {landed.last} are not {table.num_rows}")
    folder = lake / FOLDER
    make(folder)
    path, aside = folder / landed.name, folder / f".{landed.name}.tmp"
    if path.exists():
        _compare(path, table)
        return landed
    try:
        _write(table, aside)
    except Exception:
        aside.unlink(missing_ok=True)  # the disk may be full
        raise
    crash_point("sealed")
    aside.rename(path)
    sync(folder)
    crash_point("renamed")
    return landed


def _write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", row_group_size=ROWS, use_dictionary=list(_FEW))
    sync(path)


def sweep(lake: Path, server: str) -> None:
    """Remove the incomplete files of a killed shipper of this server."""
    for path in (lake / FOLDER).glob(f".ev-{server}-*.tmp"):
        path.unlink(missing_ok=True)


def _compare(path: Path, table: pa.Table) -> None:
    """Check that an existing file has the same events. A shipper that was killed after the rename
    writes the same file again.
    """
    try:
        same = pq.read_table(path, partitioning=None).equals(table)
    except (OSError, pa.ArrowException):
        same = False
    if not same:
        raise OtherContent(f"{path} has other events in it; nothing is written over it")
    sync(path.parent)
