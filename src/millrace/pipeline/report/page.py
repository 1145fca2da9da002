"""The report as a single HTML page that makes no network requests.

Names and error messages in the page are untrusted input. The template escapes all values, the
script draws the plots from JSON, and the content security policy allows only the two embedded
scripts.
"""

import base64
import functools
import gzip
import hashlib
import re
import unicodedata
from datetime import datetime
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from millrace.journal.schema import ORIGIN_LABELS

from .model import Report

_ASSETS: Final = Path(__file__).with_name("assets")
PROTOCOLS: Final = ORIGIN_LABELS
#: Unicode categories that are not displayed, such as control and text direction characters.
UNSHOWN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WIDTHS: Final = ((86_400, "a", "day"), (3600, "an", "hour"), (60, "a", "minute"))


class _Packed(NamedTuple):
    """A compressed script, and the digest by which the browser verifies the original script."""

    packed: str
    digest: str


def render(report: Report) -> str:
    """Render the page. The same report always gives the same bytes."""
    drawing = script()
    plotly = _plotly()
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            policy=_policy(_digest(drawing), plotly.digest),
            css=Markup((_ASSETS / "page.css").read_text("utf-8")),  # noqa: S704 - our own file
            script=Markup(drawing.decode()),  # noqa: S704 - as above
            numbers=numbers(report),
            plotly=Markup(plotly.packed),  # noqa: S704 - base64
        )
    )


def parts(report: Report) -> Markup:
    """Render the body of the page for use in another page; `script` draws its plots."""
    return Markup(_environment().get_template("parts.html").render(report=report))  # noqa: S704


def script() -> bytes:
    """Return the script that draws the plots from `numbers` in the element with the id `report`."""
    return (_ASSETS / "page.js").read_bytes()


def numbers(report: Report) -> Markup:
    return Markup(in_script(as_json(report)))  # noqa: S704 - escaped


def as_json(report: Report) -> str:
    return msgspec.json.encode(report).decode()


def in_script(text: str) -> str:
    """Escape JSON for a script element, so that it cannot close the element or open another."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def shown(text: str, most: int = 120) -> str:
    """Return untrusted text for display: truncated, with invisible characters replaced."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in UNSHOWN and c != "\n" else c
        for c in cut
    )


def span(seconds: float | None) -> str:
    """Format a duration in one or two suitable units: 304 ms, 1 min 28 s."""
    if seconds is None:
        return "\N{EN DASH}"
    if seconds < 0.9995e-3:
        return f"{_rounded(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_rounded(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_rounded(seconds)} s"
    for (large, name), (small, below) in pairwise(_UNITS):
        count = round(seconds / small)
        if count * small >= large:
            whole, rest = divmod(count, large // small)
            return f"{whole:,} {name} {rest} {below}" if rest else f"{whole:,} {name}"
    return f"{round(seconds)} s"


def held(jobs: float) -> str:
    """Format an average number of jobs held."""
    if 0 < jobs < 0.001:
        return "< 0.001"
    return f"{jobs:,.2f}" if jobs >= 0.1 or not jobs else f"{jobs:.3f}"


def at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


def width(step: int) -> str:
    """Return the step width of a time axis as text."""
    for size, article, unit in _WIDTHS:
        if step % size == 0:
            count = step // size
            return f"{article} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{step} seconds"


def every(step: int) -> str:
    return "every " + width(step).removeprefix("a ").removeprefix("an ")


def words(text: str) -> Markup:
    """Convert our own sentences to HTML, with text in backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def protocol(name: str | None) -> str:
    return "the server" if name is None else PROTOCOLS.get(name, shown(name))


def _rounded(value: float) -> str:
    """Round to three significant digits, but show all digits of the integer part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        f.__name__: f for f in (shown, span, held, at, width, every, words, protocol)
    }
    return environment


@functools.cache
def _plotly() -> _Packed:
    source = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    packed = base64.b64encode(gzip.compress(source, 9, mtime=0)).decode()
    return _Packed(packed, _digest(source))


def _digest(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


def _policy(*digests: str) -> str:
    """Return a policy that allows only scripts with these digests and no network requests."""
    return (
        f"default-src 'none'; script-src {' '.join(digests)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
