"""The directory layout of the lake. This module does not need Spark.

landing/ev-SERVER-FIRST-LAST.parquet    as shipped, never changed
tables/events_hot/day=D/b-BATCH-N.parquet  ingested events, for each batch and day
tables/events/day=D/c-BATCH-N.parquet   compacted events of closed days; _sealed.json lists them
tables/quarantine/b-BATCH.parquet       rejected rows, with the reasons
tables/NAME/day=D/data.parquet          derived tables, divided by day
tables/NAME/data.parquet                derived tables that are not divided by day
ops/batches/, ops/...                   ledgers of completed work, in JSON
staging/                                incomplete files; emptied at the start of a run
"""

from datetime import date
from pathlib import Path
from typing import NamedTuple

from .errors import NoLake


def open_lake(root: Path) -> "Lake":
    """Open the lake in a folder. Raises NoLake if no events have been shipped to it."""
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
        """Return the days that a table has."""
        return sorted(
            date.fromisoformat(path.name.removeprefix("day="))
            for path in self.table(name).glob("day=*")
        )
