"""Events as everybody reads them: which files count, by day, without and with Spark."""

from datetime import date
from pathlib import Path

import pytest
from landings import event, table

from millrace.pipeline import commit, events
from millrace.pipeline.events import COLD, HOT, SEAL, Files, Seal
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Batch, Ledger, Part

D14, D15 = date(2026, 11, 14), date(2026, 11, 15)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def record(lake: Lake, number: int, *days: date) -> None:
    parts = [Part(day, [f"b-{number:08}-0.parquet"], 1, [], []) for day in days]
    Ledger(lake).record(
        Batch(
            batch=number, files=[f"f{number}"], rows=len(parts), quarantined=0, refused=[], ranges={},
            parts=parts, flushed=False, digest="", seconds=0.0,
        )
    )  # fmt: skip


def seal(lake: Lake, day: date, batch: int) -> None:
    name = f"c-{batch:08}-0.parquet"
    commit.write_json(lake.day(COLD, day) / SEAL, Seal(max_batch=batch, files=[name], rows=1))


def hot(lake: Lake, day: date, number: int) -> Path:
    return lake.day(HOT, day) / f"b-{number:08}-0.parquet"


def cold(lake: Lake, day: date, number: int) -> Path:
    return lake.day(COLD, day) / f"c-{number:08}-0.parquet"


def test_files_of_batches_and_of_sealed_days(lake):
    assert events.files(lake) == Files([], [])
    record(lake, 1, D14, D15)
    record(lake, 2, D14)
    assert events.files(lake) == Files(
        [hot(lake, D14, 1), hot(lake, D15, 1), hot(lake, D14, 2)], []
    )
    assert events.files(lake, [D15]) == Files([hot(lake, D15, 1)], [])
    seal(lake, D14, 1)
    assert events.files(lake) == Files([hot(lake, D15, 1), hot(lake, D14, 2)], [cold(lake, D14, 1)])
    record(lake, 3, D14)
    seal(lake, D14, 3)
    assert events.files(lake) == Files([hot(lake, D15, 1)], [cold(lake, D14, 3)])
    assert events.files(lake, [D14]) == Files([], [cold(lake, D14, 3)])


def test_what_no_record_names_is_not_read(lake):
    hot(lake, D14, 7).parent.mkdir(parents=True)
    hot(lake, D14, 7).write_text("half written")
    cold(lake, D14, 7).parent.mkdir(parents=True)
    cold(lake, D14, 7).write_text("half written")
    assert events.files(lake) == Files([], [])
    assert events.files(lake, [D14]) == Files([], [])


def write(path: Path, *rows: dict) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(list(rows)), path)


def test_spark_reads_hot_and_cold_together_with_the_day_of_the_folder(spark, lake):
    nothing = events.read(spark, lake)
    assert nothing.columns == [*events.EVENTS.columns, "day"]
    assert nothing.count() == 0
    write(hot(lake, D14, 1), event(1))
    write(hot(lake, D15, 1), event(2, 25))
    write(cold(lake, D14, 1), event(1))
    write(hot(lake, D14, 2), event(3, tags=["a"]))
    record(lake, 1, D14, D15)
    record(lake, 2, D14)
    seal(lake, D14, 1)
    rows = events.read(spark, lake)
    assert rows.schema == nothing.schema
    found = rows.orderBy("event_id").select("event_id", "day", "tags").collect()
    assert [tuple(row) for row in found] == [(1, D14, None), (2, D15, None), (3, D14, ["a"])]
    assert events.read(spark, lake, first=D15).count() == 1
    assert events.read(spark, lake, last=D14).count() == 2
    assert events.read(spark, lake, days=[D14], first=D15).count() == 0
