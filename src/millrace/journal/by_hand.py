"""`millrace ship` where no server runs: the same, under the folder's lock."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.store import SqliteStore, StoreError
from millrace.store.folder import DATABASE

from .shipment import Shipment

#: Called with how many events are shipped, of how many.
Progress = Callable[[int, int], None]


class Shipped(NamedTuple):
    server: str
    #: The first event that is not in the lake: that which a server will write next.
    next: int
    events: int
    files: int
    #: Events that had gone before they could be shipped.
    missing: int


def ship_folder(folder: Path, lake: Path, most_events: int, progress: Progress) -> Shipped:
    """Ship everything that a data folder keeps, and remove it there."""
    if not (folder / DATABASE).exists():
        raise StoreError(f"there is no data folder {folder} with anything in it")
    store = SqliteStore(folder)
    try:
        engine = Engine(Random(0))
        store.load().put_into(engine)
        with Shipment(folder, lake, most_events) as shipment:
            shipped = _ship(shipment, store.next_event, progress)
        store.shipped(shipped.next)
        while store.trims:
            store.begin(Batch(), engine)
            store.commit()
    finally:
        store.close()
    return shipped


def _ship(shipment: Shipment, until: int, progress: Progress) -> Shipped:
    events = files = missing = 0
    total = until - shipment.next
    for sealed in shipment.ship(until):
        events += sealed.landed.last - sealed.landed.first + 1
        files += 1
        missing += sealed.missing
        progress(events, total)
    return Shipped(shipment.server, until, events, files, missing)
