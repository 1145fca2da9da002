"""Copies a data folder, even while a server uses it.

SQLite copies the pages of one snapshot from a read-only connection. The server continues to commit,
but cannot restart its log until the copy is complete. The copy is written under another name,
synced and checked like any data folder, and then renamed. A folder with the final name is thus a
complete backup, and a killed process leaves a folder with another name.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millrace.durable_files import sync
from millrace.store.errors import DataFolderInUse, StoreError, StoreWriteFailed
from millrace.store.store import CheckReport, Progress

from .check import examine_folder, open_snapshot, prevent_server_start, remove_new_log_index
from .commit_marker import CommitMarker, read_commit_marker
from .error_translation import translate_errors, translate_record_errors
from .folder import DATABASE, LOCK, lock, make_private
from .reader import DatabaseContent
from .schema import SCHEMA, check_schema

#: Pages per step (8 MiB); each step reports its progress.
PAGES_PER_STEP: Final = 2048
#: Space that must stay free on the disk in addition to the copy.
MIN_REMAINING_SPACE: Final = 16 << 20


def back_up(source: Path, target: Path, progress: Progress | None = None) -> CheckReport:
    """Copy the data folder `source` to `target`, and return the findings about the copy."""
    with translate_errors(source):
        if not (source / DATABASE).exists():
            raise StoreError(f"there is no data folder with a database at {source}")
    with translate_errors(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreError(
                f"{target} already exists: give the name of a new folder, or of an empty one"
            )
        target = target.resolve()  # the rename needs a folder, not `.` or a symbolic link
    with _temporary_folder(target) as temporary:
        found = CheckReport(str(source))
        with (
            translate_errors(source),
            prevent_server_start(source, found),
            remove_new_log_index(source, found),
        ):
            turn = _copy(source, temporary, progress, server_running=bool(found.server))
        make_private(temporary)
        sync(temporary / DATABASE)
        findings = CheckReport(str(temporary))
        examine_folder(temporary, findings)
        if findings.problems or findings.turn != turn or read_commit_marker(temporary) != turn:
            reasons = "; ".join(findings.problems) or "it is not complete"
            raise StoreError(
                f"the copy of {source} was damaged and has been removed ({reasons}). To check the "
                "folder itself, run `millrace check`"
            )
        findings.folder = str(target)
        (temporary / LOCK).unlink()
        sync(temporary)
        temporary.rename(target)
    sync(target.parent)
    return findings


@contextlib.contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Create a folder next to the target, which the caller renames. Delete it after an error."""
    temporary = target.with_name(f".{target.name}.partial")
    try:
        lock_fd = lock(temporary)
    except DataFolderInUse:
        raise StoreError(f"another backup to {target} is running") from None
    except StoreError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        raise StoreError(f"cannot create {temporary}: {reason}") from error
    try:
        for file in temporary.iterdir():  # files of a backup process that was killed
            if file.name != LOCK:
                file.unlink()
        yield temporary
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise StoreError(f"cannot write {target}: {error.strerror}") from error
        raise
    finally:
        os.close(lock_fd)


def _copy(source: Path, temporary: Path, progress: Progress | None, *, server_running: bool) -> int:
    """Copy the database and return the last turn of the copy."""
    path = source / DATABASE
    with (
        translate_errors(path),
        translate_record_errors(path),
        open_snapshot(source, server_running=server_running) as db,
    ):
        if check_schema(db, path) != SCHEMA:
            raise StoreError(
                f"{path} has an older format. Start a server of this version on the folder, which "
                "migrates it, or stop the server and copy the folder."
            )
        content = DatabaseContent(db)
        content.read_summary()
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (page_size,) = db.execute("PRAGMA page_size").fetchone()
        _check_space(temporary, pages * page_size)

        # Write the mark first: it prevents a server from starting on the incomplete database.
        mark = CommitMarker(temporary, sync=True)
        mark.write(content.turn)
        mark.close()

        def report_progress(_: int, remaining: int, total: int) -> None:
            if progress is not None:
                progress(total - remaining, total)

        copy = sqlite3.connect(temporary / DATABASE, isolation_level=None)
        try:
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            db.backup(copy, pages=PAGES_PER_STEP, progress=report_progress)
        finally:
            copy.close()
        return content.turn


def _check_space(temporary: Path, size: int) -> None:
    free = shutil.disk_usage(temporary).free
    if free < size + MIN_REMAINING_SPACE:
        raise StoreWriteFailed(
            f"the copy requires {size >> 20} MiB, but only {free >> 20} MiB are free "
            f"in {temporary.parent}"
        )
