"""Output of the commands that print answers."""

import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

from millrace.cli.tables import printable


def print_json(answer: msgspec.Struct) -> None:
    text = msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
    sys.stdout.write(text + "\n")


def console() -> Console:
    return Console(markup=False, highlight=False)


def table(
    columns: str, rows: Iterable[Sequence[str]], texts: int, folded: str | None = None
) -> Table:
    """Rows with these columns; all but the first `texts` are numbers. The column `folded` is never
    cut.
    """
    made = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns.split(", ")):
        justify: Literal["left", "right"] = "left" if number < texts else "right"
        made.add_column(name, justify=justify, overflow="fold" if name == folded else "ellipsis")
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def seconds(value: float | None) -> str:
    """A duration with three significant digits."""
    if value is None:
        return ""
    for limit, unit, factor in ((0.001, "us", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0)):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    for limit, unit, length in ((7200.0, "min", 60.0), (172_800.0, "h", 3600.0)):
        if value < limit:
            return f"{value / length:.3g} {unit}"
    return f"{value / 86_400:.3g} d"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
