"""A lake in an object store: shipping, positions, a job's events and maintenance over S3."""

import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from kept import Kept, kept
from test_events_table import OTHER, SERVER, history, older_lake

from event_tables import event_run, table
from millrace.engine.events import EVENT_VERSION
from millrace.journal import maintenance, schema
from millrace.journal.events_table import EventsTable, OtherShipper, repair
from millrace.journal.identity import identity
from millrace.journal.job_events import JobKey, from_lake
from millrace.journal.location import LakeLocation, check_location, parse_location
from millrace.journal.maintenance import maintain
from millrace.journal.position import last_shipped
from millrace.journal.shipment import Shipment
from millrace.journal.status import shipping_status
from support.object_store import new_lake, object_store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store() as found:
        yield found


@pytest.fixture
def lake(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    return new_lake(endpoint, monkeypatch, request.node.name)


def rows_of(lake: str) -> pa.Table:
    query = f"SELECT {', '.join(schema.NAMES)} FROM events ORDER BY server, event_id"
    found = QueryBuilder().register("events", DeltaTable(f"{lake}/events")).execute(query)
    return pa.table(found).cast(schema.arrow())


def test_a_new_column_is_added_to_an_older_lake(lake: str, tmp_path: Path) -> None:
    older_lake(lake, tmp_path / "made")
    rows = history(20)
    EventsTable(lake).append(SERVER, event_run(31, EVENT_VERSION, rows[30:]))
    found = rows_of(lake).column(schema.NAMES[-1]).to_pylist()
    assert len(found) == 60
    assert set(found[:30]) == {None}
    assert set(found[30:]) != {None}


def test_events_and_positions(lake: str) -> None:
    rows = history(50)
    events = EventsTable(lake)
    assert events.position(SERVER) == 0
    assert events.append(SERVER, event_run(1, EVENT_VERSION, rows[:90])) == 3
    late = EventsTable(lake)
    events.append(SERVER, event_run(91, EVENT_VERSION, rows[90:]))
    EventsTable(lake).append(OTHER, event_run(1, EVENT_VERSION, rows[:9]))
    with pytest.raises(OtherShipper):
        late.append(SERVER, event_run(91, EVENT_VERSION, rows[90:]))
    assert [EventsTable(lake).position(server) for server in (SERVER, OTHER)] == [150, 9]
    assert (last_shipped(lake, SERVER), last_shipped(lake, "c0")) == (150, 0)
    expected = [table(SERVER, 1, EVENT_VERSION, rows), table(OTHER, 1, EVENT_VERSION, rows[:9])]
    assert rows_of(lake).to_pylist() == pa.concat_tables(expected).to_pylist()
    assert repair(lake, SERVER) == []


def ship(work: Kept, lake: str) -> None:
    with Shipment(work.folder, lake, 20) as shipment:
        list(shipment.ship())
        work.store.outbox.mark_shipped(shipment.next)
        shipment.maintain()


def test_a_shipper_and_the_events_of_a_job(lake: str, tmp_path: Path) -> None:
    with kept(tmp_path / "data", tmp_path / "unused") as work:
        work.work(10)
        ship(work, lake)
        work.work(3)
        ship(work, lake)
        ship(work, lake)
        status = shipping_status(work.folder, lake)
        assert (status.next_event, status.next_shipped) == (40, 40)
        found, last = from_lake(work.folder, lake, JobKey(12, ""), time.monotonic() + 60)
        assert ([*sorted(found.events)], found.complete, last) == ([34, 35, 36], True, 39)
        expected = table(identity(work.folder), 1, EVENT_VERSION, work.rows)
        assert rows_of(lake).to_pylist() == expected.to_pylist()


def test_maintenance(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "CHECKPOINT_COMMITS", 5)
    rows = history(5, step=1000)
    events = EventsTable(lake)
    for first in range(0, 15, 3):
        events.append(SERVER, event_run(first + 1, EVENT_VERSION, rows[first : first + 3]))
        maintain(events, SERVER, date(2100, 1, 1))
    assert len(DeltaTable(f"{lake}/events").file_uris()) == 1
    assert rows_of(lake).to_pylist() == table(SERVER, 1, EVENT_VERSION, rows).to_pylist()
    assert EventsTable(lake).position(SERVER) == 15


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("file:///var/lake", Path("/var/lake")),
        ("/var/lake", Path("/var/lake")),
        ("lake", Path("lake")),
    ],
)
def test_a_location_is_a_folder_or_a_uri(text: str, location: LakeLocation) -> None:
    assert parse_location(text) == location


@pytest.mark.parametrize("name", ["a[b", "a]b", "a\\b", "a%20b"])
def test_some_paths_cannot_be_used(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="must not contain"):
        EventsTable(tmp_path / name)
    check_location(tmp_path / "a b%z")
