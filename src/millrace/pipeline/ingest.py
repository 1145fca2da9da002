"""Ingestion: validates the rows of landing files, divides them by day and stores each event
once.

Ingestion processes one batch at a time. It writes the intent of the batch, then the files for
each day, then the quarantined rows, and last the record in the ledger, which makes the batch
visible. An interrupted batch is repeated with the same files and produces the same names. If the
metadata and the ids of a file prove that it has exactly the events in its name, the search for
duplicates is skipped for that file.
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

#: Maximum size of a batch: large enough to justify a Spark job, small enough to repeat.
MOST_EVENTS: Final = 2_000_000
MOST_FILES: Final = 1_000


class Taken(NamedTuple):
    """The result of a run."""

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
    """Ingest every landing file that is not in a batch yet."""
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
    """Divide the waiting files into batches."""
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
    """Yield the interrupted batch, then new batches. Each intent is first written to disk."""
    if begun is not None:
        yield begun
    for files in divided(waiting):
        intent = ledger.intend([each.name for each in files])
        commit.reached("ingest:intent")
        yield intent


def _take(spark: SparkSession, lake: Lake, ledger: Ledger, intent: Intent) -> Batch:
    """Process one batch, from its intent to its record."""
    began = time.monotonic()
    _clear(lake, intent.batch)
    looked = [inspect(lake, each) for each in _parsed(intent.files)]
    shared = overlapping([each.landed for each in looked], _parsed(sorted(ledger.files())))
    try:
        staged = stage(spark, lake, intent.batch, looked, shared)
    except Exception:
        # A data page can be damaged in a way that the inspection of the file does not detect.
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
    """Remove the files of an interrupted attempt at this batch; no reader has used them."""
    for path in lake.table(HOT).glob(f"day=*/b-{batch:08}-*.parquet"):
        path.unlink()
    (lake.table(QUARANTINE.name) / f"b-{batch:08}.parquet").unlink(missing_ok=True)


def _install(lake: Lake, batch: int, staged: Staged) -> list[Part]:
    """Move the events to their final location."""
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
    """Move the quarantined rows to their final location; return the row count by reason."""
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
