"""What a reader of another server provides."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from millrace.records import MAX_PAYLOAD, ImportedJob, ImportedSettings


class SourceError(Exception):
    """The source cannot be read; the message gives the reason."""


class SkippedItem(msgspec.Struct, frozen=True):
    """An item of the source that is not imported."""

    name: str
    reason: str


class Item(msgspec.Struct, frozen=True):
    """A job, with the part of the source that it comes from: `queues`, `dead` and so on."""

    part: str
    job: ImportedJob


class ImportSource(Protocol):
    #: Identifies the kind of server; one import at a time is possible for each kind.
    name: str

    def count(self) -> int:
        """The approximate number of items, for the progress."""
        ...

    def items(self) -> Iterator[Item | SkippedItem]:
        """All jobs in the order in which they run; a job follows the jobs that it waits for."""
        ...

    def settings(self) -> ImportedSettings:
        """The data that does not belong to one job. Called after `items`."""
        ...

    def notes(self) -> list[SkippedItem]:
        """Data that is not imported, besides jobs. Called after `items`."""
        ...


def too_large(name: str, payload: bytes) -> SkippedItem | None:
    if len(payload) <= MAX_PAYLOAD:
        return None
    return SkippedItem(name, f"The payload is larger than {MAX_PAYLOAD} bytes.")
