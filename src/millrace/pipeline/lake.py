"""The folder of a lake. This module does not need Spark.

events/              the journal: a Delta table that the shippers write
NAME/                a derived Delta table, for each name of tables.DERIVED
runs/                the versions of the tables of each run
ops/                 the lock of the runs, and the result of the last audit
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millrace.durable_files import make, write_whole
from millrace.journal.old_lake import unconverted

from .errors import LakeBusy, NoLake, PipelineError
from .remote import origin, shown, table_uri

#: Lakes that this process has locked.
_held: set[Path] = set()


class Lake(NamedTuple):
    root: Path

    @property
    def ops(self) -> Path:
        return self.root / "ops"

    @property
    def staging(self) -> Path:
        """Temporary files of a run, removed at the start of the next run."""
        return self.root / "staging"


def open_lake(root: Path) -> Lake:
    """Open the lake in a folder. Raises NoLake if no events have been shipped to it."""
    check_format(root)
    if not _has_events(root):
        raise NoLake(shown(root))
    return Lake(root)


def _has_events(root: Path) -> bool:
    if origin(root) is None:
        return (root / "events" / "_delta_log").is_dir()
    from deltalake import DeltaTable  # noqa: PLC0415 - only for object stores

    return DeltaTable.is_deltatable(table_uri(root, "events"))


def check_format(root: Path) -> None:
    """Refuse a lake with events that only an earlier version can read."""
    if unconverted(root):
        raise PipelineError(
            f"The lake {root} has events of an earlier version. Convert it with `millrace pipeline "
            f"convert --lake {root}`."
        )


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; the folder is created if necessary."""
    make(path.parent)
    write_whole(path, msgspec.json.format(msgspec.json.encode(value)) + b"\n")


@contextmanager
def locked(lake: Lake) -> Iterator[None]:
    """Lock the lake for one run, and remove temporary files of a killed run. The process that
    holds the lock can acquire it again.
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
            holder = file.read(20).decode("ascii", "replace").strip()
            raise LakeBusy(
                f"Another run is using the lake {shown(lake.root)}"
                + (f" (process {holder})" if holder else "")
                + ". Wait until it has ended."
            ) from error
        file.truncate(0)
        file.write(b"%d\n" % os.getpid())
        file.flush()
        _remove_temporary(lake)
        _held.add(root)
        try:
            yield
        finally:
            _held.remove(root)
            file.truncate(0)


def _remove_temporary(lake: Lake) -> None:
    shutil.rmtree(lake.staging, ignore_errors=True)
    for folder in lake.root.glob("*/_staging-*"):
        shutil.rmtree(folder, ignore_errors=True)
