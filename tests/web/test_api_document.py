"""The OpenAPI document and the reference page say what there is."""

import re
from pathlib import Path

import msgspec
import pytest
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
from millrace.web.api.table import ROOT, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"


def test_the_page_lists_every_address() -> None:
    listed = re.findall(r"^\| `([A-Z]+ /\S*)` \| (\S+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    there = [
        (
            f"{each.method} {re.sub(r':name}', '}', each.path).removeprefix(ROOT)}",
            each.role or "none",
            each.summary,
        )
        for each in TABLE
    ]
    assert listed == there


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [
        operation["operationId"] for item in make()["paths"].values() for operation in item.values()
    ]
    assert len(names) == len(set(names))


def test_whatever_is_referred_to_is_there() -> None:
    document = make()
    text = msgspec.json.encode(document).decode()
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert referred <= document["components"]["schemas"].keys()


def test_jobs_that_were_looked_at_are_counted_once() -> None:
    """The server counts on from page to page."""
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
def test_what_is_json_is_told_as_json(data: bytes, is_json: bool) -> None:
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
def test_every_moment_can_be_written(at: int, text: str | None) -> None:
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
        if not schema.startswith("Analytics") and not each.get("description")
    ]
    missing += [
        f"{operation['operationId']} {each['name']}"
        for item in document["paths"].values()
        for operation in item.values()
        for each in operation["parameters"]
        if not each.get("description")
    ]
    assert missing == []
