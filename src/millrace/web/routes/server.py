"""The pages Server, Configuration and Audit."""

from itertools import groupby
from typing import Final

import msgspec
from starlette.responses import Response

from millrace.admin.client import SHIP_TIMEOUT
from millrace.admin.errors import AdminError
from millrace.records import (
    AuditNote,
    AuditPage,
    FlushRequest,
    ListAudit,
    Ok,
    Overview,
    ServerStatus,
    SetQlessOption,
    Setting,
    ShippingStatus,
)
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.render import page
from millrace.web.routing import PageRoute, form_route

AUDIT_PAGE_SIZE: Final = 100
#: Confirmation text that deletes all data.
FLUSH: Final = "FLUSH"


async def server(context: RequestContext) -> Response:
    detail = await context.ask(ServerStatus, server=True)
    commit = (await context.ask(Overview, overview=True)).commit
    try:
        journal, without = await context.ask(ShippingStatus, journal=True), ""
    except AdminError as error:
        journal, without = None, str(error)
    return page(
        context,
        "server.html",
        server=detail,
        commit=commit,
        journal=journal,
        without=without,
        flush_word=FLUSH,
    )


async def ship(context: RequestContext) -> Response:
    await context.app_state.control.ask(ShippingStatus, patience=SHIP_TIMEOUT, ship=True)
    await context.ask(Ok, note=AuditNote("ship", by=context.by))
    return context.redirect("/server", "All committed events are in the lake.")


async def flush(context: RequestContext) -> Response:
    form = await context.form()
    if form.one("sure") != FLUSH:
        raise HttpError(400, f"No data was deleted. Type {FLUSH} to confirm.")
    await context.ask(Ok, flush=FlushRequest(by=context.by))
    return context.redirect("/server", "Deleted all jobs, queues and statistics.")


async def configuration(context: RequestContext) -> Response:
    detail = await context.ask(ServerStatus, server=True)
    return page(
        context, "configuration.html", sections=_sections(detail.settings), qless=_qless(detail)
    )


async def qless(context: RequestContext) -> Response:
    detail = await context.ask(ServerStatus, server=True)
    return page(context, "qless.html", qless=_qless(detail))


async def set_qless(context: RequestContext) -> Response:
    form = await context.form()
    option, action = form.one("option"), form.one("action", "set")
    if not option:
        raise HttpError(400, "Name the setting.")
    if action not in {"set", "unset"}:
        raise HttpError(400, "Unknown action for a setting. Use set or unset.")
    value = form.one("value") if action == "set" else None
    await context.ask(Ok, set_qless=SetQlessOption(option, value, context.by))
    notice = f"Set {option} to {value}." if value is not None else f"Reset {option} to its default."
    return context.redirect("/configuration/qless", notice)


async def audit(context: RequestContext) -> Response:
    text = context.query("before", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HttpError(400, "`before` must be the number of an entry.")
    found = await context.ask(AuditPage, audit=ListAudit(AUDIT_PAGE_SIZE, int(text)))
    return page(context, "audit.html", audit=found.audit, more=found.next, before=int(text))


def _sections(settings: list[Setting]) -> list[tuple[str, list[Setting]]]:
    return [
        (name, list(rows))
        for name, rows in groupby(settings, key=lambda each: each.key.partition(".")[0])
    ]


def _qless(detail: ServerStatus) -> list[tuple[str, str]]:
    """Return the Qless settings, with values in the form in which a user enters them."""
    return sorted(
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in detail.qless.items()
    )


ROUTES: Final = [
    PageRoute(
        "/server",
        server,
        "version, uptime, memory, store, disk, journal and shipping",
        menu="Server",
    ),
    form_route("/server/ship", ship, "ship pending events now"),
    form_route("/server/flush", flush, "delete all data", role="admin"),
    PageRoute(
        "/configuration",
        configuration,
        "every key with its value and source; secrets are hidden",
        role="admin",
        menu="Configuration",
    ),
    PageRoute("/configuration/qless", qless, "the Qless settings"),
    form_route("/configuration/qless", set_qless, "change or remove a Qless setting"),
    PageRoute(
        "/audit", audit, "changes, sign-ins and refused sign-ins", role="admin", menu="Audit"
    ),
]
