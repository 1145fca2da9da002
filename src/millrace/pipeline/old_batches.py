"""The records of ingested events in lakes of format 1. Only `convert` reads them.

An event is either in a compacted file that the `_sealed.json` of its day names, or in a file of a
batch after the last batch in the seal.
"""

from datetime import date
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import PipelineError

T = TypeVar("T")


class OldPart(msgspec.Struct, frozen=True):
    """The events of a batch on one day."""

    day: date
    files: list[str]


class OldBatch(msgspec.Struct, frozen=True):
    """The record of a batch: the landing files, and the files with their events."""

    batch: int
    files: list[str]
    parts: list[OldPart]


class OldSeal(msgspec.Struct, frozen=True):
    """The compacted files of a day, which include all batches up to `max_batch`."""

    max_batch: int
    files: list[str]


def batches(root: Path) -> list[OldBatch]:
    """Return the records of all batches, in order."""
    folder = root / "ops" / "batches"
    paths = [path for path in folder.glob("b-*.json") if not path.name.endswith(".intent.json")]
    return sorted((_decode(path, OldBatch) for path in paths), key=lambda each: each.batch)


def ingested_files(root: Path, known: list[OldBatch]) -> list[Path]:
    """Return the files with the events of these batches."""
    found: list[Path] = []
    hot, cold = root / "tables" / "events_hot", root / "tables" / "events"
    seals: dict[date, OldSeal] = {}
    for day in sorted({part.day for batch in known for part in batch.parts}):
        path = cold / f"day={day}" / "_sealed.json"
        if path.exists():
            seals[day] = _decode(path, OldSeal)
            found += [path.with_name(name) for name in seals[day].files]
    for batch in known:
        for part in batch.parts:
            if part.day not in seals or batch.batch > seals[part.day].max_batch:
                found += [hot / f"day={part.day}" / name for name in part.files]
    return found


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise PipelineError(f"{path} is damaged ({error}). Restore it from a backup.") from error
