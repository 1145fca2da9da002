"""The schema of the journal: told once, and never so that older files become unreadable."""

from pathlib import Path

from pyspark.sql.pandas.types import from_arrow_schema

from millrace.engine.events import EVENT_VERSION
from millrace.journal import schema

GOLDEN = Path(__file__).parent / "schema.golden"


def told() -> list[str]:
    """A line for every field, as the golden file has them."""
    return [f"{f.name} {f.kind} {'required' if f.required else 'nullable'}" for f in schema.FIELDS]


def test_what_was_shipped_before_can_still_be_read() -> None:
    """Fields may be added at the end, and be null in older files. Then the golden file grows."""
    version, *golden = GOLDEN.read_text().splitlines()
    assert told()[: len(golden)] == golden, "a field that was shipped has changed"
    added = told()[len(golden) :]
    assert all(line.endswith(" nullable") for line in added)
    assert not added, "add these lines to tests/journal/schema.golden, and raise its version"
    assert version == f"version {EVENT_VERSION}"


def test_arrow_s_and_spark_s_schema_are_one() -> None:
    """As Spark itself takes the Arrow schema."""
    fields = from_arrow_schema(schema.arrow()).fields
    spark = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in fields)
    assert spark == schema.ddl()
    assert [field.nullable for field in fields] == [not field.required for field in schema.FIELDS]


def test_the_reference_tells_every_field() -> None:
    lines = schema.reference().splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(schema.NAMES)
    assert [field.about in line for field, line in zip(schema.FIELDS, lines, strict=True)]
