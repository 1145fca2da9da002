"""The landing folder of the lake: sealed files of events, named by the range of their events.

The names alone record the shipped events, so no separate list of files can be wrong. An incomplete
file has a name with a leading dot, and readers ignore it.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = "landing"
_NAME: Final = re.compile(r"ev-([0-9a-f]+)-(\d{20})-(\d{20})\.parquet")


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
