"""Days with a high turnover of clients and jobs leave no expired data behind: see days.py."""

from pathlib import Path

import pytest
from census import census, grown
from days import Days, lower_thresholds

from millrace.engine import positions
from millrace.protocols.faktory import work_unit
from millrace.protocols.masenko import tasks
from millrace.store.sqlite import generations

WARM_UP, LATER = 2, 6
#: Tolerated difference between two samples.
SLACK = 20
MAX_LOG = 16 << 20


@pytest.fixture
def days(tmp_path, monkeypatch):
    lower_thresholds(monkeypatch.setattr)
    days = Days(1, tmp_path / "data")
    yield days
    days.close()


def sample(days: Days):
    hubs = [listener.hub for listener in days.listeners.values()]
    found = census(days.engine, days.store, *hubs) | census(
        {"names": {"faktory": work_unit._valid_names, "masenko": tasks._valid_names}}
    )
    # The store's generations fill up to a limit and are then folded: their sizes go up and down.
    for generation in ("Generations._new", "Generations._folding"):
        assert found.pop(generation, 0) <= generations.GENERATION_JOBS
    # The engine remembers the last times at which jobs entered a queue, up to a limit.
    ties = found.pop("TiedPositions._ties[]", 0)
    assert ties <= positions.MAX_TIES * found["TiedPositions._ties"]
    return found


def test_days_of_client_turnover_leave_no_growth(days: Days):
    database = Path(days.store.folder) / "millrace.db"
    for _ in range(WARM_UP * 24):
        days.hour()
    days.rest()
    before, size = sample(days), database.stat().st_size
    for _ in range((LATER - WARM_UP) * 24):
        days.hour()
    days.rest()
    assert grown(before, sample(days), SLACK) == {}
    assert database.stat().st_size < size * 1.5 + (1 << 20)
    assert database.with_name("millrace.db-wal").stat().st_size < MAX_LOG


def test_a_census_finds_growth():
    """The test above can only fail if the census finds growth."""
    before, after = census({"a": [1] * 10}), census({"a": [1] * 100, "b": {2: {3}}})
    assert grown(before, after, SLACK) == {"dict[]": (10, 101)}
