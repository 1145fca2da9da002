"""The last batch that the derived tables include: ops/refreshed.json. This does not need Spark."""

from datetime import datetime
from typing import Final

import msgspec

from . import commit
from .lake import Lake

#: Version of the table definitions. If it increases, a refresh recomputes all tables.
FORM: Final = 2
NAME: Final = "refreshed.json"


class Flush(msgspec.Struct, frozen=True):
    """A `flushed` event."""

    server: str
    event_id: int
    time: datetime


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the current tables."""

    form: int
    batch: int
    #: All flushes up to this batch. There are few, and a search for them takes long.
    flushes: list[Flush]


def mark(lake: Lake) -> Mark:
    """Read the mark. If it is missing, unreadable or of another version, the result has batch 0."""
    none = Mark(form=FORM, batch=0, flushes=[])
    try:
        found = msgspec.json.decode((lake.ops / NAME).read_bytes(), type=Mark)
    except (FileNotFoundError, msgspec.DecodeError):
        return none
    return found if found.form == FORM else none


def record(lake: Lake, made: Mark) -> None:
    """Write the mark: the tables now include all events up to its batch."""
    commit.write_json(lake.ops / NAME, made)
    commit.reached("refresh:mark")
