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
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader
from arro3.io import write_parquet
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.transaction import AddAction, RemoveAction

from millrace.durable_files import make, sync, write_whole
from millrace.engine.events import EventTuple

from . import schema
from .columns import FILE_SCHEMA, LAST_TIME, SCHEMA, Columns, convert, valid_time
from .crash_points import crash_point
from .location import EVENTS, LOG, LakeLocation, check_location, log_actions, log_entries
from .table_files import NO_HOOKS, SETTINGS, add_action, files, sync_log

PARTITIONS: Final = ["day", "server"]
#: The log records the minimum and maximum of these columns, so that readers skip files.
STATISTICS: Final = ("event_id", "time", "seq", "created", "leased_at")
#: The number of concurrent commits by other servers after which a commit fails.
MAX_COMMIT_RETRIES: Final = 100
ROW_GROUP_ROWS: Final = 65_536

_SETTINGS: Final = SETTINGS | {"delta.dataSkippingStatsColumns": ",".join(STATISTICS)}
#: Columns with few different values. A dictionary costs time in the remaining columns.
_DICTIONARY_COLUMNS: Final = (
    "type", "queue", "kind", "origin", "actor", "worker", "before", "state", "priority",
    "error_group", "error_message", "fingerprint", "source", "attempt", "payload_bytes", "version",
    "holder", "renewals", "repeat", "leases", "failures", "first_queue", "outcome",
)  # fmt: skip
_DICTIONARIES: Final[dict[str | Sequence[str], bool]] = {
    **dict.fromkeys(_DICTIONARY_COLUMNS, True),
    ("tags", "list", "element"): True,
}
_CHECKPOINT: Final = "_last_checkpoint"
_PARQUET: Final = b"PAR1"
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = 86_400_000_000
#: The application id of a conversion is this prefix and the server.
_CONVERT: Final = "convert:"
#: The file that marks a lake, and its content.
LAKE_FILE: Final = "lake.json"
LAKE_FORMAT: Final = b'{"format": 2}\n'


class OtherShipper(Exception):
    """Another process shipped events of the same server in the meantime."""


def delta_schema() -> Schema:
    """The columns of an event, and the day as a partition."""
    return Schema.from_arrow(SCHEMA.append(Field("day", DataType.date32(), nullable=True)))


class DayEvents:
    """Events of one day, in their order, and their statistics."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self._rows = 0
        self._nulls = dict.fromkeys(STATISTICS, 0)
        self._bounds: dict[str, tuple[int, int]] = {}

    def add(self, columns: Columns) -> None:
        self.batches.append(columns.batch)
        self._rows += columns.batch.num_rows
        for name in STATISTICS:
            known = columns.values[name]
            if nulls := known.count(None):
                known = [value for value in known if value is not None]
                self._nulls[name] += nulls
            if known:
                low, high = min(known), max(known)
                first, last = self._bounds.get(name, (low, high))
                self._bounds[name] = min(low, first), max(high, last)

    def statistics(self) -> dict[str, Any]:
        """The statistics for the log. Its times have milliseconds: a maximum is rounded up."""
        times = {field.name for field in schema.FIELDS if field.kind == "timestamp"}
        lowest, highest = {}, {}
        for name, (low, high) in self._bounds.items():
            lowest[name] = milliseconds(low) if name in times else low
            highest[name] = milliseconds(high + 999) if name in times else high
        return {
            "numRecords": self._rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": self._nulls,
        }


class EventRun:
    """Consecutive events of one server, divided by the day of their time."""

    def __init__(self, first: int) -> None:
        self.first = self.next = first
        self.days: dict[date, DayEvents] = {}

    def add(self, version: int, rows: Sequence[EventTuple]) -> None:
        """Append the events that follow."""
        numbers = range(self.next, self.next + len(rows))
        self.next += len(rows)
        for day, some, of_day in _by_day(numbers, rows):
            self.day(day).add(convert(some, version, of_day))

    def day(self, day: date) -> DayEvents:
        """Return the events of a day, to add to them."""
        return self.days.setdefault(day, DayEvents())


def _by_day(
    numbers: Sequence[int], rows: Sequence[EventTuple]
) -> Iterator[tuple[date, Sequence[int], Sequence[EventTuple]]]:
    times = [valid_time(row[0]) for row in rows]
    if min(times) // _DAY == max(times) // _DAY:
        yield _date(times[0] // _DAY), numbers, rows
        return
    days = [time // _DAY for time in times]
    for day in sorted(set(days)):
        places = [place for place, each in enumerate(days) if each == day]
        yield _date(day), [numbers[place] for place in places], [rows[place] for place in places]


def _date(day: int) -> date:
    return _EPOCH + timedelta(days=day)


class EventsTable:
    """The table of one lake, at the version of the last commit or refresh of this object."""

    def __init__(self, lake: LakeLocation) -> None:
        check_location(lake)
        #: The folder of the table; None in an object store, which needs no syncs.
        self.local = lake / EVENTS if isinstance(lake, Path) else None
        self.uri = str(self.local or f"{lake}/{EVENTS}")
        self._table: DeltaTable | None = None
        if DeltaTable.is_deltatable(self.uri):
            self._table = DeltaTable(self.uri)

    @property
    def folder(self) -> Path:
        """The folder of a table on a local disk."""
        assert self.local is not None
        return self.local

    @property
    def table(self) -> DeltaTable | None:
        """The Delta table; None before the first commit."""
        return self._table

    def position(self, server: str) -> int:
        """Return the last event of a server in the table; 0 if there is none."""
        if self._table is None:
            return 0
        return self._table.transaction_version(server) or 0

    def converted(self, server: str) -> int:
        """Return the last event that a conversion has put into the table; 0 if there is none."""
        return self.position(f"{_CONVERT}{server}")

    def first(self, server: str, after: int = 0) -> int:
        """Return the first event of a server in the files after an event; 0 if there is none."""
        found = files(self._table, Path())
        firsts = (file.first_event for file in found if file.server == server)
        return min((first for first in firsts if first > after), default=0)

    def exists(self) -> bool:
        """Whether the table is still there."""
        return self.local is None or (self.local / LOG).is_dir()

    def refresh(self) -> None:
        if self._table is not None:
            self._table.update_incremental()

    def append(self, server: str, events: EventRun) -> int:
        """Commit events of one server that follow its position. Return the number of files."""
        if self.position(server) >= events.first:
            raise ValueError(f"event {events.first} of server {server} is in the table already")
        if self.local is None:
            return self._append_remote(server, events)
        actions = [self._write(server, day, rows) for day, rows in events.days.items()]
        crash_point("written")
        before = self.commit(actions, Transaction(server, events.next - 1))
        crash_point("committed")
        self.sync_log(before)
        crash_point("synced")
        return len(actions)

    def _append_remote(self, server: str, events: EventRun) -> int:
        """Commit events to an object store, which stores each object durably and completely."""
        table = self._prepare()
        batches = [
            _with_partitions(batch, day, server)
            for day, of_day in events.days.items()
            for batch in of_day.batches
        ]
        with _conflicts(server):
            write_deltalake(
                table,
                RecordBatchReader.from_batches(batches[0].schema, batches),
                mode="append",
                writer_properties=WriterProperties(
                    compression="ZSTD", compression_level=1, max_row_group_size=ROW_GROUP_ROWS
                ),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(server, events.next - 1)],
                    max_commit_retries=MAX_COMMIT_RETRIES,
                ),
                post_commithook_properties=NO_HOOKS,
            )
        table.update_incremental()
        return len(events.days)

    def append_converted(self, server: str, events: EventRun) -> None:
        """Commit older events of a server, which a conversion has read from another format. The
        position of the server changes only if no shipper has committed events.
        """
        last = events.next - 1
        actions = [self._write(server, day, rows) for day, rows in events.days.items()]
        crash_point("convert:written")
        transactions = [Transaction(f"{_CONVERT}{server}", last)]
        if self.position(server) < last:
            transactions.append(Transaction(server, last))
        before = self.commit(actions, *transactions)
        self.sync_log(before)
        crash_point("convert:committed")

    def _write(self, server: str, day: date, events: DayEvents) -> AddAction:
        return add_file(self.folder, day, server, events.batches, events.statistics())

    def sync_log(self, version: int = -1) -> None:
        """Sync the entries of the log after a version."""
        if self.local is not None:
            sync_log(self.local / LOG, version)

    def commit(self, actions: Sequence[AddAction | RemoveAction], *positions: Transaction) -> int:
        """Commit a change of files, and return the version of the table before that."""
        table = self._prepare()
        before = table.version()
        with _conflicts(positions[-1].app_id if positions else ""):
            table.create_write_transaction(
                list(actions),
                "append",
                delta_schema(),
                PARTITIONS,
                commit_properties=CommitProperties(
                    app_transactions=list(positions), max_commit_retries=MAX_COMMIT_RETRIES
                ),
                post_commithook_properties=NO_HOOKS,
            )
        table.update_incremental()
        return before

    def _prepare(self) -> DeltaTable:
        """Return the table for a commit: create it, or add the columns of newer events to it."""
        if self._table is None:
            self._table = self._create()
        table = self._table
        known = {field.name for field in table.schema().fields}
        new = [field for field in delta_schema().fields if field.name not in known]
        if new:
            before = table.version()
            table.alter.add_columns(new, post_commithook_properties=NO_HOOKS)
            table.update_incremental()
            self.sync_log(before)
        return table

    def _create(self) -> DeltaTable:
        if self.local is not None:
            make(self.local)
            write_whole(self.local.parent / LAKE_FILE, LAKE_FORMAT)
        created = DeltaTable.create(
            self.uri,
            delta_schema(),
            mode="ignore",
            partition_by=PARTITIONS,
            configuration=_SETTINGS,
        )
        if self.local is not None:
            sync(self.local)
        self.sync_log()
        return created


@contextmanager
def _conflicts(server: str) -> Iterator[None]:
    """Raise OtherShipper if another process has committed events of the server."""
    try:
        yield
    except Exception as error:
        if "Concurrent transaction" in str(error):
            raise OtherShipper(f"Another process ships events of server {server}") from error
        raise


def _with_partitions(batch: RecordBatch, day: date, server: str) -> RecordBatch:
    """Add the columns that are partitions of the table."""
    days = Array([(day - _EPOCH).days] * batch.num_rows, DataType.int32())
    batch = batch.add_column(
        0, Field("server", DataType.string()), Array([server] * batch.num_rows, DataType.string())
    )
    return batch.append_column(Field("day", DataType.date32()), days.cast(DataType.date32()))


def add_file(
    folder: Path,
    day: date,
    server: str,
    batches: Iterable[RecordBatch],
    statistics: Mapping[str, Any],
    *,
    new_rows: bool = True,
) -> AddAction:
    """Write events of one day to a new file, sync the file and its folder, and return the action
    that adds it to the table. `new_rows` is false if the rows come from other files of the table.
    """
    partition = {"day": day.isoformat(), "server": server}
    path = folder.joinpath(*map("=".join, partition.items()), f"{secrets.token_hex(16)}.parquet")
    make(path.parent)
    try:
        write_events(path, batches)
        sync(path)
    except BaseException as error:
        path.unlink(missing_ok=True)  # the disk may be full
        if type(error) is Exception:  # arro3 raises no narrower class for errors of the disk
            raise OSError(f"Cannot write {path}: {error}") from error
        raise
    sync(path.parent)
    return add_action(folder, path, partition, statistics, new_rows=new_rows)


def write_events(path: Path, batches: Iterable[RecordBatch]) -> None:
    write_parquet(
        RecordBatchReader.from_batches(FILE_SCHEMA, list(batches)),
        path,
        compression="zstd(1)",
        max_row_group_size=ROW_GROUP_ROWS,
        dictionary_enabled=False,
        column_dictionary_enabled=_DICTIONARIES,
        skip_arrow_metadata=True,
    )


def milliseconds(micros: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=min(micros, LAST_TIME))
    return f"{moment.year:04}-{moment:%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


# After a power cut


def repair(lake: LakeLocation, server: str) -> list[str]:
    """Remove the newest entry of the log if a power cut has damaged it, and a checkpoint that is
    incomplete. Return the names of the removed files. Call it before the first commit.
    """
    if not isinstance(lake, Path):
        return []
    folder = lake / EVENTS / LOG
    if not folder.is_dir():
        return []
    removed = []
    entries = log_entries(folder)
    if entries and _is_torn((folder / entries[-1]).read_bytes(), server):
        removed.append(entries[-1])
    removed += _torn_checkpoint(folder)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    if removed:
        sync(folder)
    return removed


def _is_torn(content: bytes, server: str) -> bool:
    """Whether an entry is incomplete, or adds files of this server without its transaction."""
    adds = transaction = False
    try:
        actions = log_actions(content)
    except ValueError:
        return True
    for action in actions:
        partition = action.get("add", {}).get("partitionValues", {})
        adds |= partition.get("server") == server and action["add"].get("dataChange", True)
        transaction |= action.get("txn", {}).get("appId") == server
    return not actions or (adds and not transaction)


def _torn_checkpoint(folder: Path) -> list[str]:
    """Return the checkpoint that `_last_checkpoint` names, if it is incomplete."""
    try:
        content = (folder / _CHECKPOINT).read_bytes()
    except FileNotFoundError:
        return []
    try:
        name = f"{int(json.loads(content)['version']):020}.checkpoint.parquet"
    except (ValueError, KeyError, TypeError):
        return [_CHECKPOINT]
    return [] if _is_parquet(folder / name) else [_CHECKPOINT, name]


def _is_parquet(path: Path) -> bool:
    """Whether a file has the beginning and the end of a Parquet file."""
    try:
        with path.open("rb") as file:
            begin = file.read(4)
            size = file.seek(0, 2)
            file.seek(max(0, size - 8))
            end = file.read(8)
    except FileNotFoundError:
        return False
    footer = int.from_bytes(end[:4], "little")
    return begin == end[4:] == _PARQUET and 0 < footer <= size - 12
