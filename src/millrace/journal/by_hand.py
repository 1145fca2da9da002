"""`millrace ship` where no server runs: the same, under the folder's lock."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from millrace.engine.batch import Batch
from millrace.engine.engine import Engine
from millrace.store import SqliteStore, StoreError
from millrace.store.folder import DATABASE

from .shipment import FAILURES, Shipment, words

#: Called with how many events are shipped, of how many.
Progress = Callable[[int, int], None]


class NotAll(Exception):
    """The lake does not take everything; the text says why."""


def ship_folder(folder: Path, lake: Path, most_events: int, progress: Progress) -> None:
    """Ship everything that a data folder keeps, and remove it there."""
    if not (folder / DATABASE).exists():
        raise StoreError(f"there is no data folder {folder} with anything in it")
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
        raise NotAll(words(error)) from error
    finally:
        store.close()


def _ship(shipment: Shipment, until: int, progress: Progress) -> None:
    done, total = 0, until - shipment.next
    for sealed in shipment.ship(until):
        done += sealed.landed.events
        progress(done, total)
