"""Rendering of pages: templates, and filters for times, durations, sizes and untrusted text.

Templates escape all values. The server writes times in UTC; base.js converts them to the time zone
of the browser.
"""

import functools
import unicodedata
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from millrace import __version__
from millrace.admin.query_language import quoted
from millrace.pipeline.report.page import PROTOCOLS, UNSHOWN
from millrace.pipeline.report.page import span as in_seconds

from .charts import spark
from .doors import SAID, TITLES, Refusal, Visit
from .urls import job_path

SECOND: Final = 1_000_000
#: The entries of the menu: path and title.
MENU: Final = (
    ("/", "Overview"),
    ("/queues", "Queues"),
    ("/jobs", "Jobs"),
    ("/busy", "Workers"),
    ("/retries", "Retries"),
    ("/scheduled", "Scheduled"),
    ("/morgue", "Dead"),
    ("/failures", "Failures"),
    ("/completed", "Completed"),
    ("/recurring", "Recurring"),
    ("/tracked", "Tracked"),
    ("/tags", "Tags"),
    ("/analytics", "Analytics"),
    ("/server", "Server"),
    ("/configuration", "Configuration"),
    ("/audit", "Audit"),
)
#: Menu entries that display a count; base.js updates the counts.
COUNTED: Final = frozenset({"/queues", "/busy", "/retries", "/scheduled", "/morgue"})
#: Policy for the report: Plotly uses inline styles. Scripts are loaded only from this server.
REPORT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
NONE: Final = "\N{EN DASH}"
#: Replacements for line breaks and tabs, for example in error messages.
_SHOWN_AS: Final = str.maketrans(
    {"\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\r": "", "\t": " "}
)


def page(
    visit: Visit, template: str, *, status: int = 200, charts: bool = False, **more: Any
) -> Response:
    """Render a page. With `charts`, the page loads charts.js."""
    said = unquote(visit.request.cookies.get(SAID, ""))
    frame = {"said": said, "charts": charts, "version": __version__, "menu": MENU}
    template_ = environment().get_template(template)
    text = template_.render(visit=visit, counted=COUNTED, **frame, **more)
    response = HTMLResponse(text, status)
    if said:
        response.delete_cookie(SAID, httponly=True, samesite="strict")
    return response


def error_page(visit: Visit, refusal: Refusal) -> Response:
    title = TITLES.get(refusal.status, "Error")
    response = page(
        visit,
        "error.html",
        status=refusal.status,
        title=title,
        detail=refusal.detail,
        number=refusal.status,
    )
    response.headers.update(refusal.headers)
    return response


@functools.cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("millrace.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        f.__name__: f
        for f in (
            *(shown, time, ago, span, count, size, rate, percent, day, priority, protocol),
            *(in_path, in_query, to_queue, job_path, quoted, json, spark),
        )
    }
    return made


# Filters


def shown(text: str, most: int = 0) -> str:
    """Return untrusted text on one line, without control characters, truncated to `most`."""
    if most and len(text) > most:
        text = text[: most - 1] + "…"
    text = text.translate(_SHOWN_AS)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in UNSHOWN else c for c in text
    )


def time(at: int, kind: str = "") -> Markup:
    """Format a time in microseconds; base.js converts it to the browser's time zone."""
    if not at:
        return escape(NONE)
    try:
        moment = datetime.fromtimestamp(at / SECOND, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("beyond all calendars")
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time class="{}" datetime="{}">{}</time>').format(kind, stamp, told)


def ago(at: int) -> Markup:
    """Format a time relative to now; base.js updates it."""
    return time(at, "ago")


def span(microseconds: float | None) -> str:
    """Format a duration: `1.2 ms`, `3 min 20 s`."""
    return in_seconds(None if microseconds is None else microseconds / SECOND)


def count(number: float) -> str:
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Format a number of bytes."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return (
                f"{number / unit:.3g} {name}"
                if number < 1000 * unit
                else f"{number / unit:.0f} {name}"
            )
    return f"{number:.0f} B"


def rate(number: float) -> str:
    """Format a rate per second."""
    return f"{number:,.1f}" if number < 10 else f"{number:,.0f}"


def percent(part: float | None) -> str:
    return NONE if part is None else f"{part:.1%}" if 0 < part < 0.1 else f"{part:.0%}"


def day(number: int) -> str:
    """Format a date given in days since 1970."""
    try:
        return f"{date(1970, 1, 1) + timedelta(number)}"
    except OverflowError:
        return "beyond all calendars"


def priority(rank: float) -> str:
    return f"{rank:g}"


def protocol(name: str) -> str:
    return PROTOCOLS.get(name, name) or "the server"


def in_path(text: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(text, safe="")


def in_query(text: str) -> str:
    """Quote a name as a value in a query string."""
    return quote(text, safe="")


def to_queue(name: str) -> str:
    """Return the path of a queue's page. Browsers normalize the path segments `.` and `..`."""
    if name in {"", ".", ".."}:
        return f"/queues/?name={in_query(name)}"
    return f"/queues/{in_path(name)}"


def json(value: Any) -> str:
    """Encode a value as JSON for an attribute that scripts read."""
    return msgspec.json.encode(value).decode()
