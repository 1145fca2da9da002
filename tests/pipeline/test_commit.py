"""What gets into the lake: whole, and the same when done again. No Spark."""

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from millrace.pipeline import commit
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import Lake
from millrace.pipeline.tables import AUDIT_SEQ, QUEUE_DAY

D14, D15 = date(2026, 11, 14), date(2026, 11, 15)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def stage(lake: Lake, **files: str) -> Path:
    """As Spark would leave it: a success mark, checksums, one part for each day."""
    staged = lake.staging / "queue_day"
    for day, content in files.items():
        folder = staged / f"day={day.replace('_', '-')[1:]}"
        folder.mkdir(parents=True)
        (folder / "part-00000-abc.c000.zstd.parquet").write_text(content)
        (folder / ".part-00000-abc.c000.zstd.parquet.crc").write_text("crc")
    staged.mkdir(parents=True, exist_ok=True)
    (staged / "_SUCCESS").touch()
    return staged


def content(lake: Lake) -> dict[str, str]:
    """Every file below tables/."""
    tables = lake.root / "tables"
    return {
        str(path.relative_to(tables)): path.read_text()
        for path in sorted(tables.rglob("*"))
        if path.is_file()
    }


def test_days_are_replaced(lake):
    commit.publish_days(stage(lake, _2026_11_14="a", _2026_11_15="b"), lake, QUEUE_DAY, [D14, D15])
    commit.publish_days(stage(lake, _2026_11_15="c"), lake, QUEUE_DAY, [D15])
    assert content(lake) == {
        "queue_day/day=2026-11-14/data.parquet": "a",
        "queue_day/day=2026-11-15/data.parquet": "c",
    }
    assert list(lake.staging.iterdir()) == []


def test_a_day_that_has_nothing_any_more_goes(lake):
    commit.publish_days(stage(lake, _2026_11_14="a", _2026_11_15="b"), lake, QUEUE_DAY, [D14, D15])
    commit.publish_days(stage(lake, _2026_11_15="b"), lake, QUEUE_DAY, [D14, D15])
    assert content(lake) == {"queue_day/day=2026-11-15/data.parquet": "b"}


def test_a_day_that_was_not_meant_is_a_defect(lake):
    with pytest.raises(PipelineError, match="2026-11-15"):
        commit.publish_days(stage(lake, _2026_11_15="b"), lake, QUEUE_DAY, [D14])


def test_two_files_for_a_day_are_a_defect(lake):
    staged = stage(lake, _2026_11_14="a")
    (staged / "day=2026-11-14" / "part-00001-abc.parquet").write_text("more")
    with pytest.raises(PipelineError, match="2 files"):
        commit.publish_days(staged, lake, QUEUE_DAY, [D14])


@pytest.mark.parametrize("crash", ["refresh:queue_day:0", "refresh:queue_day:1"])
def test_done_again_after_a_crash_between_two_days(lake, monkeypatch, crash):
    commit.publish_days(stage(lake, _2026_11_14="old"), lake, QUEUE_DAY, [D14])

    def stop(point: str) -> None:
        if point == crash:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(commit, "reached", stop)
        with pytest.raises(KeyboardInterrupt):
            commit.publish_days(
                stage(lake, _2026_11_14="a", _2026_11_15="b"), lake, QUEUE_DAY, [D14, D15]
            )
    with commit.locked(lake):
        staged = stage(lake, _2026_11_14="a", _2026_11_15="b")
        commit.publish_days(staged, lake, QUEUE_DAY, [D14, D15])
    assert content(lake) == {
        "queue_day/day=2026-11-14/data.parquet": "a",
        "queue_day/day=2026-11-15/data.parquet": "b",
    }


def test_a_table_without_days(lake):
    for words in ("old", "new"):
        staged = lake.staging / "audit_seq"
        staged.mkdir(parents=True)
        (staged / "part-00000-1.parquet").write_text(words)
        commit.publish(staged, lake, AUDIT_SEQ)
    assert content(lake) == {"audit_seq/data.parquet": "new"}


def test_json_is_written_whole(lake):
    path = lake.ops / "refreshed.json"
    commit.write_json(path, {"batch": 1, "day": D14})
    commit.write_json(path, {"batch": 2, "day": D14})
    assert path.read_text() == '{\n  "batch": 2,\n  "day": "2026-11-14"\n}\n'
    assert list(lake.ops.iterdir()) == [path]


LOCKING = """
import sys
from pathlib import Path
from millrace.pipeline.commit import locked
from millrace.pipeline.lake import Lake
with locked(Lake(Path(sys.argv[1]))):
    print("locked")
"""


def test_one_run_at_a_time_and_staging_is_emptied(lake):
    stage(lake, _2026_11_14="left by a run that was killed")
    command = [sys.executable, "-c", LOCKING, str(lake.root)]
    with commit.locked(lake):
        assert list(lake.staging.iterdir()) == []
        stage(lake, _2026_11_14="of this run")
        other = subprocess.run(command, capture_output=True, text=True)
        assert f"LakeBusy: another run works on the lake {lake.root}" in other.stderr
        assert f"(process {os.getpid()})" in other.stderr
        with commit.locked(lake):  # whoever has it
            pass
        assert (lake.staging / "queue_day").exists()
        assert subprocess.run(command, capture_output=True).returncode == 1
    assert subprocess.run(command, capture_output=True, text=True).stdout == "locked\n"


def test_the_hook_of_the_crash_tests_kills(lake):
    code = "from millrace.pipeline.commit import reached; reached('a'); reached('b'); print('here')"
    for point, expected in (("b", (-9, "")), ("c", (0, "here\n"))):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"CRASH_MILLRACE": point},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == expected
