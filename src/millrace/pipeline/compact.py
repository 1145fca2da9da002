"""Compaction: rewrites the events of closed days as few large sorted files.

The hot events of a day have one or two files for each batch. Compaction adds the new files and
then writes the day's _sealed.json, which names them. That rename makes the new files visible.
Only afterwards does compaction remove the hot files that were replaced. Events that arrive later
for a compacted day are hot again, and the next compaction includes them. If a compaction is
killed at any point, readers still find each event exactly once, and the next compaction cleans
up.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq

from millrace.journal.landing import landed

from . import commit, events
from .commit import located
from .errors import PipelineError
from .events import COLD, HOT, SEAL, Seal, sealed
from .lake import Lake
from .ledger import Ledger
from .progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Maximum number of rows in one file, and in one Spark job for several days.
ROWS: Final = 5_000_000
#: Sort order: by queue, then by job, then in the order in which the events happened.
_ORDER: Final = ("queue", "server", "seq", "event_id")
_HOT_FILE: Final = re.compile(r"b-(\d+)-\d+\.parquet")


class Due(NamedTuple):
    """A day that has hot files."""

    day: date
    rows: int


class Compacted(NamedTuple):
    days: list[date]
    events: int
    #: Number of hot files that were replaced.
    replaced: int


def due(lake: Lake, *, everything: bool = False, today: date | None = None) -> list[Due]:
    """Return the days to compact: days before today (UTC), or all days. Needs no Spark."""
    rows: dict[date, int] = {}
    newest: dict[date, int] = {}
    for batch in Ledger(lake).batches():
        for part in batch.parts:
            rows[part.day] = rows.get(part.day, 0) + part.rows
            newest[part.day] = batch.batch
    first_open = today or datetime.now(UTC).date()
    return [
        Due(day, rows[day])
        for day in sorted(rows)
        if (everything or day < first_open) and not _is_sealed(lake, day, newest[day])
    ]


def compact(
    spark: "SparkSession",
    lake: Lake,
    progress: Progress = silent,
    *,
    everything: bool = False,
    today: date | None = None,
) -> Compacted:
    """Compact all days that are due."""
    with commit.locked(lake):
        replaced = tidy(lake)
        days = due(lake, everything=everything, today=today)
        last = Ledger(lake).last
        total, done = sum(each.rows for each in days), 0
        progress("compact", done, total)
        for group in _together(days):
            staged = _stage(spark, lake, group)
            for each in group:
                _seal(lake, each, staged, last)
                replaced += tidy(lake, [each.day])
                commit.reached(f"compact:tidy:{each.day}")
                done += each.rows
                progress("compact", done, total)
            shutil.rmtree(staged, ignore_errors=True)
    return Compacted([each.day for each in days], total, replaced)


def prune(lake: Lake) -> int:
    """Remove the landing files that are completely compacted, and return their number. The last
    file of each server remains, because shippers use it to find the last shipped event.
    """
    with commit.locked(lake):
        here = landed(lake.root)
        newest = {each.server: each.name for each in sorted(here, key=lambda each: each.last)}
        there = {each.name for each in here} - set(newest.values())
        removed = 0
        for batch in Ledger(lake).batches():
            gone = there.intersection(batch.files) - {each.file for each in batch.refused}
            if gone and all(_is_sealed(lake, part.day, batch.batch) for part in batch.parts):
                for name in gone:
                    (lake.landing / name).unlink(missing_ok=True)
                removed += len(gone)
    return removed


def tidy(lake: Lake, days: Iterable[date] | None = None) -> int:
    """Remove files that no reader uses: hot files that compacted files replace, and leftover
    files of a killed compaction. Returns the number of removed hot files.
    """
    removed = 0
    for day in lake.days(COLD) if days is None else days:
        seal = sealed(lake, day)
        for path in lake.day(COLD, day).glob("*.parquet"):
            if seal is None or path.name not in seal.files:
                path.unlink()
        if seal is None:
            continue
        hot = lake.day(HOT, day)
        for path in hot.glob("b-*.parquet"):
            match = _HOT_FILE.fullmatch(path.name)
            if match and int(match[1]) <= seal.max_batch:
                path.unlink()
                removed += 1
        if hot.is_dir() and not any(hot.iterdir()):
            hot.rmdir()
    return removed


def _is_sealed(lake: Lake, day: date, batch: int) -> bool:
    seal = sealed(lake, day)
    return seal is not None and seal.max_batch >= batch


def _together(days: Sequence[Due]) -> Iterator[list[Due]]:
    """Group small days, so that one Spark job processes several of them."""
    group: list[Due] = []
    for each in days:
        if group and sum(member.rows for member in group) + each.rows > ROWS:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _stage(spark: "SparkSession", lake: Lake, group: list[Due]) -> Path:
    staged = lake.staging / "compact"
    shutil.rmtree(staged, ignore_errors=True)
    rows = events.read(spark, lake, days=[each.day for each in group])
    ordered = _spread(rows, group).sortWithinPartitions("day", *_ORDER)
    ordered.write.partitionBy("day").parquet(located(staged))
    return staged


def _spread(rows: "DataFrame", group: list[Due]) -> "DataFrame":
    """Partition the rows into one file for each day, or into several files for a large day."""
    if len(group) > 1:
        return rows.repartition("day")
    return rows.repartitionByRange(-(-group[0].rows // ROWS), *_ORDER)


def _seal(lake: Lake, each: Due, staged: Path, batch: int) -> None:
    """Move the staged files of a day to their final location, then write the seal."""
    files = sorted((staged / f"day={each.day.isoformat()}").glob("part-*.parquet"))
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    if rows != each.rows:
        raise PipelineError(
            f"{each.day} has {each.rows} events by the ledger, and {rows} were read: nothing was "
            "compacted. `millrace pipeline audit` says which are missing"
        )
    names = [f"c-{batch:08}-{number}.parquet" for number in range(len(files))]
    for file, name in zip(files, names, strict=True):
        commit.install(file, lake.day(COLD, each.day) / name)
        commit.reached(f"compact:file:{each.day}")
    commit.write_json(
        lake.day(COLD, each.day) / SEAL, Seal(max_batch=batch, files=names, rows=rows)
    )
    commit.reached(f"compact:seal:{each.day}")
