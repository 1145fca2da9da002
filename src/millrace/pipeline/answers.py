"""Answers: results of analyses, which a report can show without Spark.

The last result of an analysis is a JSON file in the folder `ops/answers` of the lake. It names the
run whose tables it used.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import NoTables
from .lake import Lake, open_lake, write_json
from .remote import shown
from .snapshot import Snapshot

T = TypeVar("T", bound=msgspec.Struct)


def opened(root: Path) -> Snapshot:
    """The tables of the last run of a lake; an error if there was none."""
    snapshot = Snapshot(open_lake(root).root)
    if snapshot.run is None:
        raise NoTables(shown(root))
    return snapshot


def save(root: Path, name: str, answer: msgspec.Struct) -> None:
    write_json(_path(root, name), answer)


def load(root: Path, name: str, kind: type[T]) -> T | None:
    """The last answer; None if there is none, or only one of another version."""
    try:
        return msgspec.json.decode(_path(root, name).read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def changed_at(root: Path) -> int:
    """The time of the newest answer, for caches; 0 without answers."""
    folder = Lake(root).ops / "answers"
    return max((path.stat().st_mtime_ns for path in folder.glob("*.json")), default=0)


def _path(root: Path, name: str) -> Path:
    return Lake(root).ops / "answers" / f"{name}.json"
