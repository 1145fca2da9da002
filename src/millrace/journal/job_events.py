"""Returns all events of one job from the outbox and from the lake.

A user waits for the result, so a search has a time limit and reports whether it is complete. The
statistics of the table `events` name the files that can contain a job, so a search by number reads
few of them.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec
from deltalake import QueryBuilder

from millrace.engine.events import Event, EventTuple
from millrace.records import EventRecord
from millrace.store.errors import StoreError
from millrace.store.folders import outbox_reader
from millrace.store.store import EventRange

from . import columns, schema
from .events_table import EventsTable
from .identity import known_identity
from .location import LakeLocation
from .old_lake import last_landed
from .table_files import quoted

log = logging.getLogger(__name__)

#: The number of events per search step in the outbox, from the newest to the oldest.
OUTBOX_BATCH_SIZE: Final = 20_000
#: The maximum number of events per job.
MAX_EVENTS: Final = 2_000

_SEQ: Final = Event._fields.index("seq")
_JID: Final = Event._fields.index("jid")
_FAILURES: Final = frozenset({"failed", "expired", "doomed"})
_NAMES: Final = EventRecord.__struct_fields__
_TIMES: Final = frozenset(f.name for f in schema.FIELDS if f.kind == "timestamp")
#: Times as microseconds.
_SELECTED: Final = ", ".join(
    f"CAST({name} AS BIGINT) AS {name}" if name in _TIMES else name for name in _NAMES
)


class JobKey(NamedTuple):
    """The number and the id of the requested job; 0 or empty if one is not known."""

    seq: int
    jid: str

    @property
    def encoded(self) -> bytes:
        """The bytes that every event of the job contains: its number, then its id."""
        seq = msgspec.msgpack.encode(self.seq) if self.seq else b""
        return seq + (msgspec.msgpack.encode(self.jid) if self.jid else b"")


class JobEvents(NamedTuple):
    """Events by number, and whether the result is complete."""

    events: dict[int, EventRecord]
    complete: bool


def from_outbox(folder: Path, key: JobKey, start: int, until: float) -> JobEvents:
    """Return the events of a job in the outbox, from event `start` on."""
    found: dict[int, EventRecord] = {}
    try:
        outbox = outbox_reader(folder)
        oldest, end, _ = outbox.range()
        first = max(start, oldest)
        while end > first and time.monotonic() < until and len(found) < MAX_EVENTS:
            begin = max(first, end - OUTBOX_BATCH_SIZE)
            for events in outbox.find(key.encoded, begin, end):
                found |= _of_job(events, key)
            end = begin
    except (StoreError, OSError):
        return JobEvents(found, complete=False)
    return JobEvents(found, complete=end <= first)


def _of_job(events: EventRange, key: JobKey) -> dict[int, EventRecord]:
    place, value = (_SEQ, key.seq) if key.seq else (_JID, key.jid)
    rows: list[EventTuple] = []
    numbers: list[int] = []
    for number, row in enumerate(events.rows, events.first):
        if row[place] == value:
            rows.append(row)
            numbers.append(number)
    if not rows:
        return {}
    values = columns.convert(numbers, events.version, rows).values
    return _records({name: values[name] for name in _NAMES})


def from_lake(folder: Path, lake: LakeLocation, key: JobKey, until: float) -> tuple[JobEvents, int]:
    """Return the events of a job in the lake, and the last shipped event of the server."""
    try:
        server = known_identity(folder)
        table = _tables.latest(lake)
        if not server or table.table is None:
            return JobEvents({}, complete=not server or not last_landed(lake, server)), 0
        found: dict[int, EventRecord] = {}
        complete = True
        for events in _query(table, server, key):
            found |= events
            if time.monotonic() > until or len(found) >= MAX_EVENTS:
                complete = False
                break
        if last_landed(lake, server) and table.first(server) > 1:
            complete = False  # the lake was not converted
    except Exception as error:  # a query raises no narrower class for a damaged file
        log.warning("Cannot read the events of a job from the lake %s: %s", lake, error)
        return JobEvents({}, complete=False), 0
    return JobEvents(found, complete), table.position(server)


def _query(table: EventsTable, server: str, key: JobKey) -> Iterator[dict[int, EventRecord]]:
    """Yield the events of a job in parts."""
    of_job = f"seq = {key.seq}" if key.seq else f"jid = {quoted(key.jid)}"
    assert table.table is not None
    sql = f"SELECT {_SELECTED} FROM events WHERE server = {quoted(server)} AND {of_job}"  # noqa: S608
    reader = QueryBuilder().register("events", table.table).execute(sql)
    for batch in reader:
        yield _records({name: batch[name].to_pylist() for name in _NAMES})


def _records(values: dict[str, Any]) -> dict[int, EventRecord]:
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    events = msgspec.convert(rows, list[EventRecord])
    for event in events:
        _remove_repeated(event)
    return {event.event_id: event for event in events}


def _remove_repeated(event: EventRecord) -> None:
    """Remove the wait and the error that the end of a lease or a job repeats."""
    if event.type != "leased":
        event.wait_us = None
    if event.type not in _FAILURES:
        event.error_group = event.error_message = event.fingerprint = None


class _Tables:
    """The tables of recent searches. A table that is open reads only new entries of its log."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[LakeLocation, EventsTable] = {}

    def latest(self, lake: LakeLocation) -> EventsTable:
        with self._lock:
            table = self._known.get(lake)
            if table is not None and table.exists():
                table.refresh()
                return table
            table = EventsTable(lake)
            if table.table is not None:
                self._known[lake] = table
            return table


_tables: Final = _Tables()
