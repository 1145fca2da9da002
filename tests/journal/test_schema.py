"""The schema of the journal: it has one definition, and older files stay readable."""

from pathlib import Path

from pyspark.sql.pandas.types import from_arrow_schema

from millrace.engine.events import EVENT_VERSION
from millrace.journal import schema

GOLDEN = Path(__file__).parent / "schema.golden"


def field_lines() -> list[str]:
    """A line for every field, in the format of the golden file."""
    return [f"{f.name} {f.kind} {'required' if f.required else 'nullable'}" for f in schema.FIELDS]


def test_older_files_stay_readable() -> None:
    """New fields are added at the end and are null in older files. The golden file is extended
    then.
    """
    version, *golden = GOLDEN.read_text().splitlines()
    assert field_lines()[: len(golden)] == golden, "a field that was shipped has changed"
    added = field_lines()[len(golden) :]
    assert all(line.endswith(" nullable") for line in added)
    assert not added, "add these lines to tests/journal/schema.golden, and raise its version"
    assert version == f"version {EVENT_VERSION}"


def test_arrow_s_and_spark_s_schema_are_one() -> None:
    """As Spark converts the Arrow schema."""
    fields = from_arrow_schema(schema.arrow()).fields
    spark = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in fields)
    assert spark == schema.ddl()
    assert [field.nullable for field in fields] == [not field.required for field in schema.FIELDS]


def test_the_reference_lists_every_field() -> None:
    lines = schema.reference().splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(schema.NAMES)
    assert [field.about in line for field, line in zip(schema.FIELDS, lines, strict=True)]
