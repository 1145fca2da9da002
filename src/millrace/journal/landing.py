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
    def name(self) -> str:
        return f"ev-{self.server}-{self.first:020}-{self.last:020}.parquet"


def landed(lake: Path) -> list[Landed]:
    """All sealed files, by server and first event."""
    try:
        names = [path.name for path in (lake / FOLDER).iterdir()]
    except FileNotFoundError:
        return []
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(Landed(m[1], int(m[2]), int(m[3])) for m in found if m)
