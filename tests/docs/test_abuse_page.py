"""Every row of the page on abuse names an existing test, and every scenario has a row."""

import re

import pytest
from pages import ROOT
from test_guarantees import PROOF, names_in

PAGE = (ROOT / "docs" / "explanation" / "abuse.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if "`tests/" in line]
#: The scenarios are in parentheses after their test.
PLAYED = re.compile(r"`tests/abuse/test_abuse.py` \(([a-z_, ]+)\)")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_a_row_names_existing_tests(row: str) -> None:
    for path, name in PROOF.findall(row):
        assert (ROOT / path).exists(), path
        assert not name or name in names_in(path), f"{path} has no {name}"


def test_every_scenario_has_a_row() -> None:
    source = (ROOT / "tests" / "abuse" / "scenarios.py").read_text("utf-8")
    played = {name for row in PLAYED.findall(PAGE) for name in row.split(", ")}
    assert played == set(re.findall(r'Scenario\(\s*"(\w+)"', source))
