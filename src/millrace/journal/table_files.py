"""The columns and the files of a Delta table: schemas, the files that the log names, actions of a
commit, and syncs. The tables of the journal and of the pipeline use this module.
"""

import json
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from arro3.core import DataType, Schema
from arro3.core import Field as Column
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.transaction import AddAction

from millrace.durable_files import sync

from .location import log_entries

#: The Arrow type of each type of a column, in Spark's notation.
ARROW: Final = {
    "STRING": DataType.string(),
    "BIGINT": DataType.int64(),
    "INT": DataType.int32(),
    "DOUBLE": DataType.float64(),
    "BOOLEAN": DataType.bool(),
    "TIMESTAMP": DataType.timestamp("us", tz="UTC"),
    "DATE": DataType.date32(),
    "ARRAY<STRING>": DataType.list(Column("element", DataType.string(), nullable=True)),
    "ARRAY<BIGINT>": DataType.list(Column("element", DataType.int64(), nullable=True)),
}
#: Maintenance writes checkpoints and syncs them.
NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
#: Settings of every table.
SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def arrow_schema(types: Mapping[str, str]) -> Schema:
    """The schema of columns that accept nulls, from their types in Spark's notation."""
    return Schema([Column(name, ARROW[kind], nullable=True) for name, kind in types.items()])


class File(NamedTuple):
    """A file of a table. Only files of `events` have a server and a range of events."""

    path: Path
    rows: int
    bytes: int
    day: date | None
    server: str | None
    first_event: int
    last_event: int
    #: The earliest lease in a file of `events`.
    leased_from: datetime | None
    #: The log's record of the file, in the flat form of `get_add_actions`.
    record: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """The path in the folder of the table."""
        return unquote(self.record["path"])


def files(table: DeltaTable | None, folder: Path) -> list[File]:
    """Return the files of a table, in order of day and first event."""
    if table is None:
        return []
    actions = table.get_add_actions(flatten=True)
    names = actions.schema.names
    found = []
    for values in zip(*(actions[name].to_pylist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        found.append(
            File(
                folder / unquote(row["path"]),
                row["num_records"],
                row["size_bytes"],
                row.get("partition.day"),
                row.get("partition.server"),
                row.get("min.event_id") or 0,
                row.get("max.event_id") or 0,
                row.get("min.leased_at"),
                row,
            )
        )
    return sorted(found, key=lambda file: (file.day or date.min, file.first_event, file.path))


def add_action(
    folder: Path,
    path: Path,
    partition: Mapping[str, str],
    statistics: Mapping[str, Any],
    *,
    new_rows: bool = True,
) -> AddAction:
    """The action that adds a file to the table in a folder. `new_rows` is false if the rows come
    from other files of the table.
    """
    about = path.stat()
    return AddAction(
        str(path.relative_to(folder)),
        about.st_size,
        dict(partition),
        int(about.st_mtime * 1000),
        new_rows,
        json.dumps(statistics),
    )


def sync_log(log: Path, version: int = -1) -> None:
    """Sync the entries of a log after a version. Another process may have committed after this one,
    so the newest entry is not enough.
    """
    if log.is_dir():
        for name in log_entries(log):
            if int(name.removesuffix(".json")) > version:
                sync(log / name)
        sync(log)
