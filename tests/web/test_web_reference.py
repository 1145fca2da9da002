"""The reference has every page, with the roles that its doors ask for."""

import re
from pathlib import Path

import pytest

from millrace.web.app import doors
from millrace.web.auth import SAFE
from millrace.web.doors import Door
from millrace.web.routes import redirects

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "web.md").read_text("utf-8")
ROWS = [line for line in PAGE.split("## Pages")[1].split("\n## ")[0].splitlines() if "|" in line]
#: By page: who sees it, and who may change something.
TOLD = {
    page: [re.findall(r"`(\w+)`|\b(all)\b", cell) for cell in row.split("|")[3:5]]
    for row in ROWS
    for page in re.findall(r"`(/[^`]*)`", row.split("|")[1])
}
PAGES = [door for door in doors() if isinstance(door, Door) and door.kind == "page"]


def shown(path: str) -> str:
    """`/queues/{name:path}` as the page writes it."""
    return re.sub(r"{[^}]*}", "*", path)


def page_of(door: Door) -> str | None:
    """Where it is told of: at its own address, or at the page that its form is on."""
    forms = {re.sub(r"\b[A-Z]+\b", "*", page): page for page in TOLD}
    path = shown(door.path)
    while path:
        if path in forms:
            return forms[path]
        if door.methods is None or "POST" not in door.methods:
            return None
        path = path.rpartition("/")[0] or "/"
    return None


@pytest.mark.parametrize("door", PAGES, ids=lambda door: f"{sorted(door.methods)} {door.path}")
def test_every_page_is_told_of_with_its_role(door: Door):
    if any(door is other for other in redirects.DOORS):
        names = {"{wid}": "ID", "{group:path}": "GROUP"}
        path = re.sub(r"{[^}]*}", lambda part: names[part[0]], door.path)
        assert f"`{path}`" in PAGE
        return
    page = page_of(door)
    assert page is not None, f"docs/reference/web.md does not tell of {door.path}"
    seen, changed = ([a or b for a, b in cell] for cell in TOLD[page])
    wanted = door.role or "all"
    assert wanted in (seen if (door.methods or set()) <= SAFE else changed)
