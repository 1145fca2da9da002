"""Days in which much comes and goes, and nothing may stay that is over: see days.py."""

from pathlib import Path

import pytest
from census import census, grown
from days import Days, hasten

from millrace.protocols.faktory import work_unit
from millrace.protocols.masenko import tasks
from millrace.protocols.qless import state
from millrace.store import sqlite

WARM_UP, LATER = 2, 6
#: What may be there by chance at one moment and not at another.
SLACK = 20
MOST_LOG = 16 << 20


@pytest.fixture
def days(tmp_path, monkeypatch):
    hasten(monkeypatch.setattr)
    days = Days(1, tmp_path / "data")
    yield days
    days.close()


def look(days: Days):
    hubs = [listener.hub for listener in days.listeners.values()]
    found = census(days.engine, days.store, *hubs) | census(
        {"names": {"faktory": work_unit._good_names, "masenko": tasks._good_names}}
    )
    # The store's generations fill up to a limit and are then folded: their sizes go up and down.
    for generation in ("SqliteStore._young", "SqliteStore._old"):
        assert found.pop(generation, 0) <= sqlite.GENERATION_JOBS
    # Qless remembers the last times at which jobs came to a queue, up to a limit.
    assert found.pop("Qless._ties[]", 0) <= state.MAX_TIES * found["Qless._ties"]
    return found


def test_after_days_of_coming_and_going_nothing_has_grown(days: Days):
    database = Path(days.store.folder) / "millrace.db"
    for _ in range(WARM_UP * 24):
        days.hour()
    days.rest()
    before, size = look(days), database.stat().st_size
    for _ in range((LATER - WARM_UP) * 24):
        days.hour()
    days.rest()
    assert grown(before, look(days), SLACK) == {}
    assert database.stat().st_size < size * 1.5 + (1 << 20)
    assert database.with_name("millrace.db-wal").stat().st_size < MOST_LOG


def test_a_census_finds_what_grows():
    """Without it the test above could not fail."""
    before, after = census({"a": [1] * 10}), census({"a": [1] * 100, "b": {2: {3}}})
    assert grown(before, after, SLACK) == {"dict[]": (10, 101)}
