"""The features of each protocol, as documented. They select the pairs of the suite, so that no pair
is missing by mistake.
"""

import re
from pathlib import Path

from pairs import PROTOCOLS

from speakers import ALL_SPEAKERS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "crossing.md"
COLUMNS = ("workq", "masenko", "faktory", "qless", "goqueue", "http")


def documented() -> dict[str, set[str]]:
    part = PAGE.read_text("utf-8").partition("## Operations of each protocol")[2]
    found: dict[str, set[str]] = {}
    for ability, cells in re.findall(r"^\|[^|]*\(`([a-z ]+)`\) \|(.*)\|$", part, re.MULTILINE):
        said = [cell.strip() for cell in cells.split("|")]
        assert len(said) == len(COLUMNS), ability
        assert set(said) <= {"yes", ""}, ability
        found[ability] = {name for name, word in zip(COLUMNS, said, strict=True) if word}
    return found


def test_all_six_protocols_take_part():
    assert set(PROTOCOLS) == set(COLUMNS)


def test_features_match_the_documentation():
    can = {ability for kind in ALL_SPEAKERS.values() for ability in kind.can}
    abilities = {each: {name for name in COLUMNS if each in ALL_SPEAKERS[name].can} for each in can}
    assert documented() == abilities
