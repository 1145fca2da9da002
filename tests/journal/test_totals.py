"""The totals of older events are those that the engine records in version 3."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import event_tables
from millrace.engine.events import EVENT_VERSION
from millrace.journal.totals import LifetimeTotals

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))
from engine_history import collect

NEW = (
    "wait_us", "holder", "renewals", "repeat", "leases", "failures", "wait_total_us", "run_total_us",
    "first_leased_at", "first_queue", "outcome", "ended_at",
    "error_group", "error_message", "fingerprint",
)  # fmt: skip


def as_version_2(event: dict[str, Any]) -> dict[str, Any]:
    """Without the columns that version 2 does not have."""
    own_error = event["type"] in {"failed", "expired", "doomed"}
    cleared = {name: None for name in NEW if own_error or name not in {"x"}}
    kept = {"wait_us"} if event["type"] == "leased" else set()
    kept |= {"error_group", "error_message", "fingerprint"} if own_error else set()
    return (
        event | {name: event[name] if name in kept else None for name in cleared} | {"version": 2}
    )


def test_the_totals_of_a_history_of_the_engine() -> None:
    _, rows = collect(6_000)
    wrong: Counter[tuple[str, str]] = Counter()
    examples = {}
    for server, some in rows.items():
        totals = LifetimeTotals()
        for event in event_tables.table(server, 1, EVENT_VERSION, some).to_pylist():
            old = as_version_2(event)
            totals.add(old)
            for name in NEW:
                if old[name] != event[name]:
                    wrong[name, event["type"]] += 1
                    examples[name, event["type"]] = (old[name], event[name], event)
    for key, (found, right, event) in examples.items():
        print(key, wrong[key], found, right, event)
    assert not wrong
