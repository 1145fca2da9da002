"""The reference of the lake has every table and column, in their order and with their types."""

import re
from pathlib import Path

import pytest

from millrace.journal import schema
from millrace.pipeline.tables import EVENTS, TABLES

PAGE = (Path(__file__).parents[2] / "docs/reference/lake.md").read_text()
DERIVED = [table for table in TABLES.values() if table is not EVENTS]
PARTITIONS = {"day": " and the day", "server": "; partitioned by server", "": "; not partitioned"}

_COLUMN = re.compile(r"^\| `(\w+)` \| (\S.*?) \| (.+) \|$", re.MULTILINE)


def section(name: str) -> str:
    """The text below the heading of a table."""
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_every_table_has_a_section():
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(TABLES)


def test_the_columns_of_events_are_those_of_the_schema():
    assert schema.reference() in section("events"), "insert the output of schema.reference()"


@pytest.mark.parametrize("table", DERIVED, ids=lambda table: table.name)
def test_a_section_has_the_columns_of_its_table(table):
    wanted = {name: kind.lower() for name, kind in table.types.items()}
    found = {column: kind for column, kind, _ in _COLUMN.findall(section(table.name))}
    assert list(found.items()) == list(wanted.items())
    text = section(table.name)
    assert table.about in text
    key = ", ".join(f"`{name}`" for name in table.key)
    assert f"Key: {key}{PARTITIONS[table.partition]}." in text
