"""Landing files become events: checked, divided by day, each of them once.

A batch at a time: its intent, then a file for each day, then what goes into quarantine, and last
its record in the ledger, which makes all of it count. Whatever is killed in between is done again
with the same files and gives the same names. Files that are exactly what their names say, which is
proved without looking at rows, need no search for doubles; only others pay for one.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import date
from hashlib import blake2s
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.journal import schema
from millrace.journal.landing import Landed, parsed

from . import commit
from .commit import located, readable
from .doubles import judged
from .errors import PipelineError
from .events import HOT, load
from .inspection import Inspected, inspect, overlapping, torn
from .lake import Lake
from .ledger import Batch, Intent, Ledger, Part, Refused, touched
from .progress import Progress, silent
from .rules import is_broken, reasons, rules
from .tables import QUARANTINE

#: What one batch takes at most: enough to be worth a Spark job, little enough to be done again.
MOST_EVENTS: Final = 2_000_000
MOST_FILES: Final = 1_000
#: So many days are written side by side; with more of them, rows are sorted by day first.
_OPEN_FILES: Final = "8"


class Taken(NamedTuple):
    """What a run took in."""

    batches: list[Batch]

    @property
    def events(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def quarantined(self) -> int:
        return sum(batch.quarantined for batch in self.batches)

    @property
    def refused(self) -> list[Refused]:
        return [each for batch in self.batches for each in batch.refused]

    @property
    def days(self) -> list[date]:
        return touched(self.batches).events


def ingest(spark: SparkSession, lake: Lake, progress: Progress = silent) -> Taken:
    """Take in every landing file that no batch has yet."""
    taken: list[Batch] = []
    with commit.locked(lake):
        ledger = Ledger(lake)
        begun = ledger.interrupted()
        waiting = [
            each for each in ledger.waiting() if begun is None or each.name not in begun.files
        ]
        total = sum(map(_events, waiting)) + sum(
            map(_events, _parsed(begun.files if begun else []))
        )
        done = 0
        progress("ingest", done, total)
        for intent in _intents(ledger, begun, waiting):
            taken.append(_take(spark, lake, ledger, intent))
            done += sum(map(_events, _parsed(intent.files)))
            progress("ingest", done, total)
    return Taken(taken)


def divided(waiting: Sequence[Landed]) -> Iterator[list[Landed]]:
    """The files of one batch after another."""
    batch: list[Landed] = []
    events = 0
    for each in waiting:
        if batch and (events + _events(each) > MOST_EVENTS or len(batch) == MOST_FILES):
            yield batch
            batch, events = [], 0
        batch.append(each)
        events += _events(each)
    if batch:
        yield batch


def _events(landed: Landed) -> int:
    return max(0, landed.last - landed.first + 1)


def _parsed(names: Sequence[str]) -> list[Landed]:
    return [found for name in names if (found := parsed(name)) is not None]


def _intents(ledger: Ledger, begun: Intent | None, waiting: list[Landed]) -> Iterator[Intent]:
    """The batch that was interrupted, then the others; each is written down before it is given."""
    if begun is not None:
        yield begun
    for files in divided(waiting):
        intent = ledger.intend([each.name for each in files])
        commit.reached("ingest:intent")
        yield intent


def _take(spark: SparkSession, lake: Lake, ledger: Ledger, intent: Intent) -> Batch:
    """Do one batch, from its intent to its record."""
    began = time.monotonic()
    _clear(lake, intent.batch)
    looked = [inspect(lake, each) for each in _parsed(intent.files)]
    try:
        staged = _stage(spark, lake, ledger, intent, looked)
    except Exception:
        # A page of a file may be damaged where no look at its form can see it.
        looked = [_read_through(lake, each) for each in looked]
        if not any(each.refused.startswith("it cannot be read") for each in looked):
            raise
        staged = _stage(spark, lake, ledger, intent, looked)
    parts = _install(lake, intent.batch, staged)
    batch = Batch(
        batch=intent.batch,
        files=intent.files,
        rows=staged.rows,
        quarantined=staged.quarantined,
        reasons=_put_aside(lake, intent.batch, staged),
        refused=[Refused(each.name, each.refused) for each in looked if each.refused],
        ranges=_ranges([each.landed for each in looked if not each.refused]),
        parts=parts,
        flushed=staged.flushed,
        digest=staged.digest,
        seconds=round(time.monotonic() - began, 3),
    )
    ledger.record(batch)
    commit.reached("ingest:ledger")
    return batch


class _Staged(NamedTuple):
    """What a batch will be, in staging."""

    events: Path
    quarantine: Path
    rows: int
    quarantined: int
    leases: dict[date, set[date]]
    pushes: dict[date, set[date]]
    counts: dict[date, int]
    flushed: bool
    digest: str


def _stage(
    spark: SparkSession, lake: Lake, ledger: Ledger, intent: Intent, looked: list[Inspected]
) -> _Staged:
    """Write the good rows by day, and the others aside."""
    folder = lake.staging / f"b-{intent.batch:08}"
    shutil.rmtree(folder, ignore_errors=True)
    usable = [each for each in looked if not each.refused]
    total = sum(each.rows for each in usable)
    good, bad = _divide(spark, lake, ledger, usable)
    events, quarantine = folder / "events", folder / "quarantine"
    if total:
        _write_by_day(spark, good, events)
    summary = _summary(spark, events)
    missing = total - summary.rows
    if missing:
        rows = bad.withColumn("batch", F.lit(intent.batch).cast("bigint"))
        rows.select(*QUARANTINE.columns).coalesce(1).write.parquet(located(quarantine))
        aside = sum(pq.read_metadata(path).num_rows for path in quarantine.glob("part-*.parquet"))
        if aside != missing:
            raise PipelineError(
                f"batch {intent.batch} has {total} rows, of which {summary.rows} are events and "
                f"{aside} are none: a defect, nothing was taken"
            )
    return summary._replace(quarantine=quarantine, quarantined=missing)


def _divide(
    spark: SparkSession, lake: Lake, ledger: Ledger, usable: list[Inspected]
) -> tuple[DataFrame, DataFrame]:
    """The events, and what is none with the reasons."""
    earlier = _parsed(sorted(ledger.files()))
    shared = overlapping([each.landed for each in usable], earlier)
    plain = [each for each in usable if each.exact and each.landed not in shared]
    doubtful = [each for each in usable if not each.exact or each.landed in shared]
    alone = rules()
    broken = is_broken(alone)
    rows = _landing(spark, lake, plain)
    good = rows.where(~broken).select(*schema.NAMES)
    bad = rows.where(broken).select(*schema.NAMES, reasons(alone).alias("reasons"), "file")
    if doubtful:
        rows = judged(spark, lake, _landing(spark, lake, doubtful), doubtful)
        good = good.unionByName(rows.where(F.size("reasons") == 0).select(*schema.NAMES))
        bad = bad.unionByName(
            rows.where(F.size("reasons") > 0).select(*schema.NAMES, "reasons", "file")
        )
    return good, bad


def _landing(spark: SparkSession, lake: Lake, files: list[Inspected]) -> DataFrame:
    """The rows of landing files; columns that a file does not have yet are null."""
    if not files:
        return spark.createDataFrame([], f"{schema.ddl()}, file STRING")
    paths = readable(*(lake.landing / each.name for each in files))
    rows = spark.read.schema(schema.ddl()).parquet(*paths)
    return rows.withColumn("file", F.col("_metadata.file_name"))


def _write_by_day(spark: SparkSession, rows: DataFrame, place: Path) -> None:
    # Or rows would be sorted by day before they are written, which costs as much as all else.
    setting = "spark.sql.maxConcurrentOutputFileWriters"
    before = spark.conf.get(setting)
    spark.conf.set(setting, _OPEN_FILES)
    try:
        by_day = rows.withColumn("day", F.to_date("time"))
        by_day.write.partitionBy("day").parquet(located(place))
    finally:
        spark.conf.set(setting, before or "0")


def _summary(spark: SparkSession, place: Path) -> _Staged:
    """What was written, as read from it: the days that it touches, and a digest."""
    written = sorted(place.glob("day=*/part-*.parquet"))
    leases: dict[date, set[date]] = {}
    pushes: dict[date, set[date]] = {}
    counts: dict[date, int] = {}
    found = []
    if written:
        rows = load(spark, place, written)
        found = (
            rows.groupBy("server", "day", _day("leased_at"), _day("created"))
            .agg(
                F.count("*").alias("n"),
                F.sum(F.col("event_id").cast("decimal(20,0)")).alias("sum"),
                F.max(F.col("type") == schema.FLUSHED).alias("flushed"),
            )
            .collect()
        )
    digest = blake2s(digest_size=16)
    for server, day, lease, push, n, total, _ in sorted(map(tuple, found), key=str):
        counts[day] = counts.get(day, 0) + n
        leases.setdefault(day, set()).update([lease] if lease else ())
        pushes.setdefault(day, set()).update([push] if push else ())
        digest.update(f"{server} {day} {lease} {push} {n} {total}\n".encode())
    return _Staged(
        events=place,
        quarantine=place,
        rows=sum(counts.values()),
        quarantined=0,
        leases=leases,
        pushes=pushes,
        counts=counts,
        flushed=any(row["flushed"] for row in found),
        digest=digest.hexdigest(),
    )


def _day(name: str) -> Column:
    return F.to_date(name).alias(name)


def _clear(lake: Lake, batch: int) -> None:
    """Remove what the same batch left when it was interrupted; nobody has read it."""
    for path in lake.table(HOT).glob(f"day=*/b-{batch:08}-*.parquet"):
        path.unlink()
    (lake.table(QUARANTINE.name) / f"b-{batch:08}.parquet").unlink(missing_ok=True)


def _install(lake: Lake, batch: int, staged: _Staged) -> list[Part]:
    """Rename the events into place."""
    parts = []
    installed = 0
    for day in sorted(staged.counts):
        names = []
        folder = staged.events / f"day={day.isoformat()}"
        for number, file in enumerate(sorted(folder.glob("part-*.parquet"))):
            names.append(f"b-{batch:08}-{number}.parquet")
            commit.install(file, lake.day(HOT, day) / names[-1])
            installed += 1
            commit.reached(f"ingest:hot:{installed}")
        leases, pushes = sorted(staged.leases[day]), sorted(staged.pushes[day])
        parts.append(Part(day, names, staged.counts[day], leases, pushes))
    return parts


def _put_aside(lake: Lake, batch: int, staged: _Staged) -> dict[str, int]:
    """Rename the quarantined rows into place; how many there are for each reason."""
    if not staged.quarantined:
        return {}
    (file,) = staged.quarantine.glob("part-*.parquet")
    told = pq.read_table(file, columns=["reasons"]).column("reasons")
    counted = pc.value_counts(pc.list_flatten(told)).to_pylist()
    commit.install(file, lake.table(QUARANTINE.name) / f"b-{batch:08}.parquet")
    commit.reached("ingest:quarantine")
    return {each["values"]: each["counts"] for each in sorted(counted, key=lambda e: e["values"])}


def _read_through(lake: Lake, looked: Inspected) -> Inspected:
    if looked.refused or not (reason := torn(lake, looked.landed)):
        return looked
    return looked._replace(rows=0, exact=False, refused=reason)


def _ranges(files: list[Landed]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for server, first, last in sorted(files):
        low, high = found.get(server, (first, last))
        found[server] = (min(low, first), max(high, last))
    return found
