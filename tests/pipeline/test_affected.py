"""Which days of which tables a batch changes: known from the ledger alone."""

from datetime import date, timedelta
from pathlib import Path

import pytest

from millrace.pipeline.affected import affected, leases_of, within, workdays
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Batch, Ledger, Part

ODD = date(1970, 1, 1)
FIRST = date(2026, 11, 10)


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def part(of: date, leases: list[date] | None = None, pushes: list[date] | None = None) -> Part:
    return Part(of, [], 10, [of] if leases is None else leases, [of] if pushes is None else pushes)


def ledger(path: Path, *batches: list[Part], flushed: int = 0) -> Ledger:
    """Batches of these parts; the last one so many times with a flush in it."""
    found = Ledger(Lake(path))
    for number, parts in enumerate(batches, 1):
        found.record(
            Batch(
                batch=number, files=[], rows=0, quarantined=0, refused=[], ranges={}, parts=parts,
                flushed=bool(flushed) and number == len(batches), digest="", seconds=0,
            )
        )  # fmt: skip
    return found


def test_nothing_new_changes_nothing(tmp_path):
    found = affected(ledger(tmp_path, [part(day(0))]), 1)
    assert set(found) >= {"queue_day", "jobs", "worker_hour"}
    assert not any(found.values())


def test_new_events_change_their_days_their_leases_and_their_pushes(tmp_path):
    known = ledger(
        tmp_path,
        [part(day(0)), part(day(1)), part(day(3))],
        [part(day(2), leases=[day(1), day(2)], pushes=[day(0), day(2)])],
    )
    found = affected(known, 1)
    assert found["latency_hist"] == found["queue_day"] == found["depth_day"] == [day(2)]
    assert found["failure_groups"] == found["protocol_day"] == [day(2)]
    # Depths of later days go on from this one.
    assert found["throughput_minute"] == [day(2), day(3)]
    assert found["attempts"] == found["worker_hour"] == [day(1), day(2)]
    assert found["jobs"] == [day(0), day(2)]


def test_a_flush_may_end_jobs_and_leases_of_any_day(tmp_path):
    known = ledger(tmp_path, [part(day(0)), part(day(4))], [part(day(5), [], [])], flushed=1)
    found = affected(known, 1, [day(5)])
    assert found["queue_day"] == [day(5)]
    assert found["jobs"] == found["attempts"] == [day(0), day(4)]
    assert found["depth_day"] == found["throughput_minute"] == [day(0), day(4), day(5)]
    assert found["worker_hour"] == [day(n) for n in range(6)]


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (day(2), [day(0), day(1), day(2)]),
        (day(31), [day(n) for n in range(32)]),
        (day(32), [day(32)]),
        (ODD, [ODD]),
    ],
)
def test_a_lease_is_part_of_the_days_until_its_end_if_that_can_be(tmp_path, end, wanted):
    known = ledger(tmp_path, [part(end, leases=[day(0)])])
    assert workdays(known, [day(0)], []) == wanted
    for each in wanted:
        assert leases_of(known, [each], []) == [day(0)]
    assert leases_of(known, [date(2028, 1, 1)], []) == []


def test_days_that_are_asked_for_are_those_that_there_are(tmp_path):
    known = ledger(tmp_path, [part(day(0)), part(day(3), leases=[day(2)], pushes=[ODD])])
    found = within(known, day(1), day(9))
    assert found["queue_day"] == found["throughput_minute"] == [day(3)]
    assert found["attempts"] == [day(2)]
    assert found["worker_hour"] == [day(2), day(3)]
    assert found["jobs"] == []
