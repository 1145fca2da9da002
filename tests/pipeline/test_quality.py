"""Rules that every run checks: of batches, and of tables against their events. No Spark."""

from datetime import date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from landings import MIDNIGHT, event, life, table

from millrace.journal.landing import Landed
from millrace.pipeline import quality
from millrace.pipeline.events import HOT
from millrace.pipeline.lake import Lake
from millrace.pipeline.ledger import Batch, Ledger, Part, Refused
from millrace.pipeline.reasons import DUPLICATE

D14, D15 = date(2026, 11, 14), date(2026, 11, 15)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def batch(number: int, *parts: Part, **more: Any) -> Batch:
    known: dict[str, Any] = {
        "files": [Landed("a1", number * 10 + 1, number * 10 + 10).name],
        "rows": sum(part.rows for part in parts),
        "quarantined": 0,
        "refused": [],
        "ranges": {},
        "flushed": False,
        "digest": "",
        "seconds": 0.1,
    }
    return Batch(batch=number, parts=list(parts), **(known | more))


def found(checks: list[quality.Check]) -> dict[str, list[str]]:
    return {check.rule: check.found for check in checks if check.found}


def checked(lake: Lake, *records: Batch) -> list[quality.Check]:
    ledger = Ledger(lake)
    for record in records:
        ledger.record(record)
    return quality.check_batch(records[-1], ledger)


def test_a_batch_without_fault(lake):
    checks = checked(lake, batch(1), batch(2))
    assert len(checks) == 4
    assert found(checks) == {}
    assert not any(check.failed for check in checks)


def test_files_that_were_not_taken_fail_the_run(lake):
    checks = checked(lake, batch(1, refused=[Refused("ev-x.parquet", "it cannot be read: torn")]))
    assert found(checks) == {
        "every landing file can be read": [
            "landing/ev-x.parquet was not taken: it cannot be read: torn."
        ]
    }
    assert [check.rule for check in checks if check.failed] == ["every landing file can be read"]


def test_rows_that_are_no_events_fail_it_and_doubles_do_not(lake):
    checks = checked(lake, batch(1, reasons={"`seq` is negative": 2, DUPLICATE: 3}, quarantined=5))
    assert found(checks) == {
        "every row is an event": [
            "2 rows are no events: `seq` is negative. See tables/quarantine/b-00000001.parquet."
        ],
        "no event comes twice": ["3 events came again, and were left out."],
    }
    assert [check.rule for check in checks if check.failed] == ["every row is an event"]


def test_events_that_are_missing_between_files_are_told(lake):
    checks = checked(lake, batch(1), batch(3))
    assert found(checks) == {
        "no events are missing between files": ["The lake has no events 21 to 30 of the server a1."]
    }
    assert not any(check.failed for check in checks)
    assert found(quality.check_batch(batch(4), Ledger(lake))) == {}


def write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)


def tables(lake: Lake, **changed: Any) -> None:
    """A lake of one batch and its tables, as far as the rules look at them."""
    rows = [*life(1, 1, 1), *life(4, 2, 2), event(7, 3)]
    write(lake.day(HOT, D14) / "b.parquet", table(rows))
    value = {
        "pushed": 3, "wait": 2, "run": 2, "attempts": [1, 2], "jobs": [1, 2, 3], "queue": ["mail"],
    } | changed  # fmt: skip
    n = len(value["queue"])
    one = {"server": ["a1"] * n, "queue": value["queue"]}
    day = {"pushed": value["pushed"], "wait_n": value["wait"], "run_n": value["run"], "retries": 0}
    write(
        lake.day("queue_day", D14) / "data.parquet",
        pa.table(one | {name: [number] + [0] * (n - 1) for name, number in day.items()}),
    )
    kinds = {"kind": ["send"] * 2, "bucket": pa.array([1, 1], pa.int32())}
    write(
        lake.day("latency_hist", D14) / "data.parquet",
        pa.table(
            {"server": ["a1"] * 2, "queue": ["mail"] * 2, "metric": ["wait", "run"], "n": [2, 2]}
            | kinds
        ),
    )
    minute = [datetime(2026, 11, 14, hour) for hour in (1, 2, 3)]
    write(
        lake.day("throughput_minute", D14) / "data.parquet",
        pa.table(
            {
                "server": ["a1"] * 3, "queue": ["mail"] * 3, "minute": minute, "pushed": [1, 1, 1],
                "started": [1, 1, 0], "completed": [1, 1, 0],
            }
        ),
    )  # fmt: skip
    write(
        lake.day("protocol_day", D14) / "data.parquet",
        pa.table({"server": ["a1"], "origin": ["faktory"], "actor": ["faktory"], "events": [7]}),
    )
    seqs = value["attempts"]
    write(
        lake.day("attempts", D14) / "data.parquet",
        pa.table(
            {"server": ["a1"] * len(seqs), "seq": seqs, "lease_event": [3 * s - 1 for s in seqs]}
        ),
    )
    seqs = value["jobs"]
    write(
        lake.day("jobs", D14) / "data.parquet",
        pa.table({"server": ["a1"] * len(seqs), "seq": seqs, "whole": [True] * len(seqs)}),
    )


def check_all(lake: Lake) -> dict[str, list[str]]:
    Ledger(lake).record(batch(1, Part(D14, ["b.parquet"], 7, [D14], [D14])))
    return found(quality.check(lake))


def test_tables_that_agree_with_their_events(lake):
    tables(lake)
    assert check_all(lake) == {}
    written = (lake.ops / "quality" / "b-00000001.json").read_bytes()
    assert len(msgspec.json.decode(written, type=quality.Quality).checks) == 25
    # It is checked once.
    assert quality.is_checked(lake, Ledger(lake))
    assert quality.check(lake) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"wait": 3},
            {
                "queue_day.wait_n is the number of leased events": [
                    (
                        "queue_day says 3 for 2026-11-14, where there are 2 leased events. "
                        "`millrace pipeline refresh --days 2026-11-14` makes it anew."
                    )
                ]
            },
        ),
        ({"run": 1}, {"queue_day.run_n is the number of completed and advanced events": 1}),
        ({"attempts": [1]}, {"attempts.rows is the number of leased events": 1}),
        ({"jobs": [1, 2]}, {"jobs.whole is the number of pushed events": 1}),
        (
            {"jobs": [1, 2, 2]},
            {"jobs has every key once": ["jobs has 1 rows too many for 2026-11-14."]},
        ),
        ({"queue": ["mail", "mail"]}, {"queue_day has every key once": 1}),
    ],
)
def test_tables_that_do_not(lake, changed, expected):
    tables(lake, **changed)
    said = check_all(lake)
    assert said.keys() == expected.keys()
    for rule, sentences in expected.items():
        assert sentences in (said[rule], len(said[rule]))


def test_a_table_that_is_not_there_has_nothing(lake):
    tables(lake)
    (lake.day("attempts", D14) / "data.parquet").unlink()
    assert check_all(lake).keys() == {"attempts.rows is the number of leased events"}


def test_leases_count_on_their_own_day(lake):
    """An event on one day may be of a lease of another; only `leased` itself counts."""
    rows = life(1, 1, 23, until=25)
    write(lake.day(HOT, D14) / "b.parquet", table(rows[:2]))
    write(lake.day(HOT, D15) / "b.parquet", table(rows[2:]))
    parts = [Part(D14, ["b.parquet"], 2, [D14], [D14]), Part(D15, ["b.parquet"], 1, [D14], [D14])]
    Ledger(lake).record(batch(1, *parts))
    assert rows[2]["time"].date() == D15
    assert rows[0]["time"] > MIDNIGHT
    assert quality._counted(lake, [D14], "leased_at") == {D14: {"leased": 1}}
    assert quality._counted(lake, [D15], "time") == {D15: {"completed": 1}}
