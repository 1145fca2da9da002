"""Lakes in object stores, such as `s3://bucket/lake`.

Spark reads such stores only with jars that pyspark does not contain. So a remote lake has a mirror:
a local folder with the files that a run or a reader needs. `deltalake` reads and writes the log in
the store. A file never changes after its commit, so a file of the mirror is valid as long as it
exists. The code of the pipeline uses the folder of the mirror like the folder of a local lake; the
functions below copy files in both directions.

The credentials are those of `deltalake`: AWS_ACCESS_KEY_ID and similar variables.
"""

import functools
import os
import secrets
import shutil
from collections.abc import Iterable
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.journal.location import is_remote, parse_location

from .java import cache_folder

if TYPE_CHECKING:
    from pyarrow.fs import PyFileSystem

#: The file of a mirror that has the URI of its lake.
_ORIGIN: Final = "_origin"
_COPY_BYTES: Final = 8 << 20


def local_root(lake: str) -> Path:
    """The local folder of a lake: its own, or its mirror."""
    location = parse_location(lake)
    if not is_remote(location):
        return Path(location)
    digest = blake2s(location.encode(), digest_size=8).hexdigest()
    folder = cache_folder(os.environ) / "lakes" / digest
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / _ORIGIN).write_text(location)
    return folder


@functools.cache
def origin(root: Path) -> str | None:
    """The URI of the lake that a folder mirrors; None for a local lake."""
    try:
        return (root / _ORIGIN).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def shown(root: Path) -> str:
    """The lake as the user named it."""
    return origin(root) or str(root)


def table_uri(root: Path, name: str) -> str:
    """The location of a table for `deltalake`."""
    remote = origin(root)
    return f"{remote}/{name}" if remote else str(root / name)


def fetch(root: Path, paths: Iterable[Path]) -> None:
    """Copy files of tables to the mirror, if they are not there yet."""
    if origin(root) is None:
        return
    for path in paths:
        if path.exists():
            continue
        name, relative = _place(root, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{secrets.token_hex(8)}")
        try:
            source = _store(root, name).open_input_stream(relative)
            with source, aside.open("wb") as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)


def upload(root: Path, path: Path) -> None:
    """Copy a file of the mirror to the store."""
    name, relative = _place(root, path)
    # `deltalake` accepts bytes but no Arrow buffers. Arrow passes bytes if it collects the writes.
    target = _store(root, name).open_output_stream(relative, buffer_size=2 * _COPY_BYTES)
    with path.open("rb") as file, target:
        shutil.copyfileobj(file, target, _COPY_BYTES)


def discard(root: Path, keep: Iterable[Path]) -> None:
    """Remove the Parquet files of the mirror, except those to keep."""
    if origin(root) is None:
        return
    kept = set(keep)
    for path in root.glob("*/**/*.parquet"):
        if path not in kept:
            path.unlink(missing_ok=True)


def _place(root: Path, path: Path) -> tuple[str, str]:
    """The table of a file, and its path in the table."""
    name, *rest = path.relative_to(root).parts
    return name, "/".join(rest)


def _store(root: Path, name: str) -> "PyFileSystem":
    """The files of a table. `deltalake` has no other interface for files; a test checks it."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - only remote lakes need it
    from pyarrow.fs import PyFileSystem  # noqa: PLC0415

    return PyFileSystem(DeltaStorageHandler(table_uri(root, name)))
