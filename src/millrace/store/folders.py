"""Functions that open, read, check and copy the store of a data folder.

Every data folder has a SQLite database today. A second kind of store would be selected here.
"""

import os
from pathlib import Path

from .sqlite.folder import DATABASE, lock
from .sqlite.outbox_reader import SqliteOutboxReader
from .sqlite.payloads import MAX_INLINE_PAYLOAD
from .sqlite.store import SqliteStore
from .store import CheckReport, OutboxRange, OutboxReader, Progress, Store, StoreSnapshot


def has_store(folder: Path) -> bool:
    return (folder / DATABASE).exists()


def open_store(
    folder: Path,
    *,
    sync: bool = True,
    outbox_max: int = 256 << 20,
    max_inline_payload: int = MAX_INLINE_PAYLOAD,
) -> Store:
    """Open the store of a folder for its only server, and create it if necessary."""
    return SqliteStore(
        folder, sync=sync, outbox_max=outbox_max, max_inline_payload=max_inline_payload
    )


def check_unused(folder: Path) -> None:
    """Raise `DataFolderInUse` if a server uses the folder."""
    os.close(lock(folder))


def outbox_reader(folder: Path) -> OutboxReader:
    """Return a reader of the events of a folder that a server uses."""
    return SqliteOutboxReader(folder)


def outbox_range(folder: Path) -> OutboxRange:
    """The numbers of the first and the next event, and the size of the outbox of a folder. The
    folder is not changed.
    """
    from .sqlite.check import outbox_range  # noqa: PLC0415 - a server does not need it

    return outbox_range(folder)


def read_snapshot(folder: Path, progress: Progress | None = None) -> StoreSnapshot:
    """Read a consistent snapshot of all data, whether or not a server uses the folder. The folder
    is not changed.
    """
    from .sqlite.check import read_snapshot  # noqa: PLC0415

    return read_snapshot(folder, progress)


def check_folder(folder: Path, progress: Progress | None = None) -> CheckReport:
    """Check a data folder without changing it, whether or not a server uses it."""
    from .sqlite.check import check_folder  # noqa: PLC0415

    return check_folder(folder, progress)


def back_up(folder: Path, target: Path, progress: Progress | None = None) -> CheckReport:
    """Copy a data folder, even while a server uses it, and return the report about the copy."""
    from .sqlite.backup import back_up  # noqa: PLC0415

    return back_up(folder, target, progress)
