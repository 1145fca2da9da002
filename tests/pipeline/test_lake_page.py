"""The reference of the lake has every table and column, in their order and with their types."""

import re
from pathlib import Path

import pytest

from millrace.journal import schema
from millrace.pipeline.tables import EVENTS, QUARANTINE, TABLES

PAGE = (Path(__file__).parents[2] / "docs/reference/lake.md").read_text()
DERIVED = [table for table in TABLES.values() if table not in {EVENTS, QUARANTINE}]

_COLUMN = re.compile(r"^\| `(\w+)` \| (\S.*?) \| (.+) \|$", re.MULTILINE)


def section(name: str) -> str:
    """What stands below the heading of a table."""
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


def columns(name: str) -> dict[str, str]:
    return {column: kind for column, kind, _ in _COLUMN.findall(section(name))}


def test_every_table_has_its_place():
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(TABLES)


def test_events_are_told_as_the_schema_tells_them():
    assert schema.reference() in section("events"), "put the output of schema.reference() there"


@pytest.mark.parametrize("table", DERIVED, ids=lambda table: table.name)
def test_a_table_is_told_as_it_is(table):
    wanted = {name: kind.lower() for name, kind in table.types.items()}
    assert list(columns(table.name).items()) == list(wanted.items())
    text = section(table.name)
    assert table.about in text
    key = ", ".join(f"`{name}`" for name in table.key)
    assert f"Key: {key}{f' and the day {table.day}' if table.day else '; no days'}." in text


def test_quarantine_has_these_columns_beside_those_of_events():
    own = {
        name: kind.lower() for name, kind in QUARANTINE.types.items() if name not in EVENTS.columns
    }
    assert columns("quarantine") == own
