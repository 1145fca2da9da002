"""Imports a source into a server in process, as `millrace import` does over the socket."""

from typing import Any

import msgspec

from admin_room import Room
from millrace.migration.source import ImportSource, Item, SkippedItem
from millrace.records import MAX_IMPORT_BATCH, ImportJobs


def read(source: ImportSource) -> tuple[list[Item], list[SkippedItem]]:
    items = list(source.items())
    return (
        [each for each in items if isinstance(each, Item)],
        [each for each in items if isinstance(each, SkippedItem)],
    )


def run_import(room: Room, source: ImportSource) -> list[SkippedItem]:
    """Import everything, and return the skipped items."""
    items, skipped = read(source)
    run = _step(room, source, "begin")["run"]
    jobs = [item.job for item in items]
    for first in range(0, len(jobs), MAX_IMPORT_BATCH):
        _step(room, source, "stage", run=run, jobs=jobs[first : first + MAX_IMPORT_BATCH])
    _step(room, source, "finish", run=run, settings=source.settings())
    return skipped


def _step(room: Room, source: ImportSource, step: Any, **more: Any) -> dict[str, Any]:
    request = ImportJobs(source.name, step, **more)
    return room.asks(import_jobs=msgspec.json.decode(msgspec.json.encode(request)))
