"""Where one may enter, who may, and what every answer has.

A door is a route with the least role that may use it; None is for everybody. Whoever has the role
gets a Visit, and the endpoint answers it.
"""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from .access import SAFE, Visitor, is_foreign, is_misnamed
from .control import ControlError
from .room import Room
from .settings import Role, Settings

log = logging.getLogger(__name__)
T = TypeVar("T")

#: What a form, or a request of the API that pushes no job, may have.
MOST_BODY: Final = 1 << 20
STATUS: Final = {
    "bad request": 400,
    "not found": 404,
    "conflict": 409,
    "refused": 403,
    "too large": 413,
    "stopped": 409,
    "unavailable": 503,
}
TITLES: Final = {
    400: "That cannot be done",
    401: "Who are you?",
    403: "That is not allowed",
    404: "There is no such thing",
    405: "That is not how it is done",
    409: "That is not possible now",
    413: "That is too large",
    422: "That cannot be understood",
    429: "Too many wrong passwords",
    500: "Something went wrong here",
    503: "The server cannot be asked",
}
SAID: Final = "millrace_said"


class Refusal(Exception):
    """The answer is an error."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


class Visit:
    """A request, whoever makes it, and what is needed to answer."""

    def __init__(self, request: Request, room: Room, visitor: Visitor | None) -> None:
        self.request = request
        self.room = room
        self.visitor = visitor

    @property
    def settings(self) -> Settings:
        return self.room.settings

    @property
    def by(self) -> str:
        """Who that is, for the audit log."""
        client = self.request.client
        return f"{self.visitor.name if self.visitor else '?'} from {client.host if client else '?'}"

    @property
    def prefix(self) -> str:
        """Where a proxy has put the pages: before every path."""
        path: str = self.request.scope.get("root_path", "")
        return path

    def may(self, role: Role) -> bool:
        """May the visitor do what needs that role?"""
        if self.visitor is None or (self.settings.read_only and role != "read"):
            return False
        return self.visitor.may(role)

    async def ask(self, type_: type[T], **request: Any) -> T:
        return await self.room.control.ask(type_, **request)

    def path(self, name: str) -> str:
        """A part of the path, as it was before it was put into an address."""
        value: str = self.request.path_params[name]
        return value

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    async def body(self, most: int = MOST_BODY) -> bytes:
        """All of it, if it is not too long."""
        found = bytearray()
        async for piece in self.request.stream():
            found += piece
            if len(found) > most:
                raise Refusal(413, f"more than {most:,} bytes were sent")
        return bytes(found)

    async def form(self) -> "Form":
        """What a form of one of the pages has sent."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/x-www-form-urlencoded":
            raise Refusal(400, "a form was expected (application/x-www-form-urlencoded)")
        try:
            pairs = parse_qsl(
                (await self.body()).decode(), keep_blank_values=True, max_num_fields=10_000
            )
        except ValueError as error:
            raise Refusal(400, f"the form cannot be read: {error}") from None
        return Form(pairs)

    async def json(self, type_: type[T], most: int = MOST_BODY) -> T:
        """The body, which must be that."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":
            raise Refusal(415, "JSON was expected (Content-Type: application/json)")
        try:
            return msgspec.json.decode(await self.body(most), type=type_)
        except msgspec.ValidationError as error:
            raise Refusal(422, str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refusal(400, f"the body is no JSON: {error}") from None

    def url(self, path: str) -> str:
        return self.prefix + path

    def back(self, path: str, said: str = "") -> Response:
        """After something was done: to that page, which says so."""
        response = RedirectResponse(self.url(path), status_code=303)
        if said:
            response.set_cookie(
                SAID, quote(said[:500]), max_age=30, httponly=True, samesite="strict"
            )
        return response


class Form(list[tuple[str, str]]):
    """Names and values, in their order."""

    def one(self, name: str, default: str = "") -> str:
        return next((value for key, value in self if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self if key == name]


Endpoint = Callable[[Visit], Awaitable[Response]]
Kind = Literal["page", "api"]


class Door(Route):
    """`Door("/queues", queues, role="read")`. What changes something says so by its methods."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        *,
        role: Role | None,
        methods: tuple[str, ...] = ("GET",),
        kind: Kind = "page",
        name: str | None = None,
    ) -> None:
        self.role, self.kind, self.answer = role, kind, endpoint
        name = name or endpoint.__name__
        super().__init__(path, _entrance(self), methods=list(methods), name=name)


def _entrance(door: Door) -> Callable[[Request], Awaitable[Response]]:
    async def enter(request: Request) -> Response:
        room: Room = request.app.state.room
        visit = Visit(request, room, room.gate.visitor(request, room.settings))
        try:
            _check(door, visit)
            return await door.answer(visit)
        except ControlError as error:
            refusal = Refusal(STATUS[error.code], str(error))
        except Refusal as error:
            refusal = error
        except ClientDisconnect:
            return Response(status_code=400)
        return refuse(visit, door.kind, refusal)

    return enter


def _check(door: Door, visit: Visit) -> None:
    request = visit.request
    if is_misnamed(request, visit.settings):
        raise Refusal(
            403,
            "this server asks for no password, so it is only served under its own name: set "
            "web.hosts to the names that browsers may use, or a web.password",
        )
    if is_foreign(request):
        raise Refusal(403, "a page of another site may change nothing here")
    if door.role is None:
        return
    if visit.visitor is None:
        raise Refusal(401, "log in, or send a token (Authorization: Bearer ...)")
    if visit.settings.read_only and request.method not in SAFE:
        raise Refusal(403, "this server's pages are read-only (web.read_only)")
    if not visit.visitor.may(door.role):
        raise Refusal(403, f"this needs the role {door.role}; you have {visit.visitor.role}")


def refuse(visit: Visit, kind: Kind, refusal: Refusal) -> Response:
    from .rendering import error_page  # noqa: PLC0415 - templates draw on doors

    if kind == "api":
        headers = dict(refusal.headers)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="Millrace"'
        return problem(refusal.status, refusal.detail, headers)
    accepts = visit.request.headers.get("accept", "")
    if refusal.status == 401 and "text/html" in accepts and visit.request.method in SAFE:
        there = quote(visit.request.url.path, safe="/")
        if visit.request.url.query:
            there += quote("?" + visit.request.url.query, safe="")
        return RedirectResponse(visit.url(f"/login?next={there}"), status_code=303)
    return error_page(visit, refusal)


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """RFC 9457."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    body["detail"] = detail
    return Response(
        msgspec.json.encode(body), status, headers, media_type="application/problem+json"
    )
