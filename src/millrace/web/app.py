"""The ASGI application: all routes, and the headers of all responses."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from . import api, metrics, routes, static_files
from .doors import Door, Refusal, Visit, refuse
from .state import Room

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
#: Pages load scripts and other resources only from this server.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: A valid path prefix. Links, redirects and cookies contain it.
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
MOST_PREFIX: Final = 200


def doors() -> list[BaseRoute]:
    return [*static_files.DOORS, *metrics.DOORS, *api.DOORS, *routes.DOORS]


def application(room: Room) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    app = Starlette(routes=doors(), exception_handlers={404: _lost, 405: _wrong, 500: _broken})
    app.router.redirect_slashes = False  # its redirects use the Host header
    app.state.room = room
    return Frame(app)


class Frame:
    """Adds the standard headers to every response and handles the path prefix of a proxy."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _take_off_prefix(scope)

        async def framed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                there = {name.lower() for name, _ in headers}
                for name, value in (*HEADERS.items(), ("Content-Security-Policy", POLICY)):
                    if name.lower().encode() not in there:
                        headers.append((name.lower().encode(), value.encode()))
                if b"cache-control" not in there:
                    headers.append((b"cache-control", b"no-store"))
            await send(message)

        await self._app(scope, receive, framed)


def _take_off_prefix(scope: Scope) -> None:
    """Apply the header `X-Script-Name: /work`, as Faktory does. A proxy serves the pages under this
    path, and may or may not remove it from requests. A client that sends the header changes only
    the links in its own responses.
    """
    told = next((value for name, value in scope["headers"] if name == b"x-script-name"), b"")
    prefix = told.decode("latin-1").rstrip("/")
    if len(prefix) <= MOST_PREFIX and _PREFIX.fullmatch(prefix):
        scope["root_path"] = prefix
        if not scope["path"].startswith(prefix + "/") and scope["path"] != prefix:
            scope["path"] = prefix + scope["path"]


async def _lost(request: Request, _: Exception) -> Response:
    return _refuse(request, Refusal(404, "No page matches this address."))


async def _wrong(request: Request, _: Exception) -> Response:
    allowed = sorted({
        method
        for route in request.app.routes
        if isinstance(route, Door) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    })  # fmt: skip
    return _refuse(
        request,
        Refusal(
            405,
            f"Method {request.method} is not allowed for this path.",
            {"Allow": ", ".join(allowed)},
        ),
    )


async def _broken(request: Request, _: Exception) -> Response:
    return _refuse(
        request, Refusal(500, "this is a defect of Millrace; the server's log tells more")
    )


def _refuse(request: Request, refusal: Refusal) -> Response:
    room: Room = request.app.state.room
    visit = Visit(request, room, room.gate.logged_in(request, room.settings))
    path = request.url.path.removeprefix(visit.prefix)
    return refuse(visit, "api" if path.startswith("/api/") else "page", refusal)
