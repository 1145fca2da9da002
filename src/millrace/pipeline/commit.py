"""How anything gets into the lake: written in staging, synced, renamed into place.

A name that is there holds all that belongs to it; a run that was killed leaves nothing but what
is in staging, which the next one empties. Doing it again gives the same names. Only the first two
functions need Spark.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.journal import crash_points
from millrace.lasting import make, sync, write_whole

from .errors import LakeBusy, PipelineError
from .lake import Lake
from .tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA: Final = "data.parquet"
#: After each write; all of the pipeline asks here, so that a test can stand in its way.
reached = crash_points.crash_point
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
#: Lakes that this process has locked.
_held: set[Path] = set()


def replace_days(df: "DataFrame", lake: Lake, table: Table, days: Collection[date]) -> None:
    """Let these days of a table be what `df`, which has the column `day`, says: a day without rows
    goes.
    """
    staged = lake.staging / table.name
    shutil.rmtree(staged, ignore_errors=True)
    rows = df.select(*table.columns, "day")
    rows = rows.repartition(1) if len(days) == 1 else rows.repartition("day")
    (
        rows.sortWithinPartitions("day", *table.key)
        .write.mode("overwrite")
        .partitionBy("day")
        .parquet(located(staged))
    )
    publish_days(staged, lake, table, days)


def replace(df: "DataFrame", lake: Lake, table: Table) -> None:
    """Let a table that has no days be what `df` says."""
    staged = lake.staging / table.name
    shutil.rmtree(staged, ignore_errors=True)
    rows = df.select(*table.columns).repartition(1).sortWithinPartitions(*table.key)
    rows.write.mode("overwrite").parquet(located(staged))
    publish(staged, lake, table)


def located(path: Path) -> str:
    """A path as Spark takes it: on this machine's disk or a shared one, never in what a cluster
    thinks is its default.
    """
    return f"file:{path.absolute()}"


def readable(*paths: Path) -> list[str]:
    """Paths as Spark reads from them: it takes them for patterns, and the folder of a lake may have
    brackets in its name.
    """
    return [_PATTERN.sub(r"\\\g<0>", located(path)) for path in paths]


def publish_days(staged: Path, lake: Lake, table: Table, days: Collection[date]) -> None:
    """Rename what was staged into place, day by day."""
    written = {path.name: path for path in staged.glob("day=*")}
    unexpected = written.keys() - {f"day={day.isoformat()}" for day in days}
    if unexpected:
        raise PipelineError(
            f"{table.name} was to be written for other days than {sorted(unexpected)}: a defect"
        )
    for number, day in enumerate(sorted(days)):
        place = lake.day(table.name, day)
        folder = written.get(place.name)
        if folder is not None:
            install(_only_part(folder), place / DATA)
        elif place.is_dir():
            shutil.rmtree(place)
            sync(place.parent)
        reached(f"refresh:{table.name}:{number}")
    shutil.rmtree(staged, ignore_errors=True)


def publish(staged: Path, lake: Lake, table: Table) -> None:
    """Rename what was staged into place."""
    install(_only_part(staged), lake.table(table.name) / DATA)
    reached(f"refresh:{table.name}:0")
    shutil.rmtree(staged, ignore_errors=True)


def install(file: Path, place: Path) -> None:
    """Have a staged file take its place, for good: also after a power cut."""
    make(place.parent)
    sync(file)
    file.replace(place)
    sync(place.parent)


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all, in a folder that need not be there."""
    make(path.parent)
    write_whole(path, msgspec.json.format(msgspec.json.encode(value)) + b"\n")


@contextmanager
def locked(lake: Lake) -> Iterator[None]:
    """One run at a time; what a killed one left in staging goes. Who has the lock may take it
    again.
    """
    root = lake.root.resolve()
    if root in _held:
        yield
        return
    make(lake.ops)
    with (lake.ops / "lock").open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            who = file.read(20).decode("ascii", "replace").strip()
            raise LakeBusy(
                f"another run works on the lake {lake.root}"
                + (f" (process {who})" if who else "")
                + ": wait until it has ended"
            ) from error
        file.truncate(0)
        file.write(b"%d\n" % os.getpid())
        file.flush()
        shutil.rmtree(lake.staging, ignore_errors=True)
        make(lake.staging)
        _held.add(root)
        try:
            yield
        finally:
            _held.remove(root)
            file.truncate(0)


def _only_part(folder: Path) -> Path:
    parts = sorted(folder.glob("part-*.parquet"))
    if len(parts) != 1:
        raise PipelineError(f"Spark wrote {len(parts)} files to {folder} where one was meant")
    return parts[0]
