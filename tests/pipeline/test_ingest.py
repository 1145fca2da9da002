"""Landing files become events: each once, divided by day, with what is no event put aside."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from landings import SERVER, event, land, life
from pyspark.sql import SparkSession

from millrace.journal.landing import Landed
from millrace.pipeline import events, ingest, staging
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger, Part
from millrace.pipeline.reasons import CONFLICT, DUPLICATE, OUTSIDE, STRANGER

D14, D15, D16 = (date(2026, 11, day) for day in (14, 15, 16))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "a lake [of ours]")


def take(spark: SparkSession, lake: Lake) -> ingest.Taken:
    return ingest.ingest(spark, lake)


def ids(lake: Lake) -> list[tuple[str, int]]:
    """Every event, as a reader without Spark finds it."""
    files = events.files(lake)
    found = [pq.ParquetFile(path).read().to_pylist() for path in (*files.hot, *files.cold)]
    return sorted((row["server"], row["event_id"]) for rows in found for row in rows)


def quarantined(lake: Lake) -> dict[tuple[str, int], list[str]]:
    paths = lake.table("quarantine").glob("b-*.parquet")
    rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    return {(row["server"], row["event_id"]): row["reasons"] for row in rows}


def test_events_are_divided_by_day_and_written_down(spark, lake):
    one = land(lake, [*life(1, 1, 1), *life(4, 2, 30, until=50)])
    two = land(lake, [event(1, 2, server="b2"), event(2, 3, server="b2")])
    (batch,) = take(spark, lake).batches
    assert (batch.batch, batch.rows, batch.quarantined) == (1, 8, 0)
    assert batch.files == [one.name, two.name]
    assert batch.ranges == {"a1": (1, 6), "b2": (1, 2)}
    parts = [Part(p.day, [], p.rows, p.leases, p.pushes) for p in batch.parts]
    assert parts == [
        Part(D14, [], 5, [D14], [D14]),
        Part(D15, [], 2, [D15], [D15]),
        Part(D16, [], 1, [D15], [D15]),
    ]
    assert not batch.flushed
    assert Ledger(lake).batches() == [batch]
    assert ids(lake) == [("a1", n) for n in range(1, 7)] + [("b2", 1), ("b2", 2)]
    rows = events.read(spark, lake, D15).orderBy("event_id").collect()
    assert [(row["event_id"], row["day"], row["type"]) for row in rows] == [
        (4, D15, "pushed"),
        (5, D15, "leased"),
        (6, D16, "completed"),
    ]
    assert rows[2]["run_us"] == 71_998_000_000
    assert rows[2]["leased_at"].replace(tzinfo=None) == datetime(2026, 11, 15, 6, 0, 2)
    # Nothing new, nothing done.
    assert take(spark, lake).batches == []
    # What comes later is another batch.
    land(
        lake,
        [
            event(
                7, type="flushed", before="gone", state="gone", origin="", actor=None, created=None
            )
        ],
    )
    assert take(spark, lake).batches[0].flushed
    assert [each.batch for each in Ledger(lake).batches()] == [1, 2]


def test_a_large_file_of_one_day_is_not_written_again(spark, lake, monkeypatch):
    monkeypatch.setattr(staging, "LARGE", 3)
    kept = land(lake, life(1, 1, 1))
    others = [
        land(lake, life(4, 2, 23, until=25)),  # of two days
        land(lake, [event(7), event(8, type="jumped"), event(9)]),  # with a row that is none
        land(lake, [event(10), event(11), event(12)], drop=("source",)),  # of an older version
        land(lake, [event(13)]),  # small
    ]
    (batch,) = take(spark, lake).batches
    assert (batch.rows, batch.quarantined) == (12, 1)
    assert ids(lake) == [(SERVER, number) for number in range(1, 14) if number != 8]
    inodes = {path.stat().st_ino for path in events.files(lake).hot}
    assert kept.stat().st_ino in inodes
    assert inodes.isdisjoint(path.stat().st_ino for path in others)
    assert [(part.day, part.rows, part.leases) for part in batch.parts] == [
        (D14, 11, [D14]),
        (D15, 1, [D14]),
    ]
    assert events.read(spark, lake).count() == 12


BROKEN = {
    "`queue` is missing": {"queue": None},
    "`type` is not known": {"type": "jumped"},
    "`state` is not known": {"state": "asleep"},
    "`before` is not known": {"before": "asleep"},
    "`origin` is not known": {"origin": "smtp"},
    "`actor` is not known": {"actor": "smtp"},
    "the state before is missing": {"before": None},
    "no such event leads from that state to this one": {"before": "ready"},
    "`wait_us` is negative": {"wait_us": -1},
    "`run_us` is negative": {"run_us": -1},
    "`payload_bytes` is negative": {"payload_bytes": -1},
    "`seq` is negative": {"seq": -1},
}


def test_what_breaks_a_rule_goes_into_quarantine(spark, lake):
    rows = [event(number, **odd) for number, odd in enumerate(BROKEN.values(), 1)]
    n = len(rows)
    # And what is odd but allowed: the first version, the first and the last of all times.
    rows += [
        event(n + 1, version=1, before=None, created=None),
        event(n + 2, time=datetime(1, 1, 1, tzinfo=UTC), created=datetime(1, 1, 1, tzinfo=UTC)),
        event(n + 3, time=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        event(n + 4, time=datetime(1970, 1, 1, tzinfo=UTC), tags=["a", "b"], actor=None),
    ]
    land(lake, rows)
    (batch,) = take(spark, lake).batches
    assert {reason: count for reason, count in batch.reasons.items() if reason in BROKEN} == {
        reason: (3 if reason.startswith("no such") else 1) for reason in BROKEN
    } | {"no such event leads from that state to this one": 4}
    found = quarantined(lake)
    assert [found[SERVER, number][0] for number in range(1, n + 1)] == list(BROKEN)
    assert ids(lake) == [(SERVER, number) for number in range(n + 1, n + 5)]
    assert batch.quarantined == n
    assert [part.day for part in batch.parts] == [
        date(1, 1, 1), date(1970, 1, 1), D14, date(9999, 12, 31),
    ]  # fmt: skip
    first = events.read(spark, lake, last=date(1, 1, 1)).selectExpr("string(time)", "string(day)")
    assert [tuple(row) for row in first.collect()] == [("0001-01-01 00:00:00", "0001-01-01")]


def test_times_beyond_all_calendars_go_into_quarantine(spark, lake):
    """Arrow's own files may hold them; Python cannot."""
    rows = pa.Table.from_pylist([event(1), event(2)])
    beyond = pa.array([253_402_300_800_000_000, -62_135_596_800_000_001], pa.int64())
    path = land(lake, [event(1), event(2)])
    written = pq.ParquetFile(path).read()
    place = written.schema.get_field_index("leased_at")
    moments = beyond.cast(pa.timestamp("us", tz="UTC"))
    pq.write_table(written.set_column(place, written.schema.field(place), moments), path)
    assert rows.num_rows == 2
    (batch,) = take(spark, lake).batches
    assert (batch.rows, batch.reasons) == (0, {"`leased_at` is beyond the years 1 to 9999": 2})
    assert batch.parts == []


def test_doubles_and_strays_are_put_aside(spark, lake):
    land(lake, [event(1), event(2), event(3)])
    take(spark, lake)
    # Shares 2 and 3 with what is there, of which 3 differs; has 5 twice; 9 and another server's
    # are not of its name. The third file shares 6.
    odd = [event(2), event(3, queue="other"), event(4), event(5), event(5), event(6), event(9)]
    odd += [event(4, server="b2")]
    land(lake, odd, name=Landed(SERVER, 2, 7))
    land(lake, [event(6), event(7)])
    (batch,) = take(spark, lake).batches
    assert ids(lake) == [(SERVER, number) for number in range(1, 8)]
    assert batch.reasons == {DUPLICATE: 3, CONFLICT: 1, OUTSIDE: 1, STRANGER: 1}
    assert (batch.rows, batch.quarantined) == (4, 6)
    found = quarantined(lake)
    assert found[SERVER, 3] == [CONFLICT]
    assert found[SERVER, 9] == [OUTSIDE]
    assert found["b2", 4] == [STRANGER]
    kept = events.read(spark, lake).where("event_id = 3").collect()
    assert [row["queue"] for row in kept] == ["mail"]


def test_files_that_cannot_be_read_are_named_and_not_tried_again(spark, lake):
    good = land(lake, [event(1)])
    torn = land(lake, [event(2)])
    torn.write_bytes(torn.read_bytes()[:-20])
    foreign = land(lake, [event(3)], drop=("queue",))
    whole = land(
        lake, [event(number, worker=f"worker-{number * 7919}") for number in range(4, 4000)]
    )
    damaged = bytearray(whole.read_bytes())
    column = pq.ParquetFile(whole).metadata.row_group(0).column(10)
    assert column.path_in_schema == "worker"
    at = column.dictionary_page_offset
    damaged[at : at + 400] = bytes(400)
    whole.write_bytes(damaged)
    old = land(lake, [event(5000)], drop=("source", "tags"))
    taken = take(spark, lake)
    refused = {each.file: each.reason for each in taken.refused}
    assert set(refused) == {torn.name, foreign.name, whole.name}
    assert refused[foreign.name] == "it has no column `queue`"
    assert refused[torn.name].startswith("it cannot be read: ")
    assert refused[whole.name].startswith("it cannot be read: ")
    assert ids(lake) == [(SERVER, 1), (SERVER, 5000)]
    assert good.exists()
    assert old.exists()
    assert take(spark, lake).batches == []
    # Unless somebody puts it back whole.
    land(lake, [event(2)])
    again = take(spark, lake)
    assert (again.events, again.refused) == (1, [])
    assert ids(lake) == [(SERVER, 1), (SERVER, 2), (SERVER, 5000)]
    assert take(spark, lake).batches == []


def test_a_batch_of_nothing_but_refused_files(spark, lake):
    lake.landing.mkdir(parents=True)
    (lake.landing / Landed(SERVER, 1, 2).name).write_text("no Parquet")
    (lake.landing / Landed(SERVER, 9, 3).name).write_text("no range")
    (lake.landing / ".ev-hidden.parquet").write_text("being written")
    taken = take(spark, lake)
    assert (taken.events, len(taken.refused), taken.days) == (0, 2, [])
    assert ids(lake) == []


def test_batches_are_bounded():
    files = [Landed("a", n * 1_000_000 + 1, (n + 1) * 1_000_000) for n in range(5)]
    huge = Landed("b", 1, 10_000_000)
    assert list(ingest.divided([*files, huge])) == [files[:2], files[2:4], files[4:], [huge]]
    small = [Landed("a", n, n) for n in range(2500)]
    assert [len(batch) for batch in ingest.divided(small)] == [1000, 1000, 500]
    assert list(ingest.divided([])) == []
