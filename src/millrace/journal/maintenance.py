"""Maintenance of the table `events`: compaction, checkpoints, clean-up of the log, vacuum.

The shipper runs it between shipments. Each step is one commit that changes no rows, so readers keep
their snapshot and a kill leaves at most files that no commit names. `deltalake` calls no fsync, so
compaction writes and syncs its files as a shipment does.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Final

from arro3.core import RecordBatch
from arro3.io import read_parquet
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from millrace.durable_files import sync

from .columns import with_new_columns
from .crash_points import crash_point
from .events_table import (
    ROW_GROUP_ROWS,
    STATISTICS,
    EventsTable,
    add_file,
    milliseconds,
)
from .location import LOG
from .table_files import NO_HOOKS, File, files

#: Compaction leaves files of this number of rows alone.
TARGET_ROWS: Final = 500_000
#: An open day is compacted when it has this number of files below SMALL_ROWS.
OPEN_DAY_FILES: Final = 64
SMALL_ROWS: Final = TARGET_ROWS // 16
#: A closed day is compacted when it has this number of files below TARGET_ROWS.
CLOSED_DAY_FILES: Final = 4
CHECKPOINT_COMMITS: Final = 100
RETENTION: Final = timedelta(days=7)
VACUUM_INTERVAL: Final = 86_400.0
#: The file whose time of change is the time of the last vacuum.
_VACUUMED: Final = "_vacuumed"
_CHECKPOINT: Final = "_last_checkpoint"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def maintain(events: EventsTable, server: str, today: date) -> None:
    """Run the maintenance that is due. Only the process that ships `server` may call it."""
    if events.table is None:
        return
    if events.local is None:
        maintain_remote(events.table)
        return
    compact(events, server, today)
    checkpoint(events.table, events.folder)
    if vacuum_is_due(events.folder):
        vacuum(events.table, events.folder)


def maintain_remote(table: DeltaTable) -> None:
    """Maintain a table in an object store, where `deltalake` needs no syncs."""
    if table.version() % CHECKPOINT_COMMITS:
        return
    table.optimize.compact(post_commithook_properties=NO_HOOKS)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(dry_run=False, full=True, post_commithook_properties=NO_HOOKS)
    table.update_incremental()


# Compaction


def compact(events: EventsTable, server: str, today: date) -> int:
    """Merge small files of one day, if there is such a day. Return the number of replaced files."""
    found = files(events.table, events.folder)
    own = [file for file in found if file.server == server and file.first_event]
    chosen = _choose(own, today)
    if not chosen:
        return 0
    day, rows = chosen[0].day or today, _batches(chosen)
    added = add_file(events.folder, day, server, rows, _statistics(chosen), new_rows=False)
    crash_point("merged")
    partition: dict[str, str | None] = {"day": day.isoformat(), "server": server}
    now = int(time.time() * 1000)
    removed = [RemoveAction(file.name, False, now, file.bytes, partition) for file in chosen]
    events.sync_log(events.commit([added, *removed]))
    return len(chosen)


def _choose(files: Sequence[File], today: date) -> list[File]:
    """The files to merge into one: of the oldest day that has enough of them."""
    for day, of_day in groupby(files, key=lambda file: file.day or today):
        limit, enough = (
            (TARGET_ROWS, CLOSED_DAY_FILES) if day < today else (SMALL_ROWS, OPEN_DAY_FILES)
        )
        small = [file for file in of_day if file.rows < limit]
        if len(small) >= enough:
            ends = accumulate(file.rows for file in small)
            return [
                f
                for n, (f, end) in enumerate(zip(small, ends, strict=True))
                if n < 2 or end <= TARGET_ROWS
            ]
    return []


def _batches(files: Iterable[File]) -> Iterator[RecordBatch]:
    """The rows of files in their order."""
    for file in files:
        try:
            reader = read_parquet(file.path, batch_size=ROW_GROUP_ROWS)
        except BaseException as error:  # arro3 panics if a file is damaged
            raise OSError(f"Cannot read {file.path}: {error}") from error
        for batch in reader:
            yield with_new_columns(batch)


def _statistics(files: Sequence[File]) -> dict[str, Any]:
    lowest, highest, nulls = {}, {}, {}
    for name in STATISTICS:
        of_files = [file.record for file in files]
        nulls[name] = sum(each[f"null_count.{name}"] or 0 for each in of_files)
        known = [each for each in of_files if each[f"min.{name}"] is not None]
        if known:
            lowest[name] = _logged(min(each[f"min.{name}"] for each in known))
            highest[name] = _logged(max(each[f"max.{name}"] for each in known))
    return {
        "numRecords": sum(file.rows for file in files),
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _logged(value: Any) -> Any:
    """A value in the form of the log. A time there has milliseconds already."""
    return milliseconds((value - _EPOCH) // _MICROSECOND) if isinstance(value, datetime) else value


# The log


def checkpoint(table: DeltaTable, folder: Path, commits: int = CHECKPOINT_COMMITS) -> bool:
    """Write a checkpoint if the last one is this number of commits ago, and clean up the log."""
    log = folder / LOG
    if table.version() - _last_checkpoint(log) < commits:
        return False
    table.create_checkpoint()
    for path in log.glob(f"{table.version():020}.checkpoint*.parquet"):
        sync(path)
    sync(log / _CHECKPOINT)
    sync(log)
    table.cleanup_metadata()
    return True


def _last_checkpoint(log: Path) -> int:
    try:
        return int(json.loads((log / _CHECKPOINT).read_bytes())["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return 0


def vacuum(
    table: DeltaTable, folder: Path, keep_versions: Sequence[int] = (), hours: int | None = None
) -> list[str]:
    """Remove files that no version of the last days needs. Return their names."""
    removed = table.vacuum(
        retention_hours=int(RETENTION.total_seconds() // 3600) if hours is None else hours,
        dry_run=False,
        enforce_retention_duration=hours is None,
        post_commithook_properties=NO_HOOKS,
        full=True,
        keep_versions=list(keep_versions) or None,
    )
    table.update_incremental()
    (folder / _VACUUMED).touch()
    return removed


def vacuum_is_due(folder: Path) -> bool:
    """Whether the last vacuum of a table is a day ago."""
    try:
        age = time.time() - (folder / _VACUUMED).stat().st_mtime
    except FileNotFoundError:
        (folder / _VACUUMED).touch()  # a new table has nothing to remove
        return False
    return age > VACUUM_INTERVAL
