"""Windows of the history: ranges of events that a refresh processes together.

A window has, for each server, the events after one position up to another. A window ends after
at most WINDOW_EVENTS events, and for a server at each `flushed` event. This module does not need
Spark.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from deltalake import DeltaTable

from millrace.journal.location import EVENTS
from millrace.journal.table_files import File

from .delta import Position, query
from .tables import MAX_LEASE_DAYS

#: Maximum number of events of a window.
WINDOW_EVENTS: Final = 5_000_000


class Flush(NamedTuple):
    """A `flushed` event."""

    server: str
    event_id: int
    time: datetime


class Window(NamedTuple):
    """The events after `start` up to `end` of each server."""

    start: Position
    end: Position
    #: The flushes in the window; each is the last event of its server in the window.
    flushes: tuple[Flush, ...] = ()

    @property
    def events(self) -> int:
        return sum(last - self.start.get(server, 0) for server, last in self.end.items())

    def files(self, files: Sequence[File]) -> list[File]:
        """Return the files of `events` that can have events of this window."""
        return [
            file
            for file in files
            if file.server is not None
            and file.last_event > self.start.get(file.server, 0)
            and file.first_event <= self.end.get(file.server, 0)
        ]

    def covers(self, files: Sequence[File]) -> bool:
        """Test if all events of these files belong to this window."""
        return all(
            file.server is not None
            and file.first_event > self.start.get(file.server, 0)
            and file.last_event <= self.end.get(file.server, 0)
            for file in files
        )

    def condition(self) -> str:
        """The window as an SQL condition on `server` and `event_id`."""
        ranges = [
            f"(server = '{server}' AND event_id > {self.start.get(server, 0)} "
            f"AND event_id <= {last})"
            for server, last in self.end.items()
            if last > self.start.get(server, 0)
        ]
        return " OR ".join(ranges) or "false"


def days(files: Sequence[File]) -> list[str]:
    """Return the days of these files of `events`."""
    return sorted({file.day.isoformat() for file in files if file.day is not None})


def lease_days(files: Sequence[File]) -> list[str]:
    """Return the days on which leases that end in these files can have been busy."""
    found = set()
    for file in files:
        if file.day is None:
            continue
        began = file.leased_from.date() if file.leased_from is not None else file.day
        length = (file.day - began).days
        # A clock that was never set can be decades off. Such leases have no length.
        for before in range(min(max(length, 0), MAX_LEASE_DAYS) + 1):
            try:
                found.add((file.day - timedelta(days=before)).isoformat())
            except OverflowError:
                break
    return sorted(found)


def file_ends(files: Sequence[File]) -> dict[str, list[int]]:
    """Return the events of each server after which no file continues, in order. The events of one
    shipment are in a file for each day, and the ranges of these files can overlap.
    """
    found: dict[str, list[int]] = {}
    for file in sorted(files, key=lambda file: file.first_event):
        if file.server is None:
            continue
        ends = found.setdefault(file.server, [])
        if ends and file.first_event <= ends[-1]:
            ends[-1] = max(ends[-1], file.last_event)
        else:
            ends.append(file.last_event)
    return found


def windows(
    start: Position,
    end: Position,
    flushes: Sequence[Flush],
    limit: int = WINDOW_EVENTS,
    ends: Mapping[str, Sequence[int]] | None = None,
) -> Iterator[Window]:
    """Divide the events after `start` up to `end`. Windows end at the ends of files if possible:
    then no query has a condition on event numbers, and Spark compiles its code once for all
    windows instead of for each. Each server gets a share of a window in proportion to its events,
    so that the servers advance through the same days, and few days are replaced twice.
    """
    ends = ends or {}
    done = {server: start.get(server, 0) for server in end}
    waiting = {
        server: sorted(flush for flush in flushes if flush.server == server) for server in end
    }
    while left := sum(max(0, end[server] - done[server]) for server in end):
        # Two equal windows cost less than a full one and a small rest.
        budget = -(-left // 2) if limit < left < limit * 6 // 5 else limit
        reached, ended = dict(done), []
        for server in sorted(end):
            own = max(0, end[server] - done[server])
            share = -(-own * budget // left) if left > budget else own
            left, last = left - own, done[server] + share
            if share < own:
                room = min(budget, own)
                last = _file_end(ends.get(server, ()), done[server], last, room)
            flush = waiting[server][0] if waiting[server] else None
            if flush is not None and flush.event_id <= last:
                last = flush.event_id
                ended.append(waiting[server].pop(0))
            budget -= last - done[server]
            reached[server] = last
        yield Window(done, reached, tuple(ended))
        done = reached


def _file_end(ends: Sequence[int], first: int, last: int, room: int) -> int:
    """The end of the file nearest below `last`, or the next one within `room` events."""
    number = bisect_right(ends, last)
    if number and ends[number - 1] > first:
        return ends[number - 1]
    if number < len(ends) and ends[number] - first <= room:
        return ends[number]
    return last


class Contents(NamedTuple):
    """Counts of the events of a range: a table without input needs no query."""

    flushes: tuple[Flush, ...]
    #: Events by condition.
    counts: Mapping[str, int]


#: Conditions on events, each with the tables that only such events change.
CONDITIONS: Final = {
    "attempts": "before = 'leased' AND state <> 'leased'",
    "jobs": "state = 'gone'",
    "tag_day": "cardinality(tags) > 0",
    "failure_groups": "fingerprint IS NOT NULL",
}


def contents(events: DeltaTable, window: Window) -> Contents:
    """Count the events of a window by the tables that they change, and find its flushes."""
    condition = window.condition()
    found = query(
        events,
        EVENTS,
        f"SELECT server, event_id, time FROM events WHERE type = 'flushed' AND ({condition})",
    )
    flushes = sorted(Flush(row["server"], row["event_id"], row["time"]) for row in found)
    counts = ", ".join(f"count(*) FILTER (WHERE {c}) AS {name}" for name, c in CONDITIONS.items())
    (row,) = query(events, EVENTS, f"SELECT {counts} FROM events WHERE {condition}")
    return Contents(tuple(flushes), row)
