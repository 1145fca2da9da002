"""`millrace ship` without a running server, under the lock of the data folder."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.store import SqliteStore, StoreError
from millrace.store.folder import DATABASE

from .shipment import FAILURES, Shipment, describe

#: Called with the number of shipped events and their total.
Progress = Callable[[int, int], None]


class ShipError(Exception):
    """Shipping failed; the message contains the reason."""


def ship_folder(folder: Path, lake: Path, most_events: int, progress: Progress) -> None:
    """Ship all events of a data folder and remove them from its outbox."""
    if not (folder / DATABASE).exists():
        raise StoreError(f"The data folder {folder} does not exist or is empty")
    store = SqliteStore(folder)
    try:
        engine = Engine(Random(0))
        store.load().put_into(engine)
        with Shipment(folder, lake, most_events) as shipment:
            _ship(shipment, store.next_event, progress)
            store.shipped(shipment.next)
        while store.trims:
            store.begin(Batch(), engine)
            store.commit()
    except FAILURES as error:
        raise ShipError(describe(error)) from error
    finally:
        store.close()


def _ship(shipment: Shipment, until: int, progress: Progress) -> None:
    done, total = 0, until - shipment.next
    for sealed in shipment.ship(until):
        done += sealed.landed.events
        progress(done, total)
