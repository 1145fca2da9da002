"""Lakes of format 1, whose events are in the folder `landing` until `millrace pipeline convert`.

A server continues such a lake in the table `events`, after the last event in the folder.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from .location import LakeLocation

FOLDER: Final = "landing"
_NAME: Final = re.compile(r"ev-([0-9a-f]+)-(\d{20})-(\d{20})\.parquet")
#: This file exists during a conversion.
CONVERSION: Final = "_conversion"


class Landed(NamedTuple):
    """A sealed file: the events of `server` from `first` to `last`."""

    server: str
    first: int
    last: int

    @property
    def events(self) -> int:
        """The number of events according to the name."""
        return max(0, self.last - self.first + 1)

    @property
    def name(self) -> str:
        return f"ev-{self.server}-{self.first:020}-{self.last:020}.parquet"


def landed(lake: Path) -> list[Landed]:
    """Return all sealed files, by server and first event."""
    try:
        names = [path.name for path in (lake / FOLDER).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(found for name in names if (found := parsed(name)) is not None)


def parsed(name: str) -> Landed | None:
    """Parse the name of a file; None if it is not a sealed file."""
    match = _NAME.fullmatch(name)
    return Landed(match[1], int(match[2]), int(match[3])) if match else None


class Mark(msgspec.Struct):
    """All events of a server up to `last` were shipped. Their files may have been moved away."""

    server: str
    last: int


def unconverted(lake: Path) -> bool:
    """Whether the folder has events that are not in the table `events`."""
    if (lake / CONVERSION).exists():
        return True
    files = landed(lake)
    if not files:
        return False
    from .events_table import EventsTable  # noqa: PLC0415 - loads deltalake

    table = EventsTable(lake)
    firsts = {server: table.first(server) for server in {each.server for each in files}}
    return any(not 0 < firsts[each.server] <= each.first for each in files)


def last_landed(lake: LakeLocation, server: str) -> int:
    """Return the last event of a server in the folder; 0 if there is none."""
    if not isinstance(lake, Path):
        return 0  # format 1 needed a file system
    files = [each.last for each in landed(lake) if each.server == server]
    return max([_read_mark(lake, server), *files])


def _read_mark(lake: Path, server: str) -> int:
    path = lake / FOLDER / f"_shipped-{server}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark).last
    except (FileNotFoundError, msgspec.DecodeError):
        return 0  # the names of the files contain the same number
