"""The Delta table `events` contains every event once, after kills and power failures at any
time.
"""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

import event_tables
from event_tables import event_run
from millrace.journal import columns, schema
from millrace.journal.events_table import EventRun, EventsTable, OtherShipper, repair
from millrace.journal.location import LOG
from millrace.journal.position import last_shipped
from scene import SECOND, START, Scene

SERVER, OTHER = "5e7", "a1"
HOUR = 3600 * SECOND


def history(jobs: int, *, step: int = HOUR) -> list[tuple[Any, ...]]:
    """Three events per job; by default a day has 24 jobs."""
    scene = Scene()
    for number in range(jobs):
        job = scene.push(f"job-{number}", tags=["red"] if number % 5 == 0 else [])
        scene.lease()
        scene.now += step
        scene.complete(job)
    return scene.engine.change_set.events


def events(first: int, last: int) -> EventRun:
    rows = history(-(-last // 3))
    return event_run(first, schema.EVENT_VERSION, rows[first - 1 : last])


def query(lake: Path, sql: str) -> list[dict[str, Any]]:
    table = QueryBuilder().register("events", DeltaTable(lake / "events"))
    found: list[dict[str, Any]] = pa.table(table.execute(sql)).to_pylist()
    return found


def numbers(lake: Path, server: str = SERVER) -> list[int]:
    rows = query(lake, f"SELECT event_id FROM events WHERE server = '{server}' ORDER BY event_id")
    return [row["event_id"] for row in rows]


def log_entries(lake: Path) -> list[Path]:
    return sorted((lake / "events" / LOG).glob("*.json"))


def test_a_lake_without_events_has_no_position(tmp_path: Path) -> None:
    assert EventsTable(tmp_path).position(SERVER) == 0
    assert list(tmp_path.iterdir()) == []


def test_events_are_read_unchanged(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    shipped = event_tables.table(SERVER, 1, schema.EVENT_VERSION, history(50))
    assert table.append(SERVER, events(1, 150)) == 4
    found = pa.table(
        QueryBuilder()
        .register("events", DeltaTable(tmp_path / "events"))
        .execute(f"SELECT {', '.join(schema.NAMES)} FROM events ORDER BY event_id")
    )
    assert found.to_pylist() == shipped.to_pylist()


def older_lake(lake: Path | str, folder: Path) -> None:
    """Ship events 1 to 30 to a lake, as a version without the newest column did."""
    EventsTable(folder).append(SERVER, events(1, 30))
    rows = DeltaTable(folder / "events").to_pyarrow_table().drop_columns([schema.NAMES[-1]])
    transaction = CommitProperties(app_transactions=[Transaction(SERVER, 30)])
    write_deltalake(
        f"{lake}/events", rows, partition_by=["day", "server"], commit_properties=transaction
    )


def test_a_new_column_is_added_to_an_older_lake(tmp_path: Path) -> None:
    lake, newest = tmp_path / "lake", schema.NAMES[-1]
    older_lake(lake, tmp_path / "made")
    assert newest not in [field.name for field in DeltaTable(lake / "events").schema().fields]
    table = EventsTable(lake)
    table.append(SERVER, events(31, 60))
    assert (table.position(SERVER), numbers(lake)) == (60, list(range(1, 61)))
    found = query(lake, f"SELECT event_id, {newest} FROM events WHERE {newest} IS NOT NULL")
    assert found
    assert min(row["event_id"] for row in found) > 30
    version = DeltaTable(lake / "events").version()
    EventsTable(lake).append(SERVER, events(61, 63))
    assert DeltaTable(lake / "events").version() == version + 1


def test_files_are_divided_by_day_and_server(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 150))
    table.append(OTHER, events(1, 30))
    begin = datetime.fromtimestamp(START / SECOND, UTC).date()
    found = query(tmp_path, "SELECT DISTINCT day, server FROM events ORDER BY server, day")
    assert [row["server"] for row in found] == [SERVER] * 4 + [OTHER] * 2
    assert found[0]["day"] == begin
    assert query(tmp_path, "SELECT count(*) AS n FROM events WHERE day <> CAST(time AS DATE)") == [
        {"n": 0}
    ]


def test_each_server_has_its_own_position(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 60))
    table.append(OTHER, events(1, 9))
    table.append(SERVER, events(61, 90))
    for known in (table, EventsTable(tmp_path)):
        assert (known.position(SERVER), known.position(OTHER)) == (90, 9)
    assert numbers(tmp_path) == list(range(1, 91))
    assert numbers(tmp_path, OTHER) == list(range(1, 10))


def test_existing_events_are_refused(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 60))
    with pytest.raises(ValueError, match="event 60 of server 5e7 is in the table already"):
        table.append(SERVER, events(60, 63))


def test_another_shipper_of_the_same_server_is_refused(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    late = EventsTable(tmp_path)
    table.append(SERVER, events(31, 60))
    with pytest.raises(OtherShipper):
        late.append(SERVER, events(31, 60))
    assert numbers(tmp_path) == list(range(1, 61))


def test_servers_commit_concurrently(tmp_path: Path) -> None:
    EventsTable(tmp_path).append("c0", events(1, 3))

    def ship(server: str) -> None:
        table = EventsTable(tmp_path)
        for first in range(1, 31, 3):
            table.append(server, events(first, first + 2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ship, ["c1", "c2", "c3", "c4"]))
    for server in ("c1", "c2", "c3", "c4"):
        assert numbers(tmp_path, server) == list(range(1, 31))
        assert EventsTable(tmp_path).position(server) == 30


def test_a_lookup_skips_files_without_the_job(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 600))
    known = DeltaTable(tmp_path / "events")
    pruned = known.file_uris(file_pruning_predicate=f"server = '{SERVER}' AND seq = 7")
    assert len(pruned) == 1
    assert len(known.file_uris()) > 5
    newer = known.file_uris(file_pruning_predicate=f"server = '{SERVER}' AND event_id > 599")
    assert len(newer) == 1


def test_odd_times_have_a_day(tmp_path: Path) -> None:
    rows = history(2, step=SECOND)
    odd = [(columns.FIRST_TIME, *rows[0][1:]), (columns.LAST_TIME, *rows[1][1:]), (0, *rows[2][1:])]
    EventsTable(tmp_path).append(SERVER, event_run(1, schema.EVENT_VERSION, odd))
    found = query(tmp_path, "SELECT event_id, day FROM events ORDER BY event_id")
    assert [row["day"] for row in found] == [date.min, date.max, date(1970, 1, 1)]
    known = DeltaTable(tmp_path / "events")
    assert len(known.file_uris(file_pruning_predicate="time > '9999-12-31T23:59:59Z'")) == 1


# Kills

CHILD = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
from test_events_table import EventsTable, events
EventsTable(Path(sys.argv[1])).append("5e7", events(31, 60))
"""


@pytest.mark.parametrize(
    ("step", "position"), [("written", 30), ("committed", 60), ("synced", 60), ("", 60)]
)
@pytest.mark.parametrize("new", [False, True], ids=["known lake", "new lake"])
def test_a_kill_after_any_step(tmp_path: Path, step: str, position: int, new: bool) -> None:
    if not new:
        EventsTable(tmp_path).append(SERVER, events(1, 30))
    here = Path(__file__).parent
    ran = subprocess.run(
        [sys.executable, "-c", CHILD.format(tests=str(here.parent), here=str(here)), tmp_path],
        env={**os.environ, "CRASH_MILLRACE": step},
        timeout=120,
    )
    assert ran.returncode == (-signal.SIGKILL if step else 0)
    assert repair(tmp_path, SERVER) == []
    table = EventsTable(tmp_path)
    assert table.position(SERVER) == (0 if new and position == 30 else position)
    if table.position(SERVER) < 60:
        table.append(SERVER, events(31, 60))
    table.append(SERVER, events(61, 63))
    assert numbers(tmp_path) == list(range(31 if new else 1, 64))


# Power cuts


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_cut_entry_of_the_log_is_removed(tmp_path: Path, part: float) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    table.append(SERVER, events(31, 60))
    newest = log_entries(tmp_path)[-1]
    content = newest.read_bytes()
    newest.write_bytes(content[: int(len(content) * part)])
    assert repair(tmp_path, SERVER) == [newest.name]
    again = EventsTable(tmp_path)
    assert again.position(SERVER) == 30
    again.append(SERVER, events(31, 60))
    assert numbers(tmp_path) == list(range(1, 61))


def test_files_without_their_transaction_would_be_duplicates(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    table.append(SERVER, events(31, 60))
    newest = log_entries(tmp_path)[-1]
    lines = newest.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if "txn" not in json.loads(line)]
    newest.write_bytes(b"".join(kept))
    assert repair(tmp_path, OTHER) == []
    assert repair(tmp_path, SERVER) == [newest.name]
    assert EventsTable(tmp_path).position(SERVER) == 30


def test_a_complete_log_is_unchanged(tmp_path: Path) -> None:
    assert repair(tmp_path, SERVER) == []
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    DeltaTable(tmp_path / "events").create_checkpoint()
    before = {path.name: path.read_bytes() for path in (tmp_path / "events" / LOG).iterdir()}
    assert repair(tmp_path, SERVER) == []
    assert before == {
        path.name: path.read_bytes() for path in (tmp_path / "events" / LOG).iterdir()
    }


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_a_checkpoint_that_is_not_complete_is_removed(
    tmp_path: Path, content: bytes | None
) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    DeltaTable(tmp_path / "events").create_checkpoint()
    (checkpoint,) = (tmp_path / "events" / LOG).glob("*.checkpoint.parquet")
    if content is None:
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(content)
    assert repair(tmp_path, SERVER) == ["_last_checkpoint", checkpoint.name]
    assert EventsTable(tmp_path).position(SERVER) == 30
    assert numbers(tmp_path) == list(range(1, 31))


# The position without deltalake


def test_the_log_gives_the_position_of_each_server(tmp_path: Path) -> None:
    assert last_shipped(tmp_path, SERVER) == 0
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    table.append(OTHER, events(1, 9))
    table.append(SERVER, events(31, 60))
    assert [last_shipped(tmp_path, each) for each in (SERVER, OTHER, "c0")] == [60, 9, 0]


def test_a_cut_entry_gives_no_position(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    table.append(SERVER, events(31, 60))
    newest = log_entries(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    assert last_shipped(tmp_path, SERVER) == 30


def test_a_checkpoint_has_the_position_of_removed_entries(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.append(SERVER, events(1, 30))
    table.append(OTHER, events(1, 9))
    DeltaTable(tmp_path / "events").create_checkpoint()
    *old, _ = log_entries(tmp_path)
    for entry in old:
        entry.unlink()
    assert [last_shipped(tmp_path, each) for each in (SERVER, OTHER)] == [30, 9]


def test_a_new_lake_is_marked_with_its_format(tmp_path: Path) -> None:
    EventsTable(tmp_path).append(SERVER, events(1, 3))
    assert json.loads((tmp_path / "lake.json").read_bytes()) == {"format": 2}


def test_all_servers_and_their_positions(tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    assert table.position(SERVER) == 0
    table.append(SERVER, events(1, 30))
    table.append(OTHER, events(1, 9))
    assert (table.position(SERVER), table.position(OTHER)) == (30, 9)
    assert (table.first(SERVER), table.first("c0")) == (1, 0)
