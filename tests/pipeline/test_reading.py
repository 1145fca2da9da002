"""Tables without a JVM: what is read, what is not, and what a damaged file says."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millrace.pipeline import reading, tables
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Batch, Ledger
from millrace.pipeline.ledger import Part as LedgerPart
from millrace.pipeline.tables import AUDIT_SEQ, DEPTH_DAY, EVENTS, TABLES
from report_lake import write

MONDAY, TUESDAY, WEDNESDAY = (date(2026, 11, day) for day in (16, 17, 18))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def depth(day: date, queue: str, ready: int) -> dict[str, object]:
    return {"server": "a", "queue": queue, "epoch": 0, "ready": ready, "day": day}


def queues(table: pa.Table) -> list[str]:
    found: list[str] = table["queue"].to_pylist()
    return found


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_table_that_is_not_there_is_empty_with_its_columns(
    lake: Lake, table: tables.Table
) -> None:
    found = reading.read(lake, table)
    assert found.num_rows == 0
    assert found.column_names == [*table.columns, *(["day"] if table.day else [])]


def test_types_are_those_of_the_ddl() -> None:
    types = {f.name: f.type for table in TABLES.values() for f in reading.schema(table)}
    assert types["gaps"] == pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))
    assert types["wait_hist"] == pa.list_(pa.int64())
    assert types["minute"] == pa.timestamp("us", tz="UTC")
    assert types["bucket"] == pa.int32()
    assert types["whole"] == pa.bool_()
    assert types["day"] == pa.date32()


def test_days_from_and_to(lake: Lake) -> None:
    write(
        lake, DEPTH_DAY, [depth(MONDAY, "m", 1), depth(TUESDAY, "t", 2), depth(WEDNESDAY, "w", 3)]
    )
    assert queues(reading.read(lake, DEPTH_DAY)) == ["m", "t", "w"]
    assert queues(reading.read(lake, DEPTH_DAY, TUESDAY)) == ["t", "w"]
    assert queues(reading.read(lake, DEPTH_DAY, last=TUESDAY)) == ["m", "t"]
    only = reading.read(lake, DEPTH_DAY, TUESDAY, TUESDAY)
    assert only["day"].to_pylist() == [TUESDAY]
    assert reading.days(lake, DEPTH_DAY) == [MONDAY, TUESDAY, WEDNESDAY]


def test_some_columns_and_some_rows(lake: Lake) -> None:
    write(lake, DEPTH_DAY, [depth(MONDAY, "a", 1), depth(MONDAY, "b", 2), depth(TUESDAY, "a", 3)])
    found = reading.read(
        lake, DEPTH_DAY, columns=["ready", "queue", "day"], where=pc.field("queue") == "a"
    )
    assert found.to_pylist() == [
        {"ready": 1, "queue": "a", "day": MONDAY},
        {"ready": 3, "queue": "a", "day": TUESDAY},
    ]


def test_what_is_being_written_is_not_read(lake: Lake) -> None:
    write(lake, DEPTH_DAY, [depth(MONDAY, "m", 1)])
    folder = lake.day(DEPTH_DAY.name, MONDAY)
    for name in (".data.parquet", "_temporary.parquet", "part-0.parquet"):
        (folder / name).write_bytes(b"half a file")
    lake.day(DEPTH_DAY.name, TUESDAY).mkdir()
    assert queues(reading.read(lake, DEPTH_DAY)) == ["m"]
    assert reading.days(lake, DEPTH_DAY) == [MONDAY]


def test_a_column_that_an_older_file_does_not_have_is_null(lake: Lake) -> None:
    folder = lake.day(DEPTH_DAY.name, MONDAY)
    folder.mkdir(parents=True)
    older = pa.table({"queue": ["q"], "server": ["a"], "ready": pa.array([7], pa.int32())})
    pq.write_table(older, folder / "data.parquet")
    (row,) = reading.read(lake, DEPTH_DAY).to_pylist()
    assert (row["queue"], row["ready"], row["dead"], row["day"]) == ("q", 7, None, MONDAY)


def test_more_than_can_be_held_is_refused_before_it_is_read(lake: Lake) -> None:
    write(lake, DEPTH_DAY, [depth(MONDAY, "a", 1), depth(MONDAY, "b", 2), depth(TUESDAY, "c", 3)])
    with pytest.raises(reading.TooMuch, match=r"3 rows .* at most 2 .* fewer days"):
        reading.read(lake, DEPTH_DAY, most=2)
    assert reading.read(lake, DEPTH_DAY, MONDAY, MONDAY, most=2).num_rows == 2


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"x" * 1000])
def test_a_damaged_file_is_named_with_what_mends_it(lake: Lake, content: bytes) -> None:
    write(lake, DEPTH_DAY, [depth(MONDAY, "m", 1)])
    path = lake.day(DEPTH_DAY.name, MONDAY) / "data.parquet"
    path.write_bytes(content)
    with pytest.raises(reading.Unreadable) as raised:
        reading.read(lake, DEPTH_DAY)
    assert str(path) in str(raised.value)
    assert "`millrace pipeline refresh --days 2026-11-16..2026-11-16`" in str(raised.value)


def test_what_mends_a_file_depends_on_what_made_it(lake: Lake) -> None:
    write(lake, AUDIT_SEQ, [{"server": "a"}])
    (lake.table(AUDIT_SEQ.name) / "data.parquet").write_bytes(b"PAR1")
    with pytest.raises(reading.Unreadable, match="`millrace pipeline audit` makes it anew"):
        reading.read(lake, AUDIT_SEQ)
    hot_events(lake, 1)
    record(lake, 1)
    (lake.day("events_hot", MONDAY) / "b-00000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(reading.Unreadable, match="restore it, or begin a new lake"):
        reading.read(lake, EVENTS)


def test_a_file_that_a_run_removes_meanwhile_is_not_called_damaged(lake: Lake) -> None:
    write(lake, DEPTH_DAY, [depth(MONDAY, "m", 1), depth(TUESDAY, "t", 2)])
    pieces = reading.batches(lake, DEPTH_DAY)
    next(pieces)
    (lake.day(DEPTH_DAY.name, TUESDAY) / "data.parquet").unlink()
    with pytest.raises(reading.Unreadable, match=r"went while it was read: .* Try again"):
        next(pieces)


def test_a_file_damaged_in_its_middle_is_found(lake: Lake) -> None:
    write(lake, DEPTH_DAY, [depth(MONDAY, f"queue {n}", n) for n in range(10_000)])
    path = lake.day(DEPTH_DAY.name, MONDAY) / "data.parquet"
    whole = bytearray(path.read_bytes())
    whole[4:2000] = bytes(1996)
    path.write_bytes(whole)
    with pytest.raises(reading.Unreadable):
        reading.read(lake, DEPTH_DAY)


def test_how_much_there_is(lake: Lake) -> None:
    assert reading.extent(lake, DEPTH_DAY) == (0, 0, 0, 0, None, None)
    write(lake, DEPTH_DAY, [depth(MONDAY, "a", 1), depth(MONDAY, "b", 2), depth(WEDNESDAY, "c", 3)])
    found = reading.extent(lake, DEPTH_DAY)
    assert (found.rows, found.files, found.days) == (3, 2, 2)
    assert (found.first, found.last) == (MONDAY, WEDNESDAY)
    assert found.bytes == sum(path.stat().st_size for path in lake.root.rglob("*.parquet"))


def test_events_are_those_that_the_ledger_and_the_seals_name(lake: Lake) -> None:
    for batch in (1, 2):
        hot_events(lake, batch)
    record(lake, 1)  # the second batch was interrupted
    assert event_ids(lake) == [1]
    record(lake, 2)
    assert event_ids(lake) == [1, 2]
    cold = lake.day(EVENTS.name, MONDAY)
    cold.mkdir(parents=True)
    pq.write_table(one_event(1), cold / "sealed.parquet")
    (cold / "_sealed.json").write_text('{"max_batch": 1, "files": ["sealed.parquet"], "rows": 1}')
    assert event_ids(lake) == [1, 2]
    assert reading.extent(lake, EVENTS).files == 2


def one_event(number: int) -> pa.Table:
    schema = pa.schema([f for f in reading.schema(EVENTS) if f.name != "day"])
    time = datetime(2026, 11, 16, tzinfo=UTC)
    return pa.Table.from_pylist([{"server": "a", "event_id": number, "time": time}], schema)


def hot_events(lake: Lake, batch: int) -> None:
    folder = lake.day("events_hot", MONDAY)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(one_event(batch), folder / f"b-{batch:08}.parquet")


def record(lake: Lake, batch: int) -> None:
    files = [f"b-{batch:08}.parquet"]
    part = LedgerPart(day=MONDAY, files=files, rows=1, leases=[], pushes=[])
    ledger = Ledger(lake)
    ledger.record(
        Batch(
            batch=batch, files=[], rows=1, quarantined=0, refused=[], ranges={"a": (batch, batch)},
            parts=[part], flushed=False, digest="", seconds=0.0,
        )
    )  # fmt: skip


def event_ids(lake: Lake) -> list[int]:
    return sorted(reading.read(lake, EVENTS)["event_id"].to_pylist())
