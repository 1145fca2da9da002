"""The tables of routes, pages and metrics in the documentation, generated from their declarations.

Update the pages with `.venv/bin/python tests/web/reference_tables.py`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import Metric

from millrace.web.api.endpoints import Endpoint
from millrace.web.api.table import ROOT, TABLE
from millrace.web.app import page_routes
from millrace.web.routing import PageRoute

DOCS = Path(__file__).parents[2] / "docs"
HTTP_PAGE = DOCS / "reference/http.md"
PAGES_PAGE = DOCS / "reference/web.md"
METRICS_PAGE = DOCS / "how-to/monitor.md"
ROUTE_HEAD = "| route | role | description |\n|---|---|---|\n"
METRIC_HEAD = "| name | type | description |\n|---|---|---|\n"
PAGE_HEAD = "| address | contents | role |\n|---|---|---|\n"
FORM_HEAD = "| address | action | role |\n|---|---|---|\n"


def route_table(endpoints: Iterable[Endpoint] = TABLE) -> str:
    return ROUTE_HEAD + "".join(
        f"| `{each.method} {re.sub(':name}', '}', each.path).removeprefix(ROOT)}` "
        f"| {each.role or 'none'} | {each.summary} |\n"
        for each in endpoints
    )


def page_table(routes: Iterable[PageRoute] | None = None) -> str:
    return PAGE_HEAD + _page_rows(routes, "GET")


def form_table(routes: Iterable[PageRoute] | None = None) -> str:
    return FORM_HEAD + _page_rows(routes, "POST")


def _page_rows(routes: Iterable[PageRoute] | None, method: str) -> str:
    return "".join(
        f"| `{re.sub(':[a-z]+}', '}', each.path)}` | {each.about} | {each.role or 'none'} |\n"
        for each in (page_routes() if routes is None else routes)
        if method in each.methods
    )


def metric_table(families: Iterable[Metric]) -> str:
    return METRIC_HEAD + "".join(_metric_rows(families))


def _metric_rows(families: Iterable[Metric]) -> Iterator[str]:
    for family in families:
        names = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
        name = family.name + "_total" * (family.type == "counter")
        labels = f"{{{','.join(names)}}}" if names else ""
        yield f"| `{name}{labels}` | {family.type} | {family.documentation} |\n"


def updated(page: str, *tables: str) -> str:
    """The page with each table replaced by the one with the same head."""
    for table in tables:
        head = re.escape("".join(table.splitlines(keepends=True)[:2]))
        page, count = re.subn(rf"(?m)^{head}(\|.*\n)*", lambda _, table=table: table, page)
        assert count == 1, head
    return page


if __name__ == "__main__":
    from test_metrics import families

    for path, tables in (
        (HTTP_PAGE, [route_table()]),
        (PAGES_PAGE, [page_table(), form_table()]),
        (METRICS_PAGE, [metric_table(families())]),
    ):
        path.write_text(updated(path.read_text("utf-8"), *tables), "utf-8")
