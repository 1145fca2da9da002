"""The reference of the pages is generated from the routes."""

import pytest
from reference_tables import PAGES_PAGE, form_table, page_table

from millrace.web.app import page_routes
from millrace.web.routing import PageRoute

PAGE = PAGES_PAGE.read_text("utf-8")


@pytest.mark.parametrize("table", [page_table, form_table])
def test_the_reference_of_the_pages_is_generated(table):
    assert f"\n\n{table()}\n" in PAGE, "run tests/web/reference_tables.py"


@pytest.mark.parametrize(
    "route", page_routes(), ids=lambda route: f"{sorted(route.methods)} {route.path}"
)
def test_every_page_has_a_description(route: PageRoute):
    assert route.about


def test_a_changed_route_changes_the_table():
    first, *other_routes = page_routes()
    changed = PageRoute(first.path, first.answer, "another text", role="admin")
    row = f"| `{first.path}` | another text | admin |"
    assert row in page_table([changed, *other_routes])
    assert row not in PAGE
