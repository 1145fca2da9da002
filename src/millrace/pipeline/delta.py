"""Delta tables of a lake: positions, files and commits. This module does not need Spark.

A position is the last event number of each server. A table stores its position as application
transactions in the commit that changes its rows, so rows and position change together. Every
commit to a derived table also has the transaction `refresh`: two concurrent runs conflict, and
the second one fails before it changes anything.

Spark writes the files and `deltalake` writes the log. `deltalake` calls no fsync, so this module
syncs the files before the commit and the log entry after it.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from millrace.durable_files import make, sync
from millrace.journal import crash_points

from .errors import LakeBusy, PipelineError
from .remote import origin, shown, table_uri, upload
from .tables import Derived

EVENTS: Final = "events"
LOG: Final = "_delta_log"
STAGING: Final = "_staging-"
REFRESH: Final = "refresh"
#: Maximum number of concurrent commits after which a commit fails.
MAX_COMMIT_RETRIES: Final = 20
_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    # The first column of `runs` finds the last run. Other tables are pruned by their partitions.
    "delta.dataSkippingNumIndexedCols": "1",
}
_TYPES: Final[dict[str, Any]] = {
    "STRING": "string",
    "BIGINT": "long",
    "INT": "integer",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "TIMESTAMP": "timestamp",
    "DATE": "date",
    "ARRAY<STRING>": {"type": "array", "elementType": "string", "containsNull": True},
    "ARRAY<BIGINT>": {"type": "array", "elementType": "long", "containsNull": True},
}
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
#: Called after each step. Tests replace it.
reached = crash_points.crash_point

#: The last event number of each server.
Position = Mapping[str, int]


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


def open_table(root: Path, name: str, version: int | None = None) -> DeltaTable | None:
    """Open a table at a version, or at its newest version; None if it does not exist."""
    uri = table_uri(root, name)
    if not DeltaTable.is_deltatable(uri):
        return None
    try:
        return DeltaTable(uri, version=version)
    except Exception as error:
        lake = shown(root)
        if version is None:
            raise PipelineError(f"Table {name} at {lake} cannot be opened: {error}") from error
        raise PipelineError(
            f"Version {version} of table {name} at {lake} no longer exists: {error}"
        ) from error


def files(table: DeltaTable | None, root: Path, name: str) -> list[File]:
    """Return the files of a table, in order of day and first event."""
    if table is None:
        return []
    actions = pa.table(table.get_add_actions(flatten=True))
    columns: dict[str, list[Any]] = {
        column: actions[column].to_pylist() for column in actions.column_names
    }
    nothing: list[Any] = [None] * actions.num_rows

    def values(column: str) -> list[Any]:
        return columns.get(column, nothing)

    found = [
        File(root / name / path, rows, size, day, server, first or 0, last or 0, leased)
        for path, rows, size, day, server, first, last, leased in zip(
            values("path"),
            values("num_records"),
            values("size_bytes"),
            values("partition.day"),
            values("partition.server"),
            values("min.event_id"),
            values("max.event_id"),
            values("min.leased_at"),
            strict=True,
        )
    ]
    return sorted(found, key=lambda file: (file.day or date.min, file.first_event, file.path))


def position(table: DeltaTable | None, servers: Iterable[str]) -> dict[str, int]:
    """Return the position of a table for these servers; 0 where it has no events."""
    if table is None:
        return dict.fromkeys(servers, 0)
    return {server: table.transaction_version(server) or 0 for server in servers}


def create(root: Path, table: Derived) -> DeltaTable:
    """Open a derived table, and create it if it does not exist."""
    found = open_table(root, table.name)
    if found is not None:
        return found
    make(root / table.name)
    created = DeltaTable.create(
        table_uri(root, table.name),
        schema(table),
        mode="ignore",
        partition_by=[table.partition] if table.partition else None,
        configuration=_SETTINGS,
    )
    _sync_log(root, table.name)
    return created


def schema(table: Derived) -> Schema:
    fields = [
        {"name": name, "type": _TYPES[kind], "nullable": True, "metadata": {}}
        for name, kind in table.all_types.items()
    ]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


class Change(NamedTuple):
    """A change of a derived table. `replaced` are the values of the partition column whose rows
    are replaced; None appends. An empty partition column and an empty list replace all rows.
    """

    staged: Path | None
    replaced: Sequence[str] | None
    position: Position
    run: int


def commit(root: Path, table: Derived, target: DeltaTable, change: Change) -> None:
    """Move the staged files to their names, and commit them together with the position."""
    actions: list[AddAction | RemoveAction] = []
    if change.staged is not None:
        actions += _install(change.staged, root, table)
    reached(f"{table.name}:installed")
    filters = None
    if change.replaced is not None and table.partition:
        filters = [(table.partition, "in", list(change.replaced))]
    mode = "append" if change.replaced is None else "overwrite"
    transactions = _transactions(change.position, change.run)
    _commit(root, table, target, actions, mode, filters, transactions)


def append(
    root: Path, table: Derived, target: DeltaTable, action: AddAction, end: Position, run: int
) -> None:
    """Commit one file in the table's folder together with the position."""
    _publish(root, [root / table.name / action.path])
    _commit(root, table, target, [action], "append", None, _transactions(end, run))


def _transactions(end: Position, run: int) -> list[Transaction]:
    return [*(Transaction(server, last) for server, last in end.items()), Transaction(REFRESH, run)]


def _commit(
    root: Path,
    table: Derived,
    target: DeltaTable,
    actions: list[AddAction | RemoveAction],
    mode: str,
    filters: list[tuple[str, str, Any]] | None,
    transactions: list[Transaction],
) -> None:
    try:
        target.create_write_transaction(
            actions,
            mode,
            schema(table),
            [table.partition] if table.partition else None,
            partition_filters=filters,
            commit_properties=CommitProperties(
                app_transactions=transactions, max_commit_retries=MAX_COMMIT_RETRIES
            ),
            post_commithook_properties=_NO_HOOKS,
        )
    except Exception as error:
        if "oncurrent" in str(error):
            raise LakeBusy(f"Another run changed the table {table.name}. Run again.") from error
        raise
    target.update_incremental()
    _sync_log(root, table.name)
    reached(f"{table.name}:committed")


def _install(staged: Path, root: Path, table: Derived) -> list[AddAction]:
    """Rename the files that Spark wrote to new names in the table's folder."""
    actions, places = [], []
    folder, partition = root / table.name, table.partition
    for path in sorted(staged.rglob("part-*.parquet")):
        rows = pq.read_metadata(path).num_rows
        if not rows:
            continue
        relative = path.parent.relative_to(staged)
        value = path.parent.name.partition("=")[2] if partition else ""
        place = folder / relative / f"{secrets.token_hex(16)}.parquet"
        make(place.parent)
        path.rename(place)
        places.append(place)
        about = place.stat()
        actions.append(
            AddAction(
                str(place.relative_to(folder)),
                about.st_size,
                {partition: value} if partition else {},
                int(about.st_mtime * 1000),
                True,
                json.dumps({"numRecords": rows}),
            )
        )
    _publish(root, places)
    return actions


def _publish(root: Path, places: Sequence[Path]) -> None:
    """Make files durable before a commit names them: sync them, or copy them to the store."""
    if origin(root) is not None:
        for place in places:
            upload(root, place)
        return
    for place in places:
        sync(place)
    for folder in {place.parent for place in places}:
        sync(folder)


def _sync_log(root: Path, name: str) -> None:
    if origin(root) is not None:
        return
    folder = root / name / LOG
    entries = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    for path in entries[-1:]:
        sync(path)
    sync(folder)
