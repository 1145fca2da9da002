"""Up to which batch the derived tables are made: ops/refreshed.json. Nothing here needs Spark."""

from datetime import datetime
from typing import Final

import msgspec

from . import commit
from .lake import Lake

#: Raised when a table comes to mean something else: then all of them are made anew.
FORM: Final = 2
NAME: Final = "refreshed.json"


class Flush(msgspec.Struct, frozen=True):
    """An event `flushed`."""

    server: str
    event_id: int
    time: datetime


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables are made of."""

    form: int
    batch: int
    #: All of them until then. There are few, and looking for them is long.
    flushes: list[Flush]


def mark(lake: Lake) -> Mark:
    """From the beginning if nothing is there, or tables that meant something else."""
    none = Mark(form=FORM, batch=0, flushes=[])
    try:
        found = msgspec.json.decode((lake.ops / NAME).read_bytes(), type=Mark)
    except (FileNotFoundError, msgspec.DecodeError):
        return none
    return found if found.form == FORM else none


def record(lake: Lake, made: Mark) -> None:
    """From here on the tables are of that batch."""
    commit.write_json(lake.ops / NAME, made)
    commit.reached("refresh:mark")
