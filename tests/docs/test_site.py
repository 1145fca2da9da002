"""The documentation site has every page, and its links lead to pages. `make docs` builds it."""

import re
import sys
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))
from site_pages import ADDED, SOURCES, adapt_links, loaded_from_elsewhere, navigation, site_text

DOCS = ROOT / "docs"
IN_DOCS = {
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*")
    if path.is_file() and path != DOCS / "README.md" and path.suffix not in {".py", ".pyc"}
}
KNOWN = IN_DOCS | set(ADDED.values())
SITE_PAGES = sorted(path for path in KNOWN if path.endswith(".md"))


def source_of(page: str) -> Path:
    return ROOT / SOURCES.get(page, f"docs/{page}")


def test_the_navigation_has_every_page_once() -> None:
    home, *sections = navigation((DOCS / "README.md").read_text("utf-8"))
    listed = [
        path
        for part in sections
        for pages in part.values()
        for entry in pages
        for path in entry.values()
    ]
    assert (
        sorted([*home.values(), *(path for path in listed if path.endswith(".md"))]) == SITE_PAGES
    )


@pytest.mark.parametrize("page", SITE_PAGES)
def test_the_links_of_a_page_lead_to_files_of_the_site(page: str) -> None:
    text = re.sub(r"^(`{3,}).*?^\1\s*$", "", source_of(page).read_text("utf-8"), flags=re.M | re.S)
    adapted = adapt_links(text, page, KNOWN)
    for link in re.findall(r"\]\(([^)\s#]+)", re.sub(r"`[^`\n]*`", "", adapted)):
        if "://" not in link:
            target = (DOCS / page).parent.joinpath(link).resolve().relative_to(DOCS)
            assert target.as_posix() in KNOWN, link


def test_a_link_is_adapted_to_the_place_of_both_pages() -> None:
    text = (
        "[a](../../bench/README.md#abuse) [b](states.md) [`c`](../../src/millrace/__init__.py) [d](gone.md)\n"
        "```text\n[e](../../README.md)\n```\n[f](../../README.md)"
    )
    assert adapt_links(text, "explanation/abuse.md", KNOWN) == (
        "[a](../benchmarks.md#abuse) [b](states.md) `c` [d](gone.md)\n"
        "```text\n[e](../../README.md)\n```\n[f](../index.md)"
    )
    assert adapt_links("[a](docs/tutorial.md)", "index.md", KNOWN) == "[a](tutorial.md)"


def test_the_state_diagram_becomes_a_table_with_all_transitions() -> None:
    page = (DOCS / "explanation" / "states.md").read_text("utf-8")
    diagram = re.search(r"```mermaid\n(.*?)```", page, re.S)
    assert diagram is not None
    edges = re.findall(r"(\S+) --> (\S+): (.+)", diagram[1])
    shown = site_text(page, "explanation/states.md", KNOWN)
    assert "mermaid" not in shown
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in shown[shown.index("| from") :].partition("\n\n")[0].splitlines()
    ]
    found = [
        (row[0].strip("`"), state.strip("`"), causes)
        for row in rows
        for state, causes in zip(head[1:], row[1:], strict=True)
        if causes
    ]
    assert len(edges) > 30
    assert sorted(found) == sorted(edges)


def test_a_page_that_loads_from_another_host_is_found() -> None:
    html = '<a href="https://x.org/"></a><script src="//cdn.org/a.js"></script><img alt="" src="a.png">'
    assert loaded_from_elsewhere(html) == ["//cdn.org/a.js"]
    assert loaded_from_elsewhere('<link rel="stylesheet" href="https://f.org/c">') == [
        "https://f.org/c"
    ]
