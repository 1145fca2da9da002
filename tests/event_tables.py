"""Events in the form of the lake, as pyarrow tables."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from millrace.engine.events import EventTuple
from millrace.journal import columns, schema
from millrace.journal.events_table import EventRun


def table(server: str, first: int, version: int, rows: Sequence[EventTuple]) -> pa.Table:
    """The events from number `first` on, with all columns of the lake."""
    if not rows:
        return schema.arrow().empty_table()
    numbers = range(first, first + len(rows))
    found = pa.table(columns.convert(numbers, version, rows).batch)
    found = found.add_column(0, schema.arrow().field("server"), [[server] * len(rows)])
    return found.cast(schema.arrow())


def event_run(first: int, version: int, rows: Sequence[EventTuple]) -> EventRun:
    found = EventRun(first)
    found.add(version, rows)
    return found


def in_lake(lake: Path, server: str | None = None) -> pa.Table:
    """The rows of the table `events`, ordered by server and number."""
    if not (lake / "events").exists():
        return schema.arrow().empty_table()
    where = "" if server is None else f"WHERE server = '{server}'"
    query = f"SELECT {', '.join(schema.NAMES)} FROM events {where} ORDER BY server, event_id"
    found = QueryBuilder().register("events", DeltaTable(lake / "events")).execute(query)
    return pa.table(found).cast(schema.arrow())
