"""A lake of format 1 becomes a Delta lake: each event once, also after interruptions."""

import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_history import collect

from event_tables import event_run, in_lake, table
from millrace.engine.events import EVENT_VERSION, EventTuple
from millrace.journal import schema
from millrace.journal.events_table import EventsTable
from millrace.journal.old_lake import FOLDER, landed, unconverted
from millrace.journal.position import last_shipped
from millrace.pipeline import convert as conversion
from millrace.pipeline.convert import convert
from old_lakes import seal
from server_process import MILLRACE

Rows = dict[str, list[EventTuple]]
#: The columns that events of version 2 do not have.
TOTALS = schema.NAMES[schema.NAMES.index("holder") :]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return collect(3_000)[1]


def whole(rows: Rows) -> pa.Table:
    return pa.concat_tables(
        table(server, 1, EVENT_VERSION, rows[server]) for server in sorted(rows)
    )


def land(lake: Path, rows: Rows, size: int = 400) -> None:
    for server, some in rows.items():
        for first in range(0, len(some), size):
            part = some[first : first + size]
            seal(lake, table(server, first + 1, EVENT_VERSION, part))


def same(found: pa.Table, expected: pa.Table) -> bool:
    return bool(found.combine_chunks().equals(expected.combine_chunks()))


def test_landing_files_become_the_table(tmp_path: Path, rows: Rows) -> None:
    land(tmp_path, rows)
    assert unconverted(tmp_path)
    steps: list[tuple[str, int, int]] = []
    found = convert(tmp_path, lambda *step: steps.append(step))
    count = sum(map(len, rows.values()))
    assert (found.events, found.refused, found.unreadable) == (count, 0, [])
    assert same(in_lake(tmp_path), whole(rows))
    assert steps[0] == ("convert", 0, count)
    assert steps[-1] == ("convert", count, count)
    assert not (tmp_path / FOLDER).exists()
    assert len(list((tmp_path / "old" / FOLDER).glob("ev-*"))) > 2
    assert not unconverted(tmp_path)
    assert convert(tmp_path).events == 0
    for server, some in rows.items():
        assert last_shipped(tmp_path, server) == len(some)


def test_events_of_version_2_get_their_totals(tmp_path: Path, rows: Rows) -> None:
    """Files of version 2 have no columns for totals."""
    (server, some), *_ = rows.items()
    whole_lives = table(server, 1, EVENT_VERSION, some)
    older = whole_lives.to_pylist()
    for event in older:
        event["version"] = 2
        if event["type"] != "leased":
            event["wait_us"] = None
        if event["type"] not in {"failed", "expired", "doomed"}:
            event["error_group"] = event["error_message"] = event["fingerprint"] = None
    landing = tmp_path / FOLDER
    landing.mkdir()
    old = pa.Table.from_pylist(older, schema=schema.arrow()).drop_columns(list(TOTALS))
    pq.write_table(old, landing / f"ev-{server}-{1:020}-{len(some):020}.parquet")
    convert(tmp_path)
    expected = [event | {"version": 2} for event in whole_lives.to_pylist()]
    assert in_lake(tmp_path).to_pylist() == expected


def test_later_shipped_events_are_kept(tmp_path: Path, rows: Rows) -> None:
    (server, some), *_ = rows.items()
    land(tmp_path, {server: some[:600]})
    shipped = EventsTable(tmp_path)
    shipped.append(server, event_run(601, EVENT_VERSION, some[600:700]))
    assert convert(tmp_path).events == 600
    later = EventsTable(tmp_path)
    assert later.position(server) == 700
    later.append(server, event_run(701, EVENT_VERSION, some[700:]))
    assert same(in_lake(tmp_path), table(server, 1, EVENT_VERSION, some))


def ingested(lake: Path, name: str, rows: pa.Table, day: date, batch: int, file: str) -> None:
    """Record events as ingestion did."""
    folder = lake / "tables" / "events_hot" / f"day={day}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / f"b-{batch:08}-0.parquet")
    part = {"day": day, "files": [f"b-{batch:08}-0.parquet"], "rows": rows.num_rows}
    record = {"batch": batch, "files": [file], "rows": rows.num_rows, "parts": [part]}
    (lake / "ops" / "batches").mkdir(parents=True, exist_ok=True)
    path = lake / "ops" / "batches" / f"b-{batch:08}.json"
    path.write_bytes(msgspec.json.encode(record))


def test_ingested_events_are_read_from_the_tables(tmp_path: Path, rows: Rows) -> None:
    """Their landing files may have been removed; later files are not in a batch yet."""
    (server, some), *_ = rows.items()
    land(tmp_path, {server: some}, size=500)
    first, *_ = landed(tmp_path)
    part = pq.read_table(tmp_path / FOLDER / first.name, partitioning=None)
    ingested(tmp_path, server, part, date(2026, 11, 14), 1, first.name)
    (tmp_path / FOLDER / first.name).unlink()
    convert(tmp_path)
    assert same(in_lake(tmp_path), table(server, 1, EVENT_VERSION, some))
    assert (tmp_path / "old" / "ops" / "batches").is_dir()


def test_invalid_rows_duplicates_and_damaged_files(tmp_path: Path, rows: Rows) -> None:
    (server, some), *_ = rows.items()
    land(tmp_path, {server: some[:300]}, size=300)
    wrong = table(server, 301, EVENT_VERSION, some[300:302]).to_pylist()
    wrong[0]["state"] = "nonsense"
    seal(tmp_path, pa.Table.from_pylist(wrong, schema=schema.arrow()))
    again = table(server, 290, EVENT_VERSION, some[289:300])
    seal(tmp_path, again)
    damaged = f"ev-{server}-{900:020}-{901:020}.parquet"
    (tmp_path / FOLDER / damaged).write_bytes(b"no parquet")
    found = convert(tmp_path)
    assert (found.events, found.refused, found.unreadable) == (301, 1, [damaged])
    ids = in_lake(tmp_path).column("event_id").to_pylist()
    assert ids == [*range(1, 301), 302]
    assert (tmp_path / "old" / FOLDER / damaged).exists()


CHILD = """
import sys
from pathlib import Path
from millrace.pipeline import convert
convert.WINDOW_EVENTS = 250
convert.convert(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("step", ["convert:written", "convert:committed"])
def test_a_killed_conversion_continues(
    tmp_path: Path, rows: Rows, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed several times, and once more between the windows of the second server."""
    land(tmp_path, rows)
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, tmp_path],
            env={**os.environ, "CRASH_MILLRACE": step},
            timeout=120,
        )
        assert ran.returncode == -signal.SIGKILL
        assert unconverted(tmp_path)
    monkeypatch.setattr(conversion, "WINDOW_EVENTS", 300)
    convert(tmp_path)
    assert same(in_lake(tmp_path), whole(rows))


def test_the_command(tmp_path: Path, rows: Rows) -> None:
    def run(*words: Any) -> subprocess.CompletedProcess[str]:
        command = [MILLRACE, "pipeline", "convert", "--lake", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert run(tmp_path / "nowhere").returncode == 1
    land(tmp_path, rows)
    ran = run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    count = sum(map(len, rows.values()))
    assert ran.stdout.splitlines() == [
        f"Converted {count:,} events. The old files are in {tmp_path / 'old'}.",
        "The next `millrace pipeline run` computes all tables.",
    ]
