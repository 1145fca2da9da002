"""Records as text for a terminal, or as JSON."""

import json as jsonlib
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

#: Columns are cut after this number of characters.
MAX_CELL = 48


def print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns; numbers are on the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    numeric = [bool(rows) and all(isinstance(row[n], int | float) for row in rows)
               for n in range(len(heads))]  # fmt: skip
    for line in ([*heads], *cells):
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        sys.stdout.write("  ".join(parts).rstrip() + "\n")


def print_fields(fields: Sequence[tuple[str, Any]]) -> None:
    """One field per line; empty ones are left out."""
    known = [(name, value) for name, value in fields if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        sys.stdout.write(f"{name.ljust(width)}  {printable(value)}\n")


def plural(count: int, noun: str = "job") -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(value: Any) -> str:
    """A value on one line, with control characters escaped."""
    if isinstance(value, msgspec.Raw):
        value = bytes(value).decode()
    text = value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False)
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    text = printable(value)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"
