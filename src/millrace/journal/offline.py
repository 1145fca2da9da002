"""`millrace ship` without a running server, under the lock of the data folder."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from millrace.engine.change_set import ChangeSet
from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.store import StoreError
from millrace.store.folders import has_store, open_store

from .location import LakeLocation
from .shipment import FAILURES, Shipment, describe

#: Called with the number of shipped events and their total.
Progress = Callable[[int, int], None]


class ShipError(Exception):
    """Shipping failed; the message contains the reason."""


def ship_folder(folder: Path, lake: LakeLocation, max_events: int, progress: Progress) -> None:
    """Ship all events of a data folder and remove them from its outbox."""
    if not has_store(folder):
        raise StoreError(f"The data folder {folder} does not exist or is empty")
    store = open_store(folder)
    try:
        engine = Engine(Random(0), protocol_rules())
        store.load().fill(engine)
        with Shipment(folder, lake, max_events) as shipment:
            _ship(shipment, store.outbox.next_event, progress)
            store.outbox.mark_shipped(shipment.next)
        while store.outbox.has_shipped_events:
            store.prepare(ChangeSet(), engine)
            store.commit()
    except FAILURES as error:
        raise ShipError(describe(error)) from error
    finally:
        store.close()


def _ship(shipment: Shipment, until: int, progress: Progress) -> None:
    done, total = 0, until - shipment.next
    for shipped in shipment.ship(until):
        done += shipped.events
        progress(done, total)
