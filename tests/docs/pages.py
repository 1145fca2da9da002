"""The documentation for the tests: pages, their fenced blocks, their links and headings.

A directive is an HTML comment directly above a block. It selects the action of the tests:

    <!-- run -->                 run it, in page order, and compare the output with the block
    <!-- run: soon -->           the same, but the output may appear later
    <!-- run: background -->     the same, but the page continues immediately
    <!-- run: background, ends -->  ... and it ends by itself before the page does
    <!-- run: install -->        only `make tutorial` runs it: it installs Millrace
    <!-- run: long -->           only `make tutorial` runs it: it exceeds the time of a test
    <!-- server -->              a command that starts a server, which runs until the page ends
    <!-- server: NAME=VALUE -->  above a conversation: settings of its server
    <!-- file: NAME -->          write it to a file of that name
    <!-- output -->              the output of the python block above
    <!-- not run: WHY -->        skip it

Blocks of the languages `faktory`, `workq` and so on are conversations, and blocks of `redis` are
transcripts of redis-cli. They need no directive.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUNNABLE = {"python", "console"}

_FENCE = re.compile(r"^(`{3,})(\S*)\s*$")
_DIRECTIVE = re.compile(r"^<!--\s*(.*?)\s*-->\s*$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(.*?)\s*$")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of its first line of text
    language: str
    text: str
    directive: str  # empty if there is none
    value: str  # the text after the directive's colon

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def blocks(page: Path) -> list[Block]:
    return blocks_in(page.read_text("utf-8"), page)


def blocks_in(text: str, page: Path) -> list[Block]:
    found: list[Block] = []
    fence = language = directive = ""
    start = 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if fence:
            if line.strip() == fence:
                name, _, value = directive.partition(": ")
                text = "\n".join(lines[start - 1 : number - 1])
                found.append(Block(page, start, language, text, name, value))
                fence = directive = ""
        elif match := _FENCE.match(line):
            fence, language = match.groups()
            start = number + 1
        elif match := _DIRECTIVE.match(line):
            directive = match.group(1)
        elif line.strip():
            directive = ""
    assert not fence, f"{page}: a block is not closed"
    return found


def prose(page: Path) -> list[str]:
    """The lines outside of blocks."""
    kept, fence = [], ""
    for line in page.read_text("utf-8").splitlines():
        match = _FENCE.match(line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif match:
            fence = match.group(1)
        else:
            kept.append(line)
    return kept


def links(page: Path) -> list[str]:
    """The targets of the page's links, except web addresses."""
    text = re.sub(r"`[^`\n]*`", "", "\n".join(prose(page)))
    return [link for link in _LINK.findall(text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub generates them."""
    found: set[str] = set()
    for line in prose(page):
        if match := _HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).replace("`", "")
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            while slug in found:
                slug += "-1"
            found.add(slug)
    return found
