"""The work that a run would do. Loads only `deltalake`, because most calls find none."""

from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

from .remote import table_uri

EVENTS = "events"
RUNS = "runs"


class Outstanding(NamedTuple):
    """The number of events that are not in the tables of the last run."""

    events: int
    #: The last event of each server.
    position: dict[str, int]

    def __bool__(self) -> bool:
        return self.events != 0


def outstanding(root: Path) -> Outstanding:
    """Compare the position of `events` with the position of the last run."""
    events, runs = (_opened(table_uri(root, name)) for name in (EVENTS, RUNS))
    if events is None:
        return Outstanding(0, {})
    servers = sorted({str(each["server"]) for each in events.partitions()})
    position = {server: events.transaction_version(server) or 0 for server in servers}
    done = {server: runs.transaction_version(server) or 0 for server in servers} if runs else {}
    return Outstanding(sum(position.values()) - sum(done.values()), position)


def _opened(uri: str) -> DeltaTable | None:
    return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
