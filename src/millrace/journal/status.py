"""The progress of the shipping of a data folder, from its content and the lake."""

from pathlib import Path
from typing import NamedTuple

from millrace.store.folders import has_store, outbox_range

from .identity import known_identity
from .location import LakeLocation
from .position import last_shipped


class Status(NamedTuple):
    server: str
    #: The number of the next event, and the first event that is not in the lake.
    next_event: int
    next_shipped: int
    #: The size of the outbox in bytes.
    bytes: int


def shipping_status(folder: Path, lake: LakeLocation) -> Status:
    """Return the status of a folder. In an empty folder all events count as shipped."""
    if not has_store(folder):
        return Status("", 1, 1, 0)
    server = known_identity(folder)
    last = last_shipped(lake, server) if server else 0
    found = outbox_range(folder)
    return Status(server, found.next_event, max(last + 1, found.first_event), found.bytes)
