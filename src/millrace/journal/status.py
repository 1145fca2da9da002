"""The progress of the shipping of a data folder, from its content and the lake."""

from pathlib import Path
from typing import NamedTuple

from millrace.store.examination import Findings, held, traceless
from millrace.store.folder import DATABASE

from . import outbox
from .identity import known_identity
from .marks import last_shipped


class Status(NamedTuple):
    server: str
    #: The number of the next event, and the first event that is not in the lake.
    next_event: int
    next_shipped: int
    #: The size of the outbox in bytes.
    bytes: int


def has_store(folder: Path) -> bool:
    return (folder / DATABASE).exists()


def look(folder: Path, lake: Path) -> Status:
    """Return the status of a folder. In an empty folder all events count as shipped."""
    if not has_store(folder):
        return Status("", 1, 1, 0)
    server = known_identity(folder)
    last = last_shipped(lake, server) if server else 0
    findings = Findings(str(folder))
    with held(folder, findings), traceless(folder, findings):
        tally = outbox.tally(folder)
    return Status(server, tally.next_event, max(last + 1, tally.first_event), tally.outbox_bytes)
