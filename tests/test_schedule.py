"""The distribution of tests over workers; see schedule.py."""

from lanes import SLOW
from schedule import ROOT, SECONDS, SPARK, group_of, seconds


def test_every_entry_exists():
    assert [name for name in SECONDS if name != SPARK and not (ROOT / name).exists()] == []


def test_files_with_the_spark_session_are_one_group():
    assert group_of("tests/pipeline/test_oracle.py") == SPARK
    assert group_of("tests/pipeline/test_windows.py") == "tests/pipeline/test_windows.py"
    assert seconds(SPARK) == max(SECONDS.values())


def test_a_file_takes_as_long_as_its_folder_says():
    assert seconds("tests/soak/test_soak.py") == SECONDS["tests/soak"]
    assert seconds("tests/records/test_actions.py") == 1


def test_every_slow_test_of_the_check_lane_exists():
    for entry in SLOW:
        name, _, test = entry.partition("[")[0].partition("::")
        assert any(
            f"def {test}" in path.read_text("utf-8") for path in ROOT.rglob(f"tests/**/{name}")
        ), entry
