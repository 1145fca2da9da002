"""Writes files to the lake: first to staging, then fsync, then rename to the final name.

A file under its final name is always complete. A killed run leaves files only in staging, which
the next run empties. A repeated run produces the same names. Only the first two functions need
Spark.
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
#: Called after each write. The whole pipeline uses this name, so that tests can replace it.
reached = crash_points.crash_point
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
#: Lakes that this process has locked.
_held: set[Path] = set()


def replace_days(df: "DataFrame", lake: Lake, table: Table, days: Collection[date]) -> None:
    """Replace these days of a table with the rows of `df`, which must have a `day` column. A day
    without rows is removed.
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
    """Replace a table that is not divided by day with the rows of `df`."""
    staged = lake.staging / table.name
    shutil.rmtree(staged, ignore_errors=True)
    rows = df.select(*table.columns).repartition(1).sortWithinPartitions(*table.key)
    rows.write.mode("overwrite").parquet(located(staged))
    publish(staged, lake, table)


def located(path: Path) -> str:
    """Return a path as a URI for Spark. It always refers to a local or mounted file system,
    never to the default file system of a cluster.
    """
    return f"file:{path.absolute()}"


def readable(*paths: Path) -> list[str]:
    """Return paths with pattern characters escaped. Spark reads paths as patterns, and the path
    of a lake may contain brackets.
    """
    return [_PATTERN.sub(r"\\\g<0>", located(path)) for path in paths]


def publish_days(staged: Path, lake: Lake, table: Table, days: Collection[date]) -> None:
    """Rename the staged files to their final names, day by day."""
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
    """Rename the staged file to its final name."""
    install(_only_part(staged), lake.table(table.name) / DATA)
    reached(f"refresh:{table.name}:0")
    shutil.rmtree(staged, ignore_errors=True)


def install(file: Path, place: Path) -> None:
    """Rename a staged file to its final name durably, so that it survives a power failure."""
    make(place.parent)
    sync(file)
    file.replace(place)
    sync(place.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; the folder is created if necessary."""
    make(path.parent)
    write_whole(path, msgspec.json.format(msgspec.json.encode(value)) + b"\n")


@contextmanager
def locked(lake: Lake) -> Iterator[None]:
    """Lock the lake for one run, and remove files that a killed run left in staging. The process
    that holds the lock can acquire it again.
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
