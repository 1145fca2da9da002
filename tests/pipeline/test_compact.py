"""Closed days are compacted: every event stays where readers find it, once."""

from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from landings import SERVER, event, land, life

from millrace.pipeline import commit, compact, events, ingest
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Ledger

D14, D15 = date(2026, 11, 14), date(2026, 11, 15)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def read(lake: Lake) -> list[tuple[str, str, int, int]]:
    found = events.files(lake)
    rows = [pq.ParquetFile(path).read() for path in (*found.cold, *found.hot)]
    return sorted(
        (row["queue"], row["server"], row["seq"], row["event_id"])
        for table in rows
        for row in table.to_pylist()
    )


def parquet(lake: Lake) -> set[str]:
    tables = lake.root / "tables"
    return {str(path.relative_to(tables)) for path in tables.rglob("*.parquet")}


def test_closed_days_are_sorted_into_large_files_and_late_events_stay_right(spark, lake):
    land(lake, [*life(1, 2, 1), *life(4, 1, 2), event(7, 26)])
    ingest.ingest(spark, lake)
    land(lake, [event(8, 3, seq=9, queue="alpha"), event(9, 27)])
    ingest.ingest(spark, lake)
    before = read(lake)
    done = compact.compact(spark, lake, today=D15)
    assert (done.days, done.events, done.replaced) == ([D14], 7, 2)
    assert read(lake) == before
    assert parquet(lake) == {
        "events/day=2026-11-14/c-00000002-0.parquet",
        "events_hot/day=2026-11-15/b-00000001-0.parquet",
        "events_hot/day=2026-11-15/b-00000002-0.parquet",
    }
    (cold,) = events.files(lake).cold
    table = pq.ParquetFile(cold).read(["queue", "seq", "event_id"]).to_pylist()
    assert [tuple(row.values()) for row in table] == [
        ("alpha", 9, 8),
        ("mail", 1, 4), ("mail", 1, 5), ("mail", 1, 6),
        ("mail", 2, 1), ("mail", 2, 2), ("mail", 2, 3),
    ]  # fmt: skip
    # An event comes late; it is there at once, and the next compaction takes it in.
    land(lake, [event(10, 5)])
    ingest.ingest(spark, lake)
    assert len(read(lake)) == 10
    assert events.read(spark, lake, D14, D14).count() == 8
    assert compact.compact(spark, lake, today=D15).days == [D14]
    assert len(read(lake)) == 10
    assert {name for name in parquet(lake) if "14" in name} == {
        "events/day=2026-11-14/c-00000003-0.parquet"
    }
    # Nothing is left to do but today.
    assert compact.due(lake, today=D15) == []
    assert compact.compact(spark, lake, everything=True).days == [D15]
    assert len(read(lake)) == 10
    assert compact.prune(lake) == 2
    assert [path.name for path in lake.landing.iterdir()] == [
        f"ev-{SERVER}-{10:020}-{10:020}.parquet"
    ]
    assert Ledger(lake).waiting() == []
    assert len(read(lake)) == 10


@pytest.mark.parametrize(
    "point", ["file:2026-11-14", "seal:2026-11-14", "tidy:2026-11-14", "file:2026-11-15"]
)
def test_a_compaction_that_is_killed_leaves_every_event_once(spark, lake, monkeypatch, point):
    land(lake, [*life(1, 1, 1), event(4, 26)])
    ingest.ingest(spark, lake)
    before = read(lake)

    def stop(reached: str) -> None:
        if reached == f"compact:{point}":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(commit, "reached", stop)
        with pytest.raises(KeyboardInterrupt):
            compact.compact(spark, lake, everything=True)
    assert read(lake) == before
    compact.compact(spark, lake, everything=True)
    assert read(lake) == before
    assert parquet(lake) == {
        "events/day=2026-11-14/c-00000001-0.parquet",
        "events/day=2026-11-15/c-00000001-0.parquet",
    }


def test_nothing_is_sealed_that_is_not_whole(spark, lake):
    land(lake, [event(1), event(2)])
    ingest.ingest(spark, lake)
    (hot,) = events.files(lake).hot
    rows = pq.ParquetFile(hot).read()
    pq.write_table(rows.slice(0, 1), hot)
    with pytest.raises(PipelineError, match="has 2 events by the ledger, and 1 were read"):
        compact.compact(spark, lake, everything=True)
    assert hot.exists()


def test_landing_files_stay_while_a_day_of_theirs_is_hot(spark, lake):
    land(lake, [event(1, 1), event(2, 26)])
    land(lake, [event(3, 1)])
    ingest.ingest(spark, lake)
    compact.compact(spark, lake, today=D15)
    assert compact.prune(lake) == 0


def test_small_days_go_together():
    days = [
        compact.Due(date(2026, 11, n), rows)
        for n, rows in ((1, 3), (2, 4_999_996), (3, 2), (4, 9_000_000))
    ]
    assert [[each.day.day for each in group] for group in compact._together(days)] == [
        [1, 2],
        [3],
        [4],
    ]
