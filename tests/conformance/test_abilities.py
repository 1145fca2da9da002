"""What each protocol can say, as the documentation has it: by that the suite chooses its pairs, so
that nothing is left out by mistake.
"""

import re
from pathlib import Path

from pairs import PROTOCOLS

from speakers import EVERYBODY

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "crossing.md"
COLUMNS = ("workq", "masenko", "faktory", "qless", "goqueue", "http")


def documented() -> dict[str, set[str]]:
    part = PAGE.read_text("utf-8").partition("## What each protocol can say")[2]
    found: dict[str, set[str]] = {}
    for ability, cells in re.findall(r"^\|[^|]*\(`([a-z ]+)`\) \|(.*)\|$", part, re.MULTILINE):
        said = [cell.strip() for cell in cells.split("|")]
        assert len(said) == len(COLUMNS), ability
        assert set(said) <= {"yes", ""}, ability
        found[ability] = {name for name, word in zip(COLUMNS, said, strict=True) if word}
    return found


def test_all_six_take_part():
    assert set(PROTOCOLS) == set(COLUMNS)


def test_what_each_can_say_is_what_the_page_says():
    can = {ability for kind in EVERYBODY.values() for ability in kind.can}
    abilities = {each: {name for name in COLUMNS if each in EVERYBODY[name].can} for each in can}
    assert documented() == abilities
