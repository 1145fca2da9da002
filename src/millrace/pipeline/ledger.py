"""The ledger: the ingested batches and the days that they touched. This module does not need
Spark.

A batch is a list of landing files. The pipeline first writes the intent of the batch, then its
events, and last its record, ops/batches/b-BATCH.json. The record makes the events visible to all
readers. An intent without a record is an interrupted batch, which is repeated with exactly the
same files.
"""

import os
import re
from collections.abc import Collection, Iterable
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from millrace.journal.landing import Landed, landed

from .commit import write_json
from .errors import PipelineError
from .lake import Lake

T = TypeVar("T")

_RECORD: Final = re.compile(r"b-\d{8,}\.json")
_INTENT: Final = re.compile(r"b-\d{8,}\.intent\.json")


#: Cache of decoded records: path to modification time and record.
_decoded: dict[str, tuple[int, "Batch"]] = {}


class Touched(NamedTuple):
    """The changed days; each list is sorted."""

    #: Days of the events.
    events: list[date]
    #: Days of the leases that the events belong to.
    leases: list[date]
    #: Days on which the jobs of the events were pushed.
    pushes: list[date]
    #: Whether a server was flushed, which may have ended jobs of any day.
    flushed: bool


class Part(msgspec.Struct, frozen=True):
    """The events of a batch on one day."""

    day: date
    #: File names in the folder of the day's hot events.
    files: list[str]
    rows: int
    leases: list[date]
    pushes: list[date]


class Refused(msgspec.Struct, frozen=True):
    """A landing file that was rejected as a whole."""

    file: str
    reason: str
    #: When the file was written, in nanoseconds. If the file is replaced, it is processed again.
    written: int = 0


class Intent(msgspec.Struct, frozen=True):
    batch: int
    files: list[str]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a batch."""

    batch: int
    files: list[str]
    #: Number of ingested events, and number of quarantined rows.
    rows: int
    quarantined: int
    #: Number of quarantined rows for each reason.
    reasons: dict[str, int] = {}
    refused: list[Refused]
    #: First and last event of each server, according to the file names.
    ranges: dict[str, tuple[int, int]]
    parts: list[Part]
    #: Whether the batch has a `flushed` event.
    flushed: bool
    #: Depends only on the events, not on their division into files.
    digest: str
    seconds: float


class Ledger:
    """All batches of a lake at the time of reading."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._batches = sorted(_read(lake), key=lambda each: each.batch)

    def batches(self, after: int = 0) -> list[Batch]:
        """Return the batches after the given one, in order."""
        return [each for each in self._batches if each.batch > after]

    @property
    def last(self) -> int:
        """The number of the last batch; 0 if there is none."""
        return self._batches[-1].batch if self._batches else 0

    def files(self) -> set[str]:
        """Return the landing files of all batches."""
        return {name for each in self._batches for name in each.files}

    def days(self) -> list[date]:
        """Return the days that have events."""
        return sorted({part.day for each in self._batches for part in each.parts})

    def touched_since(self, batch: int) -> Touched:
        """Return the days that the batches after this one touched."""
        return touched(self.batches(after=batch))

    def event_days(
        self, *, leases: Collection[date] = (), pushes: Collection[date] = ()
    ) -> list[date]:
        """Return the days that have events for leases of the given days, or for jobs pushed on
        the given days. Clocks may be wrong, so the result can include earlier days.
        """
        leases, pushes = set(leases), set(pushes)
        return sorted({
            part.day
            for each in self._batches
            for part in each.parts
            if not leases.isdisjoint(part.leases) or not pushes.isdisjoint(part.pushes)
        })  # fmt: skip

    def waiting(self) -> list[Landed]:
        """Return the landing files in no batch, and rejected files that were replaced."""
        known: dict[str, int | None] = {}
        for batch in self._batches:
            known.update(dict.fromkeys(batch.files))
            known.update((each.file, each.written) for each in batch.refused)
        return [
            each
            for each in landed(self._lake.root)
            if each.name not in known or self._is_replaced(each.name, known[each.name])
        ]

    def _is_replaced(self, name: str, written: int | None) -> bool:
        return written is not None and written_at(self._lake, name) != written

    def interrupted(self) -> Intent | None:
        """Return the intent of the unfinished batch; None if there is none."""
        done = {each.batch for each in self._batches}
        for entry in _entries(self._lake, _INTENT):
            intent = _decode(Path(entry.path), Intent)
            if intent.batch not in done:
                return intent
        return None

    def intend(self, files: list[str]) -> Intent:
        """Start the next batch: write its intent."""
        intent = Intent(self.last + 1, files)
        write_json(self._lake.batches / f"b-{intent.batch:08}.intent.json", intent)
        return intent

    def record(self, batch: Batch) -> None:
        """Finish a batch: write its record, which makes its events visible."""
        write_json(self._lake.batches / f"b-{batch.batch:08}.json", batch)
        self._batches = [*self._batches, batch]
        (self._lake.batches / f"b-{batch.batch:08}.intent.json").unlink(missing_ok=True)


def written_at(lake: Lake, name: str) -> int:
    """Return the change time of a landing file in nanoseconds; 0 if the file does not exist."""
    try:
        return (lake.landing / name).stat().st_ctime_ns
    except FileNotFoundError:
        return 0


def touched(batches: Iterable[Batch]) -> Touched:
    events: set[date] = set()
    leases: set[date] = set()
    pushes: set[date] = set()
    flushed = False
    for batch in batches:
        flushed |= batch.flushed
        for part in batch.parts:
            events.add(part.day)
            leases.update(part.leases)
            pushes.update(part.pushes)
    return Touched(sorted(events), sorted(leases), sorted(pushes), flushed)


def _read(lake: Lake) -> list[Batch]:
    """Read all records. Each record is decoded only once, because a lake can have tens of
    thousands of records after a year and every reader of events needs them.
    """
    found = []
    for entry in _entries(lake, _RECORD):
        written = entry.stat().st_mtime_ns
        known = _decoded.get(entry.path)
        if known is None or known[0] != written:
            known = _decoded[entry.path] = (written, _decode(Path(entry.path), Batch))
        found.append(known[1])
    return found


def _entries(lake: Lake, name: re.Pattern[str]) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(lake.batches) as entries:
            return [entry for entry in entries if name.fullmatch(entry.name)]
    except FileNotFoundError:
        return []


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise PipelineError(
            f"{path} is not what was written there ({error}): restore it, or begin a new lake"
        ) from error
