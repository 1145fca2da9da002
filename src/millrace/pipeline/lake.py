"""Where everything is in the lake. Nothing here needs Spark.

landing/ev-SERVER-FIRST-LAST.parquet    as shipped, never changed
tables/events_hot/day=D/b-BATCH-N.parquet  events as taken in, for each batch and day
tables/events/day=D/c-BATCH-N.parquet   the same of closed days, compacted; _sealed.json names them
tables/quarantine/b-BATCH.parquet       rows that are no events, and why
tables/NAME/day=D/data.parquet          derived tables, a day at a time
tables/NAME/data.parquet                those without days
ops/batches/, ops/...                   ledgers: what was done, in JSON
staging/                                what is being written; emptied at the start of a run
"""

from datetime import date
from pathlib import Path
from typing import NamedTuple

from .errors import NoLake


def open_lake(root: Path) -> "Lake":
    """The lake in a folder; NoLake if nothing was shipped to it yet."""
    lake = Lake(root)
    if not any(folder.is_dir() for folder in (lake.landing, lake.ops, root / "tables")):
        raise NoLake(f"No lake at {root}. Name its folder with --lake, or ship events to it first.")
    return lake


class Lake(NamedTuple):
    root: Path

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def ops(self) -> Path:
        return self.root / "ops"

    @property
    def batches(self) -> Path:
        return self.ops / "batches"

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def day(self, name: str, day: date) -> Path:
        return self.table(name) / f"day={day.isoformat()}"

    def days(self, name: str) -> list[date]:
        """The days that a table has."""
        return sorted(
            date.fromisoformat(path.name.removeprefix("day="))
            for path in self.table(name).glob("day=*")
        )
