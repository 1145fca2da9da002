"""Reads the events: compacted events of closed days, and hot events.

An event is either in a compacted file that the day's _sealed.json names, or in a hot file of a
batch after the last batch in the seal. Readers ignore files that neither the ledger nor a seal
names: an interrupted run left them, or a run is about to remove them.
"""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from .commit import located, readable
from .given import frame
from .lake import Lake
from .ledger import Ledger
from .tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOT: Final = "events_hot"
COLD: Final = EVENTS.name
SEAL: Final = "_sealed.json"
#: Columns of a frame of events: all event columns, and the day.
DDL: Final = f"{EVENTS.ddl}, day DATE"


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a compacted day."""

    #: The compacted files include the events of all batches up to this one.
    max_batch: int
    files: list[str]
    rows: int


class Files(NamedTuple):
    """The files with the events of some days."""

    hot: list[Path]
    cold: list[Path]


def sealed(lake: Lake, day: date) -> Seal | None:
    try:
        return msgspec.json.decode((lake.day(COLD, day) / SEAL).read_bytes(), type=Seal)
    except FileNotFoundError:
        return None


def files(lake: Lake, days: Iterable[date] | None = None, *, ledger: Ledger | None = None) -> Files:
    """Return the files with the events of the given days, or of all days. Needs no Spark."""
    ledger = ledger or Ledger(lake)
    wanted = set(ledger.days() if days is None else days)
    seals = {day: seal for day in wanted if (seal := sealed(lake, day)) is not None}
    hot = [
        lake.day(HOT, part.day) / name
        for batch in ledger.batches()
        for part in batch.parts
        if part.day in wanted and (part.day not in seals or batch.batch > seals[part.day].max_batch)
        for name in part.files
    ]
    cold = [lake.day(COLD, day) / name for day in sorted(seals) for name in seals[day].files]
    return Files(hot, cold)


def read(
    spark: "SparkSession",
    lake: Lake,
    first: date | None = None,
    last: date | None = None,
    *,
    days: Iterable[date] | None = None,
) -> "DataFrame":
    """Return all events, optionally from `first` to `last`, or only of the given days."""
    ledger = Ledger(lake)
    chosen = set(ledger.days() if days is None else days)
    found = files(
        lake,
        [d for d in chosen if (first is None or d >= first) and (last is None or d <= last)],
        ledger=ledger,
    )
    frames = [
        load(spark, lake.table(name), paths)
        for name, paths in ((HOT, found.hot), (COLD, found.cold))
        if paths
    ]
    if not frames:
        return frame(spark, DDL)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def load(spark: "SparkSession", base: Path, paths: list[Path]) -> "DataFrame":
    """Read the given files of an event table; the folder names determine `day`."""
    reader = spark.read.schema(DDL).option("basePath", located(base))
    return reader.parquet(*readable(*paths))
