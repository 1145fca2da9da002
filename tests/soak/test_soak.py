"""`make soak` for a few seconds: see soak.py and watch.py."""

from watch import Record

from soak import soak

SECONDS = 12


def test_mixed_load_on_all_ports_causes_no_growth(tmp_path):
    record = soak(tmp_path, SECONDS)
    assert record.grown() == [], record.table()
    assert record.done["complete"] > 100
    assert {"push", "fail", "cancel", "renew", "visits", "connections"} <= set(record.done)


def test_growth_is_reported():
    record = Record()
    for number in range(30):
        record.add(dict.fromkeys(("RSS MiB", "descriptors", "database MiB", "log MiB", "queues"), 1)
                   | dict.fromkeys(("jobs", "timers", "stale timers"), 1.0)
                   | {"stale ready entries": 0.0, "queues": number})  # fmt: skip
    assert record.grown() == ["queues grew from 11.5 to 27.5"]
    assert "queues" in record.table()
