"""All doors together, and what every answer has."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from . import api, metrics, pages, static
from .doors import Refusal, Visit, refuse
from .room import Room

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
#: Scripts are ours alone; so is whatever else is loaded.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def doors() -> list[BaseRoute]:
    return [*static.DOORS, *metrics.DOORS, *api.DOORS, *pages.DOORS]


def application(room: Room) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    app = Starlette(routes=doors(), exception_handlers={404: _lost, 405: _wrong, 500: _broken})
    app.state.room = room
    return Frame(app)


class Frame:
    """Puts our headers onto every answer, and takes a proxy's prefix off the path."""

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
    """`X-Script-Name: /jobs`, as Faktory's pages know it: a proxy serves us under that path."""
    for name, value in scope["headers"]:
        if name == b"x-script-name":
            prefix = value.decode("latin-1").rstrip("/")
            if prefix.startswith("/") and "//" not in prefix and prefix.isprintable():
                scope["root_path"] = prefix
                if not scope["path"].startswith(prefix + "/") and scope["path"] != prefix:
                    scope["path"] = prefix + scope["path"]


async def _lost(request: Request, _: Exception) -> Response:
    return _refuse(request, Refusal(404, "there is nothing at this address"))


async def _wrong(request: Request, _: Exception) -> Response:
    return _refuse(request, Refusal(405, f"{request.method} is not what this address is for"))


async def _broken(request: Request, _: Exception) -> Response:
    return _refuse(
        request, Refusal(500, "this is a defect of Millrace; the server's log tells more")
    )


def _refuse(request: Request, refusal: Refusal) -> Response:
    room: Room = request.app.state.room
    visit = Visit(request, room, room.gate.visitor(request, room.settings))
    path = request.url.path.removeprefix(visit.prefix)
    return refuse(visit, "api" if path.startswith("/api/") else "page", refusal)
