"""A refresh brings the tables to what the events say, whatever came in which order."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from frames import DAY, ev
from oracle_sql import QUERIES
from pyspark.sql import SparkSession

from millrace.journal import schema, sealing
from millrace.pipeline import refreshed
from millrace.pipeline.ingest import ingest
from millrace.pipeline.lake import Lake
from millrace.pipeline.reading import files
from millrace.pipeline.refresh import refresh
from support.oracle import Oracle

NEXT = 86_400
ODD = datetime(1970, 1, 1, 5, tzinfo=UTC)
TABLES = sorted(QUERIES.keys() - {"audit_seq", "audit_jobs"})
ERROR = {"error_group": "E", "error_message": "broke", "fingerprint": "f"}


def stretches() -> list[list[dict[str, Any]]]:
    """A server's events, in three files."""
    held = {"seq": 2, "worker": "w", "attempt": 1}
    return [
        [
            ev("pushed", 0, ready_at=0),
            ev("pushed", 1, seq=2, ready_at=1),
            ev("leased", 5, **held, ready_at=1, leased_at=5, wait_us=4_000_000),
            ev("pushed", 6, seq=3, ready_at=6),
            ev("leased", 7, seq=3, ready_at=6, leased_at=7, wait_us=1_000_000),
            ev("pushed", 8, seq=6, ready_at=8),
            ev("leased", 8, seq=6, ready_at=8, leased_at=8, wait_us=0),
            ev("failed", 9, seq=6, leased_at=8, run_us=1_000_000, state="dead", **ERROR),
        ],
        [
            ev("failed", NEXT, **held, leased_at=5, run_us=7, **ERROR),
            ev("pushed", ODD, seq=4, created=ODD, ready_at=ODD, origin="qless"),
            ev("flushed", NEXT + 5),
            ev("pushed", NEXT + 9, seq=5, created=NEXT + 9, ready_at=NEXT + 9),
        ],
        [
            ev("leased", NEXT + 10, seq=5, created=NEXT + 9, leased_at=NEXT + 10, wait_us=5),
            ev("completed", 2 * NEXT, seq=5, created=NEXT + 9, leased_at=NEXT + 10, run_us=9),
        ],
    ]


def land(lake: Path, *which: int) -> None:
    first = 1
    for number, rows in enumerate(stretches()):
        if number in which:
            full = [row | {"event_id": first + place} for place, row in enumerate(rows)]
            sealing.seal(lake, pa.Table.from_pylist(full, schema=schema.arrow()))
        first += len(rows)


def differences(lake: Path) -> list[str]:
    oracle = Oracle(sorted((lake / "landing").iterdir()))
    return [line for name in TABLES for line in oracle.differences(name, files(Lake(lake), name))]


@pytest.mark.long
def test_tables_follow_events_that_come_late_and_in_any_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    land(tmp_path, 0, 2)
    ingest(spark, lake)
    refresh(spark, lake)
    land(tmp_path, 1)  # it ends leases and jobs of days before, and begins an epoch
    ingest(spark, lake)
    lost = lake.day("protocol_day", DAY) / "data.parquet"
    lost.unlink()
    seen: list[tuple[str, int, int]] = []
    done = refresh(spark, lake, lambda *step: seen.append(step), days=(DAY, DAY))
    assert differences(tmp_path) == []
    assert done.days["queue_day"] == 3  # two of them new
    assert done.days["throughput_minute"] == 4
    assert seen[-1] == ("refresh jobs", 3, 3)
    made = refreshed.mark(lake)
    assert made.batch == 2
    assert [(flush.event_id, flush.time.day) for flush in made.flushes] == [(11, 17)]
    assert refresh(spark, lake).days == {}


def test_tables_of_another_form_are_made_anew(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert refreshed.mark(lake).batch == 0
    made = refreshed.Mark(
        form=refreshed.FORM,
        batch=7,
        flushes=[refreshed.Flush("a1", 3, datetime(2026, 11, 16, tzinfo=UTC))],
    )
    refreshed.record(lake, made)
    assert refreshed.mark(lake) == made
    refreshed.record(lake, msgspec.structs.replace(made, form=refreshed.FORM - 1))
    assert refreshed.mark(lake).batch == 0
    assert date(1970, 1, 1) not in lake.days("queue_day")


@pytest.mark.parametrize("text", ["", "{", '{"batch": 3}'])
def test_a_mark_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "refreshed.json").write_text(text)
    assert refreshed.mark(Lake(tmp_path)).batch == 0
