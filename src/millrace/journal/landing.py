"""The lake's landing folder: sealed files of events, each named by the events that are in it.

A name says all that is needed to know what was shipped, so that no list of files can be wrong. What
begins with a dot is being written; nobody reads it.
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
        """How many events its name says."""
        return max(0, self.last - self.first + 1)

    @property
    def name(self) -> str:
        return f"ev-{self.server}-{self.first:020}-{self.last:020}.parquet"


def landed(lake: Path) -> list[Landed]:
    """All sealed files, by server and first event."""
    try:
        names = [path.name for path in (lake / FOLDER).iterdir()]
    except FileNotFoundError:
        return []
    return sorted(found for name in names if (found := parsed(name)) is not None)


def parsed(name: str) -> Landed | None:
    """What a file's name says; None if it is not a sealed file's."""
    match = _NAME.fullmatch(name)
    return Landed(match[1], int(match[2]), int(match[3])) if match else None
