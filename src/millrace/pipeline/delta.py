"""Delta tables of a lake: positions, files and commits. This module does not need Spark.

A position is the last event number of each server. A table stores its position as application
transactions in the commit that changes its rows, so rows and position change together. Every
commit to a derived table also has the transaction `refresh`: two concurrent runs conflict, and
the second one fails before it changes anything.

Spark writes the files and `deltalake` writes the log. `deltalake` calls no fsync, so this module
syncs the files before the commit and the log entry after it.
"""

import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from millrace.durable_files import make, sync
from millrace.journal import crash_points, table_files
from millrace.journal.location import LOG
from millrace.journal.table_files import (
    NO_HOOKS,
    SETTINGS,
    File,
    add_action,
    arrow_schema,
    sync_log,
)

from .errors import LakeBusy, PipelineError
from .remote import origin, shown, table_uri, upload
from .tables import RUNS, Derived

STAGING: Final = "_staging-"
REFRESH: Final = "refresh"
#: Maximum number of concurrent commits after which a commit fails.
MAX_COMMIT_RETRIES: Final = 20
# The first column of `runs` finds the last run. Other tables are pruned by their partitions.
_SETTINGS: Final = SETTINGS | {"delta.dataSkippingNumIndexedCols": "1"}
#: Called after each step. Tests replace it.
reached = crash_points.crash_point

#: The last event number of each server.
Position = Mapping[str, int]


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
    return table_files.files(table, root / name)


def query(table: DeltaTable, name: str, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a DataFusion query on a table, which it calls `name`."""
    found = QueryBuilder().register(name, table).execute(sql).read_all()
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


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
    if origin(root) is None:
        sync_log(root / table.name / LOG)
    return created


def schema(table: Derived) -> Schema:
    return Schema.from_arrow(arrow_schema(table.all_types))


def staging(root: Path, table: Derived) -> Path:
    """A new name for a folder of files that a commit will move into the table."""
    return root / table.name / f"{STAGING}{secrets.token_hex(8)}"


class Change(NamedTuple):
    """A change of a derived table. `staged` is the folder with its new files. `replaced` are the
    values of the partition column whose rows are replaced; None appends. An empty partition column
    and an empty list replace all rows.
    """

    staged: Path | None
    replaced: Sequence[str] | None
    position: Position
    run: int


def commit(root: Path, table: Derived, target: DeltaTable, change: Change) -> None:
    """Move the staged files to their names, and commit them together with the position."""
    actions: list[AddAction | RemoveAction] = []
    if change.staged is not None:
        actions += _install(change.staged, root, table, change.run)
    reached(f"{table.name}:installed")
    filters = None
    if change.replaced is not None and table.partition:
        filters = [(table.partition, "in", list(change.replaced))]
    transactions = [Transaction(server, last) for server, last in change.position.items()]
    before = target.version()
    try:
        target.create_write_transaction(
            actions,
            "append" if change.replaced is None else "overwrite",
            schema(table),
            [table.partition] if table.partition else None,
            partition_filters=filters,
            commit_properties=CommitProperties(
                app_transactions=[*transactions, Transaction(REFRESH, change.run)],
                max_commit_retries=MAX_COMMIT_RETRIES,
            ),
            post_commithook_properties=NO_HOOKS,
        )
    except Exception as error:
        if "oncurrent" in str(error):
            raise LakeBusy(f"Another run changed the table {table.name}. Run again.") from error
        raise
    target.update_incremental()
    if origin(root) is None:
        sync_log(root / table.name / LOG, before)
    reached(f"{table.name}:committed")
    if change.staged is not None:
        shutil.rmtree(change.staged, ignore_errors=True)


def _install(staged: Path, root: Path, table: Derived, run: int) -> list[AddAction]:
    """Rename the staged files, and make them durable before a commit names them."""
    actions, places = [], []
    folder, partition = root / table.name, table.partition
    for path in sorted(staged.rglob("part-*.parquet")):
        statistics: dict[str, Any] = {"numRecords": pq.read_metadata(path).num_rows}
        if not statistics["numRecords"]:
            continue
        if table is RUNS:
            statistics |= {"minValues": {"run": run}, "maxValues": {"run": run}}
        place = folder / path.parent.relative_to(staged) / f"{secrets.token_hex(16)}.parquet"
        make(place.parent)
        path.rename(place)
        places.append(place)
        value = path.parent.name.partition("=")[2]
        values = {partition: value} if partition else {}
        actions.append(add_action(folder, place, values, statistics))
    for place in places:
        sync(place) if origin(root) is None else upload(root, place)
    for parent in {place.parent for place in places}:
        sync(parent)
    return actions
