"""The ledger: what was taken in, and which days that touched."""

from datetime import date
from pathlib import Path

import pytest

from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Batch, Intent, Ledger, Part, Refused, Touched

D14, D15, D16 = (date(2026, 11, day) for day in (14, 15, 16))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def batch(number: int, *parts: Part, flushed: bool = False, **more) -> Batch:
    known = {
        "files": [f"file-{number}"],
        "rows": sum(part.rows for part in parts),
        "quarantined": 0,
        "refused": [],
        "ranges": {"ab": (1, 3)},
        "digest": "",
        "seconds": 0.1,
    }
    return Batch(batch=number, parts=list(parts), flushed=flushed, **(known | more))


def part(day: date, leases: list[date], pushes: list[date]) -> Part:
    return Part(day, ["b.parquet"], 1, leases, pushes)


def test_a_lake_without_a_ledger(lake):
    ledger = Ledger(lake)
    assert ledger.batches() == []
    assert ledger.last == 0
    assert ledger.files() == set()
    assert ledger.interrupted() is None
    assert ledger.touched_since(0) == Touched([], [], [], flushed=False)


def test_what_was_recorded_is_read_again(lake):
    ledger = Ledger(lake)
    assert ledger.intend(["file-1"]) == Intent(1, ["file-1"])
    record = batch(
        1, part(D16, [D15], [D14]), refused=[Refused("bad", "is torn")], reasons={"x": 2}
    )
    ledger.record(record)
    assert Ledger(lake).batches() == ledger.batches() == [record]
    assert Ledger(lake).files() == {"file-1"}
    assert [path.name for path in lake.batches.iterdir()] == ["b-00000001.json"]


def test_an_intent_without_a_record_is_the_interrupted_batch(lake):
    ledger = Ledger(lake)
    ledger.record(batch(1))
    ledger.intend(["x", "y"])
    assert Ledger(lake).interrupted() == Intent(2, ["x", "y"])
    assert Ledger(lake).last == 1


def test_an_intent_that_a_crash_left_beside_its_record_is_done(lake):
    ledger = Ledger(lake)
    intent = ledger.intend(["x"])
    left = (lake.batches / "b-00000001.intent.json").read_bytes()
    ledger.record(batch(intent.batch))
    (lake.batches / "b-00000001.intent.json").write_bytes(left)
    assert Ledger(lake).interrupted() is None


def test_what_is_half_written_is_not_there(lake):
    ledger = Ledger(lake)
    ledger.record(batch(1))
    (lake.batches / ".b-00000002.json").write_text("{")
    assert Ledger(lake).last == 1


def test_days_touched_since_a_batch(lake):
    ledger = Ledger(lake)
    ledger.record(batch(1, part(D14, [D14], [D14]), flushed=True))
    ledger.record(batch(2, part(D15, [D15, D14], [D14])))
    ledger.record(batch(3, part(D16, [], [D16]), part(D15, [D15], [])))
    assert ledger.touched_since(0) == Touched([D14, D15, D16], [D14, D15], [D14, D16], flushed=True)
    assert ledger.touched_since(1) == Touched([D15, D16], [D14, D15], [D14, D16], flushed=False)
    assert ledger.touched_since(2) == Touched([D15, D16], [D15], [D16], flushed=False)
    assert ledger.touched_since(3) == Touched([], [], [], flushed=False)


def test_the_days_on_which_leases_and_jobs_of_a_day_have_events(lake):
    ledger = Ledger(lake)
    ledger.record(batch(1, part(D14, [D14], [D14])))
    ledger.record(batch(2, part(D15, [D14], [D15]), part(D16, [D16], [D14])))
    assert ledger.event_days(leases=[D14]) == [D14, D15]
    assert ledger.event_days(pushes=[D14]) == [D14, D16]
    assert ledger.event_days(leases=[D16], pushes=[D15]) == [D15, D16]
    assert ledger.event_days() == []


def test_a_record_that_is_none_is_named(lake):
    Ledger(lake).record(batch(1))
    (lake.batches / "b-00000001.json").write_text("{}")
    with pytest.raises(PipelineError, match=r"b-00000001\.json"):
        Ledger(lake)
