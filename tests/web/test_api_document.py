"""The OpenAPI document and the reference page match the application."""

import re
from pathlib import Path

import msgspec
import pytest
from reference_tables import HTTP_PAGE, ROUTE_HEAD, TABLE, route_table, updated
from told_room import Told, go, job_row, world

from millrace.records import (
    BulkProgress,
    FailureGroup,
    FailurePage,
    Health,
    JobPage,
    RecurringPage,
    RecurringRecord,
)
from millrace.records.forms import as_json, to_rfc3339
from millrace.web.api.openapi import make
from millrace.web.api.report_schema import DESCRIPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"


def test_the_reference_of_the_routes_is_generated() -> None:
    assert f"\n\n{route_table()}\n" in HTTP_PAGE.read_text("utf-8"), (
        "run tests/web/reference_tables.py"
    )


def test_the_generator_adds_and_removes_rows() -> None:
    page = f"Before.\n\n{route_table(TABLE[1:3])}\nAfter | it.\n"
    longer = updated(page, route_table(TABLE[:4]))
    assert longer == f"Before.\n\n{route_table(TABLE[:4])}\nAfter | it.\n"
    assert updated(longer, route_table(TABLE[1:3])) == page
    with pytest.raises(AssertionError):
        updated(page.replace(ROUTE_HEAD, ""), route_table())


def test_every_operation_has_a_unique_name() -> None:
    names = [
        operation["operationId"] for item in make()["paths"].values() for operation in item.values()
    ]
    assert len(names) == len(set(names))


def test_every_reference_is_defined() -> None:
    document = make()
    text = msgspec.json.encode(document).decode()
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert referred <= document["components"]["schemas"].keys()


def test_examined_jobs_are_counted_once() -> None:
    """The server continues to count over all pages."""
    steps = {"": JobPage([], 20_000, 50_000, "a"), "a": JobPage([], 40_000, 50_000, "b")}
    last = JobPage([job_row()], 50_000, 50_000, "")
    told = Told(search=lambda asked: steps.get(asked.cursor, last))
    answer = msgspec.json.decode(go(told, "/api/v1/jobs?q=rare").text)
    assert (answer["looked"], answer["of"], len(answer["jobs"])) == (50_000, 50_000, 1)


def test_a_server_that_cannot_write_is_not_ready() -> None:
    told = Told(health=Health(1, "the disk is full", 0, 0, "1.10.0"))
    answer = go(told, "/ready")
    assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
    assert "the disk is full" in answer.text


@pytest.mark.parametrize(
    ("data", "is_json"),
    [
        (b'{"a":1,"a":2}', True),
        (b" [1e400] ", True),
        (b"", False),
        (b"01", False),
        (b'"\xff"', False),
        (b"[" * 100_000, False),
    ],
)
def test_a_json_payload_is_sent_as_json(data: bytes, is_json: bool) -> None:
    assert (as_json(data) is not None) == is_json


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, None),
        (1_500_000, "1970-01-01T00:00:01.5Z"),
        ((1 << 63) - 1, "9999-12-31T23:59:59Z"),
        (-(1 << 62), "0001-01-01T00:00:00Z"),
    ],
)
def test_every_time_can_be_formatted(at: int, text: str | None) -> None:
    assert to_rfc3339(at) == text


def test_the_document_names_the_path_prefix() -> None:
    document = msgspec.json.decode(go(Told(), "/api/v1/openapi.json", prefix="/jobs").text)
    assert document["servers"] == [{"url": "/jobs"}]
    plain = msgspec.json.decode(go(Told(), "/api/v1/openapi.json").text)
    assert plain["servers"] == [{"url": "/"}]


def test_the_oldest_job_and_the_newest_failure_have_numbers() -> None:
    group = FailureGroup("f", "E", "m", 1, 0, 5, "j", ["q"], 42)
    told = world(failures=FailurePage([group], 1, 1))
    assert msgspec.json.decode(go(told, "/api/v1/overview").text)["oldest"]["number"] == 7
    (found,) = msgspec.json.decode(go(told, "/api/v1/failures").text)["failures"]
    assert found["newest_number"] == 42


def test_a_long_result_and_a_long_recurring_payload_are_marked() -> None:
    long = RecurringRecord("r", "k", "q", 60, 0, 5, 0, [], 0, 0, [], 70_000, b'"abc')
    short = RecurringRecord("s", "k", "q", 60, 0, 5, 0, [], 0, 0, [], 3, b"[1]")
    told = Told(recurring=RecurringPage([long, short], 2, ""))
    first, second = msgspec.json.decode(go(told, "/api/v1/recurring").text)["recurring"]
    assert (first["size"], "payload" in first, "payload_base64" in first) == (70_000, False, False)
    assert (second["size"], second["payload"]) == (3, [1])


@pytest.mark.parametrize("priority", [2**53, -(2**53)])
def test_the_priority_limit_of_the_document_is_that_of_the_server(priority: int) -> None:
    told = Told(act=BulkProgress(1, []))
    assert go(told, "/api/v1/jobs/a/priority", json={"priority": priority}).status == 200
    assert go(told, "/api/v1/jobs/a/priority", json={"priority": priority * 2}).status == 422


def test_every_property_and_parameter_has_a_description() -> None:
    document = make()
    missing = [
        f"{schema}.{name}"
        for schema, described in document["components"]["schemas"].items()
        for name, each in described.get("properties", {}).items()
        if not each.get("description")
    ]
    missing += [
        f"{operation['operationId']} {each['name']}"
        for item in document["paths"].values()
        for operation in item.values()
        for each in operation["parameters"]
        if not each.get("description")
    ]
    assert missing == []


def test_every_description_of_a_report_is_used() -> None:
    schemas = make()["components"]["schemas"]
    reported = {name: each for name, each in schemas.items() if name.startswith("Analytics")}
    members = {
        name
        for schema, each in reported.items()
        for member in each.get("properties", {})
        for name in (member, f"{schema.removeprefix('Analytics')}.{member}")
    }
    assert DESCRIPTIONS.keys() <= members


def test_the_document_has_the_limits_of_a_qless_setting() -> None:
    """tests/admin/test_arrangements.py compares the server with the same numbers."""
    fields = make()["components"]["schemas"]["QlessOptionBody"]["properties"]
    assert fields["option"]["maxLength"] == 1000
    (text,) = [each for each in fields["value"]["anyOf"] if each["type"] == "string"]
    assert text["maxLength"] == 10_000
