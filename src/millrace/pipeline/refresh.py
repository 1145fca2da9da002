"""Brings the derived tables up to date: a refresh recomputes every affected day.

A refresh replaces whole days and never adds to existing rows, so it can safely be repeated. It
writes the number of the last processed batch to ops/refreshed.json as its final step, so an
interrupted refresh is repeated. Several days are processed together as long as their number of
events stays below a limit, because Spark takes about a second for each job, however small.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, date
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from . import commit, events
from .affected import Days, affected, leases_of, within
from .given import frame
from .lake import Lake
from .ledger import Ledger
from .progress import Progress, silent
from .refreshed import FORM, Flush, Mark, mark, record
from .tables import (
    ATTEMPTS,
    DEPTH_DAY,
    FAILURE_GROUPS,
    JOBS,
    LATENCY_HIST,
    PROTOCOL_DAY,
    QUEUE_DAY,
    THROUGHPUT_MINUTE,
    WORKER_HOUR,
    Table,
)
from .transforms.attempts import attempts
from .transforms.depths import depth_day, opening, throughput_minute
from .transforms.failures import failure_groups
from .transforms.flushes import flushes
from .transforms.jobs import jobs
from .transforms.latency import latency_hist
from .transforms.protocols import protocol_day
from .transforms.queues import queue_day
from .transforms.times import DAY
from .transforms.workers import worker_hour

#: Maximum number of events processed together. A single day may have more.
AT_ONCE: Final = 25_000_000

_EPOCH: Final = date(1970, 1, 1)


class Refreshed(NamedTuple):
    """The result of a refresh: the number of recomputed days for each table."""

    batch: int
    days: dict[str, int]
    seconds: float


def refresh(
    spark: SparkSession,
    lake: Lake,
    progress: Progress = silent,
    days: tuple[date, date] | None = None,
) -> Refreshed:
    """Bring the tables up to date. If `days` is given, also recompute all days in that range."""
    began = time.monotonic()
    with commit.locked(lake):
        done, ledger = mark(lake), Ledger(lake)
        known_flushes = _flushes(spark, lake, ledger, done)
        work = _Work(spark, lake, ledger, known_flushes, progress)
        changed = affected(ledger, done.batch, work.flush_days)
        if days is not None:
            also = within(ledger, *days, work.flush_days)
            changed = {name: sorted({*changed[name], *also[name]}) for name in changed}
        work.do(changed)
        made = Mark(form=FORM, batch=ledger.last, flushes=known_flushes)
        if made != done:
            record(lake, made)
    counts = {name: len(each) for name, each in changed.items() if each}
    return Refreshed(ledger.last, counts, time.monotonic() - began)


def _flushes(spark: SparkSession, lake: Lake, ledger: Ledger, done: Mark) -> list[Flush]:
    """Return all flushes. Only new batches that contain a flush are searched."""
    days = {
        part.day
        for batch in ledger.batches(after=done.batch)
        if batch.flushed
        for part in batch.parts
    }
    if not days:
        return done.flushes
    found = flushes(events.read(spark, lake, days=days)).toArrow().to_pylist()
    return sorted(
        {*done.flushes, *(Flush(row["server"], row["event_id"], row["time"]) for row in found)},
        key=lambda flush: (flush.server, flush.event_id),
    )


class _Work:
    """A refresh in progress."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        ledger: Ledger,
        known_flushes: list[Flush],
        progress: Progress,
    ) -> None:
        self._spark, self._lake, self._ledger = spark, lake, ledger
        self._progress = progress
        # With a limit of 0, Spark knows that the frame is empty and removes operations on it.
        self._flushes = spark.createDataFrame(_flush_table(known_flushes)).limit(len(known_flushes))
        self.flush_days = sorted({flush.time.astimezone(UTC).date() for flush in known_flushes})
        self._rows = dict.fromkeys(ledger.days(), 0)
        for batch in ledger.batches():
            for part in batch.parts:
                self._rows[part.day] += part.rows

    def do(self, days: Days) -> None:
        # _tables() lists a table after the tables that it is computed from.
        for table, make in self._tables():
            self._replace(table, days[table.name], make)

    def _tables(self) -> list[tuple[Table, Callable[[list[date]], DataFrame]]]:
        return [
            (LATENCY_HIST, lambda days: latency_hist(self._events(days))),
            (
                QUEUE_DAY,
                lambda days: queue_day(self._events(days), self._table(LATENCY_HIST, days)),
            ),
            (FAILURE_GROUPS, lambda days: failure_groups(self._events(days))),
            (PROTOCOL_DAY, lambda days: protocol_day(self._events(days))),
            (DEPTH_DAY, lambda days: depth_day(self._events(days), self._flushes)),
            (THROUGHPUT_MINUTE, self._throughput),
            (ATTEMPTS, self._attempts),
            (WORKER_HOUR, self._workers),
            (JOBS, self._jobs),
        ]

    def _replace(
        self, table: Table, days: list[date], make: Callable[[list[date]], DataFrame]
    ) -> None:
        done = 0
        for some in self._at_once(days):
            self._progress(f"refresh {table.name}", done, len(days))
            commit.replace_days(make(some), self._lake, table, some)
            done += len(some)
        if days:
            self._progress(f"refresh {table.name}", done, len(days))

    def _at_once(self, days: list[date]) -> Iterator[list[date]]:
        """Divide the days into groups of consecutive days that do not exceed AT_ONCE events.
        The estimate assumes that a day of leases or pushes has about as many events as
        the day itself.
        """
        some: list[date] = []
        rows = 0
        for day in days:
            own = self._rows.get(day, 0)
            if some and rows + own > AT_ONCE:
                yield some
                some, rows = [], 0
            some.append(day)
            rows += own
        if some:
            yield some

    def _events(self, days: Iterable[date]) -> DataFrame:
        return events.read(self._spark, self._lake, days=days)

    def _table(self, table: Table, days: Collection[date]) -> DataFrame:
        """Return the given days of a derived table; missing days are ignored."""
        ddl, there = f"{table.ddl}, day DATE", set(self._lake.days(table.name))
        paths = [self._lake.day(table.name, day) for day in sorted(there.intersection(days))]
        if not paths:
            # With a limit of 0, the Spark optimizer knows that the frame is empty.
            return frame(self._spark, ddl).limit(0)
        base = commit.located(self._lake.table(table.name))
        reader = self._spark.read.schema(ddl).option("basePath", base)
        return reader.parquet(*commit.readable(*paths))

    def _throughput(self, days: list[date]) -> DataFrame:
        before = [day for day in self._ledger.days() if day < days[0]]
        # If the user requested specific days, there can be unchanged days between the changed ones.
        all_ = [day for day in self._ledger.days() if days[0] <= day <= days[-1]]
        made = throughput_minute(
            self._events(all_), opening(self._table(DEPTH_DAY, before)), self._flushes
        )
        return made.filter(_is_of(F.col("day"), days))

    def _attempts(self, days: list[date]) -> DataFrame:
        held = self._events(self._ledger.event_days(leases=days))
        return attempts(held.filter(_is_within("leased_at", days)), self._flushes)

    def _workers(self, days: list[date]) -> DataFrame:
        leases = leases_of(self._ledger, days, self.flush_days)
        made = worker_hour(self._table(ATTEMPTS, leases))
        return made.filter(_is_of(F.col("day"), days))

    def _jobs(self, days: list[date]) -> DataFrame:
        lived = self._events(self._ledger.event_days(pushes=days))
        return jobs(lived.filter(_is_within("created", days)), self._flushes)


def _flush_table(known_flushes: list[Flush]) -> pa.Table:
    """Convert flushes to a table with the columns of a frame of flushes."""
    columns = [
        ("server", pa.string()),
        ("event_id", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
    ]
    rows = [msgspec.structs.asdict(flush) for flush in known_flushes]
    return pa.Table.from_pylist(rows, schema=pa.schema(columns))


# Days are compared as numbers: the conversion of early dates would use a different calendar.


def _is_of(day: Column, days: Collection[date]) -> Column:
    return F.unix_date(day).isin([_number(each) for each in days])


def _is_within(name: str, days: Collection[date]) -> Column:
    """Test if a timestamp is on one of the days. Parquet filters by the first and last day."""
    moment, first, last = F.col(name), _number(min(days)), _number(max(days))
    inside = (moment >= F.timestamp_micros(F.lit(first * DAY))) & (
        moment < F.timestamp_micros(F.lit((last + 1) * DAY))
    )
    return inside if last - first + 1 == len(days) else inside & _is_of(F.to_date(moment), days)


def _number(day: date) -> int:
    return (day - _EPOCH).days
