"""What was taken in, batch by batch, and which days that touched. Nothing here needs Spark.

A batch is a list of landing files. First its intent is written down, then its events, and last its
record, ops/batches/b-BATCH.json: from then on its events are there for everybody. An intent without
a record is a batch that was interrupted; it is done again, with exactly its files.
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


#: Records by their path, with when they were written.
_decoded: dict[str, tuple[int, "Batch"]] = {}


class Touched(NamedTuple):
    """The days of which something changed, each list in order."""

    #: Days of the events.
    events: list[date]
    #: Days of the leases that those events are of.
    leases: list[date]
    #: Days of the pushes of their jobs.
    pushes: list[date]
    #: A server was emptied: jobs of any day may have ended by it.
    flushed: bool


class Part(msgspec.Struct, frozen=True):
    """The events of a batch that are of one day."""

    day: date
    #: In the folder of the hot events of that day.
    files: list[str]
    rows: int
    leases: list[date]
    pushes: list[date]


class Refused(msgspec.Struct, frozen=True):
    """A landing file of which nothing was taken."""

    file: str
    reason: str
    #: When the file was written, in nanoseconds: if it is replaced, it is looked at again.
    written: int = 0


class Intent(msgspec.Struct, frozen=True):
    batch: int
    files: list[str]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a batch."""

    batch: int
    files: list[str]
    #: Events taken, and rows put into quarantine.
    rows: int
    quarantined: int
    #: How many of those there were for each reason.
    reasons: dict[str, int] = {}
    refused: list[Refused]
    #: First and last event by server, as the files' names say.
    ranges: dict[str, tuple[int, int]]
    parts: list[Part]
    #: Is there a `flushed` among the events?
    flushed: bool
    #: The same for the same events, however they were divided into files.
    digest: str
    seconds: float


class Ledger:
    """All batches of a lake, as they were when it was read."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._batches = sorted(_read(lake), key=lambda each: each.batch)

    def batches(self, after: int = 0) -> list[Batch]:
        """Those after a batch, in order."""
        return [each for each in self._batches if each.batch > after]

    @property
    def last(self) -> int:
        """The last batch; 0 before the first."""
        return self._batches[-1].batch if self._batches else 0

    def files(self) -> set[str]:
        """The landing files of all batches."""
        return {name for each in self._batches for name in each.files}

    def days(self) -> list[date]:
        """The days that have events."""
        return sorted({part.day for each in self._batches for part in each.parts})

    def touched_since(self, batch: int) -> Touched:
        """What the batches after this one touched."""
        return touched(self.batches(after=batch))

    def event_days(
        self, *, leases: Collection[date] = (), pushes: Collection[date] = ()
    ) -> list[date]:
        """The days that have events of leases of those days, or of jobs pushed on those: clocks may
        be odd, so such a day may also be an earlier one.
        """
        leases, pushes = set(leases), set(pushes)
        return sorted({
            part.day
            for each in self._batches
            for part in each.parts
            if not leases.isdisjoint(part.leases) or not pushes.isdisjoint(part.pushes)
        })  # fmt: skip

    def waiting(self) -> list[Landed]:
        """The landing files that no batch has, and those that were refused and then replaced."""
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
        """The batch that was begun and not ended."""
        done = {each.batch for each in self._batches}
        for entry in _entries(self._lake, _INTENT):
            intent = _decode(Path(entry.path), Intent)
            if intent.batch not in done:
                return intent
        return None

    def intend(self, files: list[str]) -> Intent:
        """Begin the next batch."""
        intent = Intent(self.last + 1, files)
        write_json(self._lake.batches / f"b-{intent.batch:08}.intent.json", intent)
        return intent

    def record(self, batch: Batch) -> None:
        """End a batch: from here on its events count."""
        write_json(self._lake.batches / f"b-{batch.batch:08}.json", batch)
        self._batches = [*self._batches, batch]
        (self._lake.batches / f"b-{batch.batch:08}.intent.json").unlink(missing_ok=True)


def written_at(lake: Lake, name: str) -> int:
    """When a landing file was last replaced or changed in any way; 0 if it is not there."""
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
    """Each record is decoded once: after a year there may be tens of thousands, and all who read
    events ask for them.
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
