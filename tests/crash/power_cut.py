"""Truncates a log as a power cut would, to its synced part (recorded by sync_shim.c)."""

from pathlib import Path


def cut_back(log: Path, syncs: Path) -> None:
    """After the log restarts at its beginning, its size is less precise; then less is cut, never
    more.
    """
    synced = 0
    if syncs.exists():
        for entry in syncs.read_text(encoding="utf-8").splitlines():
            size, _, path = entry.partition(" ")
            if path == str(log.resolve()):
                synced = int(size)
    with log.open("r+b") as file:
        file.truncate(min(synced, log.stat().st_size))
