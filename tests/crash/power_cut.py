"""Leaves of a log what a power cut would: only what was synced (sync_shim.c writes that down)."""

from pathlib import Path


def cut_back(log: Path, syncs: Path) -> None:
    """Once the log starts over at its beginning its size says less; then less is cut, never more."""
    synced = 0
    if syncs.exists():
        for entry in syncs.read_text(encoding="utf-8").splitlines():
            size, _, path = entry.partition(" ")
            if path == str(log.resolve()):
                synced = int(size)
    with log.open("r+b") as file:
        file.truncate(min(synced, log.stat().st_size))
