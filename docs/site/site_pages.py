"""The pages of the repository as pages of the documentation site: navigation, links, diagrams.

The navigation is the list of pages in docs/README.md. Some pages are outside of docs/; ADDED gives
them a place in the site. A link to a file that the site does not contain becomes plain text.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
#: Path in the repository -> path in the site.
ADDED: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "benchmarks.md",
    "src/millrace/web/static/millrace.svg": "site/icon.svg",
}
SOURCES: Final = {page: path for path, page in ADDED.items()}
#: Section of the navigation -> its pages outside of docs/.
MORE_PAGES: Final = {
    "Explanation": {"Benchmarks": "benchmarks.md"},
    "Contributing": {
        "Contribute": "contributing.md",
        "Report a vulnerability": "security.md",
        "Changelog": "changelog.md",
    },
}

_SECTION = re.compile(r"^\*\*(.+)\*\*$")
_LINK = re.compile(r"(!?)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(`{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EDGE = re.compile(r"^ +(\S+) --> (\S+): (.+)$", re.MULTILINE)
_OUTSIDE: Final = "[*]"
_LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)"
)


def navigation(index: str) -> list[dict[str, Any]]:
    """The navigation of the site, from the sections and links of docs/README.md."""
    sections: dict[str, list[dict[str, str]]] = {}
    pages: list[dict[str, str]] = []
    joined = re.sub(r"\n  +(?=\S)", " ", index)  # continuation lines of list items
    for line in joined.splitlines():
        if match := _SECTION.match(line):
            pages = sections.setdefault(match.group(1), [])
        elif line.startswith("- "):
            prefix = "Switch from " if line.startswith("- Switch from ") else ""
            pages += [{_title(prefix + title): path} for _, title, path in _LINK.findall(line)]
    for name, more in MORE_PAGES.items():
        sections[name] += [{title: path} for title, path in more.items()]
    return [{"Millrace": "index.md"}, *({name: pages} for name, pages in sections.items())]


def site_text(markdown: str, page: str, known: set[str]) -> str:
    """The text of a page as the site shows it. `known` has the paths of all files of the site."""
    return adapt_links(_DIAGRAM.sub(_state_table, markdown), page, known)


def adapt_links(markdown: str, page: str, known: set[str]) -> str:
    """The text with links from `page` to files of the site."""
    source = SOURCES.get(page, f"docs/{page}")

    def adapt(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        path, hash_sign, anchor = link.partition("#")
        if "://" in link or not path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        in_site = ADDED.get(target, target.removeprefix("docs/"))
        if in_site in known:
            relative = posixpath.relpath(in_site, posixpath.dirname(page) or ".")
            return f"{mark}[{text}]({relative}{hash_sign}{anchor})"
        return text if (ROOT / target).exists() else match[0]

    return _change_prose(markdown, lambda prose: _LINK.sub(adapt, prose))


def loaded_from_elsewhere(html: str) -> list[str]:
    """Scripts, styles, fonts and pictures that a browser would load from another host."""
    return _LOADED.findall(html)


def _change_prose(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a function to the text outside of fenced blocks."""
    parts, position = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[position : fence.start()]), fence.group()]
        position = fence.end()
    return "".join([*parts, change(markdown[position:])])


def _title(title: str) -> str:
    return title[:1].upper() + title[1:]


def _state_table(match: re.Match[str]) -> str:
    """A state diagram as a table, from a state (row) to a state (column). It needs no script."""
    edges = {(before, after): causes for before, after, causes in _EDGE.findall(match.group(1))}
    befores = list(dict.fromkeys([_OUTSIDE, *(before for before, _ in edges)]))
    afters = [*befores[1:], _OUTSIDE]
    rows = [["from \\ to", *(f"`{state}`" for state in afters)], ["---"] * (len(afters) + 1)]
    rows += [
        [f"`{before}`", *(edges.get((before, after), "") for after in afters)] for before in befores
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
