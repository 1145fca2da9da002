"""The tables `queues`, `notes` (settings) and `stats`: they are small, so the store writes their
rows directly.
"""

import sqlite3

from millrace.store import records
from millrace.store.store import StoreState

from . import checksums
from .checksums import TurnSummary

#: For each table, the checksums of its rows by key.
RowSums = dict[str, dict[object, int]]


class SmallTables:
    """The rows of these tables. All changes are part of the transaction of a change set."""

    def __init__(self, db: sqlite3.Connection, summary: TurnSummary) -> None:
        self._db = db
        self._summary = summary
        self._row_sums: RowSums = {"queues": {}, "notes": {}, "stats": {}}
        #: The place of each queue in the order of creation.
        self._places: dict[str, int] = {}
        self._last_place = 0

    def load_rows(self, places: dict[str, int], row_sums: RowSums) -> None:
        """Continue with the rows that were read from the tables."""
        self._places, self._row_sums = places, row_sums
        self._last_place = max(places.values(), default=0)

    def write_queue(self, name: str, paused: bool | None) -> None:
        if paused is None:
            self._update_row_sum("queues", name, 0)
            place = self._places.pop(name, None)
            if place is not None:
                self._db.execute("DELETE FROM queues WHERE place = ?", (place,))
            return
        if name not in self._places:
            self._last_place += 1
            self._places[name] = self._last_place
        place = self._places[name]
        checksum = self._update_row_sum("queues", name, checksums.queue_sum(place, name, paused))
        self._db.execute(
            "INSERT OR REPLACE INTO queues VALUES (?, ?, ?, ?)", (place, checksum, name, paused)
        )

    def write_settings(self, settings: dict[str, bytes | None]) -> None:
        """Write the changed settings; a flush deletes thousands at once."""
        deleted: list[tuple[str]] = []
        rows: list[tuple[str, int, bytes]] = []
        for key, value in settings.items():
            if value is None:
                self._update_row_sum("notes", key, 0)
                deleted.append((key,))
            else:
                checksum = self._update_row_sum("notes", key, checksums.note_sum(key, value))
                rows.append((key, checksum, value))
        self._db.executemany("DELETE FROM notes WHERE key = ?", deleted)
        self._db.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", rows)

    def write_statistics(self, state: StoreState) -> None:
        """Write the changed days. The table then includes all events up to now."""
        statistics = state.statistics
        old = statistics.forget(statistics.first_retained_day(state.last_known_time))
        for key in (*old, *statistics.dropped):
            self._update_row_sum("stats", key, 0)
            self._db.execute("DELETE FROM stats WHERE queue = ? AND day = ?", key)
        for key in statistics.dirty:
            record = records.encode(statistics.days[key])
            checksum = self._update_row_sum("stats", key, checksums.day_sum(*key, record))
            self._db.execute(
                "INSERT OR REPLACE INTO stats VALUES (?, ?, ?, ?)", (*key, checksum, record)
            )
        statistics.dirty.clear()
        statistics.dropped.clear()
        statistics.merged.clear()
        self._summary.stats_event = self._summary.next_event

    def clear(self) -> None:
        """Delete everything except the settings."""
        for table in ("queues", "stats"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608
        self._places = {}
        self._row_sums["queues"], self._row_sums["stats"] = {}, {}
        self._summary.others = sum(self._row_sums["notes"].values())
        self._summary.stats_event = self._summary.next_event

    def _update_row_sum(self, table: str, key: object, checksum: int) -> int:
        """Update the summary for a written row; 0 means that the row is deleted."""
        known = self._row_sums[table]
        self._summary.others += checksum - known.pop(key, 0)
        if checksum:
            known[key] = checksum
        return checksum
