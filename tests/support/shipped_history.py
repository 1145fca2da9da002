"""Lakes with the events of the real engine, for tests of the pipeline."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa
from engine_history import History, collect

from event_tables import event_run
from millrace.engine.events import EVENT_VERSION, EventTuple
from millrace.journal.events_table import EventsTable
from millrace.journal.location import LakeLocation
from millrace.pipeline.snapshot import Snapshot, schema
from millrace.pipeline.tables import Derived

Rows = Mapping[str, Sequence[EventTuple]]


def ship(lake: LakeLocation, rows: Rows, start: Mapping[str, int], end: Mapping[str, int]) -> None:
    """Append the events after `start` up to `end` of each server, in one commit per server."""
    table = EventsTable(lake)
    for server, last in end.items():
        first = start.get(server, 0)
        if last > first:
            some = list(rows[server][first:last])
            table.append(server, event_run(first + 1, EVENT_VERSION, some))


def rows_of(
    snapshot: Snapshot, table: Derived, first: date | None = None, last: date | None = None
) -> pa.Table:
    """The rows of a table, or of its days from `first` to `last`."""
    return pa.Table.from_batches(snapshot.batches(table, first, last), schema(table))


def ship_all(lake: Path, events: int, seed: int = 7) -> list[History]:
    """Ship the history of two servers with at least this number of events."""
    histories, rows = collect(events, seed)
    ship(lake, rows, {}, {server: len(each) for server, each in rows.items()})
    return histories
