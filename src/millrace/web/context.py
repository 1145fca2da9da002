"""A request with its authenticated user, and the fields of its form."""

from datetime import date
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millrace.admin.errors import AdminError

from .auth import User, address, is_https
from .errors import HttpError
from .settings import Role, WebSettings
from .state import AppState
from .urls import own_path

T = TypeVar("T")

#: Maximum size in bytes of a form, or of an API request that pushes no job.
MAX_BODY_BYTES: Final = 1 << 20
#: Maximum total size in bytes of the bodies of all requests in progress.
MAX_BUFFERED_BYTES: Final = 128 << 20
NOTICE_COOKIE: Final = "millrace_notice"
#: Maximum characters of a message. A cookie holds 4096 bytes; a quoted character takes up to 12.
MAX_NOTICE_LENGTH: Final = 300


class RequestContext:
    """A request, its authenticated client and the shared state of the process."""

    def __init__(self, request: Request, app_state: AppState, user: User | None) -> None:
        self.request = request
        self.app_state = app_state
        self.user = user
        #: Bytes of the request body received so far.
        self.held = 0

    @property
    def settings(self) -> WebSettings:
        return self.app_state.settings

    @property
    def by(self) -> str:
        """The client's name and address, for the audit log."""
        name = f"{self.user.name} from " if self.user else ""
        return name + address(self.request)

    @property
    def prefix(self) -> str:
        """The path prefix under which a proxy serves the pages."""
        path: str = self.request.scope.get("root_path", "")
        return path

    def may(self, role: Role) -> bool:
        """Return True if the client has the role and read-only mode permits it."""
        if self.user is None or (self.settings.read_only and role != "read"):
            return False
        return self.user.may(role)

    async def ask(self, type_: type[T], **request: Any) -> T:
        return await self.app_state.control.ask(type_, **request)

    async def find(self, type_: type[T], **request: Any) -> T | None:
        """The same, or None if the target does not exist."""
        try:
            return await self.ask(type_, **request)
        except AdminError as error:
            if error.code != "not found":
                raise
            return None

    def path(self, name: str) -> str:
        """Return a path parameter, URL-decoded."""
        value: str = self.request.path_params[name]
        return value

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    async def body(self, most: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body; refuse it if it exceeds `most` bytes."""
        found = bytearray()
        async for piece in self.request.stream():
            found += piece
            if len(found) > most:
                raise HttpError(413, f"The request body exceeds {most:,} bytes.")
            self.held += len(piece)
            self.app_state.held += len(piece)
            if self.app_state.held > MAX_BUFFERED_BYTES:
                reason = "Too many requests are being received. Try again."
                raise HttpError(503, reason, {"Retry-After": "1"})
        return bytes(found)

    async def form(self, most: int = MAX_BODY_BYTES) -> "Form":
        """Read and parse the body as a URL-encoded form."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/x-www-form-urlencoded":
            raise HttpError(
                400, "Send a form with Content-Type: application/x-www-form-urlencoded."
            )
        try:
            pairs = parse_qsl(
                (await self.body(most)).decode(), keep_blank_values=True, max_num_fields=10_000
            )
        except ValueError as error:
            raise HttpError(400, f"Invalid form: {error}") from None
        return Form(pairs)

    def url(self, path: str) -> str:
        return self.prefix + path

    def redirect(self, path: str, notice: str = "") -> Response:
        """Redirect to a page after an action; the page displays the notice."""
        response = RedirectResponse(self.url(own_path(path)), status_code=303)
        if notice:
            response.set_cookie(
                NOTICE_COOKIE,
                quote(notice[:MAX_NOTICE_LENGTH]),
                max_age=30,
                httponly=True,
                samesite="strict",
                secure=is_https(self.request),
            )
        return response


def parse_date(name: str, text: str | None) -> date | None:
    """Return the date that a parameter has, such as 2026-11-16; None without one."""
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise HttpError(400, f"`{name}` is not a valid day: {text[:60]}") from None


def day_number(name: str, text: str | None) -> int:
    """Return the date as the number of days since 1970; -1 without one."""
    found = parse_date(name, text)
    if found is None:
        return -1
    if found < date(1970, 1, 1):
        raise HttpError(400, f"`{name}` must not be before 1970-01-01.")
    return (found - date(1970, 1, 1)).days


class Form(list[tuple[str, str]]):
    """Names and values of the fields, in the order of the form."""

    def one(self, name: str, default: str = "") -> str:
        return next((value for key, value in self if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self if key == name]
