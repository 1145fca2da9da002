"""The Delta table `events`: the journal of every server of a lake, each event exactly once.

One commit adds the files of a shipment and records the application transaction (server id, number
of the last event). The table alone therefore records the shipped events: a shipper that was
killed before the commit ships the same events again, and one that was killed after it continues
after them.

`deltalake` calls no fsync. On a local disk this module syncs the data files and their folders
before the commit, and the log entry after it. A power cut before that sync can leave the newest
entry of the log empty or cut off; `repair` removes such an entry. Its events were not acknowledged,
so they are still in the outbox.
"""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.transaction import AddAction

from millrace.lasting import make, sync

from . import schema
from .crash_points import crash_point

NAME: Final = "events"
PARTITIONS: Final = ["day", "server"]
LOG: Final = "_delta_log"
#: The log records the minimum and maximum of these columns, so that readers skip files.
STATISTICS: Final = ("event_id", "time", "seq", "created", "leased_at")
#: The number of concurrent commits by other servers after which a commit fails.
MAX_COMMIT_RETRIES: Final = 100
ROW_GROUP_ROWS: Final = 65_536

_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}
_TYPES: Final = {
    "string": "string",
    "long": "long",
    "int": "integer",
    "double": "double",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "strings": {"type": "array", "elementType": "string", "containsNull": True},
}
#: Columns with few different values. A dictionary costs time in the remaining columns.
_DICTIONARY_COLUMNS: Final = [
    "type", "queue", "kind", "origin", "actor", "worker", "before", "state", "priority",
    "error_group", "error_message", "fingerprint", "source", "attempt", "payload_bytes", "version",
    "tags.list.element", "holder", "renewals", "repeat", "leases", "failures", "first_queue",
    "outcome",
]  # fmt: skip
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = "_last_checkpoint"
_EPOCH: Final = date(1970, 1, 1)
#: Maintenance writes checkpoints and syncs them.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class OtherShipper(Exception):
    """Another process shipped events of the same server in the meantime."""


def delta_schema() -> Schema:
    """The columns of an event, and the day as a partition."""
    fields = [_field(each.name, _TYPES[each.kind], not each.required) for each in schema.FIELDS]
    fields.append(_field("day", "date", nullable=True))
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _field(name: str, kind: Any, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


class EventsTable:
    """The table of one lake, at the version of the last commit or refresh of this object."""

    def __init__(self, lake: Path) -> None:
        self.folder = lake / NAME
        self._table: DeltaTable | None = None
        if DeltaTable.is_deltatable(str(self.folder)):
            self._table = DeltaTable(self.folder)

    def position(self, server: str) -> int:
        """Return the last event of a server in the table; 0 if there is none."""
        if self._table is None:
            return 0
        return self._table.transaction_version(server) or 0

    def refresh(self) -> None:
        if self._table is not None:
            self._table.update_incremental()

    def append(self, events: pa.Table) -> int:
        """Commit events of one server, without gaps, that follow its position. Return the number
        of files.
        """
        server = events.column("server")[0].as_py()
        ids = events.column("event_id")
        first, last = ids[0].as_py(), ids[-1].as_py()
        if last - first + 1 != events.num_rows:
            raise ValueError(f"events {first} to {last} are not {events.num_rows}")
        if self.position(server) >= first:
            raise ValueError(f"event {first} of server {server} is in the table already")
        actions = [self._write(server, day, rows) for day, rows in by_day(events)]
        crash_point("written")
        self._commit(actions, Transaction(server, last))
        crash_point("committed")
        self._sync_log()
        crash_point("synced")
        return len(actions)

    def _write(self, server: str, day: date, rows: pa.Table) -> AddAction:
        """Write the events of one day under a new name, and sync the file and its folders."""
        partition = {"day": day.isoformat(), "server": server}
        name = "/".join(f"{key}={value}" for key, value in partition.items())
        path = self.folder / name / f"{secrets.token_hex(16)}.parquet"
        make(path.parent)
        try:
            pq.write_table(
                rows.drop_columns(["server"]),
                path,
                compression="zstd",
                row_group_size=ROW_GROUP_ROWS,
                use_dictionary=_DICTIONARY_COLUMNS,
                store_schema=False,
            )
            sync(path)
        except BaseException:
            path.unlink(missing_ok=True)  # the disk may be full
            raise
        sync(path.parent)
        about = path.stat()
        return AddAction(
            f"{name}/{path.name}",
            about.st_size,
            partition,
            int(about.st_mtime * 1000),
            True,
            json.dumps(statistics(rows)),
        )

    def _commit(self, actions: Sequence[AddAction], transaction: Transaction) -> None:
        if self._table is None:
            self._table = self._create()
        table = self._table
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                delta_schema(),
                PARTITIONS,
                commit_properties=CommitProperties(
                    app_transactions=[transaction], max_commit_retries=MAX_COMMIT_RETRIES
                ),
                post_commithook_properties=_NO_HOOKS,
            )
        except Exception as error:
            if "Concurrent transaction" in str(error):
                raise OtherShipper(
                    f"Another process ships events of server {transaction.app_id}"
                ) from error
            raise
        table.update_incremental()

    def _create(self) -> DeltaTable:
        make(self.folder)
        created = DeltaTable.create(
            str(self.folder),
            delta_schema(),
            mode="ignore",
            partition_by=PARTITIONS,
            configuration=_SETTINGS,
        )
        sync(self.folder)
        _sync_newest(self.folder / LOG)
        return created

    def _sync_log(self) -> None:
        _sync_newest(self.folder / LOG)


def by_day(events: pa.Table) -> Iterator[tuple[date, pa.Table]]:
    """Yield the events of each day, by their time, in their order."""
    days = pc.floor_temporal(events.column("time"), unit="day").cast(pa.int64())
    unique = sorted(pc.unique(days).to_pylist())
    for micros in unique:
        rows = events if len(unique) == 1 else events.filter(pc.equal(days, micros))
        yield _EPOCH + timedelta(microseconds=micros), rows


def statistics(rows: pa.Table) -> dict[str, Any]:
    """The statistics of a file in the form of the Delta log."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in STATISTICS:
        column = rows.column(name)
        nulls[name] = column.null_count
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            lowest[name], highest[name] = _bounds(found["min"], found["max"])
    return {
        "numRecords": rows.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _bounds(low: Any, high: Any) -> tuple[Any, Any]:
    """Times in the log have milliseconds: the maximum is rounded up."""
    if not isinstance(low, datetime):
        return low, high
    above = high + timedelta(microseconds=999) if high.year < 9999 else high
    return _milliseconds(low), _milliseconds(above)


def _milliseconds(moment: datetime) -> str:
    moment = moment.astimezone(UTC)
    return f"{moment.year:04}-{moment:%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


# After a power cut


def repair(lake: Path, server: str) -> list[str]:
    """Remove the newest entry of the log if a power cut has damaged it, and a checkpoint that is
    incomplete. Return the names of the removed files. Call it before the first commit.
    """
    folder = lake / NAME / LOG
    if not folder.is_dir():
        return []
    removed = []
    entries = _entries(folder)
    if entries and _is_torn((folder / entries[-1]).read_bytes(), server):
        removed.append(entries[-1])
    removed += _torn_checkpoint(folder)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    if removed:
        sync(folder)
    return removed


def _is_torn(content: bytes, server: str) -> bool:
    """Whether an entry is empty, is not JSON in some line, or adds files of this server without
    its transaction.
    """
    adds = transaction = False
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except ValueError:
        return True
    for action in actions:
        partition = action.get("add", {}).get("partitionValues", {})
        adds |= partition.get("server") == server and action["add"].get("dataChange", True)
        transaction |= action.get("txn", {}).get("appId") == server
    return not actions or (adds and not transaction)


def _torn_checkpoint(folder: Path) -> list[str]:
    """Return the checkpoint that `_last_checkpoint` names, if it is incomplete. The entries that it
    summarizes still exist.
    """
    try:
        content = (folder / _CHECKPOINT).read_bytes()
    except FileNotFoundError:
        return []
    try:
        name = f"{int(json.loads(content)['version']):020}.checkpoint.parquet"
    except (ValueError, KeyError, TypeError):
        return [_CHECKPOINT]
    try:
        pq.read_metadata(folder / name)
    except (OSError, pa.ArrowException):
        return [_CHECKPOINT, name]
    return []


def _sync_newest(folder: Path) -> None:
    for name in _entries(folder)[-1:]:
        sync(folder / name)
    sync(folder)


def _entries(folder: Path) -> list[str]:
    """The names of the log's entries, the newest last."""
    return sorted(path.name for path in folder.iterdir() if _ENTRY.fullmatch(path.name))
