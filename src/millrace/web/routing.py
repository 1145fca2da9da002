"""Routes, access control and error responses.

A PageRoute has the minimum role that it requires; the role None admits all clients. If the client
has the role, the endpoint receives a RequestContext and returns the response.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Literal
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from millrace.admin.errors import AdminError
from millrace.protocols.logins import TooManyGuesses

from .auth import SAFE, InvalidCredentials, address, is_browser, is_cross_site, is_unknown_host
from .context import RequestContext
from .errors import STATUS, HttpError, problem
from .settings import Role
from .state import AppState

Endpoint = Callable[[RequestContext], Awaitable[Response]]
Kind = Literal["page", "api"]


class PageRoute(Route):
    """`PageRoute("/queues", queues, "all queues")`.

    `about` describes the page or the form for the reference. A page with a title in `menu` has an
    entry in the menu; if it is `counted`, the entry displays a count, which base.js updates.
    """

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        about: str,
        *,
        role: Role | None = "read",
        method: str = "GET",
        kind: Kind = "page",
        menu: str = "",
        counted: bool = False,
    ) -> None:
        self.role, self.kind, self.answer = role, kind, endpoint
        self.about, self.menu, self.counted = about, menu, counted
        super().__init__(path, _handler_of(self), methods=[method])
        # A path parameter can contain newlines. Starlette's `$` also matches before the last one.
        whole = self.path_regex.pattern.removesuffix("$") + r"\Z"
        self.path_regex = re.compile(whole, re.DOTALL)


def form_route(
    path: str, endpoint: Endpoint, about: str, *, role: Role | None = "operate"
) -> PageRoute:
    """The route of a form that changes something."""
    return PageRoute(path, endpoint, about, role=role, method="POST")


def _handler_of(route: PageRoute) -> Callable[[Request], Awaitable[Response]]:
    async def enter(request: Request) -> Response:
        app_state: AppState = request.app.state.app_state
        context = RequestContext(request, app_state, None)
        try:
            _authorize(route, context)
            response = await route.answer(context)
        except AdminError as error:
            response = refuse(context, route.kind, HttpError(STATUS[error.code], str(error)))
        except HttpError as error:
            response = refuse(context, route.kind, error)
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            app_state.held -= context.held
        if request.method == "HEAD" and isinstance(response, StreamingResponse):
            return Response(headers=response.headers)  # the stream would not end
        return response

    return enter


def _authorize(route: PageRoute, context: RequestContext) -> None:
    """Authenticate the client and check its role."""
    request, app_state = context.request, context.app_state
    if is_cross_site(request):
        raise HttpError(403, "Cross-site request refused.")
    if route.role is None:
        context.user = app_state.authenticator.logged_in(request, context.settings)
        return
    if is_unknown_host(request, context.settings):
        raise HttpError(
            403,
            "Unknown host name. Without a password the server answers only to its own names. Add "
            "the name to web.hosts, or set web.password.",
        )
    try:
        context.user = app_state.authenticator.user(request, context.settings)
    except InvalidCredentials as error:
        if not error.again:
            app_state.note("login refused", str(request.url.path), address(request))
        raise HttpError(401, "Invalid password or token.") from None
    except TooManyGuesses as error:
        raise too_many(error) from None
    if context.user is None:
        raise HttpError(401, "Sign in, or send a token (Authorization: Bearer ...).")
    if context.settings.read_only and request.method not in SAFE:
        raise HttpError(403, "The web interface is read-only (web.read_only).")
    if not context.user.may(route.role):
        raise HttpError(
            403, f'This requires the role "{route.role}"; yours is "{context.user.role}".'
        )


def too_many(error: TooManyGuesses) -> HttpError:
    return HttpError(
        429,
        f"Too many failed attempts from your address. Try again in {error.seconds} s; "
        "tokens still work.",
        {"Retry-After": str(error.seconds)},
    )


def refuse(context: RequestContext, kind: Kind, refusal: HttpError) -> Response:
    from .render import error_page  # noqa: PLC0415 - render imports this module

    request = context.request
    if refusal.status == 401:
        if kind == "page" and request.method in SAFE and _is_reading(request):
            there = quote(_address(context), safe="")
            return RedirectResponse(context.url(f"/login?next={there}"), status_code=303)
        way = "Bearer" if is_browser(request) else "Basic"
        refusal.headers["WWW-Authenticate"] = f'{way} realm="Millrace"'
    if kind == "api":
        return problem(refusal.status, refusal.detail, refusal.headers)
    return error_page(context, refusal)


def _is_reading(request: Request) -> bool:
    """Return True if a browser requests a page without an Authorization header."""
    return "text/html" in request.headers.get("accept", "") and "authorization" not in (
        request.headers
    )


def _address(context: RequestContext) -> str:
    """Return the requested path and query, not decoded."""
    scope = context.request.scope
    path: str = scope["raw_path"].decode("latin-1").removeprefix(context.prefix)
    query: str = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path
