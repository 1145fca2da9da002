"""The pages Server, Configuration and Audit."""

from itertools import groupby
from typing import Final

import msgspec
from starlette.responses import Response

from millrace.admin.client import SHIPPED_WITHIN
from millrace.admin.errors import AdminError
from millrace.records import (
    AuditNote,
    AuditPage,
    Flush,
    ListAudit,
    Ok,
    Overview,
    ServerStatus,
    SetQlessOption,
    Setting,
    ShippingStatus,
)
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.render import page

MOST_AUDIT: Final = 100
#: Confirmation text that deletes all data.
FLUSH: Final = "FLUSH"


async def server(visit: Visit) -> Response:
    detail = await visit.ask(ServerStatus, server=True)
    commit = (await visit.ask(Overview, overview=True)).commit
    try:
        journal, without = await visit.ask(ShippingStatus, journal=True), ""
    except AdminError as error:
        journal, without = None, str(error)
    return page(
        visit,
        "server.html",
        server=detail,
        commit=commit,
        journal=journal,
        without=without,
        flush_word=FLUSH,
    )


async def ship(visit: Visit) -> Response:
    await visit.room.control.ask(ShippingStatus, patience=SHIPPED_WITHIN, ship=True)
    await visit.ask(Ok, note=AuditNote("ship", by=visit.by))
    return visit.back("/server", "All committed events are in the lake.")


async def flush(visit: Visit) -> Response:
    form = await visit.form()
    if form.one("sure") != FLUSH:
        raise Refusal(400, f"No data was deleted. Type {FLUSH} to confirm.")
    await visit.ask(Ok, flush=Flush(by=visit.by))
    return visit.back("/server", "Deleted all jobs, queues and statistics.")


async def configuration(visit: Visit) -> Response:
    detail = await visit.ask(ServerStatus, server=True)
    return page(
        visit,
        "configuration.html",
        sections=_sections(detail.settings),
        qless=_qless(detail),
    )


async def qless(visit: Visit) -> Response:
    detail = await visit.ask(ServerStatus, server=True)
    return page(visit, "qless.html", qless=_qless(detail))


async def set_qless(visit: Visit) -> Response:
    form = await visit.form()
    option, action = form.one("option"), form.one("action", "set")
    if not option:
        raise Refusal(400, "Name the setting.")
    if action not in {"set", "unset"}:
        raise Refusal(400, f'"{action}" cannot be done to a setting: it can be set and unset')
    value = form.one("value") if action == "set" else None
    await visit.ask(Ok, set_qless=SetQlessOption(option, value, visit.by))
    said = f"Set {option} to {value}." if value is not None else f"Reset {option} to its default."
    return visit.back("/configuration/qless", said)


async def audit(visit: Visit) -> Response:
    text = visit.query("before", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refusal(400, "`before` must be the number of an entry.")
    found = await visit.ask(AuditPage, audit=ListAudit(int(text), MOST_AUDIT))
    return page(visit, "audit.html", audit=found.audit, more=found.more, before=int(text))


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


DOORS: Final = [
    Door("/server", server, role="read"),
    Door("/server/ship", ship, role="operate", methods=("POST",)),
    Door("/server/flush", flush, role="admin", methods=("POST",)),
    Door("/configuration", configuration, role="admin"),
    Door("/configuration/qless", qless, role="read"),
    Door("/configuration/qless", set_qless, role="operate", methods=("POST",)),
    Door("/audit", audit, role="admin"),
]
