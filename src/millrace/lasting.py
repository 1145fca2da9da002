"""Files and folders that are still there after a power cut; for every room that has any."""

import os
from pathlib import Path


def make(folder: Path, mode: int = 0o777) -> None:
    """A folder, and those above it: whoever syncs what is in it has not synced that it is there."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    for path in made:
        sync(path.parent)


def sync(path: Path) -> None:
    """Of a file its content, of a folder which names are in it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, content: bytes) -> None:
    """Put a small file there, with all of its content or not at all. What begins with a dot is
    being written.
    """
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync(path.parent)
