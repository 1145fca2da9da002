"""Read events as they are shipped: the sealed files in the landing folder, each event once.

An offset contains the last event read from each server. File names contain the range of events, so
listing the folder is sufficient to determine the available events.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .options import Options

#: File names written by millrace.journal.landing.
_NAME: Final = re.compile(r"ev-([0-9a-f]+)-(\d{20})-(\d{20})\.parquet")
FOLDER: Final = "landing"
#: Default number of events per micro-batch (option `rows`).
ROWS: Final = 1_000_000
MOST_ROWS: Final = 1_000_000_000
#: Events per record batch passed to Spark.
BATCH: Final = 10_000

Offset = dict[str, int]


class Sealed(NamedTuple):
    first: int
    last: int
    path: str


@dataclass
class Stretch(InputPartition):
    """The events from `first` to `last` of one file."""

    path: str
    first: int
    last: int


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Options, schema: StructType) -> None:
        lake = given.get("lake")
        if not lake:
            raise ValueError("which lake? Give the option `lake`: the folder that has `landing`")
        self.folder = str(Path(lake).absolute() / FOLDER)
        self.rows = given.count("rows", ROWS, MOST_ROWS)
        self.columns = schema.fieldNames()
        #: Whether the query fails if events were removed before they were read.
        self.strict = given.get("failOnDataLoss", "true").lower() != "false"
        #: With Trigger.AvailableNow: the latest offset at the start of the query.
        self.until: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.until = self.reportLatestOffset()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        files = landed(self.folder)
        return {server: max(file.last for file in mine) for server, mine in files.items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        assert rows is not None or isinstance(limit, ReadAllAvailable), limit
        return self._end(start, rows)

    def _end(self, start: Offset, rows: int | None) -> Offset:
        """Return the offset after up to `rows` more events."""
        end = dict(start)
        for server, files in self._whole(start).items():
            until = None if self.until is None else self.until.get(server, 0)
            for stretch in stretches(files, start.get(server, 0), until):
                last = stretch.last
                if rows is not None:
                    last = min(last, stretch.first + rows - 1)
                    rows -= last - stretch.first + 1
                    if last < stretch.first:
                        return end
                end[server] = last
        return end

    def _whole(self, start: Offset) -> dict[str, list[Sealed]]:
        """Return the files. In strict mode, raise an error if events after `start` are missing."""
        files = landed(self.folder)
        if self.strict and missing(files, start):
            # Files are sealed in order, but a directory listing may include a new file and omit the
            # file before it. A second listing must include both.
            files = landed(self.folder)
            for server, first, last in missing(files, start):
                raise _taken_away(server, first, last)
        return files

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        files = self._whole(start)
        found = []
        for server, last in end.items():
            after = start.get(server, 0)
            mine = list(stretches(files.get(server, []), after, last))
            reached = mine[-1].last if mine else after
            if self.strict and reached < last:
                raise _taken_away(server, reached + 1, last)
            found += mine
        return list[InputPartition](found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        table = pq.read_table(
            partition.path,
            columns=self.columns,
            filters=(pc.field("event_id") >= partition.first)
            & (pc.field("event_id") <= partition.last),
            partitioning=None,
        )
        # Spark expects all columns to be nullable.
        free = pa.schema([field.with_nullable(True) for field in table.schema])
        yield from table.cast(free).to_batches(max_chunksize=BATCH)


def landed(folder: str) -> dict[str, list[Sealed]]:
    """Return the sealed files of each server, ordered by event."""
    found: dict[str, list[Sealed]] = {}
    path = Path(folder)
    if not path.is_dir():
        return found
    for each in sorted(path.iterdir()):
        if match := _NAME.fullmatch(each.name):
            sealed = Sealed(int(match[2]), int(match[3]), str(each))
            found.setdefault(match[1], []).append(sealed)
    return {server: sorted(files) for server, files in sorted(found.items())}


def _taken_away(server: str, first: int, last: int) -> ValueError:
    return ValueError(
        f"events {first} to {last} of server {server} were taken away before they were read. Set "
        "failOnDataLoss to false to go on without them"
    )


def missing(files: dict[str, list[Sealed]], start: Offset) -> list[tuple[str, int, int]]:
    """Return the gaps between files: server, first event, last event. If `start` has no
    event of a server, events before its first file do not count.
    """
    found = []
    for server, sealed in files.items():
        last = start.get(server, 0)
        for file in sealed:
            if last and file.first > last + 1:
                found.append((server, last + 1, file.first - 1))
            last = max(last, file.last)
    return found


def stretches(files: list[Sealed], after: int, until: int | None) -> Iterator[Stretch]:
    """Return the ranges to read from the files of a server after the event `after`. Each event is
    included once, even if two files contain it.
    """
    last = after
    for file in files:
        if until is not None and last >= until:
            return
        first = max(file.first, last + 1)
        stop = file.last if until is None else min(file.last, until)
        if first <= stop:
            yield Stretch(file.path, first, stop)
            last = stop
