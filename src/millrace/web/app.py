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
from .context import RequestContext
from .errors import HttpError
from .routing import PageRoute, refuse
from .state import AppState

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
MAX_PREFIX_LENGTH: Final = 200


def page_routes() -> list[PageRoute]:
    """The routes outside the HTTP API."""
    return [*routes.ROUTES, *metrics.ROUTES, *static_files.ROUTES]


def all_routes() -> list[BaseRoute]:
    return [*api.ROUTES, *page_routes()]


def application(app_state: AppState) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    app = Starlette(routes=all_routes(), exception_handlers={404: _lost, 405: _wrong, 500: _broken})
    app.router.redirect_slashes = False  # its redirects use the Host header
    app.state.app_state = app_state
    app.state.menu = [route for route in routes.ROUTES if route.menu]
    return SecurityHeaders(app)


class SecurityHeaders:
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
    if len(prefix) <= MAX_PREFIX_LENGTH and _PREFIX.fullmatch(prefix):
        scope["root_path"] = prefix
        if not scope["path"].startswith(prefix + "/") and scope["path"] != prefix:
            scope["path"] = prefix + scope["path"]


async def _lost(request: Request, _: Exception) -> Response:
    return _refuse(request, HttpError(404, "No page matches this address."))


async def _wrong(request: Request, _: Exception) -> Response:
    allowed = sorted({
        method
        for route in request.app.routes
        if isinstance(route, PageRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    })  # fmt: skip
    return _refuse(
        request,
        HttpError(
            405,
            f"Method {request.method} is not allowed for this path.",
            {"Allow": ", ".join(allowed)},
        ),
    )


async def _broken(request: Request, _: Exception) -> Response:
    return _refuse(request, HttpError(500, "Unexpected error. See the server log for details."))


def _refuse(request: Request, refusal: HttpError) -> Response:
    app_state: AppState = request.app.state.app_state
    context = RequestContext(
        request, app_state, app_state.authenticator.logged_in(request, app_state.settings)
    )
    path = request.url.path.removeprefix(context.prefix)
    return refuse(context, "api" if path.startswith("/api/") else "page", refusal)
