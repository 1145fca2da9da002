"""Routes, access control and error responses.

A Door is a route with the minimum role that it requires; the role None admits all clients. If the
client has the role, the endpoint receives a Visit and returns the response.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from millrace.admin.errors import AdminError
from millrace.protocols.logins import TooManyGuesses

from .auth import (
    SAFE,
    Unknown,
    Visitor,
    address,
    is_browser,
    is_foreign,
    is_misnamed,
    is_private,
)
from .settings import Role, Settings
from .state import Room
from .urls import own_path

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Maximum size in bytes of a form, or of an API request that pushes no job.
MOST_BODY: Final = 1 << 20
#: Maximum total size in bytes of the bodies of all requests in progress.
MOST_HELD: Final = 128 << 20
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
    400: "Bad request",
    401: "Sign in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Request too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too many failed attempts",
    500: "Internal server error",
    503: "Server unavailable",
}
SAID: Final = "millrace_said"
#: Maximum characters of a message. A cookie holds 4096 bytes; a quoted character takes up to 12.
MOST_SAID: Final = 300


class Refusal(Exception):
    """The answer is an error."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


class Visit:
    """A request, its authenticated client and the shared state of the process."""

    def __init__(self, request: Request, room: Room, visitor: Visitor | None) -> None:
        self.request = request
        self.room = room
        self.visitor = visitor
        #: Bytes of the request body received so far.
        self.held = 0

    @property
    def settings(self) -> Settings:
        return self.room.settings

    @property
    def by(self) -> str:
        """The client's name and address, for the audit log."""
        name = f"{self.visitor.name} from " if self.visitor else ""
        return name + address(self.request)

    @property
    def prefix(self) -> str:
        """The path prefix under which a proxy serves the pages."""
        path: str = self.request.scope.get("root_path", "")
        return path

    def may(self, role: Role) -> bool:
        """Return True if the client has the role and read-only mode permits it."""
        if self.visitor is None or (self.settings.read_only and role != "read"):
            return False
        return self.visitor.may(role)

    async def ask(self, type_: type[T], **request: Any) -> T:
        return await self.room.control.ask(type_, **request)

    def path(self, name: str) -> str:
        """Return a path parameter, URL-decoded."""
        value: str = self.request.path_params[name]
        return value

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    async def body(self, most: int = MOST_BODY) -> bytes:
        """Read the whole body; refuse it if it exceeds `most` bytes."""
        found = bytearray()
        async for piece in self.request.stream():
            found += piece
            if len(found) > most:
                raise Refusal(413, f"The request body exceeds {most:,} bytes.")
            self.held += len(piece)
            self.room.held += len(piece)
            if self.room.held > MOST_HELD:
                reason = "Too many requests are being received. Try again."
                raise Refusal(503, reason, {"Retry-After": "1"})
        return bytes(found)

    async def form(self, most: int = MOST_BODY) -> "Form":
        """Read and parse the body as a URL-encoded form."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/x-www-form-urlencoded":
            raise Refusal(400, "Send a form with Content-Type: application/x-www-form-urlencoded.")
        try:
            pairs = parse_qsl(
                (await self.body(most)).decode(), keep_blank_values=True, max_num_fields=10_000
            )
        except ValueError as error:
            raise Refusal(400, f"Invalid form: {error}") from None
        return Form(pairs)

    def url(self, path: str) -> str:
        return self.prefix + path

    def back(self, path: str, said: str = "") -> Response:
        """Redirect to a page after an action; the page displays the message `said`."""
        response = RedirectResponse(self.url(own_path(path)), status_code=303)
        if said:
            response.set_cookie(
                SAID,
                quote(said[:MOST_SAID]),
                max_age=30,
                httponly=True,
                samesite="strict",
                secure=is_private(self.request),
            )
        return response


class Form(list[tuple[str, str]]):
    """Names and values of the fields, in the order of the form."""

    def one(self, name: str, default: str = "") -> str:
        return next((value for key, value in self if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self if key == name]


Endpoint = Callable[[Visit], Awaitable[Response]]
Kind = Literal["page", "api"]


class Door(Route):
    """`Door("/queues", queues, role="read")`. Routes that change data declare their methods."""

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
        # A path parameter can contain newlines. Starlette's `$` also matches before the last one.
        whole = self.path_regex.pattern.removesuffix("$") + r"\Z"
        self.path_regex = re.compile(whole, re.DOTALL)


def _entrance(door: Door) -> Callable[[Request], Awaitable[Response]]:
    async def enter(request: Request) -> Response:
        room: Room = request.app.state.room
        visit = Visit(request, room, None)
        try:
            _let_in(door, visit)
            response = await door.answer(visit)
        except AdminError as error:
            response = refuse(visit, door.kind, Refusal(STATUS[error.code], str(error)))
        except Refusal as error:
            response = refuse(visit, door.kind, error)
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            room.held -= visit.held
        if request.method == "HEAD" and isinstance(response, StreamingResponse):
            return Response(headers=response.headers)  # the stream would not end
        return response

    return enter


def _let_in(door: Door, visit: Visit) -> None:
    """Authenticate the client and check its role."""
    request, room = visit.request, visit.room
    if is_foreign(request):
        raise Refusal(403, "Cross-site request refused.")
    if door.role is None:
        visit.visitor = room.gate.logged_in(request, visit.settings)
        return
    if is_misnamed(request, visit.settings):
        raise Refusal(
            403,
            "Unknown host name. Without a password the server answers only to its own names. Add "
            "the name to web.hosts, or set web.password.",
        )
    try:
        visit.visitor = room.gate.visitor(request, visit.settings)
    except Unknown as error:
        if not error.again:
            room.note("login refused", str(request.url.path), address(request))
        raise Refusal(401, "Invalid password or token.") from None
    except TooManyGuesses as error:
        raise too_many(error) from None
    if visit.visitor is None:
        raise Refusal(401, "Sign in, or send a token (Authorization: Bearer ...).")
    if visit.settings.read_only and request.method not in SAFE:
        raise Refusal(403, "The web interface is read-only (web.read_only).")
    if not visit.visitor.may(door.role):
        raise Refusal(
            403, f'This requires the role "{door.role}"; yours is "{visit.visitor.role}".'
        )


def too_many(error: TooManyGuesses) -> Refusal:
    return Refusal(
        429,
        f"Too many failed attempts from your address. Try again in {error.seconds} s; "
        "tokens still work.",
        {"Retry-After": str(error.seconds)},
    )


def refuse(visit: Visit, kind: Kind, refusal: Refusal) -> Response:
    from .render import error_page  # noqa: PLC0415 - render imports this module

    request = visit.request
    if refusal.status == 401:
        if kind == "page" and request.method in SAFE and _is_reading(request):
            there = quote(_address(visit), safe="")
            return RedirectResponse(visit.url(f"/login?next={there}"), status_code=303)
        way = "Bearer" if is_browser(request) else "Basic"
        refusal.headers["WWW-Authenticate"] = f'{way} realm="Millrace"'
    if kind == "api":
        return problem(refusal.status, refusal.detail, refusal.headers)
    return error_page(visit, refusal)


def _is_reading(request: Request) -> bool:
    """Return True if a browser requests a page without an Authorization header."""
    return "text/html" in request.headers.get("accept", "") and "authorization" not in (
        request.headers
    )


def _address(visit: Visit) -> str:
    """Return the requested path and query, not decoded."""
    scope = visit.request.scope
    path: str = scope["raw_path"].decode("latin-1").removeprefix(visit.prefix)
    query: str = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the format of RFC 9457."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    body["detail"] = detail
    return Response(
        msgspec.json.encode(body), status, headers, media_type="application/problem+json"
    )
