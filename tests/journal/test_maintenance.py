"""Maintenance changes no rows, and running readers keep their snapshot."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder
from test_events_table import OTHER, SERVER, events, history, numbers, older_lake

from event_tables import event_run, in_lake
from millrace.engine.events import EVENT_VERSION
from millrace.journal import events_table, maintenance
from millrace.journal.events_table import EventsTable
from millrace.journal.maintenance import checkpoint, compact, maintain, vacuum
from scene import SECOND, START

FIRST_DAY = datetime.fromtimestamp(START / SECOND, UTC).date()
LATER = FIRST_DAY + timedelta(days=30)


def shipped(lake: Path, commits: int, size: int = 3, server: str = SERVER) -> EventsTable:
    """A table with small commits of one day."""
    table = EventsTable(lake)
    rows = history(commits * size // 3 + 1, step=SECOND)
    for first in range(0, commits * size, size):
        table.append(server, event_run(first + 1, EVENT_VERSION, rows[first : first + size]))
    return table


def files(lake: Path) -> int:
    return len(DeltaTable(lake / "events").file_uris())


def test_a_closed_day_becomes_one_file(tmp_path: Path) -> None:
    table = shipped(tmp_path, 10)
    before = in_lake(tmp_path)
    assert compact(table, SERVER, LATER) == 10
    assert files(tmp_path) == 1
    assert in_lake(tmp_path).equals(before)
    assert compact(table, SERVER, LATER) == 0
    table.append(SERVER, event_run(31, EVENT_VERSION, history(1)))
    assert EventsTable(tmp_path).position(SERVER) == 33


def test_files_without_a_new_column_are_merged(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    older_lake(lake, tmp_path / "made")
    table = EventsTable(lake)
    for first in range(31, 91, 3):
        table.append(SERVER, events(first, first + 2))
    before, count = in_lake(lake), files(lake)
    while compact(table, SERVER, LATER):
        pass
    assert files(lake) < count
    assert in_lake(lake).equals(before)


def test_statistics_of_a_merged_file_are_those_of_its_rows(tmp_path: Path) -> None:
    table = shipped(tmp_path, 10)
    compact(table, SERVER, LATER)
    known = DeltaTable(tmp_path / "events")
    actions = known.get_add_actions(flatten=True)
    assert actions["num_records"].to_pylist() == [30]
    assert (actions["min.event_id"][0].as_py(), actions["max.event_id"][0].as_py()) == (1, 30)
    rows = in_lake(tmp_path)
    for name in ("time", "created", "seq"):
        low, high = actions[f"min.{name}"][0].as_py(), actions[f"max.{name}"][0].as_py()
        assert low <= min(rows.column(name).to_pylist())
        assert high >= max(rows.column(name).to_pylist())
    assert known.file_uris(file_pruning_predicate="seq = 11") == []


def test_an_open_day_is_compacted_above_a_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "OPEN_DAY_FILES", 8)
    table = shipped(tmp_path, 7)
    assert compact(table, SERVER, FIRST_DAY) == 0
    table.append(SERVER, event_run(22, EVENT_VERSION, history(1, step=SECOND)))
    assert compact(table, SERVER, FIRST_DAY) == 8
    assert numbers(tmp_path) == list(range(1, 25))


def test_large_files_are_not_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TARGET_ROWS", 10)
    table = shipped(tmp_path, 12)
    while compact(table, SERVER, LATER):
        pass
    actions = DeltaTable(tmp_path / "events").get_add_actions(flatten=True)
    assert max(actions["num_records"].to_pylist()) < 20
    assert files(tmp_path) < 7
    assert numbers(tmp_path) == list(range(1, 37))


def test_files_of_another_server_are_not_rewritten(tmp_path: Path) -> None:
    shipped(tmp_path, 6, server=OTHER)
    table = shipped(tmp_path, 6)
    assert compact(table, SERVER, LATER) == 6
    assert files(tmp_path) == 7


def test_a_damaged_file_stops_compaction_with_an_error(tmp_path: Path) -> None:
    table = shipped(tmp_path, 6)
    next((tmp_path / "events").rglob("*.parquet")).write_bytes(b"no parquet")
    with pytest.raises(OSError, match="Cannot read"):
        compact(table, SERVER, LATER)
    assert files(tmp_path) == 6


def test_a_checkpoint_replaces_old_entries_and_keeps_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(events_table._SETTINGS, "delta.logRetentionDuration", "interval 0 seconds")
    table = shipped(tmp_path, 12)
    assert table.table is not None
    assert not checkpoint(table.table, table.folder)
    time.sleep(1.1)  # the log records seconds
    assert checkpoint(table.table, table.folder, commits=10)
    assert not checkpoint(table.table, table.folder, commits=10)
    assert len(list((table.folder / "_delta_log").glob("*.json"))) < 12
    assert EventsTable(tmp_path).position(SERVER) == 36
    assert numbers(tmp_path) == list(range(1, 37))


def test_vacuum_keeps_the_versions_of_readers(tmp_path: Path) -> None:
    table = shipped(tmp_path, 6)
    assert table.table is not None
    reader = DeltaTable(tmp_path / "events")
    compact(table, SERVER, LATER)
    assert vacuum(table.table, table.folder) == []
    kept = vacuum(table.table, table.folder, keep_versions=[reader.version()], hours=0)
    assert kept == []
    assert _count(reader) == 18
    assert len(vacuum(table.table, table.folder, hours=0)) == 6
    assert numbers(tmp_path) == list(range(1, 19))


def test_vacuum_removes_files_that_no_commit_names(tmp_path: Path) -> None:
    table = shipped(tmp_path, 2)
    assert table.table is not None
    orphan = next((tmp_path / "events").rglob("*.parquet")).with_name("orphan.parquet")
    orphan.write_bytes(b"a killed shipper")
    os.utime(orphan, (1, 1))
    vacuum(table.table, table.folder)
    assert not orphan.exists()
    assert numbers(tmp_path) == list(range(1, 7))


CHILD = """
import sys
from datetime import date
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
from millrace.journal.events_table import EventsTable
from millrace.journal.maintenance import compact
compact(EventsTable(Path(sys.argv[1])), "5e7", date(2100, 1, 1))
"""


def test_a_kill_before_the_commit_leaves_the_table_unchanged(tmp_path: Path) -> None:
    shipped(tmp_path, 6)
    here = Path(__file__).parent
    ran = subprocess.run(
        [sys.executable, "-c", CHILD.format(tests=str(here.parent), here=str(here)), tmp_path],
        env={**os.environ, "CRASH_MILLRACE": "merged"},
        timeout=120,
    )
    assert ran.returncode == -signal.SIGKILL
    assert files(tmp_path) == 6
    assert numbers(tmp_path) == list(range(1, 19))
    assert compact(EventsTable(tmp_path), SERVER, LATER) == 6


# Commits under concurrent readers


def _count(table: DeltaTable) -> int:
    query = "SELECT count(*) AS n, min(event_id) AS low, max(event_id) AS high FROM events"
    found = QueryBuilder().register("events", table).execute(query).read_all()
    n, low, high = (found[name][0].as_py() for name in ("n", "low", "high"))
    assert n == high - low + 1
    return int(n)


class Reader(threading.Thread):
    """Opens the newest version repeatedly, and reads each version twice."""

    def __init__(self, lake: Path) -> None:
        super().__init__()
        self.lake = lake
        self.ended = threading.Event()
        self.reads = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                table = DeltaTable(self.lake / "events")
                first = _count(table)
                self.ended.wait(0.05)
                assert _count(table) == first
                self.reads += 1
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize(
    "commits", [150, pytest.param(3000, marks=pytest.mark.skipif(
        not os.environ.get("MILLRACE_LONG"), reason="takes minutes; `make lake` runs it"
    ))]
)  # fmt: skip
def test_commits_and_maintenance_under_readers(
    tmp_path: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "OPEN_DAY_FILES", 16)
    monkeypatch.setattr(maintenance, "CHECKPOINT_COMMITS", 40)
    monkeypatch.setattr(maintenance, "VACUUM_INTERVAL", 0.0)
    table = EventsTable(tmp_path)
    rows = history(commits + 1, step=60 * SECOND)
    table.append(SERVER, event_run(1, EVENT_VERSION, rows[:3]))
    readers = [Reader(tmp_path) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, commits):
            run = event_run(3 * number + 1, EVENT_VERSION, rows[3 * number : 3 * number + 3])
            table.append(SERVER, run)
            if number % 10 == 0:
                maintain(table, SERVER, _day(rows[3 * number][0]))
    finally:
        for reader in readers:
            reader.ended.set()
            reader.join()
    for reader in readers:
        assert reader.error is None
        assert reader.reads > 2
    assert numbers(tmp_path) == list(range(1, 3 * commits + 1))
    assert files(tmp_path) < commits / 2
    assert EventsTable(tmp_path).position(SERVER) == 3 * commits


def _day(time: int) -> date:
    return datetime.fromtimestamp(time / SECOND, UTC).date()
