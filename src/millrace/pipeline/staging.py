"""Stages a batch: writes its events by day, and the rejected rows separately.

A large file that has only valid events of a single day can serve as a hot file. It is linked,
not rewritten, which makes most of a batch nearly free. All other files are divided by day.
"""

import os
import shutil
from collections.abc import Collection, Iterable
from datetime import date
from hashlib import blake2s
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.journal import schema
from millrace.journal.landing import Landed

from .commit import located, readable
from .doubles import judged
from .errors import PipelineError
from .events import load
from .given import frame
from .inspection import Inspected
from .lake import Lake
from .rules import is_broken, reasons, rules, unproved
from .tables import QUARANTINE

#: Minimum number of rows for linking a file: small files are slow to read.
LARGE: Final = 50_000
#: Maximum number of days written concurrently. With more days, Spark sorts the rows by day first.
_OPEN_FILES: Final = "8"
#: Columns with mostly distinct values. Parquet would build a dictionary and then discard it.
_MANY: Final = (
    "event_id", "time", "seq", "jid", "created", "ready_at", "leased_at", "wait_us", "run_us",
    "due",
)  # fmt: skip


class Staged(NamedTuple):
    """The staged contents of a batch."""

    events: Path
    quarantine: Path
    quarantined: int
    counts: dict[date, int]
    leases: dict[date, set[date]]
    pushes: dict[date, set[date]]
    flushed: bool
    digest: str

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


class _Group(NamedTuple):
    """Events of one server with the same days of event, lease and push."""

    server: str
    day: date
    lease: date | None
    push: date | None
    rows: int
    #: Exclusive or of all event numbers.
    numbers: int
    flushed: bool


def stage(
    spark: SparkSession,
    lake: Lake,
    batch: int,
    looked: Iterable[Inspected],
    shared: Collection[Landed],
) -> Staged:
    """Write the contents of a batch to staging. The `shared` files overlap with other files."""
    folder = lake.staging / f"b-{batch:08}"
    shutil.rmtree(folder, ignore_errors=True)
    events, quarantine = folder / "events", folder / "quarantine"
    usable = [each for each in looked if not each.refused]
    plain = [each for each in usable if each.exact and each.landed not in shared]
    doubtful = [each for each in usable if not each.exact or each.landed in shared]
    groups = []
    for file, of_file in _as_they_are(spark, lake, plain).items():
        _link(lake.landing / file, events / f"day={of_file[0].day.isoformat()}")
        groups += of_file
        plain = [each for each in plain if each.name != file]
    total = sum(each.rows for each in (*plain, *doubtful))
    if total:
        good, bad = _divide(spark, lake, plain, doubtful)
        _write_by_day(spark, good, folder / "written")
        written = _groups(spark, folder / "written")
        quarantined = total - sum(group.rows for group in written)
        _gather(folder / "written", events)
        groups += written
    else:
        quarantined = 0
    if quarantined:
        rows = bad.withColumn("batch", F.lit(batch).cast("bigint")).select(*QUARANTINE.columns)
        rows.coalesce(1).write.parquet(located(quarantine))
        aside = sum(pq.read_metadata(path).num_rows for path in quarantine.glob("part-*.parquet"))
        if aside != quarantined:
            raise PipelineError(
                f"of {total} rows of batch {batch}, {total - quarantined} are events and {aside} "
                "are none: a defect, nothing was taken"
            )
    return _summary(events, quarantine, quarantined, groups)


def _as_they_are(
    spark: SparkSession, lake: Lake, plain: list[Inspected]
) -> dict[str, list[_Group]]:
    """Return the files that can be linked without rewriting, with their groups of events."""
    large = [each for each in plain if each.proved and each.rows >= LARGE]
    if not large:
        return {}
    rows = _landing(spark, lake, large).withColumn("day", F.to_date("time"))
    broken = F.sum(is_broken(unproved()).cast("int")).alias("broken")
    found = (
        rows.groupBy("file", *_days())
        .agg(*_measures(), broken)
        .select("file", "broken", *_Group._fields)
        .collect()
    )
    by_file: dict[str, list[_Group]] = {}
    unfit = {row["file"] for row in found if row["broken"]}
    for row in found:
        by_file.setdefault(row["file"], []).append(_Group(*row[2:]))
    return {
        file: groups
        for file, groups in sorted(by_file.items())
        if file not in unfit and len({group.day for group in groups}) == 1
    }


def _divide(
    spark: SparkSession, lake: Lake, plain: list[Inspected], doubtful: list[Inspected]
) -> tuple[DataFrame, DataFrame]:
    """Return the events, and the rejected rows with the reasons."""
    alone = rules()
    broken = is_broken(alone)
    rows = _landing(spark, lake, plain)
    good = rows.where(~broken).select(*schema.NAMES)
    bad = rows.where(broken).select(*schema.NAMES, reasons(alone).alias("reasons"), "file")
    if doubtful:
        rows = judged(spark, lake, _landing(spark, lake, doubtful), doubtful)
        is_good = F.size("reasons") == 0
        good = good.unionByName(rows.where(is_good).select(*schema.NAMES))
        bad = bad.unionByName(rows.where(~is_good).select(*schema.NAMES, "reasons", "file"))
    return good, bad


def _landing(spark: SparkSession, lake: Lake, files: list[Inspected]) -> DataFrame:
    """Return the rows of landing files; columns that a file lacks are null."""
    if not files:
        return frame(spark, f"{schema.ddl()}, file STRING")
    paths = readable(*(lake.landing / each.name for each in files))
    rows = spark.read.schema(schema.ddl()).parquet(*paths)
    return rows.withColumn("file", F.col("_metadata.file_name"))


def _link(file: Path, folder: Path) -> None:
    """Link a file into staging, or copy it if the file system does not support links."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"part-{file.name}"
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def _write_by_day(spark: SparkSession, rows: DataFrame, place: Path) -> None:
    # Without this setting, Spark sorts rows by day before writing, which doubles the time.
    setting = "spark.sql.maxConcurrentOutputFileWriters"
    before = spark.conf.get(setting)
    spark.conf.set(setting, _OPEN_FILES)
    try:
        writer = rows.withColumn("day", F.to_date("time")).write.partitionBy("day")
        for name in _MANY:
            writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.parquet(located(place))
    finally:
        spark.conf.set(setting, before or "0")


def _groups(spark: SparkSession, place: Path) -> list[_Group]:
    """Read the written files and return their groups of events."""
    files = sorted(place.glob("day=*/part-*.parquet"))
    if not files:
        return []
    found = load(spark, place, files).groupBy(*_days()).agg(*_measures())
    return [_Group(*row) for row in found.select(*_Group._fields).collect()]


def _gather(written: Path, events: Path) -> None:
    """Move the written files to the folders of the linked files."""
    for file in written.glob("day=*/part-*.parquet"):
        folder = events / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        file.rename(folder / file.name)


def _days() -> list[Column]:
    lease, push = F.to_date("leased_at").alias("lease"), F.to_date("created").alias("push")
    return [F.col("server"), F.col("day"), lease, push]


def _measures() -> list[Column]:
    return [
        F.count("*").alias("rows"),
        F.bit_xor("event_id").alias("numbers"),
        F.max(F.col("type") == schema.FLUSHED).alias("flushed"),
    ]


def _summary(events: Path, quarantine: Path, quarantined: int, groups: list[_Group]) -> Staged:
    """Collect the days of the events, and compute a digest of the event numbers."""
    counts: dict[date, int] = {}
    leases: dict[date, set[date]] = {}
    pushes: dict[date, set[date]] = {}
    numbers: dict[str, list[int]] = {}
    for each in groups:
        counts[each.day] = counts.get(each.day, 0) + each.rows
        leases.setdefault(each.day, set()).update([each.lease] if each.lease else ())
        pushes.setdefault(each.day, set()).update([each.push] if each.push else ())
        sums = numbers.setdefault(each.server, [0, 0])
        sums[0] += each.rows
        sums[1] ^= each.numbers
    return Staged(
        events=events,
        quarantine=quarantine,
        quarantined=quarantined,
        counts=counts,
        leases=leases,
        pushes=pushes,
        flushed=any(each.flushed for each in groups),
        digest=blake2s(repr(sorted(numbers.items())).encode(), digest_size=16).hexdigest(),
    )
