"""The columns of a bulk read come from the records; the Spark data source has the same ones."""

import ast
from pathlib import Path
from typing import Annotated, get_args, get_origin

import msgspec

from millrace.protocols.faktory.bulk import ExportedJob
from millrace.records.forms import export
from millrace.records.types import Doc, Excerpt, Record, Time

READER = Path(__file__).parents[2] / "src/pyspark_millrace/job_reader.py"


def spark_type(type_: object) -> str:
    if get_origin(type_) is Annotated:
        assert type_ == Time
        return "TIMESTAMP"
    if type_ == list[str]:
        return "ARRAY<STRING>"
    (plain,) = [each for each in get_args(type_) or (type_,) if each is not type(None)]
    return {int: "BIGINT", float: "DOUBLE", str: "STRING"}[plain]


def columns_of_spark() -> dict[str, str]:
    """`JOBS` of the data source, which imports nothing from the server."""
    (found,) = [
        statement.value
        for statement in ast.parse(READER.read_text("utf-8")).body
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "JOBS"
    ]
    columns: dict[str, str] = ast.literal_eval(found)
    return columns


def test_spark_has_the_columns_of_the_export_form():
    hints = {each.name: each.type for each in msgspec.structs.fields(ExportedJob)}
    assert {name: spark_type(type_) for name, type_ in hints.items()} == columns_of_spark()


class Inner(Record):
    at: Annotated[Time, Doc("At", "", column="inner_at")] = 0


class Sample(Record):
    name: Annotated[str, Doc("Name", "", column="title")]
    hidden: Annotated[int, Doc("Hidden", "", column=None)]
    note: Annotated[str, Doc("Note", "", optional=True)]
    inner: Annotated[Inner | None, Doc("Inner", "")]
    data: Annotated[Excerpt, Doc("Data", "")]


class Other(Record):
    tags: Annotated[list[str], Doc("Tags", "")]
    more: Annotated[str, Doc("More", "")]


def test_columns_follow_the_annotations():
    form = export("Exported", Sample, (Other, "tags"))
    assert form.__struct_fields__ == (
        *("title", "note", "inner_at", "data", "data_encoding", "tags"),
    )
    assert msgspec.json.encode(form(title="", data="")) == b'{"title":"","data":""}'
    given = form(title="a", data="b", inner_at=5, tags=["x"])
    assert msgspec.to_builtins(given) == {"title": "a", "data": "b", "inner_at": 5, "tags": ["x"]}
