"""Rendering of pages: templates, and filters for times, durations, sizes and untrusted text.

Templates escape all values. The server writes times in UTC; base.js converts them to the time zone
of the browser.
"""

import functools
import unicodedata
from collections.abc import Callable
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
from millrace.records import QUEUE_ACTIONS, RECURRING_ACTIONS, WORKER_ACTIONS, Record
from millrace.records.forms import field_docs, to_http

from .charts import spark
from .context import NOTICE_COOKIE, RequestContext
from .errors import TITLES, HttpError
from .urls import job_url

SECOND: Final = 1_000_000
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
    context: RequestContext, template: str, *, status: int = 200, charts: bool = False, **more: Any
) -> Response:
    """Render a page. With `charts`, the page loads charts.js."""
    notice = unquote(context.request.cookies.get(NOTICE_COOKIE, ""))
    frame = {"notice": notice, "charts": charts, "version": __version__}
    text = environment().get_template(template).render(context=context, **frame, **more)
    response = HTMLResponse(text, status)
    if notice:
        response.delete_cookie(NOTICE_COOKIE, httponly=True, samesite="strict")
    return response


def error_page(context: RequestContext, refusal: HttpError) -> Response:
    title = TITLES.get(refusal.status, "Error")
    response = page(
        context,
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
            *(
                clean_text,
                time,
                relative_time,
                format_duration,
                count,
                size,
                rate,
                percent,
                day,
                priority,
                protocol,
            ),
            *(quote_path, quote_query, queue_url, job_url, quoted, json, spark, more_fields),
        )
    }
    made.globals |= {
        "queue_actions": tuple(QUEUE_ACTIONS.values()),
        "worker_actions": tuple(WORKER_ACTIONS.values()),
        "recurring_actions": tuple(RECURRING_ACTIONS.values()),
    }
    return made


# Filters


def clean_text(text: str, most: int = 0) -> str:
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
        return Markup("out of range")
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time class="{}" datetime="{}">{}</time>').format(kind, stamp, told)


def relative_time(at: int) -> Markup:
    """Format a time relative to now; base.js updates it."""
    return time(at, "ago")


def format_duration(microseconds: float | None) -> str:
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
        return "out of range"


def priority(rank: float) -> str:
    return f"{rank:g}"


def protocol(name: str) -> str:
    return "Admin socket" if name == "control" else PROTOCOLS.get(name, name) or "the server"


def quote_path(text: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(text, safe="")


def quote_query(text: str) -> str:
    """Quote a name as a value in a query string."""
    return quote(text, safe="")


def queue_url(name: str) -> str:
    """Return the path of a queue's page. Browsers normalize the path segments `.` and `..`."""
    if name in {"", ".", ".."}:
        return f"/queues/?name={quote_query(name)}"
    return f"/queues/{quote_path(name)}"


def more_fields(record: Record, *shown: str) -> list[tuple[str, Any]]:
    """The title and the text of each field that the page does not show elsewhere, unless empty."""
    texts: dict[str, Callable[[Any], str]] = {"time": time, "duration": format_duration}
    return [
        (title, texts[form](value) if form in texts else clean_text(str(value), 1000))
        for name, (title, form) in field_docs(type(record)).items()
        if name not in shown and (value := getattr(record, name))
    ]


def json(value: Any) -> str:
    """Encode a value as JSON for an attribute that scripts read; records as the API shows them."""
    if isinstance(value, list) and value and isinstance(value[0], Record):
        value = [to_http(each) for each in value]
    return msgspec.json.encode(value).decode()
