"""Tables as files for other programs."""

import csv
import io
import json
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from millrace.cli.app import app
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.export import export, listed
from millrace.pipeline.lake import Lake
from millrace.pipeline.snapshot import Snapshot, named, schema
from millrace.pipeline.tables import FAILURE_GROUPS, QUEUE_DAY, TABLES
from report_lake import ran, write
from support.shipped_history import rows_of

MONDAY, TUESDAY = date(2026, 11, 16), date(2026, 11, 17)
SEEN = datetime(2026, 11, 16, 12, 30, 0, 250_000, tzinfo=UTC)
WORDS = 'said "no",\nand =HYPERLINK("x") \u2026'


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    group = {"server": "a", "fingerprint": "f", "queue": "mail", "kind": "", "n": 3}
    group |= {"first_seen": SEEN, "last_seen": SEEN, "sample_message": WORDS}
    write(lake, FAILURE_GROUPS, [group | {"day": MONDAY}, group | {"day": TUESDAY, "n": 4}])
    write(lake, QUEUE_DAY, [{"server": "a", "queue": "q", "wait_hist": [1, 2], "day": MONDAY}])
    (lake.root / "events/_delta_log").mkdir(parents=True)
    ran(lake)
    return lake


def command(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["pipeline", "export", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_csv(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "groups.csv"
    assert export(Snapshot(lake.root), FAILURE_GROUPS, "csv", str(out)) == ("failure_groups", 2)
    first, second = csv.DictReader(io.StringIO(out.read_text("utf-8"), newline=""))
    assert list(first) == schema(FAILURE_GROUPS).names
    assert first["sample_message"] == WORDS
    assert first["first_seen"] == "2026-11-16T12:30:00.250000Z"
    assert (first["kind"], first["error_group"], first["n"]) == ("", "", "3")
    assert (first["day"], second["day"], second["n"]) == ("2026-11-16", "2026-11-17", "4")


def test_lists_in_csv_are_json(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    export(Snapshot(lake.root), QUEUE_DAY, "csv", str(out))
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    assert (row["wait_hist"], row["run_hist"]) == ("[1,2]", "")


def test_json_lines(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "groups.json"
    export(Snapshot(lake.root), FAILURE_GROUPS, "json", str(out))
    first, second = map(json.loads, out.read_text("utf-8").splitlines())
    assert list(first) == schema(FAILURE_GROUPS).names
    assert (first["sample_message"], first["kind"], first["error_group"]) == (WORDS, "", None)
    assert first["first_seen"] == "2026-11-16T12:30:00.250000Z"
    assert (second["n"], second["day"]) == (4, "2026-11-17")


def test_parquet_has_the_rows_of_the_table(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "groups.parquet"
    export(Snapshot(lake.root), FAILURE_GROUPS, "parquet", str(out), TUESDAY)
    assert pq.read_table(out).equals(rows_of(Snapshot(lake.root), FAILURE_GROUPS, TUESDAY))
    assert pq.read_table(out).num_rows == 1


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_table_without_rows_is_a_file_without_rows(lake: Lake, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"empty.{form}"
    assert export(Snapshot(lake.root), named("jobs"), form, str(out)).rows == 0
    if form == "parquet":
        assert pq.read_table(out).column_names == schema(named("jobs")).names
    elif form == "csv":
        assert out.read_text().count("\n") == 1
    else:
        assert out.read_bytes() == b""


def test_a_damaged_table_writes_no_file_and_keeps_the_old_one(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("the old one")
    Snapshot(lake.root).files(FAILURE_GROUPS, TUESDAY)[0].path.write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match="cannot be read"):
        export(Snapshot(lake.root), FAILURE_GROUPS, "csv", str(tmp_path / "out.csv"))
    assert (tmp_path / "out.csv").read_text() == "the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "out.csv"}


def test_progress_ends_with_all_rows(lake: Lake, tmp_path: Path) -> None:
    output: list[tuple[str, int, int]] = []
    export(
        Snapshot(lake.root),
        FAILURE_GROUPS,
        "json",
        str(tmp_path / "x"),
        progress=lambda *step: output.append(step),
    )
    assert output == [("failure_groups", 1, 2), ("failure_groups", 2, 2)]


def test_every_table_is_listed(lake: Lake) -> None:
    found = {each.table.name: each.extent for each in listed(Snapshot(lake.root))}
    assert found.keys() == TABLES.keys()
    assert (found["failure_groups"].rows, found["failure_groups"].days) == (2, 2)
    code, output, _ = command("--list", "--lake", str(lake.root))
    assert code == 0
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines()}
    assert lines["failure_groups"] == ["2", "0.0", "2", "2026-11-16", "2026-11-17"]
    assert lines["runs"] == ["1", "0.0"]


def test_the_command_prints_the_last_days(lake: Lake) -> None:
    code, output, _ = command(
        "failure_groups", "--format", "json", "--days", "1", "--lake", str(lake.root)
    )
    assert code == 0
    assert [json.loads(line)["day"] for line in output.splitlines()] == ["2026-11-17"]


def test_the_command_prints_the_written_file(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "mail.csv"
    code, output, _ = command(
        "failure_groups", "--from", "2026-11-17", "--out", str(out), "--lake", str(lake.root)
    )
    assert (code, output) == (0, f"{out}  1 row of failure_groups\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name a table. `--list` lists the tables."),
        (("nothing",), "Unknown table 'nothing'. Tables: events, attempts,"),
        (("jobs", "--format", "xls"), "Unknown format 'xls'. Formats: csv, json, parquet."),
        (("jobs", "--days", "x"), "--days must be a day"),
        (("jobs", "--out", "/nowhere/x"), "cannot write /nowhere/x: No such file or directory"),
        (("jobs", "--out", "/tmp"), "cannot write /tmp: it is a folder"),
    ],
)
def test_an_error_is_one_line(lake: Lake, arguments: tuple[str, ...], message: str) -> None:
    code, output, stderr = command(*arguments, "--lake", str(lake.root))
    assert (code, output) == (1, "")
    assert stderr.startswith(message)
    assert stderr.count("\n") == 1
