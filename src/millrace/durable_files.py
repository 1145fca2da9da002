"""Durable files and folders: they survive a power failure. All packages with files use it."""

import os
from pathlib import Path


def make(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents durably. A sync of a file in a folder does not sync the entry
    of the folder in its parent, so this function syncs each parent.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    for path in made:
        sync(path.parent)


def sync(path: Path) -> None:
    """Sync the content of a file, or the entries of a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file atomically and durably. The name of a temporary file starts with a dot."""
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync(path.parent)
