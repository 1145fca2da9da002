"""Read tables of a lake: a version of any table, or `events` as a stream, each event once.

The log of a Delta table names its files. The driver reads the log; the tasks read the files. An
offset of a stream contains the last event read from each server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .options import Options

EVENTS: Final = "events"
#: Default number of events per micro-batch (option `rows`).
ROWS: Final = 1_000_000
MAX_ROWS: Final = 1_000_000_000
#: Rows per record batch passed to Spark.
BATCH_ROWS: Final = 10_000

Offset = dict[str, int]


@dataclass
class FileRange(InputPartition):
    """A file of a table; of `events`, its events after `after` up to `last`."""

    path: str
    partition: dict[str, Any]
    after: int = 0
    last: int = 0


class LakeReader(DataSourceReader):
    """Reads a version of a table; the default is the version of the last run of the pipeline."""

    def __init__(self, given: Options, schema: StructType) -> None:
        self.columns = schema.fieldNames()
        version = given.count("version", 0, MAX_ROWS) if given.get("version") else None
        self.files = table_files(folder(given), given.get("table", EVENTS), version)

    def partitions(self) -> list[InputPartition]:
        return list[InputPartition](self.files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FileRange)
        yield from rows(partition, self.columns)


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams `events` by position."""

    def __init__(self, given: Options, schema: StructType) -> None:
        self.lake = folder(given)
        if given.get("table", EVENTS) != EVENTS:
            raise ValueError("Only the table events can be read as a stream.")
        self.rows = given.count("rows", ROWS, MAX_ROWS)
        self.columns = schema.fieldNames()
        #: With Trigger.AvailableNow: the latest offset at the start of the query.
        self.until: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.until = self.reportLatestOffset()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return _last_events(table_files(self.lake, EVENTS, None))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        budget = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        assert budget is not None or isinstance(limit, ReadAllAvailable), limit
        end = dict(start)
        files = table_files(self.lake, EVENTS, None)
        for server, last in sorted((self.until or _last_events(files)).items()):
            # The first event of a server can have a number above 1: older events may be elsewhere.
            before = min(file.after for file in files if file.partition["server"] == server)
            after = max(start.get(server, 0), before)
            stop = last if budget is None else min(last, after + budget)
            if stop > after:
                end[server] = stop
                budget = None if budget is None else budget - (stop - after)
        return end

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        found: list[InputPartition] = []
        for file in table_files(self.lake, EVENTS, None):
            server = file.partition["server"]
            after = max(file.after, start.get(server, 0))
            last = min(file.last, end.get(server, 0))
            if after < last:
                found.append(FileRange(file.path, file.partition, after, last))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FileRange)
        yield from rows(partition, self.columns)


def _last_events(files: list[FileRange]) -> Offset:
    """The last event of each server."""
    last: Offset = {}
    for file in files:
        server = file.partition["server"]
        last[server] = max(last.get(server, 0), file.last)
    return last


def folder(given: Options) -> str:
    """The folder of the lake, or of the mirror of a lake in an object store."""
    from millrace.pipeline.remote import local_root  # noqa: PLC0415 - only on the driver

    lake = given.get("lake")
    if not lake:
        raise ValueError("Set the option `lake`: the folder or the URI of the lake.")
    return str(local_root(lake).absolute())


def table_files(lake: str, table: str, version: int | None) -> list[FileRange]:
    """Return the files of a version of a table. It runs on the driver."""
    from deltalake import DeltaTable  # noqa: PLC0415 - tasks do not need it

    from millrace.journal.table_files import files  # noqa: PLC0415
    from millrace.pipeline.remote import fetch, shown, table_uri  # noqa: PLC0415

    root, uri = Path(lake), table_uri(Path(lake), table)
    if not DeltaTable.is_deltatable(uri):
        if table == EVENTS:
            return []  # no events have been shipped yet
        raise ValueError(f"The lake {shown(root)} has no table {table}.")
    if version is None and table != EVENTS:
        version = _version_of_run(lake, table)
    found = files(DeltaTable(uri, version=version), root / table)
    fetch(root, (file.path for file in found))
    ranges = [
        FileRange(str(f.path), _partition(f.record), max(f.first_event - 1, 0), f.last_event)
        for f in found
    ]
    return sorted(ranges, key=lambda each: (each.after, each.path))


def _partition(record: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the partition columns of a file."""
    prefix = "partition."
    return {n.removeprefix(prefix): v for n, v in record.items() if n.startswith(prefix)}


def _version_of_run(lake: str, table: str) -> int | None:
    """The version of a table that the last run names. It runs on the driver."""
    from millrace.pipeline.snapshot import last_run  # noqa: PLC0415 - only on the driver

    run = last_run(Path(lake))
    return None if run is None else run.versions.get(table)


def rows(file: FileRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the given columns, all of them nullable."""
    parquet = pq.ParquetFile(file.path)
    in_file = set(parquet.schema_arrow.names)
    ranged = bool(file.last) and "event_id" in in_file
    names = [name for name in columns if name in in_file]
    wanted = [*names, "event_id"] if ranged and "event_id" not in names else names
    for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted):
        table = pa.Table.from_batches([batch])
        if ranged:
            event = pc.field("event_id")
            table = table.filter((event > file.after) & (event <= file.last))
        arrays = [_column(table, file, name) for name in columns]
        yield from pa.table(dict(zip(columns, arrays, strict=True))).to_batches()


def _column(table: pa.Table, file: FileRange, name: str) -> Any:
    if name in table.column_names:
        return table[name]
    value = file.partition.get(name)
    kind = pa.date32() if isinstance(value, date) else pa.string()
    return pa.repeat(pa.scalar(value, kind), table.num_rows)
