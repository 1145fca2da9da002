"""The OpenAPI document and the reference page say what there is."""

import re
from pathlib import Path

import msgspec
import pytest
from told_room import Told, go, job_row

from millrace.records import Health, JobPage
from millrace.web.api.openapi import make
from millrace.web.api.shapes import json_of, moment
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
    assert (json_of(data) is not None) == is_json


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
    assert moment(at) == text
