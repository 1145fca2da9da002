"""The tables of docs/reference/sdk.md come from the code and cover everything public of the SDK."""

import inspect
import re
from collections.abc import Iterator

import pytest
from sdk_page import OWNERS, PAGE, generated_names, page

from millrace import client

TEXT = PAGE.read_text("utf-8")
#: Described on the page of the Go Job Queue client.
ELSEWHERE = {"AlreadyDeleted", "GoJobQueue", "ReservedJob"}
#: For handles, workers and tests of the SDK itself.
INTERNAL = {
    "async_transport", "close", "connection_options", "dump_arguments", "load_result", "request_many",
    "require_millrace", "run_exchange", "run_exchange_async", "timeout", "transport",
    "use_transport",
}  # fmt: skip


def methods() -> Iterator[str]:
    for owner, type_ in OWNERS.items():
        for name, _ in inspect.getmembers(type_, inspect.isfunction):
            if not name.startswith("_") and name not in INTERNAL and not name.endswith("_async"):
                yield f"{owner}.{name}"


@pytest.mark.parametrize("name", sorted(set(client.__all__) - ELSEWHERE))
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", TEXT)


@pytest.mark.parametrize("name", list(methods()))
def test_every_method_is_in_a_table(name: str) -> None:
    assert name in generated_names(TEXT)


def test_the_tables_are_those_of_the_code() -> None:
    assert page(TEXT) == TEXT, "run .venv/bin/python tests/docs/sdk_page.py"


def test_an_entry_has_types_defaults_and_the_docstring() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| `app.push_many("))
    call = "app.push_many(jobs: Iterable[NewJob], batch_size: int = 1000) -> list[JobHandle[Any]]"
    assert row.startswith(f"| `{call}` | Push several jobs,")
    assert row.endswith(" Asyncio: `push_many_async`. |")
