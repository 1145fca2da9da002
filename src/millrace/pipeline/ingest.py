"""Landing files become events: checked, divided by day, each of them once.

A batch at a time: its intent, then a file for each day, then what goes into quarantine, and last
its record in the ledger, which makes all of it count. Whatever is killed in between is done again
with the same files and gives the same names. Files that are exactly what their names say, which is
proved without looking at rows, need no search for doubles; only others pay for one.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from millrace.journal.landing import Landed, parsed

from . import commit
from .events import HOT
from .inspection import Inspected, inspect, overlapping, torn
from .lake import Lake
from .ledger import Batch, Intent, Ledger, Part, Refused, touched, written_at
from .progress import Progress, silent
from .staging import Staged, stage
from .tables import QUARANTINE

#: What one batch takes at most: enough to be worth a Spark job, little enough to be done again.
MOST_EVENTS: Final = 2_000_000
MOST_FILES: Final = 1_000


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
        total = _events([*waiting, *_parsed(begun.files if begun else [])])
        done = 0
        progress("ingest", done, total)
        for intent in _intents(ledger, begun, waiting):
            taken.append(_take(spark, lake, ledger, intent))
            done += _events(_parsed(intent.files))
            progress("ingest", done, total)
    return Taken(taken)


def divided(waiting: Sequence[Landed]) -> Iterator[list[Landed]]:
    """The files of one batch after another."""
    batch: list[Landed] = []
    events = 0
    for each in waiting:
        if batch and (events + each.events > MOST_EVENTS or len(batch) == MOST_FILES):
            yield batch
            batch, events = [], 0
        batch.append(each)
        events += each.events
    if batch:
        yield batch


def _events(files: Sequence[Landed]) -> int:
    return sum(each.events for each in files)


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
    shared = overlapping([each.landed for each in looked], _parsed(sorted(ledger.files())))
    try:
        staged = stage(spark, lake, intent.batch, looked, shared)
    except Exception:
        # A page of a file may be damaged where no look at its form can see it.
        looked = [_read_through(lake, each) for each in looked]
        if not any(each.refused.startswith("it cannot be read") for each in looked):
            raise
        staged = stage(spark, lake, intent.batch, looked, shared)
    parts = _install(lake, intent.batch, staged)
    batch = Batch(
        batch=intent.batch,
        files=intent.files,
        rows=staged.rows,
        quarantined=staged.quarantined,
        reasons=_put_aside(lake, intent.batch, staged),
        refused=_refused(lake, looked),
        ranges=_ranges([each.landed for each in looked if not each.refused]),
        parts=parts,
        flushed=staged.flushed,
        digest=staged.digest,
        seconds=round(time.monotonic() - began, 3),
    )
    ledger.record(batch)
    commit.reached("ingest:ledger")
    return batch


def _clear(lake: Lake, batch: int) -> None:
    """Remove what the same batch left when it was interrupted; nobody has read it."""
    for path in lake.table(HOT).glob(f"day=*/b-{batch:08}-*.parquet"):
        path.unlink()
    (lake.table(QUARANTINE.name) / f"b-{batch:08}.parquet").unlink(missing_ok=True)


def _install(lake: Lake, batch: int, staged: Staged) -> list[Part]:
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


def _put_aside(lake: Lake, batch: int, staged: Staged) -> dict[str, int]:
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


def _refused(lake: Lake, looked: list[Inspected]) -> list[Refused]:
    return [
        Refused(each.name, each.refused, written_at(lake, each.name))
        for each in looked
        if each.refused
    ]


def _ranges(files: list[Landed]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for server, first, last in sorted(files):
        low, high = found.get(server, (first, last))
        found[server] = (min(low, first), max(high, last))
    return found
